"""SQL queries, their prompt, and views, which keep the rows that a query chose."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo._version import VERSION
from tensorrepo.catalog.sql import session_of, sql, tables_of
from tensorrepo.cli import output
from tensorrepo.cli.options import (
    CommandCall,
    RepoCall,
    VerticalOption,
    WholeBytesOption,
    complete_place,
    complete_ref,
    json_pair,
)
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.connect import Machine
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.dataset.schema.cells import value_text
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.formats.views import StoredView, diff_views, open_view
from tensorrepo.query.sql.duck import MEMORY, DuckSession
from tensorrepo.query.sql.functions import NAMES
from tensorrepo.query.sql.names import quoted
from tensorrepo.query.sql.results import Result, rows_of
from tensorrepo.query.untrusted.sandbox import QueryLimits
from tensorrepo.repo.errors import Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.verbs.views import REFRESH_LIMITS
from tensorrepo.workspace.change import stage_view, staged_view, view_path
from tensorrepo.workspace.session import WorkspaceSession as WorkSession

MARK = "tensorrepo> "
MORE = "       ...> "
WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "AS", "AND", "OR",
    "NOT", "IN", "BETWEEN", "DESCRIBE", "SHOW TABLES", "SUMMARIZE", "EXPLAIN", "count(*)",
    "row_id", "row_number",
)  # fmt: skip


HELP = """\
A query ends in a semicolon, and may go over several lines:
  SELECT label, count(*) FROM photos GROUP BY label;
Tables are datasets and views, as photos; at another commit, as "photos@v1".

  .tables, \\dt       which tables there are (SHOW TABLES;)
  .schema T, \\d T    columns of a table and their types (DESCRIBE T;)
  .help, \\?          this
  .quit, .exit, \\q   leave, as Ctrl-D does; Ctrl-C drops what is typed, or stops a query"""
LEAVE = ("quit", "exit", ".quit", ".exit", "\\q", ".q")
HELPS = ("help", ".help", "\\?", "\\h", "?", ".h")
TABLES = (".tables", "\\dt", "\\d")
SCHEMA = (".schema", "\\d")


def prompt(
    ask: Callable[[str], None], tables: Callable[[], Iterable[str]], machine: Machine, where: str
) -> None:
    """Read queries until the end of input; each ends with a semicolon.

    Args:
        ask: answers one.
        tables: names of tables, for completion.
        machine: machine whose home keeps the history.
        where: what is asked, for the banner.

    Raises:
        UnsupportedError: prompt_toolkit is not installed.
    """
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            "the prompt needs prompt_toolkit: `pip install tensorrepo[sql]`; or give a query"
        ) from error
    words = [*WORDS, *sorted(NAMES), *sorted(tables())]
    lines: Any = PromptSession(
        history=FileHistory(str(_history(machine))),
        completer=WordCompleter(words, ignore_case=True),
    )
    output.note(f"tensorrepo {VERSION}, SQL over {where}. A query ends in ; and .help tells more.")
    converse(lines.prompt, ask)


def converse(read: Callable[[str], str], ask: Callable[[str], None]) -> None:
    """`ask` each query that `read` gives, line by line; Ctrl-C leaves one, Ctrl-D all.

    A line alone may be a word of other prompts: of sqlite's, psql's or a shell's.
    """
    waiting: list[str] = []
    while True:
        try:
            line = read(MORE if waiting else MARK)
            word = line.strip().rstrip(";").rstrip()
            if not waiting and word.lower() in LEAVE:
                return
            if not waiting and is_command(word):
                obey(word, ask)
                continue
            if waiting or line.strip():
                waiting.append(line)
            if line.rstrip().endswith(";"):
                query, waiting = "\n".join(waiting), []
                ask(query)
        except KeyboardInterrupt:
            if not waiting:
                output.note("Ctrl-D or .quit leaves.")
            waiting = []
        except EOFError:
            return
        except Error as error:
            output.failure(error)


def is_command(word: str) -> bool:
    """Whether a line is for the prompt, and no SQL."""
    return word.lower() in HELPS or word[:1] in (".", "\\")


def obey(word: str, ask: Callable[[str], None]) -> None:
    """Do what a line for the prompt says.

    Raises:
        InvalidInputError: it is none of those.
    """
    name, _, rest = word.partition(" ")
    if word.lower() in HELPS:
        output.line(HELP)
    elif name.lower() in SCHEMA and rest.strip():
        table = rest.strip()
        ask(f"DESCRIBE {table if table[:1] == chr(34) else quoted(table)}")
    elif word.lower() in TABLES:
        ask("SHOW TABLES")
    else:
        known = {*HELPS, *LEAVE, *TABLES, *SCHEMA}
        hint = did_you_mean(name, sorted(known), ".help lists what there is.")
        raise InvalidInputError(f"the prompt knows no {word!r:.80}.{hint}")


def _history(machine: Machine) -> Path:
    state = machine.environment.get("XDG_STATE_HOME")
    base = machine.cwd / state if state else machine.home / ".local" / "state"
    folder = base / "tensorrepo"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "sql_history"


FORMATS = ("table", "csv", "json", "parquet", "arrow")
_SUFFIXES = {
    ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".parquet": "parquet",
    ".arrow": "arrow",
}  # fmt: skip
BINARY = ("parquet", "arrow")
SHOWN_ROWS = 100


def sql_command(
    call: RepoCall,
    query: Annotated[
        str | None, Argument(help="In DuckDB's SQL; - or nothing: read it from stdin.")
    ] = None,
    form: Annotated[str | None, Option("--format", help=f"One of {', '.join(FORMATS)}.")] = None,
    target: Annotated[
        str | None, Option("--to", metavar="FILE", help="Write the rows there.")
    ] = None,
    ref: Annotated[
        str | None,
        Option("--ref", help="Commit of names without one.", autocompletion=complete_ref),
    ] = None,
    param: Annotated[
        list[str] | None,
        Option("--param", metavar="NAME=VALUE", help="What $NAME stands for; repeatable."),
    ] = None,
    memory: Annotated[str, Option(help="Bytes for sorting, joining and grouping.")] = MEMORY,
    untrusted: Annotated[
        bool, Option("--untrusted", help="One SELECT, in a process that can reach nothing.")
    ] = False,
    seconds: Annotated[
        float, Option(min=0.01, help="With --untrusted: stop it after so long.")
    ] = 10.0,
    vertical: VerticalOption = False,
    whole_bytes: WholeBytesOption = "1KiB",
) -> None:
    """Ask datasets and the catalog in SQL.

    Tables are datasets and views, as fashion; at another commit, as "fashion@v1". Columns row_id
    and row_number are there for who names them; l2, cosine, dot, tensor_shape and element(t, i, j)
    compute of tensors. Without a query, on a terminal, it asks for one after the other.

    Examples:
        tensorrepo sql "SELECT label, count(*) FROM fashion GROUP BY label"
        tensorrepo sql 'SELECT count(*) FROM "fashion@v1"' --format json
        tensorrepo sql 'SELECT * FROM fashion WHERE label = $l' --param l=bag --to rows.parquet
        tensorrepo sql --untrusted --seconds 2 "SELECT 1"
    """
    handle = handle_of(call)
    session = call.session
    at = _commit(session, ref)
    path = None if target is None else call.path(target)
    chosen = _format("json" if call.as_json and form is None else form, path)
    show = partial(
        show_result, form=chosen, path=path, vertical=vertical,
        whole_bytes=byte_size("--bytes", whole_bytes),
    )  # fmt: skip
    tables = tables_of(handle.context, at)
    params = dict(json_pair(each, "--param") for each in param or ()) or None
    size = byte_size("--memory", memory, 1)
    if query is None and _is_terminal():
        if untrusted:
            raise InvalidInputError("--untrusted answers one query: give it, or - to read it")
        if path is not None:
            raise InvalidInputError("--to keeps the rows of one query: give it, or - to read it")
        connection = session_of(handle.context, tables, size)
        where = f"{session.repository.url} at {at:.12}"
        prompt(partial(_ask, connection, params, show), tables.known, session.machine, where)
        return
    text = sys.stdin.read() if query in (None, "-") else str(query)
    limits = QueryLimits(seconds=seconds, memory_bytes=size) if untrusted else None

    def answer(text: str) -> None:
        show(sql(handle.context, text, ref=at, params=params, memory=f"{size}B", untrusted=limits))

    word = text.strip().rstrip(";").rstrip()
    if is_command(word) and "\n" not in word:
        obey(word, answer)
    else:
        answer(text)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _commit(session: WorkSession, ref: str | None) -> str:
    """The commit of names without one; of a workspace HEAD, where it has a commit."""
    if ref is not None:
        return session.resolve(ref).digest
    tip = None if session.workspace is None else session.tip()
    return "main" if tip is None else tip


def _ask(
    connection: DuckSession,
    params: dict[str, Any] | None,
    show: Callable[[Result], None],
    text: str,
) -> None:
    """Answer one query of the prompt: with the parameters that it names, for it need not all."""
    named = connection.parameters(text) if params else frozenset()
    used = {name: value for name, value in (params or {}).items() if name in named}
    show(connection.query(text, used or None))


def _format(form: str | None, path: Path | None) -> str:
    """The format that is meant; of a file by its suffix."""
    if path is not None and path.is_dir():
        raise InvalidInputError(f"cannot write {path}: it is a folder; name a file in it")
    if form is None:
        form = "table" if path is None else _SUFFIXES.get(path.suffix.lower())
    if form is None:
        raise InvalidInputError(
            f"cannot tell the format of {path} by its name: expected one that ends in "
            f"{', '.join(_SUFFIXES)}, or --format"
        )
    if form not in FORMATS:
        raise InvalidInputError(f"--format {form}: expected one of {', '.join(FORMATS)}")
    if form in BINARY and path is None:
        raise InvalidInputError(f"{form} is no text: name a file with --to")
    return form


def show_result(
    result: Result, form: str, path: Path | None, whole_bytes: int, *, vertical: bool = False
) -> None:
    """The rows, on standard output or in a file, which holds bytes whole."""
    if path is not None:
        _write(result, form, path)
    elif form == "table":
        rows, more = result.head(SHOWN_ROWS)
        if result.columns:
            most = output.cell_characters(vertical=vertical)
            cells = [[value_text(value, most) for value in row] for row in rows]
            output.data_table(result.columns, cells, vertical=vertical)
        if more:
            output.note(f"the first {SHOWN_ROWS} rows: --to FILE or --format csv gives all")
    elif form == "json":
        _json_rows(result, output.raw, whole_bytes)
    else:
        _TEXTS[form](result, output.raw)


def _write(result: Result, form: str, path: Path) -> None:
    """All rows in a file, which is there when all of them are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # A name of its own: the user may have a .part there, and two of us may write at once.
    part = path.with_name(f".{path.name:.100}.{secrets.token_hex(8)}.part")
    try:
        if form == "parquet":
            with pq.ParquetWriter(part, result.schema) as writer:
                for batch in result.batches():
                    writer.write_batch(batch)
        elif form == "arrow":
            with pa.ipc.new_file(str(part), result.schema) as writer:
                for batch in result.batches():
                    writer.write_batch(batch)
        else:
            with part.open("wb") as file:
                _TEXTS[form](result, lambda data: file.write(data) and None)
        part.replace(path)
    except OSError as error:
        raise InvalidInputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def _csv(result: Result, write: Callable[[bytes], Any]) -> None:
    import csv
    import io

    def lines(rows: Iterable[Iterable[Any]]) -> bytes:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue().encode()

    write(lines([result.columns]))
    for batch in result.batches():
        write(lines(rows_of(batch)))


def _json_rows(
    result: Result, write: Callable[[bytes], Any], whole_bytes: int | None = None
) -> None:
    for row in result:
        write(f"{output.json_text(value_json(row, whole_bytes))}\n".encode())


def _table(result: Result, write: Callable[[bytes], Any]) -> None:
    cells = [
        [value_text(value, None) for value in row]
        for batch in result.batches()
        for row in rows_of(batch)
    ]
    write("".join(f"{line}\n" for line in output.data_lines(result.columns, cells)).encode())


_TEXTS: dict[str, Callable[[Any, Callable[[bytes], Any]], None]] = {
    "csv": _csv,
    "json": _json_rows,
    "table": _table,
}


NameArgument = Annotated[str, Argument(metavar="NAME", help="Of the view.")]


def view_create_command(
    call: CommandCall,
    name: NameArgument,
    query: Annotated[str, Argument(help="SQL whose column row_id says which rows.")],
    replace: Annotated[bool, Option("--replace", help="The name may be taken.")] = False,
) -> None:
    """Choose rows of a dataset of HEAD by a query, and stage which they are.

    A view is read, streamed, exported and queried as a dataset is. It keeps its rows when the
    dataset changes; `view refresh` asks again.

    Examples:
        tensorrepo view create rare "SELECT row_id FROM fashion WHERE label = 'bag'"
    """
    session, handle = call.session, handle_of(call)
    made = stage_view(session, handle.context, name, query, replace=replace)
    text = f"{view_path(name)}: {output.counted(made.rows, 'row')} of {made.path}, staged"
    call.answer(_document(view_path(name), made), text)


def view_refresh_command(
    call: CommandCall,
    name: NameArgument,
    seconds: Annotated[
        float, Option(min=0.01, help="Stop the query after so long.")
    ] = REFRESH_LIMITS.seconds,
    memory: Annotated[str, Option(help="Bytes that the query may take.")] = MEMORY,
) -> None:
    """Ask the query of a view again, of what HEAD has now, and stage the answer.

    Somebody else may have written it, so a process that can reach nothing answers it. A query that
    needs more, or temporary files, is asked by `view create --replace`.

    Examples:
        tensorrepo view refresh rare
        tensorrepo view refresh rare --seconds 3600
    """
    size = byte_size("--memory", memory, 1)
    limits = replace(REFRESH_LIMITS, seconds=seconds, memory_bytes=size)
    session, handle = call.session, handle_of(call)
    before = staged_view(session, name)
    after = stage_view(session, handle.context, name, before.sql, replace=True, limits=limits)
    diff = diff_views(before, after)
    counts = {"added": len(diff.added), "removed": len(diff.removed)}
    text = f"{view_path(name)}: {output.counted(after.rows, 'row')} ({diff.summary}), staged"
    call.answer(_document(view_path(name), after) | counts, text)


def view_ls_command(
    call: RepoCall,
    ref: Annotated[str | None, Argument(help="Commit; HEAD if none is given.")] = None,
) -> None:
    """List the views of a commit.

    Examples:
        tensorrepo view ls
        tensorrepo view ls v1
    """
    session = call.session
    tree, objects = session.resolve(ref).commit.tree, session.repository.objects
    views = [
        (path, open_view(objects, entry.digest))
        for path, entry in session.repository.entries(tree, "views/")
        if entry.kind is Kind.VIEW
    ]
    columns = {
        "view": lambda named: named[0],
        ">rows": lambda named: f"{named[1].rows:,}",
        "of": lambda named: named[1].path,
        "query": lambda named: named[1].sql,
    }
    call.show(views, columns, document=lambda named: _document(*named))


def view_show_command(
    call: RepoCall,
    name: Annotated[
        str, Argument(metavar="[REF:]NAME", help="A view.", autocompletion=complete_place)
    ],
) -> None:
    """Show what a view is of: its query, dataset and commit.

    Examples:
        tensorrepo view show rare
        tensorrepo view show v1:rare --json
    """
    session = call.session
    _, path, entry = session.find(name)
    if entry.kind is not Kind.VIEW:
        raise InvalidInputError(f"{path} is a {entry.kind.label}, not a view")
    view = open_view(session.repository.objects, entry.digest)
    query = output.printable(view.sql, keep="\n")
    call.answer(
        _document(path, view),
        f"{path}  {output.counted(view.rows, 'row')} in {output.counted(len(view.runs), 'run')}",
        f"of      {output.printable(view.path)} ({view.dataset:.12}) at commit {view.commit:.12}",
        f"query   {query}",
    )


def _document(path: str, view: StoredView) -> dict[str, Any]:
    queried = output.fields("dataset_path=path", "dataset", "commit", "sql")
    return {"path": path, "rows": view.rows, "runs": len(view.runs)} | queried(view)

"""Differences between commits and the origin of values: `diff`, `show`, `blame`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from typer import Argument, Exit, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.history import changes_of, commit_json, names_of, whole
from tensorrepo.cli.options import (
    ColumnsOption,
    CommandCall,
    RepoCall,
    WhereOption,
    column_names,
    complete_place,
    complete_ref_or_entry,
    entry_hint,
    sides,
    split_words,
)
from tensorrepo.query.compare.comparison import Comparison, is_under
from tensorrepo.query.compare.entry_change import shortened
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import PathChange
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.verbs.comparison import compare, compare_entry
from tensorrepo.workspace.session import WorkspaceSession, next_commit
from tensorrepo.workspace.status import status

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.read import StoredDataset
    from tensorrepo.query.compare.contents import DatasetChange

_T = TypeVar("_T")
_Wanted = tuple[list[str] | None, list[str] | None]  # columns and key that were asked for
FullOption = Annotated[
    bool, Option("--full", help="All lines of each entry, such as every tensor of a new model.")
]
StatOption = Annotated[bool, Option("--stat", help="A line for each entry.")]
SHOWN_ROWS = 20  # of each dataset, unless told


def show_command(
    call: RepoCall,
    what: Annotated[
        str | None, Argument(metavar="REF[:PATH]", autocompletion=complete_place)
    ] = None,
    full: FullOption = False,
    stat: StatOption = False,
) -> None:
    """Show one commit and what it changed, or one entry of it.

    Examples:
        tensorrepo show
        tensorrepo show v1 --full
        tensorrepo show main:datasets/photos
    """
    session = call.session
    if what is not None and split_path(what)[1]:
        _show_entry(call, what, full=full)
        return
    try:
        revision = session.resolve(what)
    except NotFoundError as error:
        hint = f"{what!r} is no commit but an entry: `tensorrepo show HEAD:{{path}}`"
        raise entry_hint(session, what or "", hint, error) from None
    commit = revision.commit
    compared = changes_of(session, commit)
    names = names_of(session)
    if call.as_json:
        document = commit_json(revision.digest, commit, names)
        output.json_value(document | {"diff": compared.to_json()})
        return
    output.styled(whole(revision.digest, commit, names))
    output.lines(compared.lines(full=full, stat=stat))


def diff_command(
    call: RepoCall,
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="A B|A..B -- PATH",
            help="Two commits (B: HEAD); only these entries.",
            autocompletion=complete_ref_or_entry,
        ),
    ] = None,
    stat: StatOption = False,
    full: FullOption = False,
    rows: Annotated[
        bool, Option("--rows", help="Rows of datasets that changed, cell by cell.")
    ] = False,
    limit: Annotated[
        int | None,
        Option("-n", "--limit", min=1, help="Rows of each dataset; else 20, with --json all."),
    ] = None,
    key: Annotated[
        str | None,
        Option("--key", metavar="COL[,COL]", help="Match rows by these columns, not by id."),
    ] = None,
    columns: ColumnsOption = None,
    staged: Annotated[
        bool, Option("--staged", "--cached", help="Only what is staged, against HEAD.")
    ] = False,
    exit_code: Annotated[bool, Option("--exit-code", help="Exit with 1 when they differ.")] = False,
) -> None:
    """Show what differs between two commits; without any, what is staged and changed on disk.

    Examples:
        tensorrepo diff
        tensorrepo diff v1 main
        tensorrepo diff --staged
        tensorrepo diff v1..main --stat
        tensorrepo diff v1 main --rows --limit 5 -- datasets/photos
        tensorrepo diff v1 main --key id
        tensorrepo diff HEAD~1 HEAD -- datasets/photos
    """
    session = call.session
    revisions, paths = split_words(call, words)
    if staged and revisions:
        raise InvalidInputError(f"--staged is against HEAD: leave out {' '.join(revisions)}")
    compared = _compared(session, revisions, paths)
    if staged:
        compared = replace(compared, working=())
    if rows or key is not None or columns is not None:
        wanted = column_names(columns), column_names(key)
        if call.as_json:
            output.json_lines(_row_documents(compared, wanted, limit))
        else:
            output.lines(_row_lines(compared, wanted, SHOWN_ROWS if limit is None else limit))
    elif call.as_json:
        output.json_value(compared.to_json())
    else:
        output.lines(compared.lines(stat=stat, full=full))
    if exit_code and compared.differs:
        raise Exit(NOTHING_TO_DO)


def _row_lines(compared: Comparison, wanted: _Wanted, limit: int) -> Iterator[str]:
    columns, key = wanted
    lacking = _lacking(compared, wanted)
    for change in compared.changes:
        yield f"{change.mark} {change.path}{change.summary}"
        if change.path in lacking:
            yield f"    not compared: {lacking[change.path]}"
        elif isinstance(change, lazy.DatasetChange):
            lines = lazy.row_lines(change, columns=columns, key=key, limit=limit)
            yield from (f"    {line}" for line in _naming(change, lines))
    yield from compared.working


def _row_documents(
    compared: Comparison, wanted: _Wanted, limit: int | None
) -> Iterator[dict[str, Any]]:
    columns, key = wanted
    lacking = _lacking(compared, wanted)
    for path, reason in lacking.items():
        output.note(f"note: {path} is not compared: {reason}")
    for change in compared.datasets.values():
        if change.path not in lacking:
            documents = lazy.row_documents(change, columns=columns, key=key, limit=limit)
            yield from _naming(change, documents)


def _lacking(compared: Comparison, wanted: _Wanted) -> dict[str, str]:
    """The datasets that lack columns asked for, and which; NotFoundError where all do."""
    every = {path: change.lacks(*wanted) for path, change in compared.datasets.items()}
    lacking = {path: reason for path, reason in every.items() if reason is not None}
    if lacking and len(lacking) == len(every):
        raise NotFoundError("; ".join(f"{path}: {reason}" for path, reason in lacking.items()))
    return lacking


def _naming(change: DatasetChange, items: Iterator[_T]) -> Iterator[_T]:
    """`items`, whose errors name the dataset: there may be several."""
    try:
        yield from items
    except InvalidInputError as error:
        raise InvalidInputError(f"{change.path}: {error}") from error


def _compared(
    session: WorkspaceSession, revisions: list[str], paths: tuple[str, ...]
) -> Comparison:
    if not revisions and session.workspace is not None:
        return _compare_working(session, paths)
    if len(revisions) not in {1, 2}:
        raise InvalidInputError(
            f"a diff has two sides, A B or A..B, got {' '.join(revisions) or 'none'}. Paths come "
            "after --"
        )
    old, new = sides(revisions) or (revisions[0], revisions[1] if revisions[1:] else None)
    before, after = session.resolve(old), session.resolve(new)
    return compare(
        session.repository, before.commit.tree, after.commit.tree, paths, outside=session.outside
    )


def _compare_working(session: WorkspaceSession, paths: tuple[str, ...]) -> Comparison:
    """What is staged, and which written files changed on disk."""
    state = status(session)
    wanted = tuple(path.strip("/") for path in paths)
    changes, following = [], next_commit(session)
    for one in state.staged:
        if not wanted or is_under(one.path, wanted):
            change = PathChange(one.path, following.before(one.path), one.staged.entry)
            changes.append(compare_entry(session.repository, change, session.outside))
    lines = [
        f"{what:8} {tracked.path}{f'/{name}' if name else ''} (on disk, not staged)"
        for tracked in state.tracked
        for name, what in tracked.files.items()
        if not wanted or is_under(tracked.entry, wanted)
    ]
    return Comparison(tuple(changes), tuple(lines))


def _show_entry(call: CommandCall, what: str, *, full: bool) -> None:
    session = call.session
    revision, path, entry = session.find(what)
    described = lazy.describe_entry(session.repository.objects, path, entry)
    files = lazy.files_in_place(session.repository.objects, [entry])
    if call.as_json:
        document = {"commit": revision.digest, **described.to_json()}
        output.json_value({**document, "files_in_place": [asdict(file) for file in files]})
        return
    output.line(f"{described.path} ({described.kind}) in commit {revision.digest:.12}")
    output.line(
        f"  {described.content}, {output.bytes_text(described.bytes)}, digest {entry.digest}"
    )
    for detail in described.details if full else shortened(described.details):
        output.line(f"  {detail}")
    for text in lazy.files_text(files):
        output.line(f"  {text}")


def blame_command(
    call: RepoCall,
    name: Annotated[str, Argument(metavar="[REF:]DATASET", autocompletion=complete_place)],
    row: Annotated[
        str | None, Option("--row", metavar="N|ID", help="Its number, or its lasting id.")
    ] = None,
    where: WhereOption = None,
    columns: ColumnsOption = None,
) -> None:
    """Show which commits gave a row its values: who, when, and with what message.

    A row is found by its number, its id, or what holds for it alone. By id also one that was
    deleted: then it says which commit deleted it, and shows the values that it had.

    Examples:
        tensorrepo blame photos --row 7
        tensorrepo blame v1:photos --where "name == 'cat.png'"
        tensorrepo blame photos --row 629f6fbed82c07cd:3 --columns label
    """
    session = call.session
    revision, path, entry = session.find(name)
    if entry.kind is not Kind.DATASET:
        raise InvalidInputError(f"{path} is a {entry.kind.label}: only rows of datasets have blame")
    if (row is None) == (where is None):
        raise InvalidInputError("say which row is meant: --row N, --row ID or --where EXPR")
    objects = session.repository.objects
    if where is not None:
        row = str(_only_row(lazy.open_dataset(objects, entry.digest, session.outside), where))
    is_number = row is not None and row.removeprefix("-").isdigit()
    answer = lazy.blame(
        objects,
        path,
        revision.digest,
        row=int(row) if row is not None and is_number else None,
        row_id=None if is_number else row,
        columns=column_names(columns),
        outside=session.outside,
    )
    if call.as_json:
        output.json_value(answer.to_json())
    else:
        output.show_table(answer.to_table())


def _only_row(dataset: StoredDataset, where: str) -> int:
    """The number of the one row for which a condition holds."""
    found = lazy.condition_rows(dataset, lazy.row_selection(dataset, where))
    numbers = list(islice(chain.from_iterable(part.tolist() for part in found or ()), 2))
    if len(numbers) != 1:
        many = "no row" if not numbers else "several rows"
        raise NotFoundError(
            f"--where {where!r:.200} is true for {many}: blame is of one. `tensorrepo cat` with "
            "the same --where shows them."
        )
    return int(numbers[0])

"""Printing of commands: records as tables or JSON, text, progress and failures.

The only module that prints. Answers go to standard output, everything about the work itself to
standard error, so that a pipe sees answers alone. Color and bars appear on a terminal only.

With --json both are JSON Lines: an object for each record of the answer, and on standard error one
with the key "note", "warning" or "error".
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from functools import partial
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TextIO

import msgspec

from tensorrepo.formats.common import arguments
from tensorrepo.repo import tables
from tensorrepo.repo.errors import Error
from tensorrepo.repo.ids import Buffer

if TYPE_CHECKING:
    from rich.console import Console

bytes_text = tables.bytes_text
counted = tables.counted
number_text = arguments.number_text
printable = tables.printable
age_text = tables.age_text

_FOR_PROGRAMS: ContextVar[bool] = ContextVar("tensorrepo.for_programs", default=False)


@contextmanager
def answering(*, as_json: bool) -> Iterator[None]:
    """Inside, remarks and failures are JSON, as the answer is, where a command has --json."""
    token = _FOR_PROGRAMS.set(as_json)
    try:
        yield
    finally:
        _FOR_PROGRAMS.reset(token)


def line(text: str = "") -> None:
    """One line of the answer, or several; what a terminal would obey is escaped."""
    sys.stdout.write(_harmless(text) + "\n")


def lines(texts: Iterable[str]) -> None:
    """Lines of the answer, as they come."""
    for text in texts:
        line(text)


def styled(text: str) -> None:
    """One line of the answer with rich's markup; the caller escapes what a user named."""
    from rich.console import Console

    _render(Console(highlight=False, soft_wrap=True), _harmless(text))


def _harmless(text: str) -> str:
    # Here and not at each caller: names of tensors, metrics and classes come from strangers, too.
    return printable(text, keep="\n\t")


def _render(console: Console, shown: Any) -> None:
    """What rich makes of `shown`. It ends the process itself where a reader left; we do not."""
    with console.capture() as captured:
        console.print(shown)
    sys.stdout.write(captured.get())


def escape(text: str) -> str:
    """`text` as it is, inside of markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


def note(text: str) -> None:
    """A remark about the work, on standard error."""
    _aside("note", text, text)


def confirmed(question: str) -> bool:
    """Whether the user says yes; no where nobody can be asked."""
    if not sys.stdin.isatty():
        return False
    sys.stderr.write(f"{_harmless(question)} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def warning(text: str) -> None:
    """Something that the user should know, and that stops nothing."""
    _aside("warning", text, f"warning: {text}")


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """A warning of Python's, in the place of `warnings.showwarning`: no file, no line of code."""
    warning(str(message) if category is UserWarning else f"{category.__name__}: {message}")


def _aside(key: str, told: Any, text: str) -> None:
    shown = json_text({key: told}) if _FOR_PROGRAMS.get() else _harmless(text)
    sys.stderr.write(shown + "\n")


def show(
    records: Iterable[Any],
    columns: Mapping[str, Any],
    *,
    as_json: bool = False,
    document: Callable[[Any], Any] | None = None,
    empty: str | None = None,
) -> None:
    """Records as a table for people, or as lines of JSON for programs.

    Args:
        records: frozen records: dataclasses or msgspec structs.
        columns: headings of the table, those that begin with ">" aligned to the right, each with
            the attribute of a record, or the function of one, that fills the column.
        as_json: JSON instead of the table.
        document: a record as JSON, where that is not simply all of its fields; see `fields`.
        empty: remark instead of a table without rows; "" prints nothing; None the headings alone.
    """
    if as_json:
        json_lines(map(document or to_document, records))
        return
    shown = list(records)
    if shown or empty is None:
        cells = [attrgetter(cell) if isinstance(cell, str) else cell for cell in columns.values()]
        table(list(columns), ([cell(record) for cell in cells] for record in shown))
    elif empty:
        note(empty)


def to_document(record: Any) -> Any:
    """All fields of a frozen record, as JSON has them."""
    if is_dataclass(record) and not isinstance(record, type):
        return asdict(record)
    return msgspec.to_builtins(record)


def fields(*names: str) -> Callable[[Any], dict[str, Any]]:
    """A function from a record to its JSON: these attributes, in this order.

    "key=path.of.attributes" names one otherwise than it is called.
    """
    pairs = [(name.partition("=")[0], attrgetter(name.rpartition("=")[2])) for name in names]
    return lambda record: {key: _plain(getter(record)) for key, getter in pairs}


def _plain(value: Any) -> Any:
    # JSON has no mappings but dict: a view of one would be printed as its repr.
    return dict(value) if hasattr(value, "items") else value


def json_value(value: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """The answer for programs: one record, or several."""
    json_lines([value] if isinstance(value, Mapping) else value)


def json_lines(records: Iterable[Mapping[str, Any]]) -> None:
    """The answer for programs: an object on a line of its own for each record."""
    for record in records:
        sys.stdout.write(json_text(record) + "\n")


def json_text(value: Any) -> str:
    """JSON, which knows no NaN and no infinity: they are text in it, as in what is stored."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), ensure_ascii=False, default=str)
    # JSON escapes what is below U+0020 by itself. The rest stands inside of strings only.
    return text if text.isprintable() else _OBEYED.sub(_as_json_escape, text)


# What terminals obey beyond U+0020: C1 controls, and marks that reorder or break lines.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def _as_json_escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return number_text(value) if isinstance(value, float) and not isfinite(value) else value


def raw(data: Buffer) -> None:
    """Bytes of the answer, as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def encoding() -> str:
    """How standard output writes text."""
    return sys.stdout.encoding or "utf-8"


@contextmanager
def led_to(stream: TextIO) -> Iterator[None]:
    """Lead the answer into `stream` instead, all of it."""
    before, sys.stdout = sys.stdout, stream
    try:
        yield
        stream.flush()
    finally:
        sys.stdout = before


def open_closed_streams() -> None:
    """Put an empty file where the caller closed a standard stream, as `>&-` does.

    Python has None there, and the next file that is opened would get the stream's number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # until the process ends


def flush() -> None:
    """Hand over what was printed. Raises BrokenPipeError when the reader of a pipe left."""
    sys.stdout.flush()


def give_up() -> None:
    """Print no more: the reader of a pipe left (`| head`). Python would complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table without frames. Columns whose name begins with ">" are aligned to the right.

    Cells are folded to the width of a terminal; in a pipe they are whole, as in Python's print.
    """
    from rich.console import Console
    from rich.table import Table

    wide = Console(highlight=False, soft_wrap=False)
    if not wide.is_terminal:
        lines([title] if title else [])
        lines(tables.text_lines(columns, rows))
        return
    grid = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for name in columns:
        grid.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        grid.add_row(*(escape(printable(str(cell), keep="\n")) for cell in row))
    _render(wide, grid)


def show_table(shown: tables.RecordTable) -> None:
    """What Python's ``print`` shows of a record."""
    lines(printable(each) for each in shown.lines)
    if shown.columns:
        table(shown.columns, shown.rows)


CELL_CHARACTERS = 60


def cell_characters(*, vertical: bool) -> int | None:
    """How many characters of a value are shown; None: all of them."""
    return CELL_CHARACTERS if is_terminal() and not vertical else None


def data_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, vertical: bool) -> None:
    """Rows of data; where they are wider than the terminal, one value stands on a line."""
    room = shutil.get_terminal_size().columns if is_terminal() else None
    lines(data_lines(columns, rows, room, vertical=vertical))


def data_lines(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    room: int | None = None,
    *,
    vertical: bool = False,
) -> Iterator[str]:
    """Rows of data, no cell of them cut or folded, as lines.

    Args:
        columns: headings; see `table`.
        rows: cells of each row, all text on one line.
        room: cells of a terminal in a line; a row that takes more stands one value a line.
        vertical: one value a line anyway.
    """
    from rich.cells import cell_len

    cells, names = [tuple(row) for row in rows], [name.lstrip(">") for name in columns]
    widths = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    if vertical or (room is not None and sum(widths) + 2 * len(widths) - 2 > room):
        yield from _vertical(names, cells)
        return
    for row in (names, *cells):
        parts = []
        for cell, width, name in zip(row, widths, columns, strict=True):
            room_left = " " * (width - cell_len(cell))
            parts.append(room_left + cell if name.startswith(">") else cell + room_left)
        yield "  ".join(parts).rstrip()


def _vertical(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    width = max(map(len, names), default=0)
    for number, row in enumerate(rows):
        if number:
            yield ""
        yield from (f"{name:<{width}}  {cell}" for name, cell in zip(names, row, strict=True))


def leave(code: int) -> NoReturn:
    """End the process now, all output written, without taking the interpreter down first."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def failure(error: Error, exit_code: int | None = None) -> None:
    """What went wrong, on standard error; `exit_code` is what the command ends with, if it does."""
    if _FOR_PROGRAMS.get():
        failure_json(error.kind, _advised(error), exit_code, getattr(error, "conflicts", ()))
        return
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    message = _harmless(getattr(error, "brief", _advised(error)))
    console.print(f"[bold red]error[/bold red] ({error.kind}): {escape(message)}")
    for conflict in getattr(error, "conflicts", ()):
        console.print(
            f"  [red]conflict[/red] {escape(_harmless(f'{conflict.path}: {conflict.reason}'))}"
        )
        lines = (str(inside["line"]) for inside in getattr(conflict, "details", ()))
        for text in (text for text in lines if text not in conflict.reason):
            console.print(f"    {escape(_harmless(text))}")


def _advised(error: Error) -> str:
    """The message; of damage with the command that looks for all of it, where it names none."""
    text = str(error)
    if error.kind != "corrupt" or "fsck" in text or "bundle" in text:
        return text
    return f"{text.rstrip('.')}. `tensorrepo fsck --deep` finds what is damaged, --repair mends it."


def failure_json(
    kind: str, message: str, exit_code: int | None, conflicts: Iterable[Any] = ()
) -> None:
    """The same for programs; of a merge the paths in conflict, and what in them is contested."""
    told = {"kind": kind, "message": message, "exit_code": exit_code}
    document = fields("path", "kind", "base", "ours", "theirs", "reason", "details")
    contested = [
        document(conflict) | {"kind": conflict.kind.label if conflict.kind is not None else None}
        for conflict in conflicts
    ]
    sys.stderr.write(
        json_text({"error": told | ({"conflicts": contested} if contested else {})}) + "\n"
    )


def encodable(text: str, plainer: Mapping[int, str | int]) -> str:
    """`text`, translated by `plainer` where standard output cannot write it."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return text.translate(plainer)
    return text


def bug(error: Exception, exit_code: int) -> None:
    """Something that no message of ours foresaw, on standard error, without a traceback."""
    text = (
        f"{type(error).__name__}: {error}\nThis is a mistake of tensorrepo's, not yours. "
        "`tensorrepo status` shows where things stand. TENSORREPO_DEBUG=1 shows where it happened; "
        "please report it."
    )
    if _FOR_PROGRAMS.get():
        failure_json("bug", text, exit_code)
    else:
        note(f"error (bug): {text}")


class ByteProgress(Protocol):
    """Whatever receives bytes done so far, and those in all where that is known."""

    def __call__(self, done: int, total: int | None = None, /) -> None: ...


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[ByteProgress]:
    """A bar of bytes on a terminal; gives a function that takes those done so far, and all of them.

    Not on a terminal: nothing, so that logs stay readable.
    """
    with _bar(what, total, None) as update:
        yield lambda done, known=None: update(completed=done, total=known or total)


@contextmanager
def row_progress(what: str, unit: str = "rows") -> Iterator[Callable[..., None]]:
    """A bar of rows on a terminal; gives a function that takes the rows done and those in all.

    The function takes what is being done as well, where that changes.
    """
    with _bar(what, None, unit) as update:

        def advance(done: int, total: int, now: str = what, /) -> None:
            update(completed=done, total=total, description=now)

        yield advance


@contextmanager
def write_progress(what: str) -> Iterator[Callable[..., None]]:
    """A bar of whatever unit is told first: of rows, or of bytes; see `Progress` of a checkout."""
    with ExitStack() as bars:
        shown: dict[str, Callable[..., None]] = {}

        def tell(done: int, total: int, unit: str = "rows", /) -> None:
            if unit not in shown:
                bars.close()
                shown.clear()
                shown_unit = None if unit == "bytes" else unit
                shown[unit] = bars.enter_context(_bar(what, total, shown_unit))
            shown[unit](completed=done, total=total)

        yield tell


@contextmanager
def _bar(what: str, total: int | None, unit: str | None) -> Iterator[Callable[..., None]]:
    """A bar of so many of a unit; None: of bytes, and how fast they come."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda **_: None
        return
    from rich import progress as bars

    columns: tuple[bars.ProgressColumn, ...]
    if unit is None:
        columns = bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn()
    else:
        columns = bars.MofNCompleteColumn(), bars.TextColumn(unit)
    text, left = bars.TextColumn("{task.description}"), bars.TimeRemainingColumn()
    shown = (text, bars.BarColumn(), *columns, left)
    with bars.Progress(*shown, console=console, transient=True) as bar:
        yield partial(bar.update, bar.add_task(what, total=total))


@contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on a terminal, while something takes its time."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield

"""Printing of commands: records as tables or JSON, text, progress and failures.

The only module that prints. Answers go to standard output, everything about the work itself to
standard error, so that a pipe sees answers alone. Color and bars appear on a terminal only.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from functools import partial
from math import isfinite, isnan
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import msgspec

from tensorrepo.formats.common import arguments
from tensorrepo.repo.errors import ConflictError, Error

if TYPE_CHECKING:
    from rich.console import Console

bytes_text = arguments.bytes_text
counted = arguments.counted
printable = arguments.printable


def line(text: str = "") -> None:
    """One line of the answer, as it is."""
    sys.stdout.write(text + "\n")


def lines(texts: Iterable[str]) -> None:
    """Lines of the answer, as they come."""
    for text in texts:
        line(text)


def styled(text: str) -> None:
    """One line of the answer with rich's markup; the caller escapes what a user named."""
    from rich.console import Console

    _render(Console(highlight=False, soft_wrap=True), text)


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
    sys.stderr.write(text + "\n")


def warning(text: str) -> None:
    """Something that the user should know, and that stops nothing."""
    note(f"warning: {text}")


def show(
    records: Iterable[Any],
    columns: Mapping[str, Any],
    *,
    as_json: bool = False,
    document: Callable[[Any], Any] | None = None,
    empty: str | None = None,
) -> None:
    """Records as a table for people, or as one JSON list for programs.

    Args:
        records: frozen records: dataclasses or msgspec structs.
        columns: headings of the table, those that begin with ">" aligned to the right, each with
            the attribute of a record, or the function of one, that fills the column.
        as_json: JSON instead of the table.
        document: a record as JSON, where that is not simply all of its fields; see `fields`.
        empty: remark instead of a table without rows; "" prints nothing; None the headings alone.
    """
    shown = list(records)
    if as_json:
        json_value([(document or to_document)(record) for record in shown])
    elif shown or empty is None:
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


def json_value(value: Any) -> None:
    """The answer for programs: one JSON document, keys in a fixed order."""
    sys.stdout.write(json_text(value, indent=2) + "\n")


def json_lines(values: Iterable[Any]) -> None:
    """The answer for programs, when it may be long: one JSON document a line."""
    for value in values:
        sys.stdout.write(json_text(value) + "\n")


def json_text(value: Any, indent: int | None = None, default: Callable[[Any], Any] = str) -> str:
    """JSON, which knows no NaN and no infinity: they are text in it, as in what is stored."""
    try:
        return json.dumps(
            value, indent=indent, ensure_ascii=False, default=default, allow_nan=False
        )
    except ValueError:
        return json.dumps(_finite(value), indent=indent, ensure_ascii=False, default=default)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def raw(data: bytes | memoryview) -> None:
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


def flush() -> None:
    """Hand over what was printed. Raises BrokenPipeError when the reader of a pipe left."""
    sys.stdout.flush()


def give_up() -> None:
    """Print no more: the reader of a pipe left (`| head`). Python would complain at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
    """A table without frames. Columns whose name begins with ">" are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, title=title or None, title_justify="left")
    for name in columns:
        grid.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    for row in rows:
        grid.add_row(*(escape(printable(str(cell), keep="\n")) for cell in row))
    wide = Console(highlight=False, soft_wrap=False)
    if not wide.is_terminal:
        wide = Console(highlight=False, width=200)
    _render(wide, grid)


def leave(code: int) -> NoReturn:
    """End the process now, all output written, without taking the interpreter down first."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def failure(error: Error) -> None:
    """What went wrong, on standard error."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    message = getattr(error, "brief", str(error))
    console.print(f"[bold red]error[/bold red] ({error.kind}): {escape(message)}")
    for conflict in getattr(error, "conflicts", ()):
        console.print(f"  [red]conflict[/red] {escape(f'{conflict.path}: {conflict.reason}')}")
        lines = (str(inside["line"]) for inside in getattr(conflict, "details", ()))
        for text in (text for text in lines if text not in conflict.reason):
            console.print(f"    {escape(text)}")


@contextmanager
def conflicts_shown(*, as_json: bool) -> Iterator[None]:
    """Prints for programs what a merge, or the like, conflicts in, before it fails."""
    try:
        yield
    except ConflictError as error:
        if as_json:
            conflicts_json(error)
        raise


def conflicts_json(error: Error) -> None:
    """A merge that failed, for programs: paths in conflict, and what in them is contested."""
    document = fields("path", "kind", "base", "ours", "theirs", "reason", "details")
    conflicts = [
        document(conflict) | {"kind": conflict.kind.label if conflict.kind is not None else None}
        for conflict in getattr(error, "conflicts", ())
    ]
    json_value({"error": error.kind, "message": str(error), "conflicts": conflicts})


def encodable(text: str, plainer: Mapping[int, str | int]) -> str:
    """`text`, translated by `plainer` where standard output cannot write it."""
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return text.translate(plainer)
    return text


def bug(error: Exception) -> None:
    """Something that no message of ours foresaw, on standard error, without a traceback."""
    note(
        f"error (bug): {type(error).__name__}: {error}\nThis is a mistake of tensorrepo's, not "
        "yours. `tensorrepo status` shows where things stand. TENSORREPO_DEBUG=1 shows where it "
        "happened; please report it."
    )


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar of bytes on a terminal; gives a function that takes the bytes done so far.

    Not on a terminal: nothing, so that logs stay readable.
    """
    with _bar(what, total, None) as update:
        yield lambda done: update(completed=done)


@contextmanager
def row_progress(what: str, unit: str = "rows") -> Iterator[Callable[[int, int], None]]:
    """A bar of rows on a terminal; gives a function that takes the rows done and those in all."""
    with _bar(what, None, unit) as update:
        yield lambda done, total: update(completed=done, total=total)


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


def age_text(seconds: float) -> str:
    """How long ago, for people: ``3 hours``."""
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {name}{'s' if count != 1 else ''}"
    return "seconds"

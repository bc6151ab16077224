"""The only module that prints: text, tables, JSON, progress and failures.

Answers go to standard output, everything about the work itself to standard error, so that a pipe
sees answers alone. Colour and bars appear on a terminal only.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager, suppress
from math import isfinite, isnan
from typing import TYPE_CHECKING, Any, NoReturn

from tensorrepo.formats import wording
from tensorrepo.repo.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from tensorrepo.repo.errors import Error


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

    Console(highlight=False, soft_wrap=True).print(text)


def escape(text: str) -> str:
    """`text` as it is, inside of markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)


def printable(text: str, keep: str = "") -> str:
    """`text` without what a terminal would obey; see `wording.printable`."""
    return wording.printable(text, keep)


def note(text: str) -> None:
    """A remark about the work, on standard error."""
    sys.stderr.write(text + "\n")


def warning(text: str) -> None:
    """Something that the user should know, and that stops nothing."""
    note(f"warning: {text}")


def answer(value: Any, *told: str, as_json: bool) -> None:
    """What a command did: lines for people, `value` for programs."""
    if as_json:
        json_value(value)
        return
    for text in told:
        line(text)


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
    wide.print(grid)


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
    console.print(f"[bold red]error[/bold red] ({error.kind}): {escape(str(error))}")
    for conflict in getattr(error, "conflicts", ()):
        console.print(f"  [red]conflict[/red] {escape(_conflict(conflict))}")
        for inside in getattr(conflict, "details", ()):
            console.print(f"    {escape(str(inside['line']))}")


@contextmanager
def conflicts_told(*, as_json: bool) -> Iterator[None]:
    """Answers a program what a merge, or the like, conflicts in, before it fails."""
    try:
        yield
    except ConflictError as error:
        if as_json:
            conflicts_json(error)
        raise


def conflicts_json(error: Error) -> None:
    """A merge that failed, for programs: paths in conflict, and what in them is contested."""
    told = [
        {
            "path": conflict.path,
            "kind": conflict.kind.label if conflict.kind is not None else None,
            "base": conflict.base,
            "ours": conflict.ours,
            "theirs": conflict.theirs,
            "reason": conflict.reason,
            "details": list(conflict.details),
        }
        for conflict in getattr(error, "conflicts", ())
    ]
    json_value({"error": error.kind, "message": str(error), "conflicts": told})


def bug(error: Exception) -> None:
    """Something that no message of ours foresaw, on standard error, without a traceback."""
    note(
        f"error (bug): {type(error).__name__}: {error}\nThis is a mistake of tensorrepo's, not "
        "yours. `tensorrepo status` shows where things stand. TENSORREPO_DEBUG=1 shows where it "
        "happened; please report it."
    )


def _conflict(conflict: Any) -> str:
    return f"{conflict.path}: {conflict.reason}"


@contextmanager
def progress(what: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar of bytes on a terminal; gives a function that takes the bytes done so far.

    Not on a terminal: nothing, so that logs stay readable.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
        TransferSpeedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def row_progress(what: str, unit: str = "rows") -> Iterator[Callable[[int, int], None]]:
    """A bar of rows on a terminal; gives a function that takes the rows done and those in all."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _done, _total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TextColumn(unit), Left())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


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


def bytes_text(count: int) -> str:
    """A number of bytes for people: ``1.5 MiB``."""
    return wording.bytes_text(count)


def counted(count: int, noun: str) -> str:
    """So many of them, for people: ``1 file``, ``2,000 files``."""
    return wording.counted(count, noun)

"""Tables of records: text for terminals, HTML for notebooks and pages.

One description of a table serves both forms. A record that people look at inherits `Shown` and
says what its table is: ``print`` gives the text, a notebook the HTML, ``repr`` one line.

The HTML escapes whatever comes from data, inherits its colors, so that it is readable on light and
dark grounds, and is bounded: rows, columns and characters beyond a limit are counted, not shown.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from html import escape
from itertools import chain, islice
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeVar

from tensorrepo.repo.deferred_dataclass import dataclass

HTML_ROWS: Final = 50
HTML_COLUMNS: Final = 40
HTML_LINES: Final = 200
CELL_CHARACTERS: Final = 200
_NOT_WRAPPED: Final = 24  # characters of a cell that stays on one line
_ALIGNED = re.compile(r"\S {2,}\S|^ {2,}|[└├│▁█]")
_NAMED: Final = 8  # members of a list in its repr
_OBEYED: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # categories that a terminal acts upon
_JOINERS: Final = "\u200c\u200d"  # of letters and pictures: they stay

T = TypeVar("T")
Cell = str | Callable[[Any], object]  # path of an attribute, or function of a record


def printable(text: str, keep: str = "") -> str:
    """`text` without what a terminal would obey instead of showing it, escaped as Python does.

    `keep` are characters that stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(each)[1:-1]
        if each not in keep and each not in _JOINERS and unicodedata.category(each) in _OBEYED
        else each
        for each in text
    )


def moment_text(time_ns: int) -> str:
    """A time, UTC in ns, to the minute: ``2026-11-23 04:05``."""
    return f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%d %H:%M}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """``1 file``, ``2,000 files``, ``2 branches``."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def bytes_text(count: int) -> str:
    """``1.5 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_text(seconds: float) -> str:
    """How long ago, for people: ``3 hours``."""
    for name, size in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds >= size:
            return counted(int(seconds // size), name)
    return "less than a second"


def bounded_text(text: str, most: int = CELL_CHARACTERS) -> str:
    """`text`, of which at most so many characters are left."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A cell that is a small picture in HTML, and words in text.

    Attributes:
        words: text in its place.
        make: function that makes the picture, ``data:image/png;base64,...``, when HTML is asked
            for; None from it stands for a picture that cannot be made.
    """

    words: str
    make: Callable[[], str | None]

    def __str__(self) -> str:
        return self.words

    def html(self) -> str:
        """The picture, described by its words; the words alone where there is none."""
        uri, words = self.make(), escape(printable(bounded_text(self.words)))
        return words if uri is None else f'<img src="{escape(uri)}" alt="{words}" title="{words}">'


@dataclass(frozen=True, slots=True)
class RecordTable:
    """A table between lines.

    Attributes:
        lines: what stands above the table; the first is its title.
        columns: headings; those that begin with ">" are aligned to the right.
        rows: a tuple of cells each: text, numbers, or a `Thumbnail`.
        more: rows, where they are known, that the table leaves out.
    """

    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    more: int = 0

    @classmethod
    def of(
        cls,
        records: Iterable[Any],
        columns: Mapping[str, Cell],
        *lines: str,
        most: int | None = None,
    ) -> RecordTable:
        """A row for each of the first `most` records, or for each record.

        `columns` are headings, each with what fills its column: the name of an attribute, or a
        function of a record.
        """
        getters = [attrgetter(cell) if isinstance(cell, str) else cell for cell in columns.values()]
        rest = iter(records)
        rows = tuple(tuple(get(record) for get in getters) for record in islice(rest, most))
        more = 0 if most is None else sum(1 for _ in rest)
        return cls(lines, tuple(columns), rows, more)

    def text(self) -> str:
        """Lines of a terminal: columns side by side, nothing cut."""
        below = [f"... and {self.more:,} more"] if self.more else []
        lines = (printable(line) for line in self.lines)
        return "\n".join([*lines, *text_lines(self.columns, self.rows), *below])

    def html(self) -> str:
        """One element for a notebook or a page."""
        # Labels, trees and courses are aligned by letters that are equally wide.
        font = "monospace" if any(_ALIGNED.search(line) for line in self.lines) else "inherit"
        lines = [_line(line, font) for line in self.lines[:HTML_LINES]]
        if len(self.lines) > HTML_LINES:
            lines.append(_line(f"... and {counted(len(self.lines) - HTML_LINES, 'more line')}"))
        table = self._table() if self.columns else ""
        hidden = self.more + max(len(self.rows) - HTML_ROWS, 0)
        below = _line(f"... and {hidden:,} more") if hidden else ""
        return f'<div class="tensorrepo">{"".join(lines)}{table}{below}</div>'

    def _table(self) -> str:
        right = [name.startswith(">") for name in self.columns[:HTML_COLUMNS]]
        names = [name.removeprefix(">") for name in self.columns[:HTML_COLUMNS]]
        wide = len(self.columns) > HTML_COLUMNS
        head = [_cell("th", name, at_right) for name, at_right in zip(names, right, strict=True)]
        if wide:
            head.append(_cell("th", f"... {len(self.columns) - HTML_COLUMNS:,} more", False))
        rows = (
            "".join(_cell("td", cell, at_right) for cell, at_right in zip(row, right, strict=False))
            for row in self.rows[:HTML_ROWS]
        )
        body = "".join(f"<tr>{row}{'<td>...</td>' if wide else ''}</tr>" for row in rows)
        # A document without a doctype would give its tables a color of their own.
        return (
            f'<table style="color: inherit"><thead><tr>{"".join(head)}</tr></thead>'
            f"<tbody>{body}</tbody></table>"
        )


def text_lines(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    """Lines of a table: headings, then rows; a cell of several lines takes as many."""
    from rich.cells import cell_len

    headings = list(columns)
    if not headings:
        return
    names = [name.removeprefix(">") for name in headings]
    cells = [
        [printable(str(cell), keep="\n").split("\n") for cell in row]
        for row in chain([names], rows)
    ]
    widths = [
        max(cell_len(line) for cell in column for line in cell)
        for column in zip(*cells, strict=True)
    ]
    right = [name.startswith(">") for name in headings]
    for row in cells:
        for at in range(max(map(len, row))):
            parts = [cell[at] if at < len(cell) else "" for cell in row]
            rooms = [
                " " * (width - cell_len(part)) for part, width in zip(parts, widths, strict=True)
            ]
            shown = (
                room + part if at_right else part + room
                for part, room, at_right in zip(parts, rooms, right, strict=True)
            )
            yield "  ".join(shown).rstrip()


def _line(text: str, font: str = "inherit") -> str:
    shown = escape(printable(bounded_text(text, 1000)))
    return f'<div style="white-space: pre-wrap; font-family: {font}">{shown}</div>'


def _cell(tag: str, cell: object, at_right: bool) -> str:
    inside = cell.html() if isinstance(cell, Thumbnail) else _escaped(str(cell))
    side = "right" if at_right else "left"
    wrap = "; white-space: nowrap" if len(str(cell)) <= _NOT_WRAPPED else ""
    return f'<{tag} style="text-align: {side}; padding: 2px 8px{wrap}">{inside}</{tag}>'


def _escaped(text: str) -> str:
    return escape(printable(bounded_text(text), keep="\n")).replace("\n", "<br>")


class Shown:
    """What people look at: ``print`` gives its table as text, a notebook as HTML."""

    __slots__ = ()

    def to_table(self) -> RecordTable:
        """Its title, and what is in it."""
        raise NotImplementedError

    def __str__(self) -> str:
        return self.to_table().text()

    def _repr_html_(self) -> str:
        return self.to_table().html()

    def __repr__(self) -> str:
        return f"<{self.to_table().lines[0]}>"


class RecordList(Shown, list[T]):
    """A list of records: what a list is, and a table when it is printed."""

    columns: ClassVar[Mapping[str, Cell]] = {}

    def to_table(self) -> RecordTable:
        return RecordTable.of(self, self.columns)

    def __repr__(self) -> str:
        more = [f"... and {len(self) - _NAMED:,} more"] if len(self) > _NAMED else []
        return f"[{', '.join([*map(repr, self[:_NAMED]), *more])}]"


class RecordMap(Shown, dict[str, T]):
    """Records by name: what a dict is, and a table when it is printed.

    What fills `columns` are functions of a pair, name and record.
    """

    columns: ClassVar[Mapping[str, Cell]] = {}

    def to_table(self) -> RecordTable:
        return RecordTable.of(self.items(), self.columns)

    __repr__ = dict.__repr__

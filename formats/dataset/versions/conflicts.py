"""Merge conflicts of two versions: cells, rows, columns and properties.

A clash is one of these that both sides changed differently. It says so in a line for people, and as
JSON values for programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Literal

import numpy as np

from tensorrepo.formats.common.arguments import counted
from tensorrepo.repo.deferred_dataclass import dataclass

SHOWN_CLASHES = 20
SHOWN_LETTERS = 40

SideName = Literal["ours", "theirs"]


@dataclass(frozen=True, slots=True)
class Clash:
    """One contradiction: `line` tells it, `details` are the same as JSON values."""

    line: str
    details: Mapping[str, Any]


@dataclass(slots=True)
class Clashes:
    """The first contradictions of a merge, and how many there are in all."""

    first: list[Clash] = field(default_factory=list)
    count: int = 0

    @property
    def room(self) -> int:
        """How many more are worth describing."""
        return max(0, SHOWN_CLASHES - len(self.first))

    def add(self, clashes: Sequence[Clash], count: int | None = None) -> None:
        """Add `clashes`, the first of `count`."""
        self.count += len(clashes) if count is None else count
        self.first += clashes[: self.room]

    @property
    def reason(self) -> str:
        """All of them in one line."""
        more = self.count - 1
        others = f" (and {more:,} more in this dataset)" if more else ""
        return f"{self.first[0].line}{others}"

    def details(self) -> tuple[dict[str, Any], ...]:
        """The first ones as JSON values with their lines; then how many are left out."""
        told = [{**clash.details, "line": clash.line} for clash in self.first]
        if left := self.count - len(self.first):
            told.append({"what": "more", "count": left, "line": f"and {left:,} more"})
        return tuple(told)


def cell_clash(
    row_id: str, key: Mapping[str, Any], column: str, values: tuple[Any, Any, Any]
) -> Clash:
    """Both sides set a cell to different values: those of base, ours and theirs."""
    base, ours, theirs = map(shown_value, values)
    return Clash(
        f"row {_row(row_id, key)}, column {column!r}: {ours} in ours, {theirs} in theirs, "
        f"{base} before",
        {
            "what": "cell",
            "row_id": row_id,
            "key": {name: shown_value(value) for name, value in key.items()},
            "column": column,
            "base": base,
            "ours": ours,
            "theirs": theirs,
        },
    )


def row_clash(
    row_id: str, key: Mapping[str, Any], columns: Sequence[str], deleted_in: SideName
) -> Clash:
    """One side deleted a row, the other set cells of it."""
    return Clash(
        f"row {_row(row_id, key)}: deleted in {deleted_in}, {_named(columns)} changed in "
        f"{opposite(deleted_in)}",
        {
            "what": "row",
            "row_id": row_id,
            "key": {name: shown_value(value) for name, value in key.items()},
            "columns": list(columns),
            "deleted_in": deleted_in,
        },
    )


def column_clash(column: str, why: str) -> Clash:
    """Both sides changed a column, or its name, in ways that exclude each other."""
    return Clash(f"column {column!r}: {why}", {"what": "column", "column": column, "why": why})


def backfill_clash(column: str, added_in: SideName, rows: int) -> Clash:
    """One side added a column, the other rows that have no value for it."""
    noun = "row" if rows == 1 else "rows"
    return Clash(
        f"column {column!r}, added in {added_in}, needs a backfill of {rows:,} {noun} that "
        f"{opposite(added_in)} added: it has no default and takes no nulls",
        {"what": "backfill", "column": column, "added_in": added_in, "rows": rows},
    )


def replaced_clash(replaced_in: SideName) -> Clash:
    """One side wrote all rows anew, so that none is known, and the other changed rows."""
    line = f"all rows were replaced in {replaced_in}, and {opposite(replaced_in)} changed rows"
    return Clash(line, {"what": "replaced", "replaced_in": replaced_in})


def key_clash(columns: Sequence[str], broken: str) -> Clash:
    """The rows of both sides together break the promise of the dataset's key."""
    names = ", ".join(columns)
    line = f"no two rows may have the same {names}, the dataset's key, and together {broken}"
    return Clash(line, {"what": "key", "columns": list(columns), "broken": broken})


def property_clash(name: str, values: tuple[Any, Any, Any]) -> Clash:
    """Both sides set a property to different values: those of base, ours and theirs."""
    base, ours, theirs = map(shown_value, values)
    return Clash(
        f"property {name!r}: {ours} in ours, {theirs} in theirs, {base} before",
        {"what": "property", "property": name, "base": base, "ours": ours, "theirs": theirs},
    )


def opposite(side: SideName) -> SideName:
    """The other side."""
    return "theirs" if side == "ours" else "ours"


def shown_value(value: Any) -> str:
    """A value in a few letters."""
    if value is None:
        return "null"
    if isinstance(value, bytes | bytearray):
        return f"{counted(len(value), 'byte')} {bytes(value[:8]).hex()}"
    if isinstance(value, np.ndarray):
        first = ", ".join(str(each) for each in value.reshape(-1)[:3].tolist())
        more = ", ..." if value.size > 3 else ""
        return f"{value.dtype}{list(value.shape)} of [{first}{more}]"
    if isinstance(value, np.datetime64):
        return str(value)
    plain = value.item() if isinstance(value, np.generic) else value
    text = repr(plain)
    return text if len(text) <= SHOWN_LETTERS else f"{text[: SHOWN_LETTERS - 3]}..."


def _row(row_id: str, key: Mapping[str, Any]) -> str:
    named = ", ".join(f"{name}={shown_value(value)}" for name, value in key.items())
    return f"{row_id} ({named})" if named else row_id


def _named(columns: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in columns[:4])
    more = f" and {len(columns) - 4} more" if len(columns) > 4 else ""
    return f"{shown}{more}"

"""Change of one entry between two trees: its mark, its line, and the lines below it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import PathChange
from tensorrepo.repo.tables import RecordTable, Shown

SHOWN_DETAILS = 8  # lines of an entry, unless all are asked for


@dataclass(frozen=True, slots=True, repr=False)
class EntryChange(Shown):
    """One entry that differs. `mark` is "A" added, "D" deleted, "M" modified.

    `summary` follows the path on its line, `details` are lines below it; `inside` is the
    difference as JSON values.
    """

    mark: str
    path: str
    kind: str
    old: str | None
    new: str | None
    summary: str
    details: tuple[str, ...]
    inside: Any

    @property
    def has_rows(self) -> bool:
        """Whether it is the change of a dataset, whose rows can be asked for."""
        return False

    def to_table(self) -> RecordTable:
        """Its line, and those below it."""
        return RecordTable((f"{self.mark} {self.path}{self.summary}", *self.details))

    def to_json(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(EntryChange)}


def mark_of(change: PathChange) -> str:
    """What became of a path, as a letter: see `EntryChange`."""
    return "A" if change.old is None else "D" if change.new is None else "M"


def shortened(
    details: Sequence[str], hint: str = "--full", most: int = SHOWN_DETAILS
) -> Iterator[str]:
    """The first `most` of the lines that tell of an entry, and how many more there are."""
    shown = len(details) if len(details) <= most + 1 else most
    yield from details[:shown]
    if shown < len(details):
        yield f"... and {len(details) - shown:,} more ({hint})"

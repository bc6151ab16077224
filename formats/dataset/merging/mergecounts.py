"""What are the statistics of a merged dataset?

Bounds are those of both sides. Counts are those of the one side and of what the other added; rows
without pages are counted as what their default is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.columns.defaults import default_values
from tensorrepo.formats.dataset.columns.statistics import range_of
from tensorrepo.formats.dataset.columns.values import FixedValues
from tensorrepo.formats.dataset.columns.widen import widen_range
from tensorrepo.formats.dataset.tree.fragments import Fragment, read_fragments
from tensorrepo.formats.dataset.tree.spans import Tally
from tensorrepo.formats.dataset.tree.treewrite import known_entries

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.merging.mergerows import Side
    from tensorrepo.formats.dataset.merging.mergeschema import MergedRoot
    from tensorrepo.formats.dataset.read import Dataset


class MergedCounts:
    """Puts statistics right that go on from those of `joined`, which grew out of `onto`."""

    def __init__(self, joined: Dataset, onto: Side, other: Side, root: MergedRoot) -> None:
        self._joined = joined
        self._onto = onto
        self._other = other
        self._root = root

    def begin(self, tallies: Mapping[str, Tally], *, count_added: bool) -> None:
        """Before anything is edited: bounds of both sides, in the form of the merged columns.

        Args:
            tallies: by column id, changed here.
            count_added: whether fragments behind those of `onto` are not counted yet.
        """
        for column in self._root.schema.columns:
            self._widen(column, tallies[column.id])
        if count_added:
            first = sum(leaf.fragments for leaf in self._onto.dataset.root.leaves)
            for fragment in read_fragments(self._joined, first):
                self._count(fragment, tallies)

    def end(self, tallies: Mapping[str, Tally]) -> None:
        """After all edits: columns that `other` brought count as they did there."""
        for column_id in self._root.brought:
            tally, there = tallies[column_id], _tally(self._other, column_id)
            more = max(0, self._joined.root.rows - self._other.dataset.root.rows)
            column = self._other.columns[column_id]
            tally.nulls = there.nulls + (more if column.default is None else 0)
            tally.stored_bytes, tally.raw_bytes = there.stored_bytes, there.raw_bytes

    def _widen(self, column: Column, tally: Tally) -> None:
        wanted = column.storage.dtype
        mine = self._onto.columns.get(column.id)
        if mine is not None:
            tally.min, tally.max = widen_range(tally.min, tally.max, mine.storage.dtype, wanted)
        theirs = self._other.columns.get(column.id)
        if theirs is not None:
            there = _tally(self._other, column.id)
            _unite(tally, widen_range(there.min, there.max, theirs.storage.dtype, wanted))
        if column.default is not None and (mine is None or theirs is None):
            _unite(tally, _default_range(column))

    def _count(self, fragment: Fragment, tallies: Mapping[str, Tally]) -> None:
        """Count one fragment of `other`; its bounds are among those of `other`."""
        counted = set()
        parts = [each for part in fragment.parts.values() for each in part.columns]
        patches = [each.column for some in fragment.patches.values() for each in some]
        for part in parts + patches:
            entries, tally = known_entries(part), tallies[part.id]
            tally.nulls += int(entries["nulls"].sum())
            tally.stored_bytes += int(entries["stored_bytes"].sum())
            tally.raw_bytes += int(entries["raw_bytes"].sum())
            counted.add(part.id)
        for column in self._root.schema.columns:
            if column.id not in counted and column.default is None:
                tallies[column.id].nulls += fragment.rows


def _tally(side: Side, column_id: str) -> Tally:
    known = {each.id: each for each in side.dataset.root.statistics}
    return Tally.of(known.get(column_id))


def _unite(tally: Tally, bounds: tuple[int | None, int | None]) -> None:
    low, high = bounds
    if low is not None:
        tally.min = low if tally.min is None else min(tally.min, low)
    if high is not None:
        tally.max = high if tally.max is None else max(tally.max, high)


def _default_range(column: Column) -> tuple[int | None, int | None]:
    values = default_values(column)
    if not isinstance(values, FixedValues) or column.storage.shape:
        return None, None
    found = range_of(values.values, values.valid)
    return found.smallest, found.largest

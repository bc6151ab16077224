"""Matching of two versions: parts that can differ, and rows that are the same row.

Rows are the same when their ids are, wherever compaction put them. Ids lie in runs, and runs are
matched, so the work is that of runs and deleted rows, not of rows.

Leaves that both versions have are left out before, and so are, for finding what differs, page
indexes that both have for the same fragments. What remains is again a dataset, only smaller: rows
are counted in it, and `NarrowedDataset` maps them to rows of the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.manifest import FragmentSpan, Leaf, LeafEntry, encode_leaf
from tensorrepo.formats.dataset.metadata.row_ids import RowIdTable
from tensorrepo.formats.dataset.read import StoredDataset, dataset_leaves, live_rows, part_of
from tensorrepo.formats.dataset.schema.coerce import default_values
from tensorrepo.formats.dataset.schema.equality import differing
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError


@dataclass(frozen=True, slots=True, eq=False)
class Stretches:
    """Rows ``[old[i], old[i] + rows[i])`` of one version are ``[new[i], ...)`` of the other.

    All int64 ``(n,)``. No row is in two stretches of its version; `new` ascends.
    """

    old: Ints
    new: Ints
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def chosen(self, which: NDArray[Any]) -> Stretches:
        return Stretches(self.old[which], self.new[which], self.rows[which])

    def swapped(self) -> Stretches:
        """The same, seen from the other version."""
        order = np.argsort(self.old, kind="stable")
        return Stretches(self.new[order], self.old[order], self.rows[order])

    def old_of(self, new_rows: Ints) -> Ints:
        """The row of the old version for rows of the new one; -1 where it has none."""
        if not len(self.rows):
            return np.full(len(new_rows), -1, np.int64)
        at = np.searchsorted(self.new, new_rows, side="right") - 1
        past = new_rows - self.new[at]
        return np.where((at >= 0) & (past < self.rows[at]), self.old[at] + past, -1)

    def cut(self, bounds: Ints) -> Stretches:
        """The same rows in shorter stretches: none reaches over one of `bounds`, rows of `new`."""
        low = np.searchsorted(bounds, self.new, side="right")
        pieces = np.searchsorted(bounds, self.new + self.rows, side="left") - low + 1
        of = np.repeat(np.arange(len(self.rows)), pieces)
        within = np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        begin, end = self.new[of], (self.new + self.rows)[of]
        if len(bounds):
            at = low[of] + within
            begin = np.where(within > 0, bounds[np.maximum(at - 1, 0)], begin)
            last = within == pieces[of] - 1
            end = np.where(last, end, bounds[np.minimum(at, len(bounds) - 1)])
        return Stretches(self.old[of] + begin - self.new[of], begin, end - begin)

    def joined(self) -> Stretches:
        """The same rows in as few stretches as possible."""
        if not len(self.rows):
            return self
        follows = (self.new[1:] == (self.new + self.rows)[:-1]) & (
            self.old[1:] == (self.old + self.rows)[:-1]
        )
        starts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
        return Stretches(self.old[starts], self.new[starts], np.add.reduceat(self.rows, starts))

    def between(self, start: int, stop: int) -> Stretches:
        """The rows that lie in ``[start, stop)`` of the new version."""
        stop = max(start, stop)
        low = int(np.searchsorted(self.new + self.rows, start, side="right"))
        high = int(np.searchsorted(self.new, stop, side="left"))
        new, rows = self.new[low:high], self.rows[low:high]
        begin = np.maximum(new, start)
        end = np.minimum(new + rows, stop)
        return Stretches(self.old[low:high] + begin - new, begin, end - begin)

    def pairs(self) -> tuple[Ints, Ints]:
        """Every row: its number in the old version, and in the new one, which ascend."""
        within = np.arange(int(self.rows.sum())) - np.repeat(
            np.cumsum(self.rows) - self.rows, self.rows
        )
        return np.repeat(self.old, self.rows) + within, np.repeat(self.new, self.rows) + within


@dataclass(frozen=True, slots=True, eq=False)
class RowRanges:
    """Ascending rows, kept as ranges ``[start[i], stop[i])`` that do not touch."""

    start: Ints
    stop: Ints

    @property
    def rows(self) -> int:
        return int((self.stop - self.start).sum())

    def expand(self, first: int = 0, last: int | None = None) -> Ints:
        """Rows number ``[first, last)`` of them all, int64."""
        ends = np.cumsum(self.stop - self.start)
        total = int(ends[-1]) if len(ends) else 0
        places = np.arange(first, total if last is None else min(last, total))
        if not len(places):
            return places
        low = int(np.searchsorted(ends, first, side="right"))
        high = int(np.searchsorted(ends, int(places[-1]), side="right")) + 1
        begins = ends[low:high] - (self.stop - self.start)[low:high]
        counts = np.minimum(ends[low:high], places[-1] + 1) - np.maximum(begins, first)
        expanded: Ints = places + np.repeat(self.start[low:high] - begins, counts)
        return expanded


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """The rows of two versions, told apart by their ids.

    `both` versions hold, deleted ones too; `deleted` and `added` are alive in the old, or in the
    new one alone.
    """

    both: Stretches
    deleted: RowRanges
    added: RowRanges


def match_rows(
    old: RowIdTable, new: RowIdTable, old_rows: tuple[int, Ints], new_rows: tuple[int, Ints]
) -> Matched:
    """Match the rows of two versions.

    Of each come the number of its rows, and which of them are deleted, ascending.

    Raises:
        CorruptError: an id comes twice in one version.
    """
    both = _match_runs(old, new)
    swapped = both.swapped()
    return Matched(
        both,
        _alive_alone(*old_rows, swapped, new_rows[1]),
        _alive_alone(*new_rows, both, old_rows[1]),
    )


def _match_runs(old: RowIdTable, new: RowIdTable) -> Stretches:
    uids = np.union1d(old.runs["uid"], new.runs["uid"])
    (start, stop, first), (new_start, new_stop, new_first) = (
        _spans_of_ids(table, uids) for table in (old, new)
    )
    low = np.searchsorted(stop, new_start, side="right")
    counts = np.maximum(np.searchsorted(start, new_stop, side="left") - low, 0)
    mine = np.repeat(np.arange(len(new_start)), counts)
    theirs = np.arange(len(mine)) - np.repeat(np.cumsum(counts) - counts - low, counts)
    begin = np.maximum(start[theirs], new_start[mine])
    rows = (np.minimum(stop[theirs], new_stop[mine]) - begin).astype(np.int64)
    found = Stretches(
        first[theirs] + (begin - start[theirs]).astype(np.int64),
        new_first[mine] + (begin - new_start[mine]).astype(np.int64),
        rows,
    )
    return found.chosen(np.argsort(found.new, kind="stable")).joined()


def _spans_of_ids(
    table: RowIdTable, uids: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], Ints]:
    """Runs as ranges of numbers, one for each id, ascending; and the row each begins with."""
    runs = table.runs
    rank = np.searchsorted(uids, runs["uid"]).astype(np.uint64)
    start = (rank << np.uint64(32)) + runs["first"]
    stop = start + runs["rows"]
    order = np.argsort(start, kind="stable")
    start, stop = start[order], stop[order]
    twice = np.flatnonzero(stop[:-1] > start[1:])
    if len(twice):
        run = runs[order[twice[0] + 1]]
        raise CorruptError(
            f"row {int(run['uid']):016x}:{int(run['first'])} is in one dataset twice"
        )
    return start, stop, table.first_row[order]


def _alive_alone(total: int, dead: Ints, both: Stretches, other_dead: Ints) -> RowRanges:
    """Rows of the new side of `both` that are alive, and that the old one lacks or has deleted."""
    stop = both.new + both.rows
    gaps = RowRanges(np.append(0, stop), np.append(both.new, total))
    swapped = both.swapped()
    revived = swapped.old_of(other_dead)
    revived = revived[revived >= 0]
    points = np.sort(revived)
    start = np.concatenate([gaps.start, points])
    stop = np.concatenate([gaps.stop, points + 1])
    kept = start < stop
    order = np.argsort(start[kept], kind="stable")
    return _ranges_without(RowRanges(start[kept][order], stop[kept][order]), dead)


def _ranges_without(ranges: RowRanges, dead: Ints) -> RowRanges:
    """The ranges with rows `dead` taken out, and those joined that touch."""
    if not len(ranges.start):
        return ranges
    at = np.searchsorted(ranges.start, dead, side="right") - 1
    inside = dead[(at >= 0) & (dead < ranges.stop[at])]
    start = np.sort(np.concatenate([ranges.start, inside + 1]))
    stop = np.sort(np.concatenate([ranges.stop, inside]))
    kept = start < stop
    start, stop = start[kept], stop[kept]
    if len(start):
        apart = np.flatnonzero(start[1:] != stop[:-1])
        start = start[np.concatenate([[0], apart + 1])]
        stop = stop[np.append(apart, len(stop) - 1)]
    return RowRanges(start, stop)


_LeafKey = tuple[bytes, bytes]
_SpanKey = tuple[str, "str | bytes", bytes]


@dataclass(frozen=True, slots=True, eq=False)
class NarrowedDataset:
    """What of one version the other does not have as a whole.

    Attributes:
        dataset: the version with those leaves alone. Rows of a part are physical rows of this.
        compared: the same rows without the page indexes that the other has as well. Its indexes
            say where pages lie that can differ; its values mean nothing.
        first_row: int64 ``(leaves,)``: the row of the part that each leaf begins with.
        skipped: int64 ``(leaves,)``: physical rows of the version left out before each leaf.
        skipped_live: int64 ``(leaves,)``: live ones.
        total: physical rows of the whole version.
    """

    dataset: StoredDataset
    compared: StoredDataset
    first_row: Ints
    skipped: Ints
    skipped_live: Ints
    total: int

    @property
    def dead(self) -> Ints:
        """Deleted rows, ascending."""
        return live_rows(self.dataset).dead

    def physical(self, rows: Ints) -> Ints:
        """Physical rows of the whole version."""
        return rows + self.skipped[self._leaf(rows)] if len(rows) else rows

    def live(self, rows: Ints) -> Ints:
        """Live rows of the whole version; none of `rows` is deleted."""
        if not len(rows):
            return rows
        return live_rows(self.dataset).live(rows) + self.skipped_live[self._leaf(rows)]

    def _leaf(self, rows: Ints) -> Ints:
        return np.searchsorted(self.first_row, rows, side="right") - 1


def narrow(
    old: StoredDataset, new: StoredDataset, *, whole: bool = False
) -> tuple[NarrowedDataset, NarrowedDataset]:
    """The parts of two versions that can differ; all of both when `whole`."""
    # Rows that take a default that changed are not what they were, however equal leaves are.
    before = {column.id: column for column in old.schema.columns}
    shared_columns = [each for each in new.schema.columns if each.id in before]
    if whole or not all(same_default(before[each.id], each) for each in shared_columns):
        return _part(old, old, set(), set()), _part(new, new, set(), set())
    shared = {_identity(entry) for entry in old.root.leaves}
    shared &= {_identity(entry) for entry in new.root.leaves}
    less_old, less_new = (_without_leaves(each, shared) for each in (old, new))
    spans = _span_keys(dataset_leaves(less_old)) & _span_keys(dataset_leaves(less_new))
    return _part(old, less_old, shared, spans), _part(new, less_new, shared, spans)


def _without_leaves(version: StoredDataset, shared: set[_LeafKey]) -> StoredDataset:
    """A version without the leaves `shared`."""
    kept = tuple(leaf for leaf in version.root.leaves if _identity(leaf) not in shared)
    if len(kept) == len(version.root.leaves):
        return version
    return part_of(version, tuple(map(_identity, kept)), lambda: _with_leaves(version, kept))


def _part(
    version: StoredDataset, reduced: StoredDataset, shared: set[_LeafKey], spans: set[_SpanKey]
) -> NarrowedDataset:
    """A version without the leaves `shared`, which is `reduced`, and its indexes `spans`."""
    kept = np.array([_identity(entry) not in shared for entry in version.root.leaves], np.bool_)
    rows = np.array([entry.rows for entry in version.root.leaves], np.int64)
    live = rows - np.array([entry.deleted for entry in version.root.leaves], np.int64)
    mine = np.cumsum(rows * kept) - rows * kept
    mine_live = np.cumsum(live * kept) - live * kept
    return NarrowedDataset(
        reduced,
        part_of(reduced, frozenset(spans), lambda: _without(reduced, spans)) if spans else reduced,
        mine[kept],
        (np.cumsum(rows) - rows - mine)[kept],
        (np.cumsum(live) - live - mine_live)[kept],
        version.root.rows,
    )


def emptied(version: StoredDataset) -> StoredDataset:
    """A dataset of the same columns without rows: what one that is not there is compared as."""
    return _with_leaves(version, ())


def _with_leaves(
    version: StoredDataset, leaves: tuple[LeafEntry, ...], schema: Schema | None = None
) -> StoredDataset:
    rows, deleted = (sum(getattr(leaf, name) for leaf in leaves) for name in ("rows", "deleted"))
    root = replace(
        version.root,
        leaves=leaves,
        rows=rows,
        deleted=deleted,
        schema=version.schema if schema is None else schema,
    )
    return StoredDataset(version.objects, version.digest, root, version.links, version.outside)


def _without(part: StoredDataset, spans: set[_SpanKey]) -> StoredDataset:
    """The part with leaves that lack the page indexes `spans`, and columns that may lack pages."""
    entries, links = [], dict(part.links)
    for entry, (leaf, leaf_links) in zip(part.root.leaves, dataset_leaves(part), strict=True):
        indexes = tuple(span for span in leaf.indexes if _span_key(leaf, span) not in spans)
        payload = encode_leaf(replace(leaf, indexes=indexes))
        entries.append(
            LeafEntry(b"", payload, entry.fragments, entry.rows, entry.deleted, entry.stored_bytes)
        )
        links |= leaf_links
    columns = (
        column if column.default is not None else replace(column, nullable=True)
        for column in part.schema.columns
    )
    found = _with_leaves(part, tuple(entries), Schema(tuple(columns)))
    return replace(found, links=links)


def _identity(entry: LeafEntry) -> _LeafKey:
    return entry.digest, entry.payload


def _span_keys(leaves: Sequence[tuple[Leaf, Any]]) -> set[_SpanKey]:
    return {_span_key(leaf, span) for leaf, _ in leaves for span in leaf.indexes}


def _span_key(leaf: Leaf, span: FragmentSpan) -> _SpanKey:
    """What tells a page index, and the fragments that it covers, from all others."""
    uids = leaf.fragments["uid"][span.first_fragment : span.stop_fragment].tobytes()
    payload = span.payload
    return span.group, payload.tobytes() if isinstance(payload, memoryview) else payload, uids


def same_default(old: Column, new: Column) -> bool:
    """Whether rows without a value of their own have the same in both; no default is like null."""
    if old.default == new.default and old.storage == new.storage:
        return True
    if old.default is None or new.default is None:
        return old.default is new.default
    one, two = default_values(old), default_values(new)
    return not bool(differing(one, two, old.storage, new.storage)[0])

"""Rows that an index knows: places in its segments, as rows of any version of the dataset.

An index was brought up to one version of a dataset. Of another version it does not know the rows
that this one has besides, and those whose value in the column is not what it was: both are told by
the ids of rows and by the diff of pages, so that only what differs is looked at. Such rows are
searched themselves. A row that is gone, or that a later segment has again, is never taken from a
segment.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.deletions import LiveRows
from tensorrepo.formats.dataset.metadata.row_ids import RowIdTable
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    narrowed,
    open_dataset,
    row_id_table,
)
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.versions.changed_cells import VersionPair
from tensorrepo.formats.dataset.versions.match import RowRanges, Stretches, match_rows
from tensorrepo.formats.dataset.versions.row_diff import updated_rows
from tensorrepo.formats.search_index.stored_index import StoredIndex, segment_table
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError

_NOTHING: Ints = np.zeros(0, np.int64)


def _changed_rows(index: StoredIndex, dataset: StoredDataset, column: Column) -> Ints:
    """Physical rows that the version the index was brought up to lacks, or has another value of.

    Raises:
        NotFoundError: that version is gone.
        PurgedError: it was purged.
    """
    if dataset.digest == index.dataset:
        return _NOTHING
    earlier = open_dataset(dataset.objects, index.dataset, dataset.outside)
    added = VersionPair.of(earlier, dataset, whole=True).matched.added.expand()
    updated = live_rows(dataset).physical(updated_rows(earlier, dataset, [column.name]))
    return np.union1d(added, updated)


def _missing_rows(dataset: StoredDataset, rows_of: Iterable[Stretches]) -> Ints:
    """Physical rows that no segment has, ascending, none of them deleted."""
    every = list(rows_of)
    starts = np.concatenate([_NOTHING, *(each.old for each in every)])
    stops = np.concatenate([_NOTHING, *(each.old + each.rows for each in every)])
    order = np.argsort(starts, kind="stable")
    # Runs and not rows are walked: there are few of them, however many rows there are.
    reached = np.maximum.accumulate(np.concatenate([[0], stops[order]]))
    begins = np.append(starts[order], dataset.root.rows)
    missing = RowRanges(reached, np.maximum(begins, reached)).expand()
    return missing[live_rows(dataset).live(missing) >= 0]


@dataclass(frozen=True, slots=True, eq=False)
class KnownRows:
    """What an index knows of one version of a dataset.

    Attributes:
        index: the index.
        dataset: all rows of the version.
        unknown: physical rows that the index does not know, ascending.
        beside: these rows as a dataset; None: there are none.
        fresh: rows that the index knows and that are not deleted, as if all others were.
        rows_of: for each segment, its places and the rows of the version at them.
        again: for each segment, its places that later segments have again.
    """

    index: StoredIndex
    dataset: StoredDataset
    unknown: Ints
    beside: StoredDataset | None
    fresh: LiveRows
    rows_of: tuple[Stretches, ...]
    again: tuple[tuple[Stretches, ...], ...]

    @classmethod
    def of(cls, index: StoredIndex, dataset: StoredDataset, column: Column) -> KnownRows:
        """Compares the version that the index was brought up to with `dataset`, all of its rows."""
        tables = [segment_table(segment) for segment in index.segments]
        ids = row_id_table(dataset)
        rows_of = tuple(_matched(table, ids) for table in tables)
        changed = _changed_rows(index, dataset, column)
        unknown = np.union1d(changed, _missing_rows(dataset, rows_of))
        live = live_rows(dataset)
        dead = np.union1d(live.dead, unknown) if len(unknown) else live.dead
        return cls(
            index,
            dataset,
            unknown,
            narrowed(dataset, unknown) if len(unknown) else None,
            LiveRows(dataset.root.rows, dead),
            rows_of,
            tuple(
                tuple(_matched(table, later) for later in tables[at + 1 :])
                for at, table in enumerate(tables)
            ),
        )

    def rows(self, segment: int, places: Ints) -> Ints:
        """Physical rows at places of a segment; -1 where a row is not to be taken from there.

        Raises:
            CorruptError: a place that the segment has not.
        """
        most = self.index.segments[segment].rows
        if len(places) and not (places.min() >= 0 and places.max() < most):
            raise CorruptError(f"a search index of {most:,} rows answers with a place beyond them")
        rows = self.rows_of[segment].old_of(places)
        rows = np.where(self.fresh.live(rows) < 0, -1, rows)
        for later in self.again[segment]:
            if len(later):
                rows = np.where(later.old_of(places) >= 0, -1, rows)
        return rows

    def every_row(self, segment: int) -> Ints:
        """Physical rows at all places of a segment, as `rows` gives them."""
        return self.rows(segment, np.arange(self.index.segments[segment].rows))


def _matched(segment: RowIdTable, other: RowIdTable) -> Stretches:
    """Rows of `other` that are at the places of a segment: `old_of` takes places."""
    counts = [(int(each.runs["rows"].sum(dtype=np.int64)), _NOTHING) for each in (other, segment)]
    return match_rows(other, segment, *counts).both

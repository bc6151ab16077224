"""Nearest neighbours by an index: it proposes rows, exact distances of our pages decide.

Candidates of all segments are looked up by their ids, ranked by their distances in float64, and
merged with the rows that the index does not know, which are all compared. So what is told of a row
is exact and never of a value that it had before; that a row is missing is all that can go wrong.

Where a condition leaves few rows, more candidates are asked for, so that enough of them fulfil it;
where it leaves too few for that, they are all compared instead.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, column_index
from tensorrepo.formats.dataset.searching.nearest import checked_queries, nearest_of_candidates
from tensorrepo.formats.dataset.searching.top_rows import checked_k
from tensorrepo.formats.exchange.child_main import TableFile
from tensorrepo.formats.search_index.lance_segment import nearest_places
from tensorrepo.formats.search_index.opened_index import IndexedAnswer, IndexScope, OpenedIndex
from tensorrepo.formats.search_index.stored_index import IndexSegment
from tensorrepo.formats.search_index.tuning import REFINE
from tensorrepo.repo.deferred_dataclass import dataclass

EXACT_BYTES: Final = 4 << 20  # of vectors, that are compared faster than an index is asked
MOST_SHARE: Final = 0.1  # of the rows as candidates: beyond, all are compared as fast
MOST_CANDIDATES: Final = 1 << 16  # of a query, in each segment
_WIDER: Final = 4  # times as many candidates, and parts of the index, where too few fulfil


def nearest_by_index(
    opened: OpenedIndex,
    searched: StoredDataset,
    name: str,
    queries: ArrayLike,
    k: int,
    metric: str,
    nprobes: int | None = None,
) -> IndexedAnswer | None:
    """Rows that are nearest to each query, found by an index.

    Args:
        opened: an index of the column, for this metric.
        searched: rows that may come, of the version that the index is asked about.
        name: column of vectors.
        queries: one vector ``(d,)``, or several ``(n, d)``.
        k: number of rows for each query.
        metric: distance, as for `nearest_rows`.
        nprobes: parts of each segment that are looked into; None: as many as it was tuned to.

    Returns:
        None where comparing all rows takes less.
    """
    known = opened.known
    column = known.dataset.schema.column(name)
    wanted = checked_queries(column, queries, metric)
    checked_k(k, len(wanted))
    scope = IndexScope.of(opened, searched)
    row_bytes = column_index(searched, name).raw_bytes / max(1, searched.root.rows)
    if scope.indexed * row_bytes <= EXACT_BYTES or k * REFINE > MOST_SHARE * scope.indexed:
        return None
    with opened.indexes.readers.asking():
        candidates = _candidates(opened, scope, wanted.astype(np.float32), k, nprobes)
    if candidates is None:
        return None
    ranked = nearest_of_candidates(known.dataset, name, wanted, candidates, k, metric, scope.beside)
    return IndexedAnswer(ranked, _told(opened, scope, nprobes))


def _told(opened: OpenedIndex, scope: IndexScope, nprobes: int | None) -> str:
    index = opened.index
    recalls = [each.recall for each in index.segments if each.recall]
    words = f"by an index ({index.kind} of {counted(scope.indexed, 'row')}"
    if nprobes is not None:
        words += f", {counted(nprobes, 'probe')}"
    elif recalls:
        words += f", that finds about {min(recalls):.0%} of them"
    return f"{words}), distances exact{scope.told_beside}"


def _candidates(
    opened: OpenedIndex,
    scope: IndexScope,
    queries: NDArray[np.float32],
    k: int,
    nprobes: int | None,
) -> list[Ints] | None:
    """Physical rows in scope for each query, ascending; None where too few are found."""
    found: list[list[Ints]] = [[] for _ in queries]
    share = scope.indexed / max(1, opened.known.fresh.rows)
    for at, table in opened.indexes.tables(opened.known, "vectors").items():
        segment = opened.index.segments[at]
        refine = segment.options.get("refine", REFINE)
        asking = _Asking.of(segment, round(k * refine / share), nprobes)
        left = np.arange(len(queries))
        while len(left):
            rows = _ask(opened, scope, at, table, queries[left], asking)
            enough = np.array([len(each) >= k for each in rows]) | asking.is_widest(segment)
            for query, each, is_enough in zip(left, rows, enough, strict=True):
                if is_enough:
                    found[query].append(each)
            left = left[~enough]
            if len(left):
                asking = asking.wider(segment)
                if asking.k > MOST_CANDIDATES:
                    return None
    return [np.unique(np.concatenate([np.zeros(0, np.int64), *each])) for each in found]


@dataclass(frozen=True, slots=True)
class _Asking:
    """How much of a segment is looked at."""

    k: int
    nprobes: int
    ef: int | None

    @classmethod
    def of(cls, segment: IndexSegment, k: int, nprobes: int | None) -> _Asking:
        partitions = segment.options.get("partitions", 1)
        usual = segment.options.get("nprobes", partitions) if nprobes is None else nprobes
        return cls(min(k, segment.rows), min(usual, partitions), segment.options.get("ef"))

    def wider(self, segment: IndexSegment) -> _Asking:
        partitions = segment.options.get("partitions", 1)
        k, nprobes = min(self.k * _WIDER, segment.rows), min(self.nprobes * _WIDER, partitions)
        return _Asking(k, nprobes, self.ef)

    def is_widest(self, segment: IndexSegment) -> bool:
        return self == self.wider(segment)


def _ask(
    opened: OpenedIndex,
    scope: IndexScope,
    at: int,
    table: TableFile,
    queries: NDArray[np.float32],
    asking: _Asking,
) -> list[Ints]:
    """Physical rows in scope that a segment proposes for each query."""
    found = nearest_places(table, queries, asking.k, asking.nprobes, asking.ef)
    rows = opened.known.rows(at, found.places)
    inside = scope.fresh.live(rows) >= 0
    return [rows[(found.queries == query) & inside] for query in range(len(queries))]

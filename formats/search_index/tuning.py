"""Tuning of a segment: how many parts of it must be looked into to find what exact search finds.

Some of its own rows are asked for their neighbours, exactly and by the segment, of which more and
more is looked at until it gives nearly all of them. What was found is kept with the segment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.searching.nearest import nearest_of_candidates, nearest_rows
from tensorrepo.formats.dataset.searching.top_rows import Ranked
from tensorrepo.formats.exchange.child_main import TableFile
from tensorrepo.formats.search_index.lance_segment import nearest_places
from tensorrepo.formats.search_index.stored_index import IndexSegment
from tensorrepo.repo.deferred_dataclass import dataclass

QUERIES: Final = 64
NEIGHBOURS: Final = 10
REFINES: Final = (5, 10, 20, 40)  # candidates for each row that is wanted
REFINE: Final = REFINES[-1]  # of a segment that was not tuned
RECALL: Final = 0.97  # of rows of its own, so that it is 0.95 of others
ALL_PARTS_RECALL: Final = 0.985
_SEED: Final = 17
_EF: Final = 2  # times as many candidates a graph looks at as are taken


def tuned(
    segment: IndexSegment,
    table: TableFile,
    some: StoredDataset,
    rows: Ints,
    name: str,
    metric: str,
) -> IndexSegment:
    """A segment with its recall, and with options ``nprobes``, ``refine`` and, of graphs, ``ef``.

    Args:
        segment: what is asked.
        table: what answers for it.
        some: the rows that it was made of.
        rows: the same, as physical rows by place.
        name: column of vectors.
        metric: distance.
    """
    chosen = np.random.default_rng(_SEED).choice(rows, min(QUERIES, len(rows)), replace=False)
    chosen = np.sort(chosen)
    (values,) = read_columns([page_reader(some, name)], chosen)
    assert isinstance(values, FixedValues), "vectors of one length are"
    vectors = values.values.astype(np.float64)
    with np.errstate(over="ignore"):
        good = np.isfinite(vectors.astype(np.float32)).all(axis=1) & vectors.any(axis=1)
    if values.valid is not None:
        good &= values.valid
    chosen, vectors = chosen[good], vectors[good]
    if not len(chosen):
        return segment
    exact = nearest_rows(some, name, vectors, NEIGHBOURS + 1, metric)
    wanted = [_others(each, own) for each, own in zip(exact, chosen, strict=True)]
    asked = vectors.astype(np.float32)

    def recall(looked: Looked) -> float:
        found = nearest_places(table, asked, NEIGHBOURS * looked.refine, looked.nprobes, looked.ef)
        candidates = [
            np.unique(rows[found.places[found.queries == at]]) for at in range(len(asked))
        ]
        ranked = nearest_of_candidates(some, name, vectors, candidates, NEIGHBOURS + 1, metric)
        # By distances: of rows that are equally near any will do.
        hits = sum(
            int(np.count_nonzero(_others(each, own) <= best[-1]))
            for each, own, best in zip(ranked, chosen, wanted, strict=True)
            if len(best)
        )
        return hits / max(1, sum(map(len, wanted)))

    looked, reached = _enough(segment, recall)
    options = {"nprobes": looked.nprobes, "refine": looked.refine}
    options |= {} if looked.ef is None else {"ef": looked.ef}
    return replace(segment, options={**segment.options, **options}, recall=round(reached, 4))


def _others(ranked: Ranked, own: int) -> NDArray[np.float64]:
    """Distances of the nearest rows, the one itself that was asked for left out."""
    distances: NDArray[np.float64] = ranked.keys[ranked.rows != own][:NEIGHBOURS]
    return distances


@dataclass(frozen=True, slots=True)
class Looked:
    """How much of a segment is looked at.

    Attributes:
        nprobes: parts that are looked into.
        refine: candidates for each row that is wanted, whose exact distances are compared.
        ef: candidates that a graph looks at; None: Lance's default.
    """

    nprobes: int
    refine: int
    ef: int | None


def _enough(segment: IndexSegment, recall: Callable[[Looked], float]) -> tuple[Looked, float]:
    """How much must be looked at, and the recall that it gives.

    First in all parts: how many candidates it takes. Then as few parts as do with so many.
    """
    partitions, is_graph = segment.options["partitions"], "hnsw" in segment.method
    reached = 0.0
    for refine in REFINES:
        looked = Looked(partitions, refine, NEIGHBOURS * refine * _EF if is_graph else None)
        reached = recall(looked)
        if reached >= ALL_PARTS_RECALL:
            break
    goal = min(RECALL, reached)
    nprobes = 1
    while nprobes < partitions:
        fewer = replace(looked, nprobes=nprobes)
        found = recall(fewer)
        if found >= goal:
            return fewer, found
        nprobes = max(nprobes + 1, round(nprobes * 1.4))
    return looked, reached

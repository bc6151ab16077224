"""Tuning of a segment: how many parts of it must be looked into to find what exact search finds.

Some of its own rows are asked for their neighbours, exactly and by the segment, of which more and
more is looked at until it gives nearly all of them. What was found is kept with the segment.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.searching.nearest import nearest_rows
from tensorrepo.formats.exchange.child_main import TableFile
from tensorrepo.formats.search_index.lance_segment import nearest_places
from tensorrepo.formats.search_index.stored_index import IndexSegment

QUERIES: Final = 64
NEIGHBOURS: Final = 10
REFINE: Final = 10  # candidates for each row that is wanted
RECALL: Final = 0.97  # of rows of its own, so that it is 0.95 of others
_SEED: Final = 17
_EF: Final = 4  # times as many candidates a graph looks at, where fewer do not do


def tuned(
    segment: IndexSegment,
    table: TableFile,
    some: StoredDataset,
    rows: Ints,
    name: str,
    metric: str,
) -> IndexSegment:
    """A segment with its recall, and with options ``nprobes`` and, for graphs, ``ef``.

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
    truth = [
        each.rows[each.rows != own][:NEIGHBOURS] for each, own in zip(exact, chosen, strict=True)
    ]
    options, recall = dict(segment.options), 0.0
    for nprobes, ef in _steps(segment):
        found = nearest_places(table, vectors.astype(np.float32), NEIGHBOURS * REFINE, nprobes, ef)
        hits = sum(
            len(np.intersect1d(rows[found.places[found.queries == at]], wanted))
            for at, wanted in enumerate(truth)
        )
        recall = hits / max(1, sum(map(len, truth)))
        options |= {"nprobes": nprobes} | ({"ef": ef} if ef else {})
        if recall >= RECALL:
            break
    return replace(segment, options=options, recall=round(recall, 4))


def _steps(segment: IndexSegment) -> list[tuple[int, int | None]]:
    """More and more of a segment: parts that are looked into, and how widely a graph is walked."""
    partitions = segment.options["partitions"]
    steps: list[tuple[int, int | None]] = []
    nprobes = 1
    while nprobes < partitions:
        steps.append((nprobes, None))
        nprobes = max(nprobes + 1, round(nprobes * 1.5))
    steps.append((partitions, None))
    if "hnsw" in segment.method:
        wanted = NEIGHBOURS * REFINE
        steps += [(partitions, wanted * times) for times in (2, _EF, 2 * _EF)]
    return steps

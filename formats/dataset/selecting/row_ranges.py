"""Reading of one dataset by several readers: which rows each reads, and the rows of one as Arrow.

`plan_pieces` cuts a dataset where pages of its heaviest column end, so that no two readers decode
the same of them, and leaves out rows for which a predicate cannot be true. `read_piece` decides by
the columns that the predicate names, and reads of the others only rows for which it is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import (
    BATCH_BYTES,
    StoredDataset,
    column_index,
    live_rows,
    page_reader,
    scan,
)
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.select_rows import (
    comparable,
    filtered,
    named_columns,
    ranges_where,
)
from tensorrepo.repo.deferred_dataclass import dataclass

_ROW = "#"  # stands before the names of all columns, as often as it takes to be no name


@dataclass(frozen=True, slots=True)
class ReadPiece:
    """What one reader reads.

    Attributes:
        ranges: ranges ``[start, stop)`` of physical rows, ascending.
        rows: rows that are not deleted in them.
        raw_bytes: about what these take when they are decoded.
    """

    ranges: tuple[tuple[int, int], ...]
    rows: int
    raw_bytes: int


def plan_pieces(
    dataset: StoredDataset,
    columns: Sequence[str],
    pieces: int,
    where: pc.Expression | None = None,
) -> list[ReadPiece]:
    """At most so many pieces of about the same size, in the order of the rows; reads metadata only.

    Args:
        dataset: what is read.
        columns: names of the columns that are wanted.
        pieces: number of pieces; there are fewer where there are fewer pages.
        where: predicate, of which pages are left out that have no row for it.
    """
    every = np.array([[0, dataset.root.rows]], np.int64)
    ranges = every if where is None else ranges_where(dataset, where)
    bounds, sizes = _weights(dataset, columns)
    found: list[ReadPiece] = []
    total = sum(_bytes_of(bounds, sizes, each) for each in ranges.tolist())
    target, gathered, current = total / max(1, pieces), 0.0, list[tuple[int, int]]()
    for start, stop in _pages(ranges, bounds):
        current.append((start, stop))
        gathered += _bytes_of(bounds, sizes, (start, stop))
        if gathered >= target * (len(found) + 1) and len(found) < pieces - 1:
            found.append(_piece(dataset, current, bounds, sizes))
            current = []
    if current:
        found.append(_piece(dataset, current, bounds, sizes))
    return [each for each in found if each.rows]


def read_piece(
    dataset: StoredDataset,
    columns: Sequence[str],
    piece: ReadPiece,
    where: pc.Expression | None = None,
    *,
    rows: Ints | None = None,
    max_bytes: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The rows of a piece in order, as Arrow batches of about `max_bytes`, or one row.

    Args:
        dataset: what is read.
        columns: names of the columns that are wanted.
        piece: ranges of rows, as `plan_pieces` gives them.
        where: predicate that they fulfil, over columns in the form of `Schema.to_arrow`.
        rows: physical rows, ascending, of which those in the piece are meant; None: all.
        max_bytes: bound of a batch.

    Raises:
        InvalidInputError: the predicate does not fit the columns.
    """
    for start, stop in piece.ranges:
        if where is None and rows is None:
            for _, values in scan(dataset, columns, start, stop, max_bytes=max_bytes):
                yield _batch(dataset, columns, values)
        else:
            for chosen in _chosen(dataset, start, stop, where, rows):
                yield from _gathered(dataset, columns, chosen, max_bytes)


def _weights(dataset: StoredDataset, columns: Sequence[str]) -> tuple[Ints, NDArray[np.float64]]:
    """Page bounds of the heaviest column, and the bytes of all columns up to each of them."""
    rows = dataset.root.rows
    indexes = [column_index(dataset, name) for name in columns]
    heavy = max(indexes, key=lambda index: int(index.entries["raw_bytes"].sum()), default=None)
    if heavy is None or not rows:
        return np.array([0, rows]), np.array([0.0, float(rows)])
    bounds = heavy.first_row
    sizes = np.zeros(len(bounds))
    for index in indexes:
        ends = np.concatenate([[0], np.cumsum(index.entries["raw_bytes"], dtype=np.float64)])
        sizes += np.interp(bounds, index.first_row, ends)
    return bounds, sizes + bounds  # a byte a row, for columns that have no pages


def _bytes_of(bounds: Ints, sizes: NDArray[np.float64], rows: Sequence[int]) -> float:
    """About the bytes of rows ``[start, stop)``."""
    low, high = np.interp(rows, bounds, sizes)
    return float(high - low)


def _pages(ranges: Ints, bounds: Ints) -> Iterator[tuple[int, int]]:
    """The ranges, cut at page bounds."""
    for start, stop in ranges.tolist():
        low, high = np.searchsorted(bounds, [start, stop], side="right")
        inner = [each for each in bounds[low:high].tolist() if start < each < stop]
        yield from zip([start, *inner], [*inner, stop], strict=True)


def _piece(
    dataset: StoredDataset,
    ranges: Sequence[tuple[int, int]],
    bounds: Ints,
    sizes: NDArray[np.float64],
) -> ReadPiece:
    joined: list[tuple[int, int]] = []
    for start, stop in ranges:
        follows = bool(joined) and joined[-1][1] == start
        joined.append((joined.pop()[0] if follows else start, stop))
    live, count, size = live_rows(dataset), 0, 0.0
    for start, stop in joined:
        first, last = live.live_bounds(np.array([start, stop])).tolist()
        count += last - first
        size += _bytes_of(bounds, sizes, (start, stop))
    return ReadPiece(tuple(joined), count, int(size))


def _chosen(
    dataset: StoredDataset, start: int, stop: int, where: pc.Expression | None, rows: Ints | None
) -> Iterator[Ints]:
    """Physical rows of a range that are wanted, some at a time."""
    mine = None
    if rows is not None:
        mine = rows[slice(*np.searchsorted(rows, [start, stop]))]
    if where is None:
        assert mine is not None, "else all rows are wanted"
        yield mine
        return
    names = named_columns(where, dataset.schema) or list(dataset.schema.names[:1])
    columns = [dataset.schema.column(name) for name in names]
    number = _ROW * (1 + max(map(len, dataset.schema.names)))
    for found, values in scan(dataset, names, start, stop):
        arrays = {column.name: comparable(column, values[column.name]) for column in columns}
        table = pa.table({**arrays, number: pa.array(found)})
        if mine is not None:
            table = table.filter(pa.array(np.isin(found, mine, assume_unique=True)))
        yield filtered(table, where)[number].to_numpy()


def _gathered(
    dataset: StoredDataset, columns: Sequence[str], rows: Ints, max_bytes: int
) -> Iterator[pa.RecordBatch]:
    if not len(rows):
        return
    known = {each.id: each for each in dataset.root.statistics}
    wanted = [known[dataset.schema.column(name).id] for name in columns]
    row_bytes = sum(max(each.raw_bytes, each.stored_bytes) for each in wanted) / max(
        1, dataset.root.rows
    )
    step = max(1, int(max_bytes / max(row_bytes, 1.0)))
    for at in range(0, len(rows), step):
        some = rows[at : at + step]
        values = {name: read_chosen(page_reader(dataset, name), some) for name in columns}
        yield _batch(dataset, columns, values)


def _batch(
    dataset: StoredDataset, columns: Sequence[str], values: dict[str, ColumnValues]
) -> pa.RecordBatch:
    chosen = dataset.schema.select(columns)
    arrays = [column_array(column, values[column.name]) for column in chosen.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=chosen.to_arrow())

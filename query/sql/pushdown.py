"""Dataset scans for DuckDB, with pushed-down columns and filters.

DuckDB asks a `pyarrow.dataset.Dataset` for a scanner of some columns of the rows for which an
expression is true, and believes what it gets. Here the columns that the expression names are read,
of the pages that may hold such rows; then of the rows for which it is true, the others. Deleted
rows are left out, patches and defaults are in the values, as for every reader.

Row ids, numbers and those of classes are columns that are not stored. They come first, because a
bare count asks for the first column: one of pictures would be read for nothing.

Who runs what: DuckDB pulls batches from threads of its own. Parts of the rows are read on `threads`
others, in order, at most one part each ahead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import field
from functools import cache
from threading import Event
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    check_absent,
    column_index,
    live_rows,
    page_reader,
    row_id_table,
    scan,
)
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.expression import expression_tree, field_names
from tensorrepo.formats.dataset.selecting.pruning import rows_that_may_match
from tensorrepo.formats.dataset.selecting.sql_condition import class_number_columns
from tensorrepo.query.sql.columns import sql_array, sql_field
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.threads import ordered_map

# Gives physical rows, ascending, outside of which a condition is true for none; None: a scan has to
# look.
FindCandidates: TypeAlias = "Callable[[pc.Expression], NDArray[np.int64] | None]"


class ScannedTable(Protocol):
    """What SQL can read."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def shown(self) -> Sequence[str]:
        """The columns that ``*`` stands for; others are there for queries that name them."""

    def reader(self, columns: Sequence[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        """Rows of some columns for which `where` is true."""


@dataclass(slots=True)
class Scanned:
    """What queries have read so far, and whether they shall go on.

    `failed` is the error that ended a scan: DuckDB passes on its text alone.
    """

    pages: int = 0
    rows: int = 0
    stop: Event = field(default_factory=Event)
    failed: BaseException | None = None

    def begin(self) -> None:
        """The next query: what stopped or failed the last one is none of its concern."""
        self.stop.clear()
        self.failed = None


class StoppedError(Exception):
    """A scan was told to stop."""


def noting(scanned: Scanned, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches`; what ends them too early is kept for who asked."""
    try:
        yield from batches
    except GeneratorExit:  # nobody wants more rows: nothing failed
        raise
    except BaseException as error:
        scanned.failed = scanned.failed or error
        raise


@cache
def _arrow_dataset_class() -> type:
    import pyarrow.dataset  # a third of a second: loaded by who asks SQL

    class PushedDown(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow is untyped
        """DuckDB pushes columns and filters into subclasses alone."""

        def __init__(self, table: Any) -> None:
            self._table = table

        @property
        def schema(self) -> pa.Schema:
            return self._table.schema

        def scanner(
            self,
            columns: Sequence[str] | None = None,
            filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name for it
            **_: Any,
        ) -> _Scanner:
            names = self.schema.names if columns is None else columns
            return _Scanner(lambda: self._table.reader(names, filter))

    return PushedDown


def as_arrow_dataset(table: Any) -> Any:
    """A table with a `schema` and a `reader(columns, where)`, for `duckdb.register`."""
    return _arrow_dataset_class()(table)


@dataclass(frozen=True, slots=True)
class _Scanner:
    """The one method that DuckDB calls of Arrow's scanners."""

    to_reader: Callable[[], pa.RecordBatchReader]


NUMBER, ROW_ID = "row_number", "row_id"
PART_BYTES = 16 << 20  # of all columns of a part that one thread reads at once
PART_ROWS = 1 << 17
THREADS = 2


@dataclass(frozen=True, slots=True, eq=False)
class DatasetTable:
    """A dataset as SQL sees it: its columns, hidden ones too, behind the number and id of rows."""

    dataset: StoredDataset
    scanned: Scanned
    threads: int = THREADS
    candidates: FindCandidates | None = None  # by indexes

    @property
    def schema(self) -> pa.Schema:
        added = [(NUMBER, pa.int64()), (ROW_ID, pa.string())]
        columns = self.dataset.schema.columns
        taken = {name.lower() for name in self.dataset.schema.names}  # as SQL tells names apart
        free = [each for each in added if each[0] not in taken]
        free += [(name, pa.int64()) for name in class_number_columns(self.dataset.schema).values()]
        return pa.schema([*(pa.field(*each) for each in free), *map(sql_field, columns)])

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns that ``*`` stands for."""
        return self.dataset.schema.visible.names

    def bytes_at_once(self, columns: Sequence[str], where: pc.Expression | None) -> int:
        """Memory that a scan takes at a time, about: a page of each column, and rows of it."""
        compared = _compared(self.schema, where)
        names = {name for name in (*columns, *compared) if name in self.dataset.schema}
        return _COPIES * sum(_largest_page(self.dataset, name) for name in names)

    def reader(self, columns: Sequence[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        """Rows for which `where` is true, or all, in order."""
        every = self.schema
        schema = pa.schema([every.field(name) for name in columns])
        names = class_number_columns(self.dataset.schema)
        numbered = {name: column for column, name in names.items()}
        rows = None if where is None or self.candidates is None else self.candidates(where)
        part = _Part(
            self.dataset, tuple(columns), where, schema, _compared(every, where), numbered,
            self.scanned, rows,
        )  # fmt: skip
        stored = [column_index(self.dataset, name) for name in part.stored]
        check_absent(dict(zip(part.stored, stored, strict=True)), 1, advice="Name other columns")
        return pa.RecordBatchReader.from_batches(
            part.schema, noting(self.scanned, self._batches(part))
        )

    def _batches(self, part: _Part) -> Iterator[pa.RecordBatch]:
        if self.threads < 2:  # nothing is read ahead
            for rows in part.parts():
                yield from part.batches(rows)
            return
        parts = ordered_map(part.parts(), part.read, threads=self.threads, ahead=2, name="sql")
        with closing(parts):  # not left to the collector: DuckDB drops this where it likes
            for batches in parts:
                yield from batches


# ------------------------------------------------------------------------------ parts


@dataclass(frozen=True, slots=True)
class _Part:
    """What is read of each part of the rows."""

    dataset: StoredDataset
    columns: tuple[str, ...]
    where: pc.Expression | None
    schema: pa.Schema  # of `columns`
    compared: tuple[str, ...]  # the columns that `where` reads
    numbered: dict[str, str]  # columns of classes, by what the numbers of them are called
    scanned: Scanned
    rows: NDArray[np.int64] | None  # physical ones that may be wanted; None: any

    def parts(self) -> Iterator[tuple[int, int]]:
        """Ranges of physical rows, or of places in `rows`, of bounded bytes each."""
        dataset = self.dataset
        ranges = np.array([[0, dataset.root.rows]])
        if self.rows is not None:
            ranges = np.array([[0, len(self.rows)]])
        elif self.where is not None:
            ranges = self._ranges(self.where)
        step = _part_rows(dataset, self.stored)
        for start, stop in ranges.tolist():
            for at in range(start, stop, step):
                yield at, min(stop, at + step)

    def _ranges(self, where: pc.Expression) -> NDArray[np.int64]:
        """Physical rows outside of which `where` is true for none."""
        schema = self.dataset.schema
        columns = {column.name: column for column in schema.columns}
        columns |= {name: schema.column(stored) for name, stored in self.numbered.items()}
        return rows_that_may_match(
            where,
            columns,
            lambda name: column_index(self.dataset, self.numbered.get(name, name)),
            self.dataset.root.rows,
        )

    def _stored(self, names: Sequence[str]) -> list[str]:
        """The columns of the dataset that these are read of, each once."""
        stored = dict.fromkeys(self.numbered.get(name, name) for name in names)
        return [name for name in stored if name in self.dataset.schema]

    @property
    def stored(self) -> list[str]:
        """The columns of the dataset that are read."""
        return self._stored((*self.columns, *self.compared))

    @property
    def _uncompared(self) -> list[str]:
        compared = self._stored(self.compared)
        return [name for name in self._stored(self.columns) if name not in compared]

    def read(self, part: tuple[int, int]) -> list[pa.RecordBatch]:
        """The rows that are wanted of one part."""
        return list(self.batches(part))

    def batches(self, part: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        """The same, as they are asked for."""
        return self._all(*part) if self.where is None else self._filtered(*part)

    def _all(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for rows, values in self._scanned(self.columns, start, stop):
            yield self._batch(rows, values)

    def _filtered(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        for rows, values in self._asked(start, stop):
            arrays = {name: self._array(name, rows, values) for name in self.compared}
            table = pa.table({"": pa.array(np.arange(len(rows)))} | arrays)
            kept = table.filter(self.where)[""].to_numpy()
            if not len(kept):
                continue
            everywhere = len(kept) == len(rows)
            chosen = {
                name: each if everywhere else each.take(kept) for name, each in values.items()
            }
            start = 0
            for some in _pieces(self.dataset, self._uncompared, rows[kept]):
                stop = start + len(some)
                these = {name: each.slice(start, stop) for name, each in chosen.items()}
                yield self._batch(some, these | self._others(some))
                start = stop

    def _asked(
        self, start: int, stop: int
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, ColumnValues]]]:
        """Rows of a part with the columns that are compared."""
        if self.rows is None:
            yield from self._scanned(self.compared, start, stop)
            return
        names = self._stored(self.compared)
        for rows in _pieces(self.dataset, names, self.rows[start:stop]):
            self.scanned.pages += sum(_pages(self.dataset, name, rows) for name in names)
            self.scanned.rows += len(rows)
            values = read_columns([page_reader(self.dataset, name) for name in names], rows)
            yield rows, dict(zip(names, values, strict=True))

    def _others(self, rows: NDArray[np.int64]) -> dict[str, ColumnValues]:
        """Columns that are wanted and were not compared, of some rows."""
        names = self._uncompared
        if not names:
            return {}
        readers = [page_reader(self.dataset, name) for name in names]
        first, last = int(rows[0]), int(rows[-1])
        run = last - first + 1 == len(rows)
        wanted = range(first, last + 1) if run else rows
        self.scanned.pages += sum(_pages(self.dataset, name, rows) for name in names)
        return dict(zip(names, read_columns(readers, wanted), strict=True))

    def _scanned(
        self, names: Sequence[str], start: int, stop: int
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, ColumnValues]]]:
        stored = self._stored(names)
        for name in stored:
            bounds = column_index(self.dataset, name).page_of(np.array([start, stop - 1]))
            self.scanned.pages += int(bounds[1] - bounds[0]) + 1
        self.scanned.rows += stop - start
        batches = scan(self.dataset, stored, start, stop)
        for rows, values in batches if stored else self._numbers(start, stop):
            if self.scanned.stop.is_set():
                raise StoppedError
            yield rows, values

    def _numbers(
        self, start: int, stop: int
    ) -> Iterator[tuple[NDArray[np.int64], dict[str, ColumnValues]]]:
        alive = live_rows(self.dataset).alive(start, stop)
        yield np.arange(start, stop) if alive is None else start + alive, {}

    def _batch(self, rows: NDArray[np.int64], values: dict[str, ColumnValues]) -> pa.RecordBatch:
        arrays = [self._array(name, rows, values) for name in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(
        self, name: str, rows: NDArray[np.int64], values: dict[str, ColumnValues]
    ) -> pa.Array:
        if name in self.dataset.schema:
            return sql_array(self.dataset.schema.column(name), values[name])
        if name in self.numbered:
            numbers: Any = values[self.numbered[name]]
            mask = None if numbers.valid is None else ~numbers.valid
            return pa.array(numbers.values, pa.int64(), mask=mask)
        if name == NUMBER:
            return pa.array(live_rows(self.dataset).live(rows))
        return _row_ids(self.dataset, rows)


def _compared(every: pa.Schema, where: pc.Expression | None) -> tuple[str, ...]:
    if where is None:
        return ()
    names = field_names(expression_tree(where))
    return tuple(every.names if names is None else sorted(names))


def _row_ids(dataset: StoredDataset, rows: NDArray[np.int64]) -> pa.Array:
    """Ids as text, as `format_row_id` writes them."""
    ids = row_id_table(dataset).of(rows)
    fragments, which = np.unique(ids["fragment"], return_inverse=True)
    names = pa.array([f"{int(each):016x}" for each in fragments], pa.string())
    offsets = pc.cast(pa.array(ids["offset"].astype(np.int64)), pa.string())
    return pc.binary_join_element_wise(names.take(pa.array(which)), offsets, ":")


def _part_rows(dataset: StoredDataset, columns: Sequence[str]) -> int:
    """So many rows that a part of them takes about `PART_BYTES`."""
    indexes = [column_index(dataset, name) for name in columns]
    sizes = sum(float(_row_bytes(index) @ index.entries["rows"]) for index in indexes)
    row_bytes = sizes / max(1, dataset.root.rows)
    return max(1, min(PART_ROWS, math.ceil(PART_BYTES / max(row_bytes, 1.0))))


def _row_bytes(index: ColumnIndex) -> NDArray[np.float64]:
    """Decoded bytes of a row of each page, on average; of one that is nowhere, of the default."""
    rows = np.maximum(index.entries["rows"], 1)
    sizes: NDArray[np.float64] = index.entries["raw_bytes"] / rows
    if index.default is not None:
        sizes[index.is_absent] = index.default.nbytes + 1
    return sizes


def _pieces(
    dataset: StoredDataset, names: Sequence[str], rows: NDArray[np.int64]
) -> Iterator[NDArray[np.int64]]:
    """Rows, ascending, cut so that the columns take about `PART_BYTES` of each piece, or a row."""
    sizes = np.zeros(len(rows))
    for name in names:
        index = column_index(dataset, name)
        sizes += _row_bytes(index)[index.page_of(rows)]
    ends = np.cumsum(sizes)
    start = 0
    while start < len(rows):
        before = ends[start] - sizes[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + PART_BYTES, "right")))
        yield rows[start:stop]
        start = stop


_COPIES: Final = 3  # of a value: in its page, in a batch, and as it is handed on


def _largest_page(dataset: StoredDataset, name: str) -> int:
    """Decoded bytes of the largest page of a column, or of a row where rows are made or cut."""
    index = column_index(dataset, name)
    row_bytes = int(_row_bytes(index).max(initial=0))
    if index.storage.layout is ColumnLayout.TILED:  # which are read by rows
        return row_bytes
    return max(row_bytes, int(index.entries["raw_bytes"].max(initial=0)))


def _pages(dataset: StoredDataset, name: str, rows: NDArray[np.int64]) -> int:
    return len(np.unique(column_index(dataset, name).page_of(rows)))

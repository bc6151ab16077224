"""Upsert: rows whose key is there are updated, the others are appended.

The input is coerced and spilled to a temporary file, so that it may be read once and larger than
memory; its keys alone stay in memory. One pass over the key columns of the dataset finds the rows
that have them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.changing.patch import ValueSource
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset
from tensorrepo.formats.dataset.reading.overlay import RowPiece, collect
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array, to_arrow_array
from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.row_keys import KeyTable, check_key_columns, key_array
from tensorrepo.formats.dataset.selecting.select_rows import Chosen, find_keys
from tensorrepo.formats.dataset.update import set_values
from tensorrepo.formats.dataset.write import BUDGET_BYTES, write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink


@dataclass(frozen=True, slots=True, eq=False)
class Spool:
    """Rows that fit a dataset, in some of its columns.

    `first_row` is int64 ``(batches + 1,)``: where each batch begins.
    """

    schema: Schema
    file: pa.ipc.RecordBatchFileReader | None
    first_row: Ints

    @property
    def rows(self) -> int:
        return int(self.first_row[-1])

    def keys(self, columns: Sequence[Column]) -> list[pa.Array]:
        """The values of key columns, all rows."""
        parts: list[list[pa.Array]] = [[] for _ in columns]
        for number in range(len(self.first_row) - 1):
            for part, column in zip(parts, columns, strict=True):
                part.append(key_array(column, self._values(number, column)))
        return [pa.concat_arrays(part) for part in parts]

    def source(self, column: Column) -> ValueSource:
        """The values of a column, by row of the input."""
        return lambda _, places: self._take(column, places)

    def batches(self, wanted: Bools) -> Iterator[pa.RecordBatch]:
        """The rows that are wanted."""
        assert self.file is not None, "it has rows"
        for number in range(len(self.first_row) - 1):
            start, stop = self.first_row[number : number + 2].tolist()
            rows = np.flatnonzero(wanted[start:stop])
            if len(rows):
                columns = [
                    to_arrow_array(column.type, self._values(number, column).take(rows))
                    for column in self.schema.columns
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=self.file.schema)

    def _take(self, column: Column, rows: Ints) -> ColumnValues:
        numbers = np.searchsorted(self.first_row, rows, side="right") - 1
        pieces = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            within = rows[places] - self.first_row[number]
            pieces.append(RowPiece(self._values(number, column), within, places))
        return collect(pieces, len(rows))

    def _values(self, batch: int, column: Column) -> ColumnValues:
        assert self.file is not None, "it has rows"
        place = self.schema.names.index(column.name)
        found = from_arrow_array(column.type, self.file.get_batch(batch).column(place))
        assert found is not None, "it was coerced before it was spooled"
        return found


@contextmanager
def spooled(
    schema: Schema, needed: Sequence[Column], batches: Iterable[InputBatch]
) -> Iterator[Spool]:
    """All rows of `batches`, coerced, in a file that is gone afterwards.

    All batches must have `needed` and the columns of the first one.

    Raises:
        InvalidInputError: a row that does not fit; names row, column, expected and found.
    """
    descriptor, path = tempfile.mkstemp(prefix="tensorrepo-rows-", suffix=".arrow")
    os.close(descriptor)
    try:
        with closing(_SpoolWriter(path, schema, needed)) as writer:
            for batch in batches:
                for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
                    writer.add(part)
        first_row = np.array(writer.first_row, np.int64)
        if writer.given is None or not first_row[-1]:
            yield Spool(writer.given or schema.visible, None, np.zeros(1, np.int64))
            return
        with pa.memory_map(path) as mapped:
            yield Spool(writer.given, pa.ipc.open_file(mapped), first_row)
    finally:
        os.unlink(path)


class _SpoolWriter:
    def __init__(self, path: str, schema: Schema, needed: Sequence[Column]) -> None:
        self.given: Schema | None = None
        self.first_row = [0]
        self._path = path
        self._schema = schema
        self._needed = needed
        self._file: pa.ipc.RecordBatchFileWriter | None = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, batch: InputBatch) -> None:
        for at, names in _names(batch):
            if self.given is None:
                self.given = self._columns(names)
                self._file = pa.ipc.new_file(self._path, self.given.to_arrow())
            # Not null for what a row lacks: that would overwrite what is there.
            if set(names) != set(self.given.names):
                raise InvalidInputError(
                    f"row {self.first_row[-1] + at} has columns {', '.join(sorted(names))}, "
                    f"the rows before it {', '.join(sorted(self.given.names))}"
                )
        if self.given is None:
            return
        values = coerce_batch(self.given, batch, self.first_row[-1])
        if not values[0].rows:
            return
        arrays = [
            to_arrow_array(column.type, each)
            for column, each in zip(self.given.columns, values, strict=True)
        ]
        assert self._file is not None, "made with the columns"
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=self.given.to_arrow()))
        self.first_row.append(self.first_row[-1] + values[0].rows)

    def _columns(self, names: Sequence[str]) -> Schema:
        visible = self._schema.visible
        for name in names:
            visible.column(name)
        for column in self._needed:
            if column.name not in names:
                raise InvalidInputError(
                    f"the rows have no column {column.name!r}, which is the key"
                )
        return Schema(tuple(column for column in visible.columns if column.name in names))


def _names(batch: InputBatch) -> Iterator[tuple[int, Sequence[str]]]:
    """The columns that are given: once for all rows, or with rows given one by one for each."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        yield 0, list(batch.schema.names)
    elif isinstance(batch, Mapping):
        yield 0, list(batch)
    else:
        for at, row in enumerate(batch):
            if not isinstance(row, Mapping):
                raise InvalidInputError(
                    f"row {at}: expected a mapping of columns, found {type(row).__name__}"
                )
            yield at, list(row)


def upsert(
    objects: ObjectSink,
    dataset: StoredDataset,
    key: str | Sequence[str],
    batches: Iterable[InputBatch],
    *,
    codec: CodecChoice = Codec.NONE,
    budget_bytes: int = BUDGET_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ObjectLink:
    """Update the rows whose key is there, and append the others.

    All batches have the columns of the first one; columns that they lack stay as they are, and take
    their default, or null, in new rows. `budget_bytes` bounds the memory used, beside the keys of
    the input and one batch; `progress` receives rows and bytes so far, of updated and then of
    appended rows.

    Returns:
        Link of the new root; of the old one when nothing differs.

    Raises:
        InvalidInputError: a row that does not fit, a key that is null or given twice, or one that
            several rows of the dataset have.
        NotFoundError: a key column that is not there.
    """
    columns = check_key_columns(dataset.schema, [key] if isinstance(key, str) else key)
    with spooled(dataset.schema, columns, batches) as spool:
        if not spool.rows:
            return objects.describe(dataset.digest)
        table = KeyTable.of(columns, spool.keys(columns), unique=True)
        chosen = _match(dataset, table)
        is_new = np.ones(spool.rows, np.bool_)
        is_new[chosen.places] = False
        _check_complete(dataset.schema, spool, table, is_new)
        sources = {
            column.name: spool.source(column)
            for column in spool.schema.columns
            if column not in columns
        }
        updated = set_values(
            objects, dataset, chosen, sources, budget_bytes=budget_bytes, progress=progress
        )
        if not is_new.any():
            return updated
        return write_dataset(
            objects,
            dataset.schema,
            spool.batches(is_new),
            base=open_dataset(objects, updated.digest),
            codec=codec,
            budget_bytes=budget_bytes,
            progress=progress,
        )


def _match(dataset: StoredDataset, table: KeyTable) -> Chosen:
    rows, places = find_keys(dataset, table)
    unique, counts = np.unique(places, return_counts=True)
    if (counts > 1).any():
        at = int(unique[counts > 1][0])
        found = rows[places == at]
        raise InvalidInputError(
            f"key {table.text(at)} names {len(found)} rows of the dataset, such as {found[0]} and "
            f"{found[1]}: an upsert needs a key that tells rows apart"
        )
    return Chosen(live_rows(dataset).physical(rows), places, table.rows)


def _check_complete(schema: Schema, spool: Spool, table: KeyTable, is_new: Bools) -> None:
    """New rows need a value in every column."""
    for column in schema.visible.columns:
        has_value = column.name in spool.schema or column.nullable or column.default is not None
        if not has_value and is_new.any():
            at = int(np.flatnonzero(is_new)[0])
            raise InvalidInputError(
                f"row {at} ({table.text(at)}) is new, and needs a value for column "
                f"{column.name!r}, which is neither given nor nullable and has no default"
            )

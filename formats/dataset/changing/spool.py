"""Spool of rows: coerced rows that wait in a temporary file for where they go.

Input may be read once and be larger than memory: its rows lie in an Arrow file that has no name
beyond this module, and are taken from there by number.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.changing.patch import ValueSource
from tensorrepo.formats.dataset.reading.overlay import RowPiece, collect
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array, to_arrow_array
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.row_keys import key_array
from tensorrepo.repo.deferred_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Spool:
    """Rows of some columns.

    Attributes:
        schema: columns of the rows.
        first_row: int64 ``(batches + 1,)``: where each batch begins.
    """

    schema: Schema
    first_row: Ints
    _file: pa.ipc.RecordBatchFileReader | None

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
        """The values of a column, by row of the spool."""
        return lambda _, places: self._take(column, places)

    def batches(self, rows: Ints) -> Iterator[pa.RecordBatch]:
        """Rows of the spool in the order given, a batch no longer than they were written in."""
        arrow = self.schema.without_forms().to_arrow()
        for number, within in self._pieces(rows):
            columns = [
                to_arrow_array(column.type, self._values(number, column).take(within))
                for column in self.schema.columns
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow)

    def arrays(self, column: Column, rows: Ints) -> Iterator[pa.Array]:
        """The same of one column."""
        for number, within in self._pieces(rows):
            yield to_arrow_array(column.type, self._values(number, column).take(within))

    def _pieces(self, rows: Ints) -> Iterator[tuple[int, Ints]]:
        """Rows that follow each other and lie in one batch, counted in it."""
        numbers = np.searchsorted(self.first_row, rows, side="right") - 1
        for piece in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(numbers)) + 1):
            if len(piece):
                number = int(numbers[piece[0]])
                yield number, rows[piece] - self.first_row[number]

    def _take(self, column: Column, rows: Ints) -> ColumnValues:
        numbers = np.searchsorted(self.first_row, rows, side="right") - 1
        pieces = []
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            within = rows[places] - self.first_row[number]
            pieces.append(RowPiece(self._values(number, column), within, places))
        return collect(pieces, len(rows))

    def _values(self, batch: int, column: Column) -> ColumnValues:
        assert self._file is not None, "it has rows"
        place = self.schema.names.index(column.name)
        values = from_arrow_array(column.type, self._file.get_batch(batch).column(place))
        assert values is not None, "it was coerced before it was spooled"
        return values


class SpoolWriter:
    """Writes rows, all of the same columns, and gives them as a spool until it is closed."""

    def __init__(self) -> None:
        descriptor, self._path = tempfile.mkstemp(prefix="tensorrepo-rows-", suffix=".arrow")
        os.close(descriptor)
        self._first_row = [0]
        self._file: pa.ipc.RecordBatchFileWriter | None = None
        self._mapped: pa.MemoryMappedFile | None = None

    @property
    def rows(self) -> int:
        """Number of rows written."""
        return self._first_row[-1]

    def add(self, schema: Schema, values: Sequence[ColumnValues]) -> None:
        """Write the values of the columns of `schema`, which is the same each time."""
        if not values[0].rows:
            return
        arrow = schema.without_forms().to_arrow()  # whose dictionaries may differ by batch
        if self._file is None:
            self._file = pa.ipc.new_file(self._path, arrow)
        arrays = [
            to_arrow_array(column.type, each)
            for column, each in zip(schema.columns, values, strict=True)
        ]
        self._file.write_batch(pa.RecordBatch.from_arrays(arrays, schema=arrow))
        self._first_row.append(self.rows + values[0].rows)

    def finish(self, schema: Schema) -> Spool:
        """All rows; nothing is written after them."""
        if self._file is None:
            return Spool(schema, np.zeros(1, np.int64), None)
        self._file.close()
        self._mapped = pa.memory_map(self._path)
        return Spool(schema, np.array(self._first_row, np.int64), pa.ipc.open_file(self._mapped))

    def close(self) -> None:
        """Remove the file."""
        for opened in (self._file, self._mapped):
            if opened is not None:
                opened.close()
        os.unlink(self._path)

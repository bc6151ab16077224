"""Write a dataset as one TFRecord file of `tf.train.Example` records.

Whole numbers, bools, class labels and moments become lists of int64, other numbers lists of
float32, everything else a list of one value of bytes. Lists are flat, as TensorFlow keeps them: the
shape of a tensor is said when the file is parsed. A null is a feature that the example lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.columns.arrow import from_arrow_array
from tensorrepo.formats.dataset.columns.schema import Column, Layout
from tensorrepo.formats.dataset.columns.values import BinaryValues, FixedValues, RaggedValues
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.output import Table, column_refused, compressed, new_file
from tensorrepo.formats.exchange.shards.protowire import write_field, write_varints
from tensorrepo.formats.exchange.shards.tfrecordexample import BYTES_LIST, FLOAT_LIST, INT64_LIST
from tensorrepo.formats.exchange.shards.tfrecordfile import masked_crc, write_record

if TYPE_CHECKING:
    from numpy.typing import NDArray

# (value, number of its row) as the content of a list; None where the row is null.
Encoder = Callable[[Any, int], bytes]


def write_tfrecord(
    table: Table, path: Path, *, overwrite: bool = False, compress: bool | None = None
) -> None:
    """One file, gzipped when asked or when `path` ends in ``.gz``.

    Raises:
        InvalidInputError: a column that examples have no list for, or a number that would not come
            back as it is.
        UnsupportedError: the library for checksums is not installed.
    """
    crc = masked_crc()
    kinds = {column.name: _kind(column) for column in table.schema.columns}
    gzipped = path.suffix == ".gz" if compress is None else compress
    with new_file(path, overwrite=overwrite) as temporary, temporary.open("xb") as raw:
        file = compressed(raw, gzipped=gzipped)
        for record in _records(table, kinds):
            write_record(file, record, crc)
        if gzipped:
            file.close()


def _kind(column: Column) -> int:
    """The field of `tf.train.Feature` for a column."""
    storage = column.storage
    if storage.layout is Layout.BINARY:
        return BYTES_LIST
    if storage.unknown_dims > 1:
        raise column_refused(column, "lists are flat, so that its shapes would be lost")
    if storage.element.kind in "iub":
        return INT64_LIST
    if storage.element.kind == "c":
        raise column_refused(column, "TFRecord has no complex numbers")
    return FLOAT_LIST


def _records(table: Table, kinds: dict[str, int]) -> Iterator[bytes]:
    first = 0
    for batch in table.to_batches(max_bytes=BATCH_BYTES):
        features = {
            column.name: _features(column, kinds[column.name], batch.column(at), first)
            for at, column in enumerate(table.schema.columns)
        }
        for at in range(batch.num_rows):
            entries = (
                write_field(1, write_field(1, name.encode()) + write_field(2, feature))
                for name, of_row in features.items()
                if (feature := of_row(at)) is not None
            )
            yield write_field(1, b"".join(entries))
        first += batch.num_rows


def _features(column: Column, kind: int, array: Any, first: int) -> Callable[[int], bytes | None]:
    """The serialised `tf.train.Feature` of a row of a batch; None where it is null."""
    values = from_arrow_array(column.type, array)
    valid = None if values is None else values.valid

    def feature(at: int) -> bytes | None:
        if valid is not None and not valid[at]:
            return None
        if isinstance(values, BinaryValues):
            content = values.data[values.offsets[at] : values.offsets[at + 1]].tobytes()
            return write_field(kind, write_field(1, content))
        assert isinstance(values, FixedValues | RaggedValues), column
        row = values.values[at] if isinstance(values, FixedValues) else values.row(at)
        numbers = np.asarray(row).reshape(-1)
        encode = _integers if kind == INT64_LIST else _floats
        return write_field(kind, write_field(1, encode(column, numbers, first + at)))

    return feature


def _integers(column: Column, numbers: NDArray[Any], row: int) -> bytes:
    if numbers.dtype == np.uint64 and (numbers >> np.uint64(63)).any():
        raise column_refused(column, f"row {row} holds {numbers.max()}, more than an int64 can say")
    return write_varints(numbers.astype(np.int64))


def _floats(column: Column, numbers: NDArray[Any], row: int) -> bytes:
    with np.errstate(over="ignore"):
        narrow = numbers.astype("<f4")
    if numbers.dtype == np.float64:
        lost = (narrow != numbers) & ~np.isnan(numbers)
        if lost.any():
            raise column_refused(
                column,
                f"row {row} holds {numbers[lost][0]}, which TFRecord's float32 would round",
            )
    return narrow.tobytes()

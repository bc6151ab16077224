"""Row codec of nested values: lists, structs and maps, each row a small columnar block of its own.

A row stands alone, so rows are sliced, gathered, compared and patched as bytes, and equal values
are equal bytes. Within a row values lie column by column, so that many rows are encoded and decoded
by a handful of numpy calls, whatever their number: no Python per row.

Source:
    docs/spec/dataset.md, section "Nested rows".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.schema.arrow_forms import fixed_lists
from tensorrepo.formats.dataset.schema.values import BinaryValues, gather_ranges, offsets_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError

Bytes8 = NDArray[np.uint8]

_LENGTH = np.dtype("<u4")


# ------------------------------------------------------------------------------ encode


def encode_nested(array: pa.Array) -> BinaryValues:
    """Rows of a nested Arrow array in canonical form, as bytes."""
    valid = _validity(array)
    present = array if valid is None else array.filter(pa.array(valid))
    pieces: list[_Piece] = []
    _encode_body(present, np.ones(len(present), np.int64), None, pieces)
    rows = _interleaved(pieces, len(present))
    if valid is None:
        return rows
    lengths = np.zeros(len(array), np.int64)
    lengths[valid] = np.diff(rows.offsets)
    return BinaryValues(offsets_of(lengths), rows.data, valid)


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """One part of every row, those of all rows back to back; `lengths` are bytes a row."""

    data: Bytes8
    lengths: Ints


def _interleaved(pieces: list[_Piece], rows: int) -> BinaryValues:
    """Row by row the parts that it has of each piece."""
    if not pieces or not rows:
        return BinaryValues(np.zeros(rows + 1, np.int64), np.empty(0, np.uint8))
    firsts = offsets_of(np.array([len(piece.data) for piece in pieces], np.int64))
    starts = np.stack(
        [
            first + offsets_of(piece.lengths)[:-1]
            for first, piece in zip(firsts[:-1], pieces, strict=True)
        ],
        axis=1,
    )
    lengths = np.stack([piece.lengths for piece in pieces], axis=1)
    data = np.concatenate([piece.data for piece in pieces])
    mixed = gather_ranges(data, starts.reshape(-1), lengths.reshape(-1))
    return BinaryValues(offsets_of(lengths.sum(axis=1)), mixed)


def _encode_block(array: pa.Array, counts: Ints, alive: Bools | None, out: list[_Piece]) -> None:
    """Values that may be null; `counts` a row, of which those not `alive` stand under a null."""
    valid = _validity(array)
    if valid is not None and alive is not None:
        valid |= ~alive
    missing = np.zeros(len(counts), np.int64)
    if valid is not None:
        missing = _row_sums((~valid).astype(np.int64), counts)
    some = counts > 0
    out.append(_Piece((missing[some] > 0).astype(np.uint8), some.astype(np.int64)))
    if valid is not None:
        flagged = missing > 0
        told = valid[np.repeat(flagged, counts)].view(np.uint8)
        out.append(_Piece(told, np.where(flagged, counts, 0)))
        alive = valid if alive is None else valid & alive
    _encode_body(array, counts, alive, out)


def _encode_body(array: pa.Array, counts: Ints, alive: Bools | None, out: list[_Piece]) -> None:
    types, kind = pa.types, array.type
    if types.is_struct(kind):
        for at in range(kind.num_fields):
            _encode_block(array.field(at), counts, alive, out)
    elif types.is_map(kind) or types.is_large_list(kind):
        _encode_lists(array, counts, alive, out)
    elif types.is_fixed_size_list(kind):
        size = kind.list_size
        values = array.values.slice(array.offset * size, len(array) * size)
        inner = None if alive is None else np.repeat(alive, size)
        _encode_block(values, counts * size, inner, out)
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        offsets = _buffer(array, 1, np.dtype(np.int64), len(array) + 1)
        data = array.buffers()[2]
        items = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        lengths, starts = _alive_lengths(offsets, alive)
        out.append(_Piece(_as_bytes(lengths), counts * _LENGTH.itemsize))
        # Mostly they lie back to back already.
        used = items[offsets[0] : offsets[-1]]
        used = used if len(used) == lengths.sum() else gather_ranges(items, starts, lengths)
        out.append(_Piece(used, _row_sums(lengths, counts)))
    else:
        out.append(_encode_fixed(array, counts, alive))


def _encode_lists(array: pa.Array, counts: Ints, alive: Bools | None, out: list[_Piece]) -> None:
    offsets = np.asarray(array.offsets).astype(np.int64)
    lengths, starts = _alive_lengths(offsets, alive)
    out.append(_Piece(_as_bytes(lengths), counts * _LENGTH.itemsize))
    inner = _row_sums(lengths, counts)
    is_map = pa.types.is_map(array.type)
    for values in (array.keys, array.items) if is_map else (array.values,):
        used = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
        if int(lengths.sum()) != len(used):  # what lies under nulls goes
            places = gather_ranges(np.arange(len(used)), starts - offsets[0], lengths)
            used = used.take(pa.array(places))
        _encode_block(used, inner, None, out)


def _alive_lengths(offsets: Ints, alive: Bools | None) -> tuple[Ints, Ints]:
    lengths = np.diff(offsets)
    if alive is not None:
        lengths = np.where(alive, lengths, 0)
    if len(lengths) and int(lengths.max()) > np.iinfo(_LENGTH).max:
        raise pa.ArrowInvalid("a value inside of a row has 2^32 values or bytes, or more")
    return lengths, offsets[:-1]


def _encode_fixed(array: pa.Array, counts: Ints, alive: Bools | None) -> _Piece:
    width = _width(array.type)
    if pa.types.is_null(array.type):
        return _Piece(np.zeros(len(array), np.uint8), counts)
    if pa.types.is_boolean(array.type):
        data = np.asarray(array.fill_null(False)).astype(np.uint8).reshape(-1, 1)
    else:
        data = _buffer(array, -1, np.dtype(np.uint8), len(array) * width, width).reshape(-1, width)
    if alive is not None and not alive.all():
        data = np.where(alive[:, None], data, np.uint8(0))
    return _Piece(np.ascontiguousarray(data).reshape(-1), counts * width)


def _buffer(
    array: pa.Array, at: int, dtype: np.dtype[Any], count: int, step: int = 1
) -> NDArray[Any]:
    data = array.buffers()[at]
    if data is None or not count:
        return np.zeros(count, dtype)
    return np.frombuffer(data, dtype, count, array.offset * step * dtype.itemsize)


def _validity(array: pa.Array) -> Bools | None:
    if not array.null_count or pa.types.is_null(array.type):
        return None
    found: Bools = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), np.bool_)
    return found


def _as_bytes(lengths: Ints) -> Bytes8:
    return lengths.astype(_LENGTH).view(np.uint8)


def _row_sums(numbers: Ints, counts: Ints) -> Ints:
    """Of numbers of which each row has `counts`, their sum."""
    ends, sums = np.cumsum(counts), offsets_of(numbers)
    found: Ints = sums[ends] - sums[ends - counts]
    return found


def _width(kind: pa.DataType) -> int:
    """Bytes of a value of fixed width; a null takes one, so that a row bounds what it holds."""
    if pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return 1
    return int(kind.bit_width) // 8


# ------------------------------------------------------------------------------ decode


def decode_nested(values: BinaryValues, kind: pa.DataType) -> pa.Array:
    """Rows that `encode_nested` wrote, as an array of `kind`, the canonical form of their type.

    Raises:
        CorruptError: bytes that no row of that type has.
    """
    starts, stops = values.offsets[:-1], values.offsets[1:]
    if values.valid is not None:
        starts, stops = starts[values.valid], stops[values.valid]
    cursor = _Cursor(values.data, starts.copy(), stops)
    array = _decode_body(cursor, kind, np.ones(len(starts), np.int64), None)
    cursor.end()
    if values.valid is None:
        return array
    places = np.maximum(np.cumsum(values.valid) - 1, 0)
    return array.take(pa.array(places, mask=~values.valid))


@dataclass(slots=True, eq=False)
class _Cursor:
    """Where reading stands in each row: at byte `at` of those before `stops`."""

    data: Bytes8
    at: Ints
    stops: Ints

    def check(self, counts: Ints, each: int = 1) -> None:
        """See that each row has so many bytes left, before memory is taken for them."""
        if (counts > (self.stops - self.at) // each).any():
            raise CorruptError("a nested row counts more values than it has bytes for")

    def take(self, counts: Ints, width: int = 1) -> Bytes8:
        """The next bytes of all rows."""
        self.check(counts, width)
        lengths = counts * width
        found = gather_ranges(self.data, self.at, lengths)
        self.at = self.at + lengths
        return found

    def end(self) -> None:
        if (self.at != self.stops).any():
            raise CorruptError("a nested row is longer than its values")


def _decode_block(cursor: _Cursor, kind: pa.DataType, counts: Ints) -> pa.Array:
    some = counts > 0
    cursor.check(counts)
    flags = np.zeros(len(counts), np.uint8)
    flags[some] = cursor.take(some.astype(np.int64))
    if (flags > 1).any():
        raise CorruptError("a nested row says in no known way which of its values are null")
    valid = None
    if flags.any():
        told = cursor.take(np.where(flags, counts, 0))
        if (told > 1).any():
            raise CorruptError("a nested row has a value that is neither null nor not")
        valid = np.ones(int(counts.sum()), np.bool_)
        valid[np.repeat(flags > 0, counts)] = told.view(np.bool_)
        if (_row_sums((~valid).astype(np.int64), counts)[flags > 0] == 0).any():
            raise CorruptError("a nested row says that values are null, and none is")
    return _decode_body(cursor, kind, counts, valid)


def _decode_body(cursor: _Cursor, kind: pa.DataType, counts: Ints, valid: Bools | None) -> pa.Array:
    types, mask = pa.types, None if valid is None else pa.array(~valid)
    if types.is_struct(kind):
        parts = [_decode_block(cursor, each.type, counts) for each in kind.fields]
        return pa.StructArray.from_arrays(parts, fields=kind.fields, mask=mask)
    if types.is_map(kind) or types.is_large_list(kind):
        lengths = cursor.take(counts, _LENGTH.itemsize).view(_LENGTH).astype(np.int64)
        inner = _row_sums(lengths, counts)
        parts_of = (kind.key_type, kind.item_type) if types.is_map(kind) else (kind.value_type,)
        parts = [_decode_block(cursor, each, inner) for each in parts_of]
        offsets = pa.array(offsets_of(lengths))
        if not types.is_map(kind):
            return pa.LargeListArray.from_arrays(offsets, *parts, type=kind, mask=mask)
        if parts[0].null_count and not types.is_null(parts[0].type):
            raise CorruptError("a map has a key that is null")
        return pa.MapArray.from_arrays(offsets.cast(pa.int32()), *parts, type=kind, mask=mask)
    if types.is_fixed_size_list(kind):
        cursor.check(counts, kind.list_size)
        values = _decode_block(cursor, kind.value_type, counts * kind.list_size)
        return fixed_lists(values, kind, mask)
    return _decode_leaf(cursor, kind, counts, valid)


def _decode_leaf(cursor: _Cursor, kind: pa.DataType, counts: Ints, valid: Bools | None) -> pa.Array:
    types, total = pa.types, int(counts.sum())
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    nulls = 0 if valid is None else int((~valid).sum())
    if types.is_large_string(kind) or types.is_large_binary(kind):
        lengths = cursor.take(counts, _LENGTH.itemsize).view(_LENGTH).astype(np.int64)
        data = cursor.take(_row_sums(lengths, counts))
        buffers = [bits, pa.py_buffer(offsets_of(lengths)), pa.py_buffer(data)]
        return _validated(pa.Array.from_buffers(kind, total, buffers, nulls))
    data = cursor.take(counts, _width(kind))
    if types.is_null(kind):
        return pa.nulls(total)
    if types.is_boolean(kind):
        if (data > 1).any():
            raise CorruptError("a nested row has a bool that is neither true nor false")
        return pa.array(data.view(np.bool_), mask=None if valid is None else ~valid)
    if not types.is_decimal(kind):
        return pa.Array.from_buffers(kind, total, [bits, pa.py_buffer(data)], nulls)
    words = pa.py_buffer(aligned(data))
    return _validated(pa.Array.from_buffers(kind, total, [bits, words], nulls))


def aligned(numbers: NDArray[Any]) -> NDArray[Any]:
    """A copy in memory of Arrow's own: Arrow in Rust takes decimals at multiples of 16 alone."""
    found = np.frombuffer(pa.allocate_buffer(numbers.nbytes), numbers.dtype)
    found = found.reshape(numbers.shape)
    np.copyto(found, numbers)
    return found


def _validated(array: pa.Array) -> pa.Array:
    """Text must be UTF-8, a decimal have no more digits than its type."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptError(f"a nested row: {error}") from error
    return array

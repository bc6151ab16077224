"""Column values in memory: what pages decode to and are encoded from.

Small frozen classes, one per layout, with the same few operations. Slices are views, `take` and
`concat` copy. `valid` is None where no row is null; rows that are null are zero or empty.

Rows of a tiled column are `RaggedValues` while their elements are in memory, and `TiledValues`
where only is known which tiles hold them. `as_fixed` and `as_ragged` turn rows of one shape into
rows that each have a shape of their own, and back.

An order key is an unsigned number that orders as the values do: integers with the sign bit flipped,
floats in total order (as float64) without NaN, bools 0 and 1. Pages and columns carry the smallest
and the largest, so that readers skip what cannot match.

Source:
    docs/spec/dataset.md, section "Order keys".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from struct import pack, unpack
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints, element_dtype, is_float, is_small_float
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.repo.deferred_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class FixedValues:
    """`values` has shape ``(rows, *row_shape)``, `valid` bool ``(rows,)``."""

    values: NDArray[Any]
    valid: Bools | None = None

    @property
    def rows(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the values, nulls' flags not counted."""
        return self.values.nbytes

    def slice(self, start: int, stop: int) -> FixedValues:
        return FixedValues(self.values[start:stop], _take(self.valid, slice(start, stop)))

    def take(self, rows: Ints) -> FixedValues:
        return FixedValues(self.values[rows], _take(self.valid, rows))

    def copy(self) -> FixedValues:
        return FixedValues(self.values.copy(), None if self.valid is None else self.valid.copy())


@dataclass(frozen=True, slots=True, eq=False)
class BinaryValues:
    """Row i is ``data[offsets[i]:offsets[i + 1]]``; `offsets` is int64 ``(rows + 1,)``."""

    offsets: Ints
    data: NDArray[np.uint8]
    valid: Bools | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        return int(self.offsets[-1] - self.offsets[0]) + 8 * self.rows

    def slice(self, start: int, stop: int) -> BinaryValues:
        valid = _take(self.valid, slice(start, stop))
        return BinaryValues(self.offsets[start : stop + 1], self.data, valid)

    def take(self, rows: Ints) -> BinaryValues:
        offsets, data = _gather(self.offsets, self.data, rows)
        return BinaryValues(offsets, data, _take(self.valid, rows))

    def copy(self) -> BinaryValues:
        offsets, data = _compact(self.offsets, self.data)
        return BinaryValues(offsets, data, None if self.valid is None else self.valid.copy())


@dataclass(frozen=True, slots=True, eq=False)
class RaggedValues:
    """Row i has elements ``elements[offsets[i]:offsets[i + 1]]``.

    `shape` is that of the column, None where rows differ; `dims` uint32 ``(rows, unknown dims)``
    holds those dimensions, or is None where the number of elements tells them.
    """

    offsets: Ints
    elements: NDArray[Any]
    shape: tuple[int | None, ...]
    dims: NDArray[np.uint32] | None = None
    valid: Bools | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        table = 8 + 4 * (0 if self.dims is None else self.dims.shape[1])
        elements = int(self.offsets[-1] - self.offsets[0])
        return elements * self.elements.dtype.itemsize + table * self.rows

    def row(self, at: int) -> NDArray[Any]:
        """Row `at` as an array of its own shape, a view."""
        flat = self.elements[self.offsets[at] : self.offsets[at + 1]]
        return flat.reshape(self.row_shape(at))

    def row_shape(self, at: int) -> tuple[int, ...]:
        if self.dims is None:
            known = prod(dim for dim in self.shape if dim is not None)
            count = int(self.offsets[at + 1] - self.offsets[at]) // known
            return tuple(count if dim is None else dim for dim in self.shape)
        unknown = iter(self.dims[at].tolist())
        return tuple(next(unknown) if dim is None else dim for dim in self.shape)

    def slice(self, start: int, stop: int) -> RaggedValues:
        dims = None if self.dims is None else self.dims[start:stop]
        valid = _take(self.valid, slice(start, stop))
        return RaggedValues(self.offsets[start : stop + 1], self.elements, self.shape, dims, valid)

    def take(self, rows: Ints) -> RaggedValues:
        offsets, elements = _gather(self.offsets, self.elements, rows)
        dims = None if self.dims is None else self.dims[rows]
        return RaggedValues(offsets, elements, self.shape, dims, _take(self.valid, rows))

    def copy(self) -> RaggedValues:
        offsets, elements = _compact(self.offsets, self.elements)
        dims = None if self.dims is None else self.dims.copy()
        valid = None if self.valid is None else self.valid.copy()
        return RaggedValues(offsets, elements, self.shape, dims, valid)


@dataclass(frozen=True, slots=True, eq=False)
class TiledValues:
    """Row i has the tiles ``tiles[offsets[i]:offsets[i + 1]]``, row-major over its grid.

    `tiles` are TILE records (`tiles`), which say where the bytes of each tile lie; `dims` uint32
    ``(rows, rank)`` is the shape of each row, zeros for null.
    """

    offsets: Ints
    tiles: NDArray[Any]
    dims: NDArray[np.uint32]
    valid: Bools | None = None

    @property
    def rows(self) -> int:
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes that the rows' tiles take in chunks, and those of the table that finds them."""
        return int(self.row_bytes().sum())

    def row_bytes(self) -> Ints:
        """The same row by row, int64 ``(rows,)``."""
        used = self.tiles[self.offsets[0] : self.offsets[-1]]
        ends = offsets_of(used["stored_bytes"].astype(np.int64) + used.dtype.itemsize)
        row_table = 8 + 4 * self.dims.shape[1]
        each: Ints = np.diff(ends[self.offsets - self.offsets[0]]) + row_table
        return each

    def row_shape(self, at: int) -> tuple[int, ...]:
        return tuple(self.dims[at].tolist())

    def slice(self, start: int, stop: int) -> TiledValues:
        valid = _take(self.valid, slice(start, stop))
        return TiledValues(self.offsets[start : stop + 1], self.tiles, self.dims[start:stop], valid)

    def take(self, rows: Ints) -> TiledValues:
        offsets, tiles = _gather(self.offsets, self.tiles, rows)
        return TiledValues(offsets, tiles, self.dims[rows], _take(self.valid, rows))

    def copy(self) -> TiledValues:
        offsets, tiles = _compact(self.offsets, self.tiles)
        valid = None if self.valid is None else self.valid.copy()
        return TiledValues(offsets, tiles, self.dims.copy(), valid)


ColumnValues = FixedValues | RaggedValues | BinaryValues
_V = TypeVar("_V", FixedValues, RaggedValues, BinaryValues)


def concat(pieces: Sequence[ColumnValues]) -> ColumnValues:
    """All rows of `pieces`, which are of one column, one after the other; a copy unless single."""
    first = pieces[0]
    if len(pieces) == 1:
        return first
    valid = _concat_valid(pieces)
    match first:
        case FixedValues():
            return FixedValues(np.concatenate([p.values for p in _all(pieces, FixedValues)]), valid)
        case BinaryValues():
            binary = _all(pieces, BinaryValues)
            offsets, data = _join([p.offsets for p in binary], [p.data for p in binary])
            return BinaryValues(offsets, data, valid)
        case RaggedValues():
            ragged = _all(pieces, RaggedValues)
            offsets, elements = _join([p.offsets for p in ragged], [p.elements for p in ragged])
            dims = [p.dims for p in ragged if p.dims is not None]
            joined = np.concatenate(dims) if dims else None
            return RaggedValues(offsets, elements, first.shape, joined, valid)


def concat_tiled(pieces: Sequence[TiledValues]) -> TiledValues:
    """All rows of `pieces`, whose tiles number the same chunks alike."""
    offsets, tiles = _join([each.offsets for each in pieces], [each.tiles for each in pieces])
    dims = np.concatenate([each.dims for each in pieces])
    return TiledValues(offsets, tiles, dims, _concat_valid(pieces))


def blank_values(storage: Storage, rows: int, valid: Bools | None = None) -> ColumnValues:
    """`rows` rows that are zero or empty. Zeros take no memory before they are read."""
    offsets = np.zeros(rows + 1, np.int64)
    if storage.layout is ColumnLayout.FIXED:
        return FixedValues(np.zeros((rows, *storage.row_shape), storage.element), valid)
    if storage.layout is ColumnLayout.BINARY:
        return BinaryValues(offsets, np.empty(0, np.uint8), valid)
    dims = np.zeros((rows, storage.unknown_dims), np.uint32) if storage.stores_dims else None
    return RaggedValues(offsets, np.empty(0, storage.element), storage.shape, dims, valid)


def binary_of(rows: Sequence[bytes | None]) -> BinaryValues:
    """Rows given one by one, None for null."""
    present = [row or b"" for row in rows]
    lengths = np.fromiter(map(len, present), np.int64, len(present))
    valid = np.array([row is not None for row in rows], np.bool_)
    data = np.frombuffer(b"".join(present), np.uint8)
    return BinaryValues(offsets_of(lengths), data, None if valid.all() else valid)


def binary_rows(values: BinaryValues) -> list[bytes | None]:
    """The bytes of every row, None for null."""
    first = int(values.offsets[0])
    data = values.data[first : values.offsets[-1]].tobytes()
    bounds = pairwise((values.offsets - first).tolist())
    rows = [data[start:stop] for start, stop in bounds]
    if values.valid is None:
        return [*rows]
    return [row if there else None for row, there in zip(rows, values.valid.tolist(), strict=True)]


def valid_rows(values: ColumnValues | TiledValues) -> Bools:
    """`values.valid`, spelt out where no row is null."""
    return np.ones(values.rows, np.bool_) if values.valid is None else values.valid


def _all(pieces: Sequence[ColumnValues], kind: type[_V]) -> list[_V]:
    return [piece for piece in pieces if isinstance(piece, kind)]


def _concat_valid(pieces: Sequence[ColumnValues | TiledValues]) -> Bools | None:
    if all(piece.valid is None for piece in pieces):
        return None
    return np.concatenate([valid_rows(piece) for piece in pieces])


def _take(valid: Bools | None, rows: Ints | slice) -> Bools | None:
    return None if valid is None else valid[rows]


def _compact(offsets: Ints, items: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    return offsets - offsets[0], items[offsets[0] : offsets[-1]].copy()


def _join(offsets: Sequence[Ints], items: Sequence[NDArray[Any]]) -> tuple[Ints, NDArray[Any]]:
    lengths = np.concatenate([np.diff(part) for part in offsets])
    used = [part[bounds[0] : bounds[-1]] for bounds, part in zip(offsets, items, strict=True)]
    return offsets_of(lengths), np.concatenate(used)


def offsets_of(lengths: NDArray[Any]) -> Ints:
    """``[0, l0, l0 + l1, ...]`` as int64."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _gather(offsets: Ints, items: NDArray[Any], rows: Ints) -> tuple[Ints, NDArray[Any]]:
    starts = offsets[rows]
    lengths = offsets[rows + 1] - starts
    return offsets_of(lengths), gather_ranges(items, starts, lengths)


def gather_ranges(items: NDArray[Any], starts: Ints, lengths: Ints) -> NDArray[Any]:
    """``items[start:start + length]`` of each pair, back to back; a copy."""
    new = offsets_of(lengths)
    out = np.empty(int(new[-1]), items.dtype)
    mean = len(out) // max(1, len(starts))
    if mean >= _COPY_ELEMENTS:
        for start, length, at in zip(
            starts.tolist(), lengths.tolist(), new[:-1].tolist(), strict=True
        ):
            out[at : at + length] = items[start : start + length]
    elif len(out):
        # One index per element costs 8 bytes an element but no Python per row. In portions, so that
        # the indices stay in cache on their way.
        cuts = np.searchsorted(new, np.arange(0, len(out), _PORTION_ELEMENTS), side="right") - 1
        for first, last in pairwise(np.unique([*cuts.tolist(), len(starts)]).tolist()):
            low, high = int(new[first]), int(new[last])
            shifts = np.repeat(starts[first:last] - new[first:last], lengths[first:last])
            np.take(items, np.arange(low, high) + shifts, out=out[low:high], mode="clip")
    return out


_PORTION_ELEMENTS = 1 << 16
_COPY_ELEMENTS = 256  # rows longer than this are copied one by one: faster, and no index array


def row_shapes(values: RaggedValues) -> NDArray[np.uint32]:
    """The shape of every row, ``(rows, rank)``; of null rows zeros where dimensions are unknown."""
    unknown = [at for at, dim in enumerate(values.shape) if dim is None]
    known = [dim or 0 for dim in values.shape]
    shapes = np.tile(np.array(known, np.uint32), (values.rows, 1))
    if values.dims is not None:
        shapes[:, unknown] = values.dims
    elif unknown:
        each = prod(dim for dim in values.shape if dim is not None)
        shapes[:, unknown] = (np.diff(values.offsets) // each)[:, None]
    return shapes


def as_fixed(values: RaggedValues) -> FixedValues:
    """Rows whose dimensions are all known, as one array; a view where no row is null."""
    shape = tuple(dim or 0 for dim in values.shape)
    elements = values.elements[values.offsets[0] : values.offsets[-1]]
    if values.valid is None or not prod(shape):
        return FixedValues(elements.reshape(values.rows, *shape), values.valid)
    array = np.zeros((values.rows, *shape), elements.dtype)
    array[values.valid] = elements.reshape(-1, *shape)
    return FixedValues(array, values.valid)


def as_ragged(values: FixedValues, storage: Storage) -> RaggedValues:
    """The rows as those of a ragged or tiled column, whose shape theirs fits."""
    shape = values.values.shape[1:]
    valid = valid_rows(values)
    kept = values.values if values.valid is None else values.values[valid]
    dims = None
    if storage.stores_dims:
        mine = [dim for dim, known in zip(shape, storage.shape, strict=True) if known is None]
        dims = np.where(valid[:, None], np.array(mine, np.uint32), np.uint32(0))
    offsets = offsets_of(valid * prod(shape))
    return RaggedValues(offsets, kept.reshape(-1), storage.shape, dims, values.valid)


_SIGN = 1 << 63
_ALL = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Range:
    """Order keys of the smallest and largest value, nulls and NaN left out.

    `smallest` and `largest` are None where there is no value to speak of.
    """

    smallest: int | None
    largest: int | None
    has_nan: bool = False
    is_sorted: bool = False


NO_RANGE = Range(None, None)


def range_of(values: NDArray[Any], valid: Bools | None) -> Range:
    """The range of a column of scalars; none for types without an order (complex)."""
    if valid is not None:
        values = values[valid]
    if is_small_float(values.dtype):
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            values = values.astype(np.float32)
    kind = values.dtype.kind
    if kind == "c" or not len(values):
        return NO_RANGE
    ascending = len(values) < 2 or bool((values[1:] >= values[:-1]).all())
    if kind != "f":
        return Range(order_key(values.min()), order_key(values.max()), is_sorted=ascending)
    # Not by fmin: of a signalling NaN and a number it may keep the NaN.
    missing = np.isnan(values)
    has_nan = bool(missing.any())
    numbers = values[~missing] if has_nan else values
    if not len(numbers):
        return Range(None, None, has_nan=True)
    # Zeros of both signs are equal but differ in their bits: cover both.
    low, high = order_key(numbers.min() or -0.0), order_key(numbers.max() or 0.0)
    return Range(low, high, has_nan=has_nan, is_sorted=ascending)


def order_key(value: Any) -> int:
    """The key of one number or bool."""
    bits: int
    if isinstance(value, float | np.floating) or _is_small_float(value):
        (bits,) = unpack("<Q", pack("<d", float(value)))
        return (bits ^ _ALL) if bits & _SIGN else bits | _SIGN
    number: int = int(value)
    unsigned = isinstance(value, np.unsignedinteger | np.bool_ | bool)
    return number if unsigned else (number + _SIGN) & _ALL


def _is_small_float(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)  # such scalars are no np.floating
    return dtype is not None and is_small_float(dtype)


def value_of_key(key: int, dtype: str) -> int | float:
    """The number whose `order_key` this is, as a value of this element type."""
    element = element_dtype(dtype)
    if is_float(element):
        value: float
        (value,) = unpack("<d", pack("<Q", key ^ _SIGN if key & _SIGN else key ^ _ALL))
        return value
    return key - _SIGN if element.kind == "i" else key

"""Widening of column types without rewriting their pages.

A wider type holds every value of the narrower one, so pages stay as they were stored and are
converted when they are read. Class labels may be renamed and appended to: stored are numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import element_dtype, is_float
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    ColumnLayout,
    ColumnType,
    Decimal,
    Embedding,
    Image,
    Null,
    Scalar,
    Storage,
    Tensor,
    storage_of,
)
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    as_fixed,
    as_ragged,
    blank_values,
    order_key,
    row_shapes,
    value_of_key,
)
from tensorrepo.repo.errors import UnsupportedError

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# How wide an integer's bits may be for a float to hold all of them.
_EXACT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _wider(dtype: str) -> set[str]:
    """The integers and floats that hold every integer of a type."""
    mine = np.iinfo(dtype)
    theirs = [np.iinfo(name) for name in _INTEGERS if name != dtype]
    wider = {str(t.dtype) for t in theirs if t.min <= mine.min and mine.max <= t.max}
    bits = int(mine.max).bit_length()
    return wider | {name for name, exact in _EXACT_BITS.items() if bits <= exact}


# What the values of each element type may become.
WIDER: Final = {name: _wider(name) for name in _INTEGERS} | {
    "bool": set(_INTEGERS),
    "float8_e4m3fn": {"float32", "float64"},
    "float8_e5m2": {"float32", "float64"},
    "bfloat16": {"float32", "float64"},
    "float16": {"float32", "float64"},
    "float32": {"float64"},
    "complex64": {"complex128"},
}


def can_widen(old: Column, new: Column) -> str | None:
    """Why the values of `old` cannot be given out as those of `new`; None: they can.

    Names, ids and defaults don't matter.
    """
    if old.nullable and not new.nullable:
        return "a nullable column cannot become one that is not: fill its nulls and write it anew"
    return _type_refusal(old.type, new.type)


def _type_refusal(old: ColumnType, new: ColumnType) -> str | None:  # noqa: PLR0911  a case each
    if old == new:
        return None
    match old, new:
        case Scalar(dtype=narrow), Scalar(dtype=wide):
            return _dtype_refusal(narrow, wide)
        case Embedding(dtype=narrow, dim=dim), Embedding(dtype=wide, dim=wanted):
            if dim != wanted:
                return f"an embedding of {dim} dimensions cannot become one of {wanted}"
            return _dtype_refusal(narrow, wide)
        case Tensor(), Tensor():
            return _tensor_refusal(old, new)
        case ClassLabel(names=names), ClassLabel(names=wanted):
            return _names_refusal(names, wanted)
        case Image(), Image():
            return _image_refusal(old, new)
        case Bytes(), Bytes(size=None):
            return None
        case Decimal(), Decimal():
            return _decimal_refusal(old, new)
        case Null(), Tensor(tile=tuple()):
            return "a column of nulls cannot become a tiled one: write a new column"
        case Null(), _:
            return None
        case _:
            before, after = (kind.__struct_config__.tag for kind in (old, new))
            return f"{before} cannot become {after}: write a new column"


def _image_refusal(old: Image, new: Image) -> str | None:
    """How pictures are stored may differ from page to page, unless it takes another column."""
    if "beside" in (old.progressive, new.progressive) and old.progressive != new.progressive:
        return "small pictures beside others are a column of their own: write a new column"
    if new.codec not in (None, old.codec):
        return (
            f"images of {old.codec or 'any format'} cannot become {new.codec}: write a new column"
        )
    return None


def _dtype_refusal(narrow: str, wide: str) -> str | None:
    if narrow == wide or wide in WIDER.get(narrow, ()):
        return None
    return f"{wide} does not hold every {narrow}: write a new column"


def _tensor_refusal(old: Tensor, new: Tensor) -> str | None:
    if old.tile != new.tile:
        return f"tiles of {old.tile} cannot become tiles of {new.tile}: write a new column"
    if not _is_loosened(old.shape, new.shape):
        return f"rows of shape {old.shape} cannot become {new.shape}: dimensions may become None"
    return _dtype_refusal(old.dtype, new.dtype)


def _is_loosened(old: Sequence[int | None], new: Sequence[int | None]) -> bool:
    return len(old) == len(new) and all(
        wanted in (dim, None) for dim, wanted in zip(old, new, strict=True)
    )


def _decimal_refusal(old: Decimal, new: Decimal) -> str | None:
    alike = storage_of(old) == storage_of(new)
    if old.scale == new.scale and old.precision <= new.precision and alike:
        return None
    return "decimals may get more digits before the point, up to 18, 38 or 76: write a new column"


def _names_refusal(names: Sequence[str], wanted: Sequence[str]) -> str | None:
    if len(wanted) < len(names):
        many = counted(len(names), "class", "classes")
        return f"{many} cannot become {len(wanted)}: rows may have the others"
    for number, name in enumerate(names):
        if name in wanted and wanted[number] != name:
            return (
                f"class {name!r} would move from {number} to {wanted.index(name)}: "
                "rows would change their class. Rename classes in place, append new ones."
            )
    return None


def convert_values(values: ColumnValues, stored: Storage, wanted: Storage) -> ColumnValues:
    """Values that were stored as `stored`, as a column has them that is stored as `wanted` now.

    The same object where the two are alike; else a copy of what is converted.

    Raises:
        UnsupportedError: `can_widen` would have refused.
    """
    if stored == wanted:
        return values
    if values.valid is not None and not values.valid.any():  # null is a value of every type
        return blank_values(wanted, values.rows, values.valid)
    if isinstance(values, BinaryValues) or wanted.layout is ColumnLayout.BINARY:
        raise _no_way(stored, wanted)
    if stored.dtype != wanted.dtype:
        if wanted.dtype not in WIDER.get(stored.dtype, ()):
            raise _no_way(stored, wanted)
        values = _with_dtype(values, element_dtype(wanted.dtype))
    if stored.shape == wanted.shape and stored.layout is wanted.layout:
        return values
    return _with_shape(values, stored, wanted)


def _with_dtype(
    values: FixedValues | RaggedValues, dtype: np.dtype[Any]
) -> FixedValues | RaggedValues:
    if isinstance(values, FixedValues):
        return replace(values, values=_cast(values.values, dtype))
    start, stop = int(values.offsets[0]), int(values.offsets[-1])
    elements = _cast(values.elements[start:stop], dtype)
    return replace(values, offsets=values.offsets - start, elements=elements)


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        return array.astype(dtype)


def _with_shape(
    values: FixedValues | RaggedValues, stored: Storage, wanted: Storage
) -> ColumnValues:
    if not _is_loosened(stored.shape, wanted.shape):
        raise _no_way(stored, wanted)
    if isinstance(values, FixedValues):
        return values if wanted.layout is ColumnLayout.FIXED else as_ragged(values, wanted)
    if wanted.layout is ColumnLayout.FIXED:
        return as_fixed(values)
    dims = None
    if wanted.stores_dims:
        unknown = [at for at, dim in enumerate(wanted.shape) if dim is None]
        dims = row_shapes(values)[:, unknown]
        if values.valid is not None:
            dims[~values.valid] = 0
    return replace(values, shape=wanted.shape, dims=dims)


def widen_range(
    smallest: int | None, largest: int | None, stored: str, wanted: str
) -> tuple[int | None, int | None]:
    """Order keys of a smallest and a largest value of one element type as keys of a wider one."""
    if stored == wanted or smallest is None or largest is None:
        return smallest, largest
    dtype = element_dtype(wanted)
    low, high = value_of_key(smallest, stored), value_of_key(largest, stored)
    if is_float(dtype):  # a range covers zeros of both signs
        return order_key(float(low) or -0.0), order_key(float(high) or 0.0)
    return order_key(dtype.type(low)), order_key(dtype.type(high))


def _no_way(stored: Storage, wanted: Storage) -> UnsupportedError:
    return UnsupportedError(
        f"values stored as {stored.dtype}{list(stored.shape)} cannot be read as "
        f"{wanted.dtype}{list(wanted.shape)}. Update tensorrepo."
    )

"""Conversion between users' arrays and column values: numbers, torch tensors, Python values.

Numbers are converted where nothing is lost but what rounding to a narrower float takes. Arrays pass
to torch and from it with their bits, those of types that numpy has not by itself too.

Users see fixed columns as numpy arrays (masked where some are null), ragged and tiled ones as lists
of arrays, text, JSON, links, bytes and nested values as lists of Python values; null is None.
Dates, moments and durations are numpy's own, decimals and times of day Python's. Encoded images
stay bytes: `decode_image` turns one into an array where pillow is installed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import date
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import CODES, SMALL_FLOATS, Bools, is_float, is_small_float
from tensorrepo.formats.common.tensors import import_library, is_torch, tensor_of
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.python_values import python_values
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ColumnType,
    Date,
    Decimal,
    Duration,
    Json,
    Link,
    Nested,
    Null,
    Text,
    Time,
    Timestamp,
    decode_link,
)
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    binary_rows,
    valid_rows,
)
from tensorrepo.formats.images.headers import raster_formats
from tensorrepo.repo.errors import CorruptError, InvalidInputError

# Element types whose values another one holds. numpy's "safe" takes in int64 as float64, too.
_SAFE: Final = {
    wide: frozenset(
        narrow
        for narrow in CODES
        if not {narrow, wide} & SMALL_FLOATS.keys()
        and np.can_cast(narrow, wide, "safe")
        and (narrow not in ("int64", "uint64") or np.dtype(wide).kind in "iu")
    )
    for wide in CODES
}


def as_array(given: Any, wanted: np.dtype[Any] | None = None) -> NDArray[Any]:
    """`np.asarray`, which also takes torch tensors of types that numpy has not, alone or in a list.

    `wanted` is the element type that the numbers are going to have.

    Raises:
        ValueError, OverflowError, TypeError: as numpy raises them.
    """
    if isinstance(given, list) and given and is_torch(given[0]):
        return np.asarray([as_array(row) for row in given])
    name = str(given.dtype).removeprefix("torch.") if is_torch(given) else ""
    if name not in SMALL_FLOATS:
        array = np.asarray(given)
        if isinstance(given, np.ndarray) or is_exact(given, array):
            return array
        return _whole(np.asarray(given, np.object_), wanted)
    array = np.empty(tuple(given.shape), SMALL_FLOATS[name])
    tensor_of("", given).read_into(0, array.reshape(-1).view(np.uint8).data)
    return array


def is_exact(given: Any, array: NDArray[Any]) -> bool:
    """Whether `array`, which numpy made of numbers, holds each of them.

    It makes floats of integers that stand beside a float, or that partly need all 64 bits.
    """
    if array.dtype != np.float64 or not (np.abs(array) >= 2.0**53).any():
        return True
    numbers = np.asarray(given, np.object_)
    if numbers.shape != array.shape:
        return True
    flat = numbers.reshape(-1).tolist()
    if not any(issubclass(kind, int | np.integer) for kind in set(map(type, flat))):
        return True
    pairs = zip(flat, array.reshape(-1).tolist(), strict=True)
    return all(number == kept for number, kept in pairs if isinstance(number, int | np.integer))


def _whole(numbers: NDArray[np.object_], wanted: np.dtype[Any] | None) -> NDArray[Any]:
    """Numbers as integers of 64 bits, where those are wanted and all are such; else as objects."""
    if wanted != np.uint64:
        return numbers
    whole = all(
        isinstance(n, int | np.integer) and 0 <= n < 1 << 64 for n in numbers.reshape(-1).tolist()
    )
    return numbers.astype(np.uint64) if whole else numbers


def as_torch(array: NDArray[Any]) -> Any:
    """A torch tensor of the array's memory, which must be writable."""
    return to_torch(array.dtype)(array)


def to_torch(dtype: np.dtype[Any]) -> Callable[[NDArray[Any]], Any]:
    """What makes tensors, as `as_torch` does, of arrays of one type: it is asked for once."""
    missing = "tensors need torch, which is not installed: `pip install tensorrepo[torch]`"
    torch = import_library("torch", missing)
    make: Callable[[NDArray[Any]], Any] = torch.from_numpy
    if not is_small_float(dtype):
        return make
    bits, element = f"u{dtype.itemsize}", getattr(torch, dtype.name)
    return lambda array: make(array.view(bits)).view(element)


def convert(array: NDArray[Any], dtype: np.dtype[Any], name: str, first_row: int) -> NDArray[Any]:
    """`array` as `dtype`, without loss but for the rounding of floats to narrower floats.

    `array` holds ``(rows, ...)`` numbers or bools of either byte order; `name` and `first_row` are
    for errors.

    Raises:
        InvalidInputError: a value that `dtype` cannot hold; names its row.
    """
    if array.dtype == dtype:
        return array
    if array.dtype.name == dtype.name:  # the other byte order
        return array.astype(dtype)
    if is_small_float(array.dtype):
        array = array.astype(np.float32)  # which holds each of them
    if array.dtype.kind not in "biufc":
        raise InvalidInputError(
            f"row {first_row}, column {name!r}: expected {dtype.name}, found {array.dtype}"
        )
    with np.errstate(all="ignore"):
        converted = _cast(array, dtype)
        lost = _lost(array, converted)
    if lost is not None and lost.any():
        row = int(np.flatnonzero(lost.reshape(len(array), -1).any(axis=1))[0])
        value = array[row][lost[row]].flat[0]
        raise InvalidInputError(
            f"row {first_row + row}, column {name!r}: expected {dtype.name}, found {value}"
        )
    return converted


def _cast(array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """As `astype`, without its warnings."""
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real
    return array.astype(dtype)


def _lost(array: NDArray[Any], converted: NDArray[Any]) -> Bools | None:
    """Which values the conversion changed; None where it cannot change any."""
    if array.dtype.name in _SAFE.get(converted.dtype.name, ()):
        return None
    lost: Bools
    from_float = array.dtype.kind == "f" and is_float(converted.dtype)
    if from_float or (array.dtype.kind in "fc" and converted.dtype.kind == "c"):
        lost = np.isfinite(array) & ~np.isfinite(converted)
        # float8_e4m3fn has no infinity, and says NaN.
        lost |= np.isnan(converted) & ~np.isnan(array)
        return lost
    lost = _cast(converted, array.dtype) != array
    source, target = array.dtype.kind, converted.dtype.kind
    if source in "iu" and target in "iu":
        lost |= (converted < 0) != (array < 0)  # -1 as uint64 and back is -1
    # 2^63 as int64 and back is 2^63 again on some machines: bound what is to be whole.
    if source in "fc" and target in "iu":
        lost |= ~_within(array.real, np.iinfo(converted.dtype))
    if source in "iu" and is_float(converted.dtype):
        lost |= ~_within(converted.astype(np.float64), np.iinfo(array.dtype))
    return lost


def _within(numbers: NDArray[Any], bounds: np.iinfo[Any]) -> Bools:
    inside: Bools = numbers >= float(bounds.min)
    return inside & (numbers < float(bounds.max) + 1.0)


Presented = np.ndarray[Any, np.dtype[Any]] | list[Any]


def present(column: Column, values: ColumnValues, *, masked: bool = False) -> Presented:
    """All rows.

    `masked` makes arrays masked ones whether or not a value is null; else only where one is.

    Returns:
        Fixed: ndarray ``(rows, *row shape)``, a masked one where some are null. Dates, moments and
            durations are datetime64 and timedelta64, times of "ns" timedelta64. Decimals, other
            times and nulls: objects, None where null, in an array without a mask.
        Ragged, tiled, binary: a list with one ndarray, bytes, str, JSON value, LinkValue, list or
            dict per row.
    """
    if is_object(column.type):
        return _objects(column.type, values)
    if isinstance(values, FixedValues):
        return _fixed(column, values, masked=masked)
    if isinstance(column.type, Nested):
        return python_values(to_arrow_array(column.type, values))
    if isinstance(values, BinaryValues):
        return _binary(column.type, values)
    valid = valid_rows(values).tolist()
    return [values.row(at) if there else None for at, there in enumerate(valid)]


def present_row(column: Column, values: ColumnValues, at: int = 0) -> Any:
    """One row: a numpy scalar or array, bytes, str, LinkValue or a JSON value; None where null.

    Of a date `datetime.date`, of a time `datetime.time`, of a decimal `decimal.Decimal`, of nested
    values lists and dicts, and of a map a list of pairs.
    """
    if values.valid is not None and not values.valid[at]:
        return None
    if isinstance(values, FixedValues) and not is_object(column.type):
        found = _typed(column.type, values.values)[at]
        if isinstance(column.type, Date):  # years that `datetime` lacks stay numpy's
            day = found.item()
            return day if isinstance(day, date) else found
        return found
    return present(column, values.slice(at, at + 1))[0]


def _fixed(column: Column, values: FixedValues, *, masked: bool) -> NDArray[Any]:
    array = _typed(column.type, values.values)
    if values.valid is None or values.valid.all():
        whole: NDArray[Any] = np.ma.MaskedArray(array) if masked else array  # without a mask
        return whole
    shape = (len(array), *(1,) * (array.ndim - 1))
    nulls = np.broadcast_to(~values.valid.reshape(shape), array.shape)
    some: NDArray[Any] = np.ma.MaskedArray(array, nulls.copy())  # theirs to change
    return some


def is_object(column_type: ColumnType) -> bool:
    """Whether rows of a fixed column are objects of Python: numpy has no such numbers."""
    if isinstance(column_type, Time):
        return column_type.unit != "ns"  # of which `datetime` has none
    return isinstance(column_type, Decimal | Null)


def _objects(column_type: ColumnType, values: ColumnValues) -> NDArray[Any]:
    found = np.empty(values.rows, np.object_)
    found[:] = python_values(to_arrow_array(column_type, values))
    return found


def _typed(column_type: ColumnType, array: NDArray[Any]) -> NDArray[Any]:
    match column_type:
        case Timestamp(unit=unit):
            return array.view(f"<M8[{unit}]")
        case Duration(unit=unit) | Time(unit=unit) if array.dtype == np.int64:
            return array.view(f"<m8[{unit}]")
        case Date():
            return array.astype("<M8[D]")
    return array


def _binary(column_type: ColumnType, values: BinaryValues) -> list[Any]:
    rows = binary_rows(values)
    decode = _DECODERS.get(type(column_type))
    if decode is None:
        return rows
    try:
        return [None if row is None else decode(row) for row in rows]
    except ValueError as error:
        raise CorruptError(f"stored {type(column_type).__name__.lower()}: {error}") from error


_DECODERS: dict[type, Callable[[bytes], Any]] = {
    Text: bytes.decode,
    Json: json.loads,
    Link: decode_link,
}


def decode_image(encoded: bytes) -> NDArray[np.uint8]:
    """The pixels of one encoded image: ``(height, width)`` or ``(height, width, channels)``.

    Raises:
        UnsupportedError: pillow is not installed.
        CorruptError: the bytes are no image that pillow can read.
    """
    missing = "decoding images needs pillow: pip install 'tensorrepo[images]'"
    pillow = import_library("PIL.Image", missing)
    try:
        with pillow.open(io.BytesIO(encoded), formats=raster_formats(pillow)) as image:
            plain = image.convert("RGB") if image.mode in ("P", "CMYK", "YCbCr") else image
            return np.array(plain)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise CorruptError(f"{len(encoded)} bytes are no image: {error}") from error

"""Coercion of batches: what callers hand over becomes the values of every column.

A batch is columns, Arrow or rows. What it leaves out takes the column's default or null, and
derived columns are computed. Numbers are converted where nothing is lost; what does not fit is
refused naming row, column, expected and found.

A default is a JSON value, kept in the schema: numbers and nested lists of them (NaN and the
infinities as text, a complex number as its two parts), text, base64 of bytes, a class as its
number, a timestamp as its count; dates, times, durations and decimals as text, nested values as
JSON says them. Where there is none, such rows are null.

Source:
    docs/spec/dataset.md, section "Schema".
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from functools import partial
from math import isfinite, isnan, prod
from typing import Any, Final, NoReturn, cast, overload

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, is_small_float
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.arrow_forms import is_list
from tensorrepo.formats.dataset.schema.arrow_losses import nanoseconds
from tensorrepo.formats.dataset.schema.arrow_types import infer_type
from tensorrepo.formats.dataset.schema.by_arrow import (
    BY_ARROW,
    check_times,
    coerce_by_arrow,
    is_pandas_null,
    is_pandas_null_type,
    refuse_value,
    shown_value,
)
from tensorrepo.formats.dataset.schema.convert import as_array, convert, present_row
from tensorrepo.formats.dataset.schema.derived import derived_values
from tensorrepo.formats.dataset.schema.python_values import encode_json, json_form
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    ColumnLayout,
    ColumnType,
    Embedding,
    Image,
    Json,
    Link,
    Scalar,
    Storage,
    Tensor,
    Text,
    Timestamp,
    as_link,
    encode_link,
    storage_of,
)
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    binary_of,
    binary_rows,
    blank_values,
    offsets_of,
    range_of,
)
from tensorrepo.formats.images.encode import ACCEPTED, encode_image
from tensorrepo.formats.images.headers import ImageHeader
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError


class LastingBatch(dict[str, Any]):
    """Columns whose memory nobody writes to again.

    The writer stores rows from where they lie while the next ones come. Of any other batch it has
    read everything before it asks for the next one, as its owner may use the memory again.
    """


@dataclass(frozen=True, slots=True, eq=False)
class CoercedRows:
    """Rows in the form of the columns of the dataset that they are for, hidden ones too.

    Attributes:
        values: values of every column, in the order of the schema.
        ids: ROW_ID ``(rows,)`` of rows whose ids were given elsewhere; None: the ids are new.
    """

    values: Sequence[ColumnValues]
    ids: NDArray[Any] | None = None

    def __len__(self) -> int:
        return self.values[0].rows


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImages(Sequence[bytes]):
    """A sequence of encoded images, none of them null; `headers` has one for each."""

    values: BinaryValues
    headers: Sequence[ImageHeader]

    def __post_init__(self) -> None:
        if len(self.headers) != self.values.rows or self.values.valid is not None:
            raise ValueError(f"{self.values.rows} images have {len(self.headers)} headers")

    def __len__(self) -> int:
        return self.values.rows

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> EncodedImages: ...

    def __getitem__(self, at: int | slice) -> bytes | EncodedImages:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError(f"images are taken one after the other, not every {step}th")
            stop = max(start, stop)
            return EncodedImages(self.values.slice(start, stop), self.headers[start:stop])
        row = range(len(self))[at]
        start, stop = self.values.offsets[row : row + 2].tolist()
        return self.values.data[start:stop].tobytes()


def coerce_column(column: Column, values: Any, first_row: int = 0) -> ColumnValues:
    """The values of one column.

    None, masked and null are null; `first_row` is the number of the first row, for errors.

    Raises:
        InvalidInputError: names row, column, expected and found.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        found = from_arrow_array(column.type, values)
        if found is None and (numbers := _small_floats(column, values)) is not None:
            return _check_nulls(column, _coerce_fixed(column, numbers, first_row), first_row)
        if found is None:  # Arrow cannot convert it, or not every row: go through Python to say why
            return coerce_column(column, values.to_pylist(), first_row)
        _check_json(column, found, first_row)
        found = check_times(column, found, first_row)
        found = _check_labels(column, _compact_links(column, found, first_row), first_row)
    else:
        found = _coerce(column, values, first_row)
    return _check_nulls(column, found, first_row)


def _small_floats(column: Column, values: pa.Array | pa.ChunkedArray) -> NDArray[Any] | None:
    """Arrow's numbers for a column of elements that Arrow has not, masked where null."""
    storage = column.storage
    if storage.layout is not ColumnLayout.FIXED or not is_small_float(storage.element):
        return None
    try:
        kind = infer_type(values.type, column.name)
    except UnsupportedError:
        return None
    if not isinstance(kind, Scalar | Tensor) or storage_of(kind).shape != storage.shape:
        return None
    found = from_arrow_array(kind, values)
    if not isinstance(found, FixedValues):
        return None
    if found.valid is None:
        return found.values
    null = np.broadcast_to(~found.valid.reshape(-1, *(1,) * len(storage.shape)), found.values.shape)
    return np.ma.MaskedArray(found.values, null)


def _coerce(column: Column, values: Any, first_row: int) -> ColumnValues:
    layout = column.storage.layout
    if isinstance(column.type, BY_ARROW):
        return coerce_by_arrow(column, values, first_row)
    if isinstance(values, EncodedImages) and isinstance(column.type, Image | Bytes):
        return values.values
    if layout is ColumnLayout.FIXED:
        return _check_labels(column, _coerce_fixed(column, values, first_row), first_row)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInputError(
            f"column {column.name!r}: expected a sequence of rows, found {type(values).__name__}"
        )
    rows = _without_masks(column, list(values), first_row)
    if layout is ColumnLayout.BINARY:
        return _coerce_binary(column, rows, first_row)
    return _coerce_ragged(column, rows, _valid(rows), first_row)


# ------------------------------------------------------------------------------ fixed


def _coerce_fixed(column: Column, values: Any, first_row: int) -> FixedValues:
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    if isinstance(values, list | tuple) or kind in tuple("OSU"):
        array, valid = _stack(column, _without_masks(column, list(values), first_row), first_row)
    else:
        mask = np.ma.getmask(values)
        array = as_array(values)
        valid = None
        if mask is not np.ma.nomask:
            valid = _unmasked_rows(column, mask, first_row)
            array = np.where(mask, np.zeros((), array.dtype), array)
    _check_shape(column, array, first_row)
    array, valid = _to_moments(column, array, valid, first_row)
    converted = convert(array, column.storage.element, column.name, first_row)
    if valid is not None and not valid.all():
        converted = converted.copy()
        converted[~valid] = 0
    return FixedValues(converted, valid)


def _unmasked_rows(column: Column, mask: Bools, first_row: int) -> Bools:
    """Which rows have a value. Raises InvalidInputError: one is masked in part."""
    by_row = mask.reshape(len(mask), prod(mask.shape[1:]))
    lacking: Bools = np.asarray(by_row.any(axis=1))
    if (partly := lacking & ~by_row.all(axis=1)).any():
        row = int(np.flatnonzero(partly)[0])
        found = f"{by_row[row].sum()} of {by_row.shape[1]} elements masked"
        refuse_value(
            column, first_row + row, "a row that is masked as a whole or not at all", found
        )
    valid: Bools = ~lacking
    return valid


def _without_masks(column: Column, rows: list[Any], first_row: int) -> list[Any]:
    """Rows given one by one, None where they are masked: numpy would show what lies below. So are
    those that pandas says are missing.
    """
    kinds = set(map(type, rows))
    if any(map(is_pandas_null_type, kinds)):
        rows = [None if is_pandas_null(row) else row for row in rows]
    if not any(issubclass(kind, np.ma.MaskedArray) for kind in kinds):
        return rows
    masks = [
        np.ma.getmaskarray(row)[None] if _has_mask(row) else np.zeros((1, 1), np.bool_)
        for row in rows
    ]
    valid = [_unmasked_rows(column, mask, first_row + at)[0] for at, mask in enumerate(masks)]
    return [row if there else None for row, there in zip(rows, valid, strict=True)]


def _has_mask(row: Any) -> bool:
    return isinstance(row, np.ma.MaskedArray) and row.mask is not np.ma.nomask


def _stack(column: Column, rows: list[Any], first_row: int) -> tuple[NDArray[Any], Bools | None]:
    """Rows given one by one, as one array, nulls zeroed."""
    valid = _valid(rows)
    given = rows if valid is None else [row for row in rows if row is not None]
    shape = column.storage.row_shape
    if isinstance(column.type, ClassLabel):
        numbers = {name: number for number, name in enumerate(column.type.names)}
        for at, row in enumerate(rows):
            if isinstance(row, str) and row not in numbers:
                classes = f"a class ({', '.join(numbers):.300})"
                refuse_value(column, first_row + at, classes, repr(row))
        given = [numbers[row] if isinstance(row, str) else row for row in given]
    if isinstance(column.type, Timestamp):
        given = _moments(column, column.type.unit, rows, first_row)
    try:
        array = (
            as_array(given, column.storage.element)
            if given
            else np.empty((0, *shape), column.storage.element)
        )
    except (ValueError, OverflowError, TypeError):
        array = np.empty(0, np.object_)
    if array.dtype.kind in "OSU" or array.shape[1:] != shape:
        _name_odd_row(column, rows, first_row)
    if valid is None:
        return array, None
    full = np.zeros((len(rows), *shape), array.dtype)
    full[valid] = array
    return full, valid


def _name_odd_row(column: Column, rows: list[Any], first_row: int) -> NoReturn:
    shape = column.storage.row_shape
    for at, row in enumerate(rows):
        if row is None:
            continue
        try:
            array = as_array(row, column.storage.element)
        except (ValueError, OverflowError, TypeError):
            refuse_value(column, first_row + at, f"shape {shape}", "rows of different lengths")
        if array.dtype.kind in "OSU":
            refuse_value(column, first_row + at, column.storage.dtype, repr(row))
        if array.shape != shape:
            refuse_value(column, first_row + at, f"shape {shape}", f"shape {array.shape}")
        convert(array[None], column.storage.element, column.name, first_row + at)
    refuse_value(column, first_row, column.storage.dtype, "values of types that do not mix")


def _check_shape(column: Column, array: NDArray[Any], first_row: int) -> None:
    shape = column.storage.row_shape
    if not array.ndim or array.shape[1:] != shape:
        found = f"shape {array.shape[1:]}" if array.ndim else "a single value"
        refuse_value(column, first_row, f"shape {shape}", found)


# ------------------------------------------------------------------------------ labels, moments


def _check_labels(column: Column, values: ColumnValues, first_row: int) -> ColumnValues:
    if not isinstance(column.type, ClassLabel) or not isinstance(values, FixedValues):
        return values
    classes = len(column.type.names)
    wrong = (values.values < 0) | (values.values >= classes)
    if values.valid is not None:
        wrong &= values.valid
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        expected = f"a class in [0, {classes})"
        refuse_value(column, first_row + row, expected, str(values.values[row]))
    return values


def _moments(column: Column, unit: str, rows: list[Any], first_row: int) -> list[Any]:
    """Moments given one by one that are no null, in the column's unit where their own differ.

    Of several units numpy takes the finest, and what that does not hold wraps around.
    """
    found = {at: _moment(row) for at, row in enumerate(rows) if row is not None}
    if len({each.dtype for each in found.values() if isinstance(each, np.datetime64)}) < 2:
        return list(found.values())
    for at, each in found.items():
        if isinstance(each, np.datetime64):
            found[at] = each.astype(f"M8[{unit}]")
            if found[at].astype(each.dtype) != each and not np.isnat(each):
                refuse_value(column, first_row + at, _whole_moment(unit), str(each))
    return list(found.values())


def _whole_moment(unit: str) -> str:
    return f"a moment in whole {unit}, within 64 bits"


def _moment(row: Any) -> Any:
    if is_pandas_null(row):
        return np.datetime64("NaT")
    if isinstance(row, datetime):
        plain = row if row.tzinfo is None else row.astimezone(UTC).replace(tzinfo=None)
        return (
            cast("Any", plain).to_datetime64() if nanoseconds(plain) else np.datetime64(plain, "us")
        )
    return np.datetime64(row, "D") if isinstance(row, date) else row


def _to_moments(
    column: Column, array: NDArray[Any], valid: Bools | None, first_row: int
) -> tuple[NDArray[Any], Bools | None]:
    """datetime64 of any unit as int64 counts of the column's; NaT is null."""
    if not isinstance(column.type, Timestamp) or array.dtype.kind != "M":
        return array, valid
    missing = np.isnat(array)
    moments = array.astype(f"datetime64[{column.type.unit}]")
    lost = (moments.astype(array.dtype) != array) & ~missing
    if lost.any():
        row = int(np.flatnonzero(lost)[0])
        expected = _whole_moment(column.type.unit)
        refuse_value(column, first_row + row, expected, str(array[row]))
    counts = moments.astype(np.int64)
    if not missing.any():
        return counts, valid
    return counts, ~missing if valid is None else valid & ~missing


# ------------------------------------------------------------------------------ binary, ragged


def _coerce_binary(column: Column, rows: list[Any], first_row: int) -> BinaryValues:
    encode = _encoder(column.type)
    parts: list[bytes | None] = []
    for at, row in enumerate(rows):
        try:
            parts.append(None if row is None else encode(row))
        except (TypeError, ValueError, InvalidInputError) as error:
            refuse_value(
                column, first_row + at, _EXPECTED.get(type(column.type), "bytes"), str(error)
            )
    return binary_of(parts)


def _encoder(column_type: ColumnType) -> Callable[[Any], bytes]:
    if isinstance(column_type, Image):
        return partial(encode_image, codec=column_type.codec)
    if isinstance(column_type, Bytes) and column_type.size is not None:
        return partial(_encode_sized, column_type.size)
    encode: Callable[[Any], bytes] = _ENCODERS.get(type(column_type), _encode_bytes)
    return encode


def _encode_bytes(row: Any) -> bytes:
    if isinstance(row, bytes):
        return row
    if isinstance(row, bytearray | memoryview):
        return bytes(row)
    if isinstance(row, np.ndarray) and row.dtype == np.uint8 and row.ndim == 1:
        return row.tobytes()
    raise TypeError(shown_value(row))


def _encode_sized(size: int, row: Any) -> bytes:
    encoded = _encode_bytes(row)
    if len(encoded) != size:
        raise ValueError(f"{len(encoded)} bytes, and the column holds {size} in each row")
    return encoded


def _encode_text(row: Any) -> bytes:
    if not isinstance(row, str):
        raise TypeError(shown_value(row))
    return row.encode()


_ENCODERS: dict[type, Any] = {
    Text: _encode_text,
    Json: encode_json,
    Link: lambda row: encode_link(as_link(row)),
}
_EXPECTED = {
    Text: "text",
    Json: "a JSON value",
    Link: "a link: a URL, its fields or a LinkValue",
    Image: ACCEPTED,
}


def _check_json(column: Column, values: ColumnValues, first_row: int) -> None:
    """JSON that came as Arrow text must be JSON."""
    if not isinstance(column.type, Json) or not isinstance(values, BinaryValues):
        return
    for at, text in enumerate(binary_rows(values)):
        try:
            json.loads(b"null" if text is None else text)
        except (ValueError, RecursionError):
            refuse_value(column, first_row + at, "JSON text", repr(text))


def _compact_links(column: Column, values: ColumnValues, first_row: int) -> ColumnValues:
    """Links that came as Arrow text, which may be bare URLs, as the JSON that is stored."""
    if not isinstance(column.type, Link) or not isinstance(values, BinaryValues):
        return values
    rows = [None if row is None else row.decode() for row in binary_rows(values)]
    return _coerce_binary(column, rows, first_row)


def _coerce_ragged(
    column: Column, rows: list[Any], valid: Bools | None, first_row: int
) -> RaggedValues:
    storage = column.storage
    if (together := _numbers_together(column, rows, valid)) is not None:
        return together
    empty_shape = tuple(0 if dim is None else dim for dim in storage.shape)
    arrays = []
    for at, row in enumerate(rows):
        nothing = np.empty(0, storage.element)
        array = nothing if row is None else _row_array(column, row, first_row + at)
        arrays.append(convert(array[None], storage.element, column.name, first_row + at)[0])
    flat = [array.reshape(-1) for array in arrays]
    lengths = np.fromiter(map(len, flat), np.int64, len(flat))
    elements = np.concatenate(flat) if flat else np.empty(0, storage.element)
    dims = None
    if storage.stores_dims:
        unknown = [at for at, dim in enumerate(storage.shape) if dim is None]
        shapes = [
            array.shape if row is not None else empty_shape
            for array, row in zip(arrays, rows, strict=True)
        ]
        picked = [[shape[at] for at in unknown] for shape in shapes]
        dims = np.array(picked, np.uint32).reshape(len(rows), len(unknown))
    return RaggedValues(offsets_of(lengths), elements, storage.shape, dims, valid)


def _numbers_together(column: Column, rows: list[Any], valid: Bools | None) -> RaggedValues | None:
    """Lists of numbers that Arrow takes all at once; None: row by row, to name one that is odd."""
    if column.storage.shape != (None,) or column.storage.stores_dims:
        return None
    try:
        array = pa.array(rows)
        numbers = array.flatten() if is_list(array.type) else array
        if numbers.null_count or not is_list(array.type) or numbers.type.num_fields:
            return None
        elements = numbers.to_numpy(zero_copy_only=False)
        elements = convert(elements, column.storage.element, column.name, 0)
    except (pa.ArrowException, ValueError, TypeError, OverflowError, InvalidInputError):
        return None
    lengths = np.diff(np.asarray(array.offsets, np.int64))
    return RaggedValues(offsets_of(lengths), elements, column.storage.shape, None, valid)


def _row_array(column: Column, row: Any, number: int) -> NDArray[Any]:
    shape = column.storage.shape
    if shape == (None,) and isinstance(row, list) and any(each is None for each in row):
        hint = f"{row!r:.60}. A column of List({column.storage.dtype!r}) holds nulls in lists"
        refuse_value(column, number, "numbers, none of them null", hint)
    try:
        array = as_array(row, column.storage.element)
    except (ValueError, OverflowError, TypeError):
        refuse_value(column, number, f"shape {shape}", "rows of different lengths")
    if array.dtype.kind == "O":
        refuse_value(column, number, column.storage.dtype, repr(row))
    if not array.size and array.dtype == np.float64:  # an empty list has no type of its own
        array = array.astype(column.storage.element)
    fits = array.ndim == len(shape) and all(
        dim is None or dim == found for dim, found in zip(shape, array.shape, strict=True)
    )
    if not fits:
        refuse_value(column, number, f"shape {shape}", f"shape {array.shape}")
    return array


# ------------------------------------------------------------------------------ nulls, errors


def _valid(rows: Iterable[Any]) -> Bools | None:
    present = np.array([row is not None for row in rows], np.bool_)
    return None if present.all() else present


def _check_nulls(column: Column, values: ColumnValues, first_row: int) -> ColumnValues:
    if values.valid is None:
        return values
    if values.valid.all():
        return replace(values, valid=None)
    if not column.nullable:
        row = int(np.flatnonzero(~values.valid)[0])
        refuse_value(column, first_row + row, "a value (the column is not nullable)", "null")
    return values


MAX_DEFAULT_BYTES = 1 << 16
_MOST_ROW_BYTES: Final = 1 << 62  # beyond which NumPy counts no array
_BEYOND_JSON = {"NaN": np.nan, "Infinity": np.inf, "-Infinity": -np.inf}


def default_values(column: Column, rows: int = 1) -> ColumnValues:
    """`rows` times the default of a column; nulls where it has none.

    Raises:
        InvalidInputError: it has none and is not nullable, or one that does not fit its type; or
            no memory holds a row.
    """
    if column.default is not None:
        return _values(column).take(np.zeros(rows, np.int64))
    if not column.nullable:
        raise InvalidInputError(
            f"column {column.name!r} is not nullable and has no default: "
            "rows without a value need one. Give values, or a default."
        )
    absent = np.zeros(rows, np.bool_)
    if rows == 1 and column.storage.layout is ColumnLayout.FIXED:
        # One zero stands for all: a few bytes of metadata may say that a row takes 128 GiB.
        if column.storage.row_bytes > _MOST_ROW_BYTES:
            raise InvalidInputError(
                f"column {column.name!r}: a row of it takes {column.storage.row_bytes:,} bytes, "
                "which no memory holds: use smaller dimensions, or unknown ones"
            )
        zero = np.zeros((), column.storage.element)
        return FixedValues(np.broadcast_to(zero, (1, *column.storage.row_shape)), absent)
    return blank_values(column.storage, rows, absent)


def default_row(column: Column) -> Any:
    """The default as reading a row gives it, None where there is none."""
    return None if column.default is None else present_row(column, default_values(column))


def default_range(column: Column) -> tuple[int | None, int | None]:
    """Order keys of the default's bounds; None where it has no order."""
    if column.storage.layout is not ColumnLayout.FIXED or column.storage.shape:
        return None, None
    values = cast("FixedValues", default_values(column))
    bounds = range_of(values.values, values.valid)
    return bounds.smallest, bounds.largest


def check_default(column: Column) -> Column:
    """The column with its default as the JSON value that is stored.

    It may be given as anything that would do for a row: an array, bytes, a datetime, a class name.
    An empty array is kept as one with 0 in every unknown dimension.

    Raises:
        InvalidInputError: a default that does not fit the column's type, or above 64 KiB.
    """
    if column.default is None:
        return column
    form = _to_json(column, _values(column))
    size = len(json.dumps(form))
    if size > MAX_DEFAULT_BYTES:
        raise InvalidInputError(
            f"the default of column {column.name!r} takes {size} bytes of JSON, at most "
            f"{MAX_DEFAULT_BYTES} are kept in a schema. Add the column with values instead."
        )
    return replace(column, default=form)


def _values(column: Column) -> ColumnValues:
    try:
        return coerce_column(column, [_from_json(column, column.default)])
    except (ValueError, TypeError, InvalidInputError) as error:
        raise InvalidInputError(f"the default of column {column.name!r}: {error}") from error


def _from_json(column: Column, default: Any) -> Any:
    match column.type:
        case Bytes() | Image() if isinstance(default, str):
            return b64decode(default, validate=True)
        case Timestamp() if isinstance(default, str):
            return datetime.fromisoformat(default)
        case Scalar() | Tensor() | Embedding():
            return _array(column.storage, default)
        case _:
            return default


def _array(storage: Storage, default: Any) -> NDArray[Any]:
    array = as_array(_named_numbers(default), storage.element)
    least = tuple(dim or 0 for dim in storage.shape)
    if not array.size and not np.prod(least):
        return np.zeros(least, storage.element)
    parts = array.ndim == len(storage.shape) + 1 and array.shape[-1] == 2
    if storage.element.kind == "c" and parts and array.dtype.kind != "c":
        return np.ascontiguousarray(array, np.float64).view(np.complex128)[..., 0]
    return array


def _named_numbers(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_named_numbers(each) for each in value]
    return _BEYOND_JSON.get(value, value) if isinstance(value, str) else value


def _to_json(column: Column, values: ColumnValues) -> Any:
    row = present_row(column, values)
    match column.type:
        case Bytes() | Image():
            return b64encode(row).decode("ascii")
        case Link():
            return msgspec.to_builtins(row)
        case Timestamp():
            return int(row.astype(np.int64))
        case Scalar() | Tensor() | Embedding():
            return _numbers(np.asarray(row))
        case _ if isinstance(column.type, BY_ARROW):
            return _said(column, row)
        case _:
            return row.item() if isinstance(row, np.generic) else row


def _said(column: Column, row: Any) -> Any:
    def refused(what: str) -> NoReturn:
        raise InvalidInputError(f"the default of column {column.name!r}: JSON has no {what}")

    form = json_form(row, refused)
    _values(replace(column, default=form))  # that it comes back
    return form


def _numbers(array: NDArray[Any]) -> Any:
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    if is_small_float(array.dtype):  # whose scalars are no Python floats
        array = convert(array, np.dtype(np.float64), "", 0)
    return _nameable(array.tolist())


def _nameable(value: Any) -> Any:
    if isinstance(value, list):
        return [_nameable(each) for each in value]
    if not isinstance(value, float) or isfinite(value):
        return value
    return "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"


def coerce_batch(schema: Schema, batch: InputBatch, first_row: int = 0) -> list[ColumnValues]:
    """The values of every column of one batch, in the order of the schema.

    Derived columns are computed: a batch must not have them.

    `first_row` is the number of its first row, for errors.

    Raises:
        InvalidInputError: names row, column, expected and found.
    """
    given = schema.visible
    columns = _columns(given, batch, first_row)
    found: dict[str, ColumnValues] = {}
    rows: int | None = None
    for column in given.columns:
        if column.name not in columns:
            continue
        values = coerce_column(column, columns[column.name], first_row)
        if rows is not None and values.rows != rows:
            raise InvalidInputError(
                f"rows from {first_row}: column {column.name!r} has {values.rows} rows, "
                f"the columns before it {rows}"
            )
        rows = values.rows
        found[column.name] = values
    if rows is None:
        raise InvalidInputError(f"rows from {first_row}: a batch has no column of the schema")
    for column in given.columns:
        if column.name not in found:
            found[column.name] = default_values(column, rows)
    if given is not schema:
        known = {
            name: values.headers
            for name, values in columns.items()
            if isinstance(values, EncodedImages)
        }
        found |= derived_values(schema, found, known)
    return [found[column.name] for column in schema.columns]


def _columns(schema: Schema, batch: InputBatch, first_row: int) -> Mapping[str, Any]:
    if isinstance(batch, pa.RecordBatch | pa.Table):
        columns: Mapping[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
    elif isinstance(batch, Mapping):
        columns = batch
    else:
        columns = _columns_of_rows(schema, batch, first_row)
    for name in columns:
        if name not in schema:
            raise InvalidInputError(
                f"rows from {first_row}: unexpected column {name!r}; "
                f"the schema has {', '.join(map(repr, schema.names))}"
            )
    for column in schema.columns:
        if column.name not in columns and not column.nullable and column.default is None:
            raise InvalidInputError(f"rows from {first_row}: column {column.name!r} is missing")
    return columns


def _columns_of_rows(
    schema: Schema, rows: Sequence[Mapping[str, Any]], first_row: int
) -> dict[str, list[Any]]:
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InvalidInputError(
                f"row {first_row + at}: expected a mapping of columns, found {type(row).__name__}"
            )
        if unknown := row.keys() - set(schema.names):
            raise InvalidInputError(f"row {first_row + at}: unexpected column {min(unknown)!r}")
    defaults = {column.name: default_row(column) for column in schema.columns}
    return {name: [row.get(name, default) for row in rows] for name, default in defaults.items()}

"""As what does a user see the values of a column?

Fixed columns as numpy arrays (masked where nullable), ragged and tiled ones as lists of arrays,
text, JSON, links and bytes as lists of Python values; null is None. Encoded images stay bytes:
`decode_image` turns one into an array where pillow is installed.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.columns.linkvalue import decode_link
from tensorrepo.formats.dataset.columns.types import ColumnType, Json, Link, Text, Timestamp
from tensorrepo.formats.dataset.columns.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    valid_rows,
)
from tensorrepo.formats.imagebytes import raster_formats
from tensorrepo.repo.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column

Presented = np.ndarray[Any, np.dtype[Any]] | list[Any]


def present(column: Column, values: ColumnValues) -> Presented:
    """All rows.

    Returns:
        Fixed: ndarray ``(rows, *row shape)``; of a nullable column always a masked array.
        Ragged, tiled, binary: a list with one ndarray, bytes, str, JSON value or LinkValue per row.
    """
    if isinstance(values, FixedValues):
        return _fixed(column, values)
    if isinstance(values, BinaryValues):
        return _binary(column.type, values)
    rows: list[Any] = [values.row(at) for at in range(values.rows)]
    return _with_nulls(rows, values.valid)


def present_row(column: Column, values: ColumnValues, at: int = 0) -> Any:
    """One row: a numpy scalar or array, bytes, str, LinkValue or a JSON value; None where null."""
    if values.valid is not None and not values.valid[at]:
        return None
    if isinstance(values, FixedValues):
        return _typed(column.type, values.values)[at]
    return present(column, values.slice(at, at + 1))[0]


def _fixed(column: Column, values: FixedValues) -> NDArray[Any]:
    array = _typed(column.type, values.values)
    if not column.nullable:
        return array
    mask = np.zeros(len(array), np.bool_) if values.valid is None else ~values.valid
    shape = (len(array), *(1,) * (array.ndim - 1))
    masked: NDArray[Any] = np.ma.MaskedArray(
        array, np.broadcast_to(mask.reshape(shape), array.shape).copy()
    )
    return masked


def _typed(column_type: ColumnType, array: NDArray[Any]) -> NDArray[Any]:
    if isinstance(column_type, Timestamp):
        return array.view(f"<M8[{column_type.unit}]")
    return array


def _binary(column_type: ColumnType, values: BinaryValues) -> list[Any]:
    bounds = values.offsets.tolist()
    first, last = bounds[0], bounds[-1]
    data = values.data[first:last].tobytes()
    rows: list[Any] = [
        data[bounds[at] - first : bounds[at + 1] - first] for at in range(values.rows)
    ]
    decode = _DECODERS.get(type(column_type))
    if decode is None:
        return _with_nulls(rows, values.valid)
    valid = valid_rows(values).tolist()
    try:
        return [decode(row) if here else None for row, here in zip(rows, valid, strict=True)]
    except ValueError as error:
        raise CorruptError(f"stored {type(column_type).__name__.lower()}: {error}") from error


_DECODERS: dict[type, Callable[[bytes], Any]] = {
    Text: bytes.decode,
    Json: json.loads,
    Link: decode_link,
}


def _with_nulls(rows: list[Any], valid: NDArray[np.bool_] | None) -> list[Any]:
    if valid is None:
        return rows
    return [row if present else None for row, present in zip(rows, valid.tolist(), strict=True)]


def decode_image(encoded: bytes) -> NDArray[np.uint8]:
    """The pixels of one encoded image: ``(height, width)`` or ``(height, width, channels)``.

    Raises:
        UnsupportedError: pillow is not installed.
        CorruptError: the bytes are no image that pillow can read.
    """
    try:
        from PIL import Image as Pillow
    except ImportError as error:
        raise UnsupportedError(
            "decoding images needs pillow: pip install 'tensorrepo[images]'"
        ) from error
    try:
        with Pillow.open(io.BytesIO(encoded), formats=raster_formats(Pillow)) as image:
            plain = image.convert("RGB") if image.mode in ("P", "CMYK", "YCbCr") else image
            return np.array(plain)
    except (OSError, ValueError, SyntaxError, Pillow.DecompressionBombError) as error:
        raise CorruptError(f"{len(encoded)} bytes are no image: {error}") from error

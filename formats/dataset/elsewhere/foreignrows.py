"""How do byte ranges of a foreign file become columns?"""

from __future__ import annotations

import io
import json
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.columns.coerce import coerce_column
from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.columns.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    offsets_of,
)
from tensorrepo.formats.dtypes import element_dtype
from tensorrepo.repo.errors import CorruptError, InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.elsewhere.foreign import ArrayPlace, InlinePlace, MembersPlace


def array_range(place: ArrayPlace, first: int, rows: int, size: int) -> tuple[int, int]:
    """Which bytes of a file of `size` bytes hold rows ``[first, first + rows)``.

    Raises:
        CorruptError: the array has no such rows, or the file no such bytes.
    """
    item = _element(place).itemsize * prod(place.shape)
    start = place.start + first * place.stride
    stop = place.start + (first + rows - 1) * place.stride + item
    if not 1 <= item <= place.stride or first + rows > place.rows or stop > size:
        raise CorruptError(
            f"rows [{first}, {first + rows}) of {place.rows} lie at bytes [{start}, {stop}), "
            f"the file has {size}"
        )
    return start, stop


def array_values(place: ArrayPlace, data: memoryview, rows: int) -> FixedValues:
    """The rows in the bytes of `array_range`: a view where they are stored as we store them."""
    element = _element(place)
    stored = element.newbyteorder(">") if place.big_endian else element
    inner = [stored.itemsize * prod(place.shape[at + 1 :]) for at in range(len(place.shape))]
    array: NDArray[Any] = np.ndarray(
        (rows, *place.shape), stored, data, strides=(place.stride, *inner)
    )
    if element.kind == "b":
        return FixedValues(np.not_equal(array.view(np.uint8), 0))
    return FixedValues(np.ascontiguousarray(array.astype(element, copy=False)))


def _element(place: ArrayPlace) -> np.dtype[Any]:
    try:
        return element_dtype(place.dtype)
    except InvalidInputError as error:
        raise CorruptError(f"foreign object: {error}") from error


def member_values(
    place: MembersPlace | InlinePlace, members: list[bytes | None], first: int
) -> ColumnValues:
    """Rows that are small files of their own.

    Args:
        place: as what they are understood.
        members: their bytes; None is null.
        first: number of the first one, for errors.

    Raises:
        CorruptError: a member holds something else.
    """
    column = place.column()
    if place.content == "bytes" and column.storage.layout is Layout.BINARY:
        return _binary(members)
    values = [
        None if member is None else _understood(place.content, member, first + at)
        for at, member in enumerate(members)
    ]
    try:
        return coerce_column(column, values, first)
    except InvalidInputError as error:
        raise CorruptError(str(error)) from error


def _binary(members: list[bytes | None]) -> BinaryValues:
    present = [member or b"" for member in members]
    offsets = offsets_of(np.array([len(member) for member in present], np.int64))
    valid = np.array([member is not None for member in members])
    data = np.frombuffer(b"".join(present), np.uint8)
    return BinaryValues(offsets, data, None if valid.all() else valid)


def _understood(content: str, member: bytes, row: int) -> Any:
    try:
        match content:
            case "text":
                return member.decode()
            case "json":
                return json.loads(member, parse_constant=_refuse_constant)
            case "number":
                return int(member)
            case "npy":
                return _npy(member)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"row {row} holds no {content}: {error}") from error
    raise CorruptError(f"foreign object: members that hold {content!r:.40}")


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def _npy(member: bytes) -> NDArray[Any]:
    """The array of an npy file, whose header is believed only as far as its bytes go."""
    stream = io.BytesIO(member)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an npy file of version {version}")
    read = np.lib.format.read_array_header_1_0
    shape, fortran, dtype = (read if version == (1, 0) else np.lib.format.read_array_header_2_0)(
        stream
    )
    rest = memoryview(member)[stream.tell() :]
    if dtype.hasobject or prod(shape) * dtype.itemsize != rest.nbytes:
        raise ValueError(f"{rest.nbytes} bytes for an array of {dtype} and shape {shape}")
    array = np.frombuffer(rest, dtype)
    array = array.reshape(shape[::-1]).T if fortran else array.reshape(shape)
    return array.astype(dtype.newbyteorder("<"), copy=False)

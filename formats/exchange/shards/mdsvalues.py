"""What do the bytes of one value of an MDS sample say, by the encoding of its column?

An encoding is a name, of arrays followed by what is fixed: ``ndarray:float32:2,2``. Arrays of free
element type or shape say theirs before their elements. Pickles are never read.

Source:
    streaming/base/format/mds/encodings.py of mosaicml-streaming 0.13.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.damage import damage
from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    ColumnType,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.shards.records import check_image, check_text
from tensorrepo.repo.errors import UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SCALARS = {
    "int": "int64",
    **{
        name: name
        for name in (
            *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
            *("float16", "float32", "float64"),
        )
    },
}
_TYPES: dict[str, ColumnType] = {
    "bytes": Bytes(),
    "str": Text(),
    "json": Json(),
    "jpeg": Image("jpeg"),
    "png": Image("png"),
    "str_int": Scalar("int64"),
    "str_float": Scalar("float64"),
    "str_decimal": Text(),
}
_ELEMENTS = {8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4"}
_ELEMENTS |= {64: "u8", 65: "i8", 66: "f8"}
_REFUSED = {
    "pkl": "holds pickles, which can run any code and are never read",
    "pil": "holds raw pixels in a form of Pillow's own; write the column as png instead",
}
_IMAGE_LISTS = ("jpeg_array", "jpegarray", "list[pil]", "list[jpeg]", "list[png]")


@dataclass(frozen=True, slots=True)
class Encoding:
    """How the values of a column are read.

    `type` is None for arrays whose element type or shape only their values tell; `size` is 0 where
    values are of many sizes.
    """

    type: ColumnType | None
    size: int
    decode: Callable[[bytes, str], Any]


def parse_encoding(text: str, where: str) -> Encoding:
    """The encoding that an index names.

    Raises:
        UnsupportedError: one that is not read, with the reason.
        InvalidInputError: none that there is.
    """
    if text in _SCALARS:
        dtype = np.dtype(_SCALARS[text]).newbyteorder("<")
        return Encoding(Scalar(dtype.name), dtype.itemsize, lambda data, _: _number(data, dtype))
    if text in _TYPES:
        return Encoding(_TYPES[text], 0, _DECODERS.get(text, lambda data, _: data))
    name, _, form = text.partition(":")
    if name == "ndarray":
        return _parse_array(form, where)
    if text in _REFUSED or text in _IMAGE_LISTS:
        reason = _REFUSED.get(text, "holds several images a sample, and no column type does")
        raise UnsupportedError(f"{where}: {reason}. Choose others: columns=a,b")
    raise damage(where, f"has an encoding {text!r:.60} that MDS does not have")


def _parse_array(form: str, where: str) -> Encoding:
    name, _, sizes = form.partition(":")
    known = {np.dtype(code).name: np.dtype(f"<{code}") for code in _ELEMENTS.values()}
    dims = sizes.split(",") if sizes else []
    if (name and name not in known) or not all(dim.isdigit() and len(dim) < 12 for dim in dims):
        raise damage(where, f"has an encoding 'ndarray:{form:.60}' that MDS does not have")
    dtype = known[name] if name else None
    shape = tuple(map(int, dims)) if dims else None

    def decode(data: bytes, spot: str) -> NDArray[Any]:
        return _array(data, dtype, shape, spot)

    if dtype is None or shape is None:
        return Encoding(None, 0, decode)
    return Encoding(Tensor(name, shape), dtype.itemsize * prod(shape), decode)


def _array(
    data: bytes, dtype: np.dtype[Any] | None, shape: tuple[int, ...] | None, where: str
) -> NDArray[Any]:
    at = 0
    if dtype is None:
        if not data or data[0] not in _ELEMENTS:
            raise damage(where, f"is no array: it begins with {data[:4]!r}")
        dtype, at = np.dtype(f"<{_ELEMENTS[data[0]]}"), 1
    if shape is None:
        shape, at = _shape(data, at, where)
    if prod(shape) * dtype.itemsize != len(data) - at:
        raise damage(where, f"has {len(data) - at} bytes for {dtype} elements of shape {shape}")
    return np.frombuffer(data, dtype, offset=at).reshape(shape)


def _shape(data: bytes, at: int, where: str) -> tuple[tuple[int, ...], int]:
    """The dimensions written at byte `at`, and where they end."""
    if at >= len(data):
        raise damage(where, "is no array: it ends before its shape")
    dims, width = data[at] >> 2, 1 << (data[at] & 3)
    stop = at + 1 + dims * width
    if stop > len(data):
        raise damage(where, f"is no array: it ends inside its {dims} dimensions")
    sizes = np.frombuffer(data[at + 1 : stop], f"<u{width}")
    return tuple(map(int, sizes)), stop


def _number(data: bytes, dtype: np.dtype[Any]) -> Any:
    return np.frombuffer(data, dtype)[0]


def _json(data: bytes, where: str) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as problem:
        raise damage(where, f"is not JSON: {problem}") from problem


def _whole(data: bytes, where: str) -> int:
    try:
        number = int(data[:40])
    except ValueError as problem:
        raise damage(where, f"is {data[:40]!r}, expected a whole number") from problem
    if len(data) > 40 or not -(1 << 63) <= number < 1 << 63:
        raise damage(where, f"is {data[:40]!r}, which does not fit into 64 bits")
    return number


def _real(data: bytes, where: str) -> float:
    try:
        return float(data)
    except ValueError as problem:
        raise damage(where, f"is {data[:40]!r}, expected a number") from problem


_DECODERS: dict[str, Callable[[bytes, str], Any]] = {
    "str": check_text,
    "str_decimal": check_text,
    "json": _json,
    "jpeg": lambda data, where: check_image(Image("jpeg"), data, where),
    "png": lambda data, where: check_image(Image("png"), data, where),
    "str_int": _whole,
    "str_float": _real,
}

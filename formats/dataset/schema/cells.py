"""Cells of tables: one value of a column as a few words, or as a thumbnail.

Classes are shown by their names, arrays and bytes by their kind and size, pictures small.
"""

from __future__ import annotations

import decimal
import json
from datetime import date, time, timedelta
from functools import partial
from typing import Any, Final

import numpy as np

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.dataset.schema.python_values import json_form
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Embedding,
    Image,
    Json,
    Link,
    LinkValue,
    List,
    Map,
    Null,
    Scalar,
    Struct,
    Tensor,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.images.headers import header_of
from tensorrepo.formats.images.thumbnails import array_thumbnail, looks_like_pixels, thumbnail
from tensorrepo.repo.tables import Thumbnail, printable

SHOWN_CHARACTERS: Final = 60
_SHOWN_CLASSES: Final = 8
# Values that are told in ISO 8601, or by their digits.
_IN_WORDS: Final = (date, time, timedelta, decimal.Decimal, np.datetime64, np.timedelta64)


def value_text(value: Any, most: int | None = SHOWN_CHARACTERS) -> str:
    """One value in a cell: arrays and bytes by their kind, others whole up to `most` characters.

    None is ``null``; the end of a line and what a terminal would obey are escaped.
    """
    if isinstance(value, np.ndarray) and value.ndim:
        inside = " ".join(str(item) for item in value.ravel()[:4])
        more = " ..." if value.size > 4 else ""
        return f"{value.dtype}{list(value.shape)} {inside}{more}"
    if isinstance(value, (bytes, memoryview)):
        return f"{counted(len(value), 'byte')} {bytes(value[:8]).hex()}"
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        value = json.dumps(json_form(value, str), ensure_ascii=False, default=str)
    if isinstance(value, LinkValue):
        value = value.url
    elif isinstance(value, _IN_WORDS):
        value = json_form(value, str)
    whole = str(value)
    text = printable(whole if most is None else whole[: most + 1])
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def cell_text(kind: ColumnType, value: Any) -> str:
    """One value of a column of this type: a class by its name, an image by its size."""
    if value is None or value is np.ma.masked:
        return "null"
    if isinstance(kind, ClassLabel):
        number = int(value)
        return value_text(kind.names[number] if 0 <= number < len(kind.names) else number)
    if isinstance(kind, Image) and (header := header_of(value)) is not None:
        return f"{header.codec} {header.width} x {header.height}, {bytes_text(len(value))}"
    return value_text(value)


def cell_of(kind: ColumnType, value: Any) -> str | Thumbnail:
    """The same, with a thumbnail of what is a picture."""
    words = cell_text(kind, value)
    if isinstance(kind, Image) and isinstance(value, bytes | memoryview):
        return Thumbnail(words, partial(thumbnail, value))
    if has_pictures(kind) and isinstance(value, np.ndarray):
        return Thumbnail(words, partial(array_thumbnail, value))
    return words


def has_pictures(kind: ColumnType) -> bool:
    """Whether values of a column may have thumbnails."""
    if isinstance(kind, Tensor):
        return kind.dtype == "uint8" and looks_like_pixels(np.dtype(np.uint8), kind.shape)
    return isinstance(kind, Image)


def type_text(kind: ColumnType) -> str:
    """The type of a column, in a word where one does: ``float32[28, ?]``."""
    if isinstance(kind, Scalar):
        return kind.dtype
    if isinstance(kind, Tensor):
        dims = ", ".join("?" if dim is None else str(dim) for dim in kind.shape)
        tile = "" if kind.tile is None else f" in tiles of {list(kind.tile)}"
        return f"{kind.dtype}[{dims}]{tile}"
    if isinstance(kind, ClassLabel):
        shown = ", ".join(kind.names[:_SHOWN_CLASSES])
        more = ", ..." if len(kind.names) > _SHOWN_CLASSES else ""
        return f"label of {counted(len(kind.names), 'class', 'classes')} ({shown}{more})"
    if isinstance(kind, Image):
        stored = {False: None, True: "progressive", "beside": "progressive beside"}
        told = [each for each in (kind.codec, stored[kind.progressive]) if each]
        return f"image ({', '.join(told)})" if told else "image"
    if isinstance(kind, Bytes) and kind.size is not None:
        return f"bytes({kind.size})"
    if isinstance(kind, Text | Bytes | Json | Link):
        return type(kind).__name__.lower()
    return _nested_text(kind)


def _nested_text(kind: ColumnType) -> str:
    """``list(text)``, ``struct(a: int64, b: decimal(5, 2))``, ``timestamp(us, UTC)``."""
    match kind:
        case Embedding(dtype=dtype, dim=dim):
            return f"embedding of {dtype}[{dim}]"
        case List(value=value, size=size):
            return f"list({type_text(value)}{'' if size is None else f', {size}'})"
        case Struct(fields=fields):
            return f"struct({', '.join(f'{name}: {type_text(each)}' for name, each in fields)})"
        case Map(key=key, value=value):
            return f"map({type_text(key)}, {type_text(value)})"
        case Decimal(precision=precision, scale=scale):
            return f"decimal({precision}, {scale})"
        case Time(unit=unit) | Duration(unit=unit) | Timestamp(unit=unit):
            zone = getattr(kind, "zone", None)
            return f"{kind.__struct_config__.tag}({unit}{f', {zone}' if zone else ''})"
        case Date() | Null():
            return str(kind.__struct_config__.tag)
    return str(kind)

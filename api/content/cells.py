"""Cells: one value of a column as JSON of bounded size, or as the bytes of a file.

JSON has what people look at. Pictures, and values of many bytes, are told by what they are, and
are there as files under their row and column.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.cells import has_pictures
from tensorrepo.formats.dataset.schema.json_values import named_class, value_json
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ColumnLayout,
    Embedding,
    Image,
    Tensor,
    Text,
)
from tensorrepo.formats.images.headers import codec_of
from tensorrepo.formats.images.thumbnails import small_array_png, small_png
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NoSuchRowError, NotFoundError, TooLargeError

HEAVY_BYTES: Final = 64 << 10  # of a row, decoded in the mean: what a page of rows leaves out
SHOWN_NUMBERS: Final = 4096  # of a tensor
SHOWN_BYTES: Final = 64 << 10  # of JSON of one value
MOST_CELL_BYTES: Final = 256 << 20
MOST_SIDE_PIXELS: Final = 4096
_HEAD_BYTES: Final = 64  # of an image, that tell its format
_MEDIA_TYPES: Final = {
    "jpeg": "image/jpeg", "png": "image/png", "gif": "image/gif", "bmp": "image/bmp",
    "webp": "image/webp", "tiff": "image/tiff",
}  # fmt: skip

CellLink = Callable[[Column, int], str]  # where a cell is as a file, by its column and row


@dataclass(frozen=True, slots=True)
class CellFile:
    """A value as a file: its bytes, media type and name."""

    data: bytes
    media_type: str
    name: str


def is_heavy(dataset: StoredDataset, column: Column) -> bool:
    """Whether a page of rows tells values of a column by what they are alone, unread."""
    if isinstance(column.type, Image) or column.storage.layout is ColumnLayout.TILED:
        return True
    return mean_bytes(dataset, column) > HEAVY_BYTES


def mean_bytes(dataset: StoredDataset, column: Column) -> float:
    """Decoded bytes of a row of a column, in the mean."""
    known = next(each for each in dataset.root.statistics if each.id == column.id)
    return known.raw_bytes / max(dataset.root.rows, 1)


def heavy_json(column: Column, row: int, link: CellLink | None, facts: dict[str, Any]) -> Any:
    """What a value is that was not read; `facts` of an image are its height, width and mode."""
    told: dict[str, Any] = {"is": type(column.type).__name__.lower()}
    if isinstance(column.type, Tensor):
        told |= {"dtype": column.type.dtype, "shape": list(column.type.shape)}
    return told | facts | ({} if link is None else {"href": link(column, row)})


def cell_json(column: Column, value: Any, row: int, link: CellLink | None) -> Any:
    """One value that was read, as JSON; a large one by what it is."""
    if isinstance(value, np.ndarray) and isinstance(column.type, Tensor | Embedding):
        return _tensor_json(column, value, row, link)
    shown = value_json(named_class(column.type, value))
    if isinstance(shown, str | list | dict):
        size = len(json.dumps(shown, ensure_ascii=False).encode(errors="replace"))
        if size > SHOWN_BYTES:
            return heavy_json(column, row, link, {"bytes": size})
    return shown


def _tensor_json(column: Column, value: Any, row: int, link: CellLink | None) -> Any:
    told = {"is": "tensor", "dtype": str(value.dtype), "shape": list(value.shape)}
    if value.size > SHOWN_NUMBERS:
        return told | ({} if link is None else {"href": link(column, row)})
    return told | {"values": value_json(value)}


def read_cell(content: CommitContent, path: str, column: str, row: int) -> CellFile:
    """One value as a file: an image as it is, text, bytes; a tensor as ``.npy``; else JSON.

    Raises:
        NotFoundError: no such entry or column.
        NoSuchRowError: no such row.
        TooLargeError: a value of more than `MOST_CELL_BYTES`, in the mean of its column.
    """
    known = content.dataset(path).schema.column(column)
    value = read_value(content, path, column, row)
    return _file_of(known, value, f"{path.rpartition('/')[2]}-{row}")


def read_value(content: CommitContent, path: str, column: str, row: int) -> Any:
    """One value, as the SDK gives it. Raises as `read_cell` does."""
    dataset = content.dataset(path)
    known = dataset.schema.column(column)
    if not 0 <= row < dataset.rows:
        raise NoSuchRowError(f"no row {row}: {path} has {dataset.rows:,} rows, counted from 0")
    if mean_bytes(dataset, known) > MOST_CELL_BYTES:
        raise TooLargeError(
            f"values of {column!r} have {mean_bytes(dataset, known):,.0f} bytes, and "
            f"{MOST_CELL_BYTES:,} are sent as one: read a region of it by the SDK"
        )
    return dataset[column][row]


def _file_of(column: Column, value: Any, name: str) -> CellFile:
    if value is None:
        return CellFile(b"null", "application/json", f"{name}.json")
    if isinstance(column.type, Image):
        codec = codec_of(bytes(value[:_HEAD_BYTES])) or ""
        media_type = _MEDIA_TYPES.get(codec, "application/octet-stream")
        return CellFile(bytes(value), media_type, f"{name}.{codec or 'bin'}")
    if isinstance(column.type, Text):
        return CellFile(str(value).encode(), "text/plain; charset=utf-8", f"{name}.txt")
    if isinstance(column.type, Bytes):
        return CellFile(bytes(value), "application/octet-stream", f"{name}.bin")
    if isinstance(value, np.ndarray):
        return CellFile(_npy(value), "application/x-npy", f"{name}.npy")
    text = json.dumps(value_json(named_class(column.type, value), None), ensure_ascii=False)
    return CellFile(text.encode(errors="replace"), "application/json", f"{name}.json")


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    plain = np.asarray(array)
    if is_small_float(plain.dtype):  # numpy's files have no word for bfloat16 and float8
        plain = plain.astype(np.float32)
    file = io.BytesIO()
    np.save(file, plain, allow_pickle=False)
    return file.getvalue()


def read_image(
    content: CommitContent, path: str, column: str, row: int, *, resize: int | None = None
) -> CellFile:
    """One image: as it is stored, or as a PNG that fits a square of `resize` pixels.

    Tensors that look like pixels are PNGs.

    Raises:
        NotFoundError: no such entry or column, or no image in that row.
        InvalidInputError: the column holds no pictures, or this one cannot be decoded.
    """
    known = content.dataset(path).schema.column(column)
    if not has_pictures(known.type):
        raise InvalidInputError(f"column {column!r} is {known.type_text}: it holds no pictures")
    if resize is not None and not 1 <= resize <= MOST_SIDE_PIXELS:
        raise InvalidInputError(f"resize is 1 to {MOST_SIDE_PIXELS:,} pixels, got {resize}")
    value = read_value(content, path, column, row)
    if value is None:
        raise NotFoundError(f"row {row} of {path} has no {column}")
    name = f"{path.rpartition('/')[2]}-{row}"
    if isinstance(known.type, Image) and resize is None:
        return _file_of(known, value, name)
    data = shrunk(known, value, resize or MOST_SIDE_PIXELS)
    if data is None:
        raise InvalidInputError(
            f"{column!r} of row {row} cannot be decoded as a picture, or is too large: read the "
            "cell as a file"
        )
    return CellFile(data, "image/png", f"{name}.png")


def shrunk(column: Column, value: Any, side_pixels: int) -> bytes | None:
    """A picture as a PNG that fits a square of `side_pixels`; None where it cannot be decoded."""
    if isinstance(column.type, Image):
        return small_png(value, side_pixels)
    return small_array_png(value, side_pixels)

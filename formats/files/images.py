"""A dataset of images as a folder: `<split>/<class>/<file>`, as `checkout` writes it.

Paths come of the light columns, sizes of the row tables of pages: no image is read for a listing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    page_reader,
    read_rows,
)
from tensorrepo.formats.dataset.reading.row_lengths import row_lengths
from tensorrepo.formats.dataset.schema.values import BinaryValues
from tensorrepo.formats.exchange.arrays.npy import join_names
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.images.folder import ImageColumns, image_columns, image_path
from tensorrepo.formats.exchange.images.walk import CLASSES_FILE
from tensorrepo.formats.files.base import PathIndex
from tensorrepo.formats.images.headers import SUFFIXES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError

MOST_PATH_BYTES: Final = 512 << 20  # of paths that are held in memory
_ROW_BYTES: Final = 200  # a path, its place in a dict and its size


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a file's bytes are: a row, or here."""

    size_bytes: int
    row: int = -1
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class StoredImage:
    """The image of one row, or the list of classes."""

    dataset: StoredDataset
    column: str
    place: _Place

    @property
    def size_bytes(self) -> int:
        return self.place.size_bytes

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """See `PresentedFile`; the row is read as a whole."""
        yield memoryview(self._read())[start:stop]

    def piece_start(self, at: int) -> int:
        """See `PresentedFile`."""
        return 0 if at <= 0 else self.size_bytes

    def _read(self) -> bytes:
        if self.place.row < 0:
            return self.place.data
        values = read_rows(self.dataset, self.column, [self.place.row])
        assert isinstance(values, BinaryValues), "images are bytes"
        data = values.data[values.offsets[0] : values.offsets[1]].tobytes()
        if len(data) != self.place.size_bytes:
            raise CorruptError(
                f"row {self.place.row} of column {self.column!r} has {len(data)} bytes, its page "
                f"said {self.place.size_bytes}. `tensorrepo fsck --deep` finds it."
            )
        return data


@dataclass(frozen=True)
class ImageFolder:
    """See `PresentedFolder`. `dataset` is one that `is_image_folder`."""

    dataset: StoredDataset

    def names(self, folder: str) -> Mapping[str, int | None] | None:
        found = self._places.names(folder)
        if found is None:
            return None
        return {name: None if at is None else at.size_bytes for name, at in found.items()}

    def file(self, path: str) -> StoredImage | None:
        place = self._places.get(path)
        if place is None:
            return None
        return StoredImage(self.dataset, self._columns.image.name, place)

    @cached_property
    def _columns(self) -> ImageColumns:
        return image_columns(self.dataset.schema.visible)

    @cached_property
    def _places(self) -> PathIndex[_Place]:
        return PathIndex(_placed(self.dataset, self._columns))


def is_image_folder(dataset: StoredDataset) -> bool:
    """Whether a folder of images holds all columns, and its paths fit into memory."""
    try:
        columns = image_columns(dataset.schema.visible)
    except InvalidInputError:
        return False
    light_ids = {dataset.schema.column(name).id for name in _light(columns)}
    light = sum(each.raw_bytes for each in dataset.root.statistics if each.id in light_ids)
    return light + _ROW_BYTES * dataset.rows <= MOST_PATH_BYTES


def _light(columns: ImageColumns) -> list[str]:
    chosen = (columns.label, columns.split, columns.file)
    return [column.name for column in chosen if column is not None]


def _placed(dataset: StoredDataset, columns: ImageColumns) -> Iterator[tuple[str, _Place]]:
    """Path and place of each image that is not null.

    Of rows with one path, all but the first are marked by their numbers; rows whose `file` is no
    path inside a folder are called by theirs.
    """
    if columns.label is not None:
        text = join_names(columns.label).encode()
        yield CLASSES_FILE, _Place(len(text), data=text)
    sizes = _sizes(dataset, columns.image.name)
    suffix = SUFFIXES.get(columns.codec or "", (f".{columns.codec or 'bin'}",))[0]
    seen: set[str] = set()
    for number, row in enumerate(_light_rows(dataset, _light(columns))):
        if not sizes[number]:  # null: no image has no bytes
            continue
        path = _path(columns, row, number, suffix)
        if path in seen:
            folder, slash, name = path.rpartition("/")
            path = f"{folder}{slash}{number:08d}~{name}"
        seen.add(path)
        yield path, _Place(int(sizes[number]), number)


def _path(columns: ImageColumns, row: dict[str, Any], number: int, suffix: str) -> str:
    try:
        return image_path(columns, row, number, suffix)
    except InvalidInputError:
        nameless = row | {columns.file.name: None} if columns.file is not None else row
        return image_path(columns, nameless, number, suffix)


def _sizes(dataset: StoredDataset, column: str) -> Ints:
    """Bytes of each live row's image, 0 where there is none."""
    lengths = row_lengths(page_reader(dataset, column))
    live = live_rows(dataset)
    return np.delete(lengths, live.dead) if len(live.dead) else lengths


def _light_rows(dataset: StoredDataset, names: list[str]) -> Iterator[dict[str, Any]]:
    if not names:
        yield from ({} for _ in range(dataset.rows))
        return
    for batch in dataset.to_batches(names, max_bytes=BATCH_BYTES):
        lists = [batch.column(name).to_pylist() for name in names]
        for values in zip(*lists, strict=True):
            yield dict(zip(names, values, strict=True))

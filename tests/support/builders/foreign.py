"""Foreign data in and out of datasets in memory, for tests of the exchange formats."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema, TypeLike
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.base import OpenedSource
from tests.support.builders.objects import MemoryObjects

NOBODY = 65_534


def store(reading: OpenedSource) -> StoredDataset:
    """All rows of a reading as a dataset."""
    objects = MemoryObjects()
    return open_dataset(objects, write_dataset(objects, reading.schema, reading.batches).digest)


def dataset_of(columns: Mapping[str, TypeLike] | Schema, *batches: InputBatch) -> StoredDataset:
    schema = columns if isinstance(columns, Schema) else Schema.of(columns)
    objects = MemoryObjects()
    return open_dataset(objects, write_dataset(objects, schema, batches).digest)


def rows_of(dataset: StoredDataset) -> list[dict[str, Any]]:
    """Every row as Python's own values, for comparing."""
    return [{name: _plain(value) for name, value in row.items()} for row in dataset]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """Take the right to look at `path`, also from a test that runs as root."""
    mode = path.stat().st_mode
    path.chmod(0)
    root = os.geteuid() == 0
    try:
        if root:
            os.seteuid(NOBODY)
        yield
    finally:
        if root:
            os.seteuid(0)
        path.chmod(mode)


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """A grey picture of shape ``(height, width)`` as PNG, without any library for images."""
    height, width = pixels.shape
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines)), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def gif() -> bytes:
    """The smallest GIF there is: one pixel."""
    return bytes.fromhex("47494638396101000100800000000000ffffff2c00000000010001000002024401003b")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

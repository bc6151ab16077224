"""Files of records from outside, written byte by byte and by nothing of ours."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def tar_bytes(members: Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar archive as Python's tarfile writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def npy_bytes(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def crc32c(data: bytes) -> int:
    """The checksum by its definition, a bit at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def tfrecord_bytes(records: Iterable[bytes]) -> bytes:
    return b"".join(
        part
        for data in records
        for length in [struct.pack("<Q", len(data))]
        for part in (length, _masked(length), data, _masked(data))
    )


def example(features: Mapping[str, bytes]) -> bytes:
    """A tf.train.Example whose features are given as serialised `tf.train.Feature`s."""
    entries = [field(1, field(1, name.encode()) + field(2, of)) for name, of in features.items()]
    return field(1, b"".join(entries))


def field(number: int, content: bytes) -> bytes:
    """A protobuf field of bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def mds_folder(
    folder: Path, columns: Mapping[str, tuple[str, int | None]], rows: list[list[bytes]]
) -> dict[str, Any]:
    """A folder of one plain shard; columns are (encoding, size). Its index, as it was written."""
    samples = [
        b"".join(
            [
                struct.pack("<I", len(value))
                for value, (_, size) in zip(row, columns.values(), strict=True)
                if not size
            ]
            + row
        )
        for row in rows
    ]
    head = 4 * (len(samples) + 2)
    ends = np.cumsum([head, *map(len, samples)]).astype("<u4")
    shard = struct.pack("<I", len(samples)) + ends.tobytes() + b"".join(samples)
    index = {
        "version": 2,
        "shards": [
            {
                "format": "mds",
                "version": 2,
                "samples": len(samples),
                "column_names": list(columns),
                "column_encodings": [encoding for encoding, _ in columns.values()],
                "column_sizes": [size for _, size in columns.values()],
                "compression": None,
                "hashes": [],
                "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
                "zip_data": None,
            }
        ],
    }
    folder.mkdir(exist_ok=True)
    (folder / "shard.00000.mds").write_bytes(shard)
    (folder / "index.json").write_text(json.dumps(index))
    return index


def _masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

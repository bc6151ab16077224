"""A second reader of datasets, written from docs/spec alone.

It shares no code with the first, is slow, and lacks the checks that a reader of hostile bytes
needs; but it proves every sum that it meets.
"""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import zstandard
from blake3 import blake3
from xxhash import xxh3_64_intdigest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DTYPES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
UNKNOWN = 2**64 - 1
Row = dict[str, Any]


def object_name(whole: bytes) -> bytes:
    return blake3(whole, derive_key_context="tensorrepo object v1").digest()


def tag(page: bytes) -> bytes:
    return blake3(page, derive_key_context="tensorrepo content v1").digest()[:16]


def payload(whole: bytes) -> bytes:
    size: int = struct.unpack_from("<Q", whole, 16)[0]
    return whole[len(whole) - size :]


def sections(data: bytes, magic: bytes) -> dict[int, bytes]:
    found, version, count = struct.unpack_from("<4sHH", data)
    assert (found, version) == (magic, 1)
    at, parts = 8, {}
    for _ in range(count):
        number, _item, codec, zero, stored, raw = struct.unpack_from("<HBBIQQ", data, at)
        assert (codec, zero, stored) == (0, 0, raw)
        parts[number] = data[at + 24 : at + 24 + stored]
        at += 24 + stored + -stored % 8
    assert at == len(data)
    return parts


def decompressed(data: bytes, codec: int, item: int) -> bytes:
    if codec == 0:
        return data
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if codec == 1:
        return raw
    return bytes(np.frombuffer(raw, np.uint8).reshape(item, -1).T.tobytes())


class Column:
    """Pages of one column in one page index."""

    def __init__(self, record: bytes, parts: dict[int, bytes], chunks: list[bytes]) -> None:
        name, self.layout, code, rank, zero, first_dim, first, count, zeros = struct.unpack(
            "<QBBBBIIIQ", record
        )
        assert (zero, zeros) == (0, 0)
        self.id = f"{name:016x}"
        self.dtype = np.dtype(DTYPES[code - 1]).newbyteorder("<")
        dims = struct.unpack_from(f"<{rank}Q", parts.get(2, b""), 8 * first_dim)
        self.shape = [None if dim == UNKNOWN else dim for dim in dims]
        self.pages = []
        for at in range(first, first + count):
            entry = struct.unpack_from("<IIQQQQIHBBQQ", parts[3], 64 * at)
            number = struct.unpack_from("<I", parts[5], 4 * at)[0]
            data = chunks[number][entry[2] : entry[2] + entry[3]]
            assert xxh3_64_intdigest(data) == entry[5]
            assert tag(data) == parts[4][16 * at : 16 * at + 16]
            self.pages.append((entry, data))

    def rows(self) -> Iterable[Any]:
        for entry, data in self.pages:
            yield from self._rows(entry, data)

    def _rows(self, entry: tuple[int, ...], data: bytes) -> Iterable[Any]:
        count, nulls, flags = entry[1], entry[6], entry[9]
        buffers, at = [], 64
        for which in range(4):
            stored, codec, item, zero, zeros = struct.unpack_from("<QBBHI", data, 16 * which)
            assert (zero, zeros) == (0, 0)
            buffers.append(decompressed(data[at : at + stored], codec, item))
            assert not any(data[at + stored : at + stored + -stored % 64])
            at += stored + -stored % 64
        assert at == len(data) == entry[3]
        assert 64 + sum(len(b) + -len(b) % 64 for b in buffers) == entry[4]
        start = 0
        for row in range(count):
            null = bool(nulls) and not buffers[0][row // 8] >> row % 8 & 1
            raw, dims, start = self._row(buffers, row, start, count)
            shape = [next(dims) if dim is None else dim for dim in self.shape]
            if flags & 1:
                self._prove(raw, shape, null, struct.unpack_from("<I", buffers[2], 4 * row)[0])
            yield None if null else (raw, tuple(shape))

    def _row(
        self, buffers: list[bytes], row: int, start: int, count: int
    ) -> tuple[bytes, Any, int]:
        size = self.dtype.itemsize
        known = int(np.prod([dim for dim in self.shape if dim is not None], dtype=np.int64))
        if self.layout == 0:
            return buffers[1][row * known * size : (row + 1) * known * size], iter(()), 0
        end = struct.unpack_from("<Q", buffers[1], 8 * row)[0]
        raw = buffers[3][start * size : end * size]
        if self._stores_dims():
            unknown = self.shape.count(None)
            place = 8 * count + 4 * unknown * row
            return raw, iter(struct.unpack_from(f"<{unknown}I", buffers[1], place)), end
        return raw, iter([(end - start) // known] if self.layout == 1 else []), end

    def _stores_dims(self) -> bool:
        return self.layout == 1 and (self.shape.count(None) > 1 or 0 in self.shape)

    def _prove(self, raw: bytes, shape: list[int], null: bool, stored: int) -> None:
        seed = 0
        if self._stores_dims():
            dims = [dim for dim, given in zip(shape, self.shape, strict=True) if given is None]
            seed = xxh3_64_intdigest(struct.pack(f"<{len(dims)}I", *dims))
        seed ^= UNKNOWN if null else 0
        assert xxh3_64_intdigest(raw, seed) & 0xFFFFFFFF == stored


def read(objects: Mapping[bytes, bytes], digest: bytes) -> tuple[dict[str, Any], list[Row]]:
    """The schema of a dataset, and all its rows: values, or raw bytes where binary."""
    root = msgspec.msgpack.decode(payload(objects[digest]))
    assert (root["version"], root["features"]) == (1, [])
    columns: dict[str, list[Any]] = {each["id"]: [] for each in root["schema"]["columns"]}
    rows = 0
    for entry in root["leaves"]:
        rows += _read_leaf(objects, entry, columns)
    assert rows == root["rows"]
    named = {each["name"]: _typed(each, columns[each["id"]]) for each in root["schema"]["columns"]}
    table = [{name: values[row] for name, values in named.items()} for row in range(rows)]
    return root["schema"], table


def _read_leaf(
    objects: Mapping[bytes, bytes], entry: dict[str, Any], columns: dict[str, list[Any]]
) -> int:
    data = payload(objects[entry["digest"]]) if entry["digest"] else entry["payload"]
    parts = sections(data, b"TRPL")
    for at in range(0, len(parts[2]), 64):
        _group, _first, _count, digest, offset, size = struct.unpack_from("<QII32sQQ", parts[2], at)
        inline = parts.get(3, b"")[offset : offset + size]
        _read_index(objects, payload(objects[digest]) if any(digest) else inline, columns)
    return sum(struct.unpack_from("<I", parts[1], at + 8)[0] for at in range(0, len(parts[1]), 32))


def _read_index(objects: Mapping[bytes, bytes], data: bytes, columns: dict[str, list[Any]]) -> None:
    parts = sections(data, b"TRPI")
    digests = [parts[6][at : at + 32] for at in range(0, len(parts[6]), 32)]
    chunks = [payload(objects[one]) if any(one) else parts[7] for one in digests]
    for at in range(0, len(parts[1]), 32):
        column = Column(parts[1][at : at + 32], parts, chunks)
        for row in column.rows():
            columns[column.id].append(row and (column.dtype, *row))


def _typed(column: dict[str, Any], rows: list[Any]) -> list[Any]:
    return [None if row is None else _value(column["type"], *row) for row in rows]


def _value(kind: dict[str, Any], dtype: Any, raw: bytes, shape: tuple[int, ...]) -> Any:
    match kind["type"]:
        case "image" | "bytes":
            return raw
        case "text":
            return raw.decode()
        case "json":
            return json.loads(raw)
    array = np.frombuffer(raw, dtype).reshape(shape)
    if kind["type"] == "timestamp":
        array = array.view(f"<M8[{kind['unit']}]")
    return array if shape else array[()]

"""A second reader of datasets, written from docs/spec alone: structs, numpy, and what they name.

It shares no code with the first, is slow, and lacks the checks that a reader of hostile bytes
needs; but it proves every sum that it meets. Small floats are given out as their bits.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from itertools import product
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import zstandard
from blake3 import blake3
from xxhash import xxh3_64_intdigest as xxh3

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAMES = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
NAMES += ["float16", "float32", "float64", "complex64", "complex128"]
NAMES += ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
UNKNOWN = 2**64 - 1
Objects = dict[bytes, bytes]


def object_name(whole: bytes) -> bytes:
    return blake3(whole, derive_key_context="tensorrepo object v1").digest()


def proved(data: bytes, checksum: int, tag: bytes) -> bytes:
    assert xxh3(data) == checksum
    assert blake3(data, derive_key_context="tensorrepo content v1").digest()[:16] == tag
    return data


def payload(whole: bytes) -> bytes:
    size: int = struct.unpack_from("<Q", whole, 16)[0]
    return whole[len(whole) - size :]


def sections(data: bytes, magic: bytes) -> dict[int, bytes]:
    found, version, count = struct.unpack_from("<4sHH", data)
    assert (found, version) == (magic, 1)
    at, parts = 8, dict.fromkeys(range(1, 18), b"")
    for _ in range(count):
        number, _item, codec, zero, stored, raw = struct.unpack_from("<HBBIQQ", data, at)
        assert (codec, zero, stored) == (0, 0, raw)
        parts[number] = data[at + 24 : at + 24 + stored]
        at += 24 + stored + -stored % 8
    assert at == len(data)
    return parts


def decoded(data: bytes, codec: int, item: int) -> bytes:
    if codec == 0 or not data:
        return data
    if codec == 3:  # bitpack
        count, least, width = struct.unpack_from("<QQB", data)
        bits = np.unpackbits(np.frombuffer(data[24:], np.uint8), bitorder="little")
        table = bits[: count * width].reshape(count, width).astype(np.uint64)
        numbers = np.uint64(least) + table @ (np.uint64(1) << np.arange(width, dtype=np.uint64))
        size = next(size for size in (8, 4, 2, 1) if item % size == 0)
        return bytes(numbers.astype(f"<u{size}").tobytes())
    raw = zstandard.ZstdDecompressor().decompress(data)
    planes = np.frombuffer(raw, np.uint8).reshape(item if codec == 2 else 1, -1)
    return bytes(planes.T.tobytes())


class Column:
    """Pages of one column in one page index; `rows` holds None, bytes or arrays as stored."""

    def __init__(self, objects: Objects, parts: dict[int, bytes], record: bytes) -> None:
        name, self.layout, code, rank, _, first_dim, first, count, _ = struct.unpack(
            "<QBBBBIIIQ", record
        )
        self.id, self.dtype = f"{name:016x}", NAMES[code - 1]
        self.element = np.dtype(BITS.get(self.dtype, self.dtype)).newbyteorder("<")
        every = struct.unpack(f"<{len(parts[2]) // 8}Q", parts[2])
        self.shape = [None if dim == UNKNOWN else dim for dim in every[first_dim:][:rank]]
        self.tile = every[first_dim + rank :][:rank]
        digests = [parts[6][at : at + 32] for at in range(0, len(parts[6]), 32)]
        chunks = [payload(objects[one]) if any(one) else parts[7] for one in digests]
        self.rows: list[Any] = []
        for at in range(first, first + count):
            entry = struct.unpack_from("<IIQQQQIHBBQQ", parts[3], 64 * at)
            data = chunks[struct.unpack_from("<I", parts[5], 4 * at)[0]][entry[2] :][: entry[3]]
            tiles = [chunks[c] for e, c in struct.iter_unpack("<II", parts[8]) if e == at]
            self._add(entry, proved(data, entry[5], parts[4][16 * at :][:16]), tiles)

    def _add(self, entry: tuple[int, ...], data: bytes, tiles: list[bytes]) -> None:
        rows, raw_bytes, nulls, form, flags = entry[1], entry[4], entry[6], entry[8], entry[9]
        buffers, at = [], 64
        for which in range(4):
            stored, codec, item, *zeros = struct.unpack_from("<QBBHI", data, 16 * which)
            buffers.append(decoded(data[at : at + stored], codec, item))
            assert not any([*zeros, *data[at + stored : at + stored + -stored % 64]])
            at += stored + -stored % 64
        assert at == len(data) == entry[3]
        assert (form == 2) == (self.layout == 3)
        start, first = 0, len(self.rows)
        for row in range(rows):
            null = bool(nulls) and not buffers[0][row // 8] >> row % 8 & 1
            shape, stop = self._shape(buffers[1], row, rows, start)
            item = self.element.itemsize
            if self.layout == 0:
                raw = buffers[1][row * stop * item : (row + 1) * stop * item]
            elif self.layout == 3:
                raw = b"" if null else self._tiled(buffers[2][48 * start : 48 * stop], shape, tiles)
            else:
                raw = buffers[3][start * item : stop * item]
            if flags & 1:
                dims = [dim for dim, known in zip(shape, self.shape, strict=True) if known is None]
                seed = xxh3(struct.pack(f"<{len(dims)}I", *dims)) if self._stores_dims else 0
                found = xxh3(raw, seed ^ UNKNOWN if null else seed) & 0xFFFFFFFF
                assert found == struct.unpack_from("<I", buffers[2], 4 * row)[0]
            value = raw if self.layout == 2 else None if null else self._array(raw, shape)
            self.rows.append(None if null else value)
            start = stop
        assert nulls == sum(value is None for value in self.rows[first:])
        arrays = [value for value in self.rows[first:] if value is not None]
        spread = sum(len(buffer) + -len(buffer) % 64 for buffer in buffers)
        assert raw_bytes == 64 + spread + (sum(a.nbytes for a in arrays) if form == 2 else 0)

    @property
    def _stores_dims(self) -> bool:
        return self.layout == 1 and (self.shape.count(None) > 1 or 0 in self.shape)

    def _array(self, raw: bytes, shape: list[int]) -> Any:
        return np.frombuffer(raw, self.element).reshape(shape)

    def _shape(self, table: bytes, row: int, rows: int, start: int) -> tuple[list[int], int]:
        """The shape of a row, and where it ends."""
        known = int(np.prod([dim for dim in self.shape if dim is not None], dtype=np.int64))
        if self.layout == 0:
            return [dim or 0 for dim in self.shape], known
        end: int = struct.unpack_from("<Q", table, 8 * row)[0]
        given = self.shape.count(None) if self._stores_dims else len(self.tile) * (self.layout == 3)
        dims = iter(struct.unpack_from(f"<{given}I", table, 8 * rows + 4 * given * row))
        if self.layout == 3:
            return list(dims), end
        if not self._stores_dims:
            dims = iter([(end - start) // known])
        return [next(dims) if dim is None else dim for dim in self.shape], end

    def _tiled(self, records: bytes, shape: list[int], chunks: list[bytes]) -> bytes:
        row, each = np.empty(shape, self.element), struct.iter_unpack("<QQQ16sIB3s", records)
        grid = [range(0, dim, size) for dim, size in zip(shape, self.tile, strict=True)]
        for corner in product(*grid):
            offset, stored, checksum, tag, chunk, codec, _ = next(each)
            data = proved(chunks[chunk][offset : offset + stored], checksum, tag)
            part = row[tuple(slice(at, at + n) for at, n in zip(corner, self.tile, strict=True))]
            part[...] = self._array(decoded(data, codec, self.element.itemsize), list(part.shape))
        assert next(each, None) is None
        return row.tobytes()


def spans(
    objects: Objects, parts: dict[int, bytes], family: int, magic: bytes
) -> Iterator[tuple[int, dict[int, bytes]]]:
    """The first fragment of every span, and its sections."""
    for _, first, _, digest, offset, size in struct.iter_unpack("<QII32sQQ", parts[family]):
        data = payload(objects[digest]) if any(digest) else parts[3][offset:][:size]
        yield first, sections(data, magic)


class Leaf:
    """Cells by column id, ids and deleted rows of the fragments of one leaf."""

    def __init__(self, objects: Objects, data: bytes, columns: Mapping[str, Any]) -> None:
        parts = sections(data, b"TRPL")
        fragments = list(struct.iter_unpack("<QIIIIQ", parts[1]))
        starts = np.cumsum([0, *(fragment[1] for fragment in fragments)]).tolist()
        self.cells = {name: [default] * starts[-1] for name, default in columns.items()}
        self.ids = [(uid, offset) for uid, rows, *_ in fragments for offset in range(rows)]
        self.dead: set[int] = set()
        for first, index in spans(objects, parts, 2, b"TRPI"):
            for at in range(0, len(index[1]), 32):
                column = Column(objects, index, index[1][at : at + 32])
                cells = self.cells.get(column.id, [])
                cells[starts[first] : starts[first] + len(column.rows)] = stored(column)
        for first, index in spans(objects, parts, 5, b"TRPI"):
            column = Column(objects, index, index[1])
            counts = np.frombuffer(index[3], "<u4").reshape(-1, 16)[:, 1]
            fragment = np.repeat(np.frombuffer(index[16], "<u4"), counts)
            offsets = struct.unpack(f"<{len(index[17]) // 4}I", index[17])
            for at, offset, value in zip(fragment, offsets, stored(column), strict=True):
                self.cells.get(column.id, {})[starts[first + at] + offset] = value
        for first, deletions in spans(objects, parts, 4, b"TRPD"):
            self._delete(deletions, starts[first:])
        for first, runs in spans(objects, parts, 6, b"TRPW"):
            self._move(runs, starts[first:])
        assert len(self.dead) == sum(fragment[2] for fragment in fragments)

    def _delete(self, parts: dict[int, bytes], starts: list[int]) -> None:
        at = 0
        for fragment, deleted, form, size in struct.iter_unpack("<IIII", parts[1]):
            data, at = np.frombuffer(parts[2][at : at + size], np.uint8), at + size
            bits = np.unpackbits(data, bitorder="little")
            found = data.view("<u4") if form == 0 else np.flatnonzero(bits)
            assert len(found) == deleted
            self.dead |= {starts[fragment] + offset for offset in found.tolist()}

    def _move(self, parts: dict[int, bytes], starts: list[int]) -> None:
        runs = struct.iter_unpack("<QII", parts[2])
        for fragment, count in struct.iter_unpack("<II", parts[1]):
            some = [next(runs) for _ in range(count)]
            ids = [(uid, first + row) for uid, first, rows in some for row in range(rows)]
            assert len(ids) == starts[fragment + 1] - starts[fragment]
            self.ids[starts[fragment] : starts[fragment + 1]] = ids


def stored(column: Column) -> list[Any]:
    """Cells with the element type that they are stored in."""
    return [value if value is None else (column.dtype, value) for value in column.rows]


def read(objects: Objects, digest: bytes) -> tuple[dict[str, Any], list[Any], list[dict[str, Any]]]:
    """The schema of a dataset, the ids of all its rows that are not deleted, and the rows."""
    root = msgspec.msgpack.decode(payload(objects[digest]))
    assert (root["version"], root["features"]) == (2, [])
    columns = root["schema"]["columns"]
    defaults = {each["id"]: default_of(each["type"], each.get("default")) for each in columns}
    ids, rows = [], []
    for entry in root["leaves"]:
        data = payload(objects[entry["digest"]]) if entry["digest"] else entry["payload"]
        leaf = Leaf(objects, data, defaults)
        assert (entry["rows"], entry["deleted"]) == (len(leaf.ids), len(leaf.dead))
        for at in sorted(set(range(len(leaf.ids))) - leaf.dead):
            ids.append(leaf.ids[at])
            rows.append({c["name"]: shown(c["type"], leaf.cells[c["id"]][at]) for c in columns})
    assert len(rows) == root["rows"] - root["deleted"]
    return root["schema"], ids, rows


def default_of(kind: dict[str, Any], value: Any) -> Any:
    """A default as a stored cell."""
    if value is None:
        return None
    match kind["type"]:
        case "image" | "bytes":
            return "uint8", b64decode(value)
        case "text":
            return "uint8", value.encode()
        case "json" | "link":
            return "uint8", json.dumps(value).encode()
    # Without their quotes, NaN and the infinities are numbers to this module's `json`.
    array = np.array(json.loads(json.dumps(value).replace('"', "")))
    dtype = kind.get("dtype", "int64")
    if dtype.startswith("complex"):
        array = np.ascontiguousarray(array, np.float64).view(np.complex128)[..., 0]
    if dtype == "bfloat16":
        return dtype, (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return dtype, array.astype(dtype)


def shown(kind: dict[str, Any], cell: Any) -> Any:
    """A cell as its column has it: converted where the column was widened."""
    if cell is None:
        return None
    dtype, value = cell
    match kind["type"]:
        case "image" | "bytes":
            return value
        case "text":
            return value.decode()
        case "json" | "link":
            return json.loads(value)
    wanted = kind.get("dtype", "int64")
    if dtype != wanted:
        value = (value.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else value
        value = value.astype(BITS.get(wanted, wanted))
    if kind["type"] == "timestamp":
        value = value.view(f"<M8[{kind['unit']}]")
    return value if value.shape else value[()]

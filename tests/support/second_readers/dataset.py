"""A second reader of datasets, written from docs/spec alone: structs, numpy, and what they name.

It shares no code with the first, is slow, and lacks the checks that a reader of hostile bytes
needs. It reads datasets as they were written; what changes of them leave is in
`second_readers.changes`, which also proves the sums of rows. Small floats are given out as their
bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from json import loads
from struct import iter_unpack, unpack, unpack_from
from typing import Any

import msgspec
import numpy as np
import zstandard
from blake3 import blake3
from xxhash import xxh3_64_intdigest as xxh3

from tests.support.second_readers import nested
from tests.support.second_readers.scans import joined, prove_previews

NAMES = ["bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]
NAMES += ["float16", "float32", "float64", "complex64", "complex128"]
NAMES += ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
BITS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
BINARY = {"image": bytes, "bytes": bytes, "text": bytes.decode, "json": loads, "link": loads}
Objects = dict[bytes, bytes]
Parts = dict[int, bytes]
Rows = list[dict[str, Any]]
PageParts = tuple[list[bytes], list[tuple[bytes, list[int]]]]


def proved(data: bytes, checksum: int, tag: bytes) -> bytes:
    assert xxh3(data) == checksum
    assert blake3(data, derive_key_context="tensorrepo content v1").digest()[:16] == tag
    return data


def payload(whole: bytes) -> bytes:
    return whole[len(whole) - int.from_bytes(whole[16:24], "little") :]


def sections(data: bytes, magic: bytes) -> Parts:
    found, version, count = unpack_from("<4sHH", data)
    assert (found, version) == (magic, 1)
    at, parts = 8, dict.fromkeys(range(1, 18), b"")
    for _ in range(count):
        number, _item, codec, zero, stored, raw = unpack_from("<HBBIQQ", data, at)
        assert (codec, zero, stored) == (0, 0, raw)
        parts[number] = data[at + 24 : at + 24 + stored]
        at += 24 + stored + -stored % 8
    assert at == len(data)
    return parts


def decoded(data: bytes, codec: int, item: int) -> bytes:
    if codec == 0 or not data:
        return data
    if codec == 3:  # bitpack
        count, least, width = unpack_from("<QQB", data)
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

    def __init__(self, objects: Objects, parts: Parts, record: bytes) -> None:
        name, self.layout, code, rank, dims_at, first, count = unpack("<QBBBxIII8x", record)
        self.id, self.dtype = f"{name:016x}", NAMES[code - 1]
        self.element = np.dtype(BITS.get(self.dtype, self.dtype)).newbyteorder("<")
        every = np.frombuffer(parts[2], "<i8").tolist()
        dims, self.tile = every[dims_at:][:rank], every[dims_at + rank :][:rank]
        self.shape = [None if dim < 0 or self.layout == 3 else dim for dim in dims]
        self.stores_dims = self.layout == 3 or self.shape.count(None) > 1 or 0 in self.shape
        digests = [digest for (digest,) in iter_unpack("32s", parts[6])]
        chunks = [payload(objects[each]) if any(each) else parts[7] for each in digests]
        self.rows: list[Any] = []
        for at in range(first, first + count):
            entry = unpack_from("<IIQQQQIHBBQQ", parts[3], 64 * at)
            data = chunks[unpack_from("<I", parts[5], 4 * at)[0]][entry[2] :][: entry[3]]
            tiles = [chunks[c] for e, c in iter_unpack("<II", parts[8]) if e == at]
            self.add_page(entry, proved(data, entry[5], parts[4][16 * at :][:16]), tiles)
            small = [each for each in iter_unpack("<IIQQQQ16sII", parts[10]) if each[0] == at]
            prove_previews(small, data)
            if self.layout == 2:
                bounds = parts[9][65 * (at + self.bounds_at(parts[1], first)) :][:65]
                self.prove_bounds(bounds, self.rows[len(self.rows) - entry[1] :])

    def bounds_at(self, table: bytes, first: int) -> int:
        """From the place of this column's entries to that of its bounds of text."""
        others = [unpack_from("<8xB11xI8x", table, at) for at in range(0, len(table), 32)]
        starts = [unpack_from("<I", table, at + 16)[0] for at in range(0, len(table), 32)]
        return -sum(
            count
            for (layout, count), start in zip(others, starts, strict=True)
            if start < first and layout != 2
        )

    def prove_bounds(self, record: bytes, rows: list[bytes | None]) -> None:
        values = sorted(each for each in rows if each is not None)
        expected = [bytes(65)]
        if values:
            ends = (values[0], values[-1])
            cut = [len(each) > 32 or each.endswith(b"\0") for each in ends]
            parts = [each[:32].ljust(32, b"\0") for each in ends]
            expected = [b"".join(parts) + bytes([1 + 2 * cut[0] + 4 * cut[1]])]
        assert [record] == expected

    def add_page(self, entry: tuple[int, ...], data: bytes, tiles: list[bytes]) -> PageParts:
        """Put its rows behind the others; gives its buffers, and bytes and shape of each row."""
        nulls, start, buffers, found, at = entry[6], 0, [], [], 64
        for which in range(4):
            stored, codec, size, *zeros = unpack_from("<QBBHI", data, 16 * which)
            room = data[at : at + stored]
            in_bands = codec == 4 and which == 3
            buffers.append(joined(room, buffers[1]) if in_bands else decoded(room, codec, size))
            assert not any([*zeros, *data[at + stored : at + stored + -stored % 64]])
            at += stored + -stored % 64
        assert (at, entry[8] == 2) == (len(data), self.layout == 3)
        for row in range(entry[1]):
            null = bool(nulls) and not buffers[0][row // 8] >> row % 8 & 1
            shape, stop = self.shape_of(buffers[1], row, entry[1], start)
            item, values = self.element.itemsize, buffers[3 if self.layout else 1]
            raw = values[start * item : stop * item]
            if self.layout == 3 and not null:
                raw = self.tiled(buffers[2][48 * start : 48 * stop], shape, tiles)
            found.append((raw, shape))
            self.rows.append(None if null else raw if self.layout == 2 else self.array(raw, shape))
            start = stop
        assert nulls == sum(value is None for value in self.rows[len(self.rows) - entry[1] :])
        return buffers, found

    def array(self, raw: bytes, shape: list[int]) -> Any:
        return np.frombuffer(raw, self.element).reshape(shape)

    def shape_of(self, table: bytes, row: int, rows: int, start: int) -> tuple[list[int], int]:
        """The shape of a row, and where it ends."""
        known = int(np.prod([dim for dim in self.shape if dim is not None], dtype=np.int64))
        if self.layout == 0:
            return [dim or 0 for dim in self.shape], start + known
        end: int = unpack_from("<Q", table, 8 * row)[0]
        given = self.shape.count(None) if self.stores_dims else 0
        dims = unpack_from(f"<{given}I", table, 8 * rows + 4 * given * row)
        unknown = iter(dims if self.stores_dims else [(end - start) // known])
        return [next(unknown) if dim is None else dim for dim in self.shape], end

    def tiled(self, records: bytes, shape: list[int], chunks: list[bytes]) -> bytes:
        row, each = np.empty(shape, self.element), iter_unpack("<QQQ16sIB3s", records)
        sizes = zip(shape, self.tile, strict=True)
        for corner in product(*(range(0, dim, size) for dim, size in sizes)):
            offset, stored, checksum, tag, chunk, codec, _ = next(each)
            data = proved(chunks[chunk][offset : offset + stored], checksum, tag)
            part = row[tuple(slice(at, at + n) for at, n in zip(corner, self.tile, strict=True))]
            part[...] = self.array(decoded(data, codec, self.element.itemsize), list(part.shape))
        assert next(each, None) is None
        return row.tobytes()


def spans(objects: Objects, parts: Parts, family: int, magic: bytes) -> Iterator[tuple[int, Parts]]:
    """The first fragment of every span, and its sections."""
    for _, first, _, digest, offset, size in iter_unpack("<QII32sQQ", parts[family]):
        data = payload(objects[digest]) if any(digest) else parts[3][offset:][:size]
        yield first, sections(data, magic)


class Leaf:
    """Ids, and cells by column id, of the rows of one leaf; a cell is its dtype and its value."""

    column = Column

    def __init__(self, objects: Objects, data: bytes, columns: Sequence[Mapping[str, Any]]) -> None:
        self.parts, self.dead = sections(data, b"TRPL"), set[int]()
        self.fragments = list(iter_unpack("<QIIIIQ", self.parts[1]))
        self.starts = np.cumsum([0, *(rows for _, rows, *_ in self.fragments)]).tolist()
        self.ids = [(uid, offset) for uid, rows, *_ in self.fragments for offset in range(rows)]
        self.cells = {each["id"]: [self.default(each)] * len(self.ids) for each in columns}
        for first, index in spans(objects, self.parts, 2, b"TRPI"):
            for at in range(0, len(index[1]), 32):
                column, start = self.column(objects, index, index[1][at:][:32]), self.starts[first]
                self.cells.get(column.id, [])[start : start + len(column.rows)] = cells_of(column)

    def default(self, _column: Mapping[str, Any]) -> Any:
        return None


def cells_of(column: Column) -> list[Any]:
    return [value if value is None else (column.dtype, value) for value in column.rows]


def read(objects: Objects, digest: bytes, kind: type[Leaf] = Leaf) -> tuple[Any, list[Any], Rows]:
    """The schema of a dataset, the ids of all its rows that are not deleted, and the rows."""
    root = msgspec.msgpack.decode(payload(objects[digest]))
    columns, ids, rows = root["schema"]["columns"], [], []
    features = ["progressive"] if any(c["type"].get("progressive") for c in columns) else []
    assert (root["version"], root["features"]) == (2, features)
    for entry in root["leaves"]:
        data = payload(objects[entry["digest"]]) if entry["digest"] else entry["payload"]
        leaf = kind(objects, data, columns)
        assert (entry["rows"], entry["deleted"]) == (len(leaf.ids), len(leaf.dead))
        for at in sorted(set(range(len(leaf.ids))) - leaf.dead):
            ids.append(leaf.ids[at])
            rows.append({c["name"]: shown(c["type"], leaf.cells[c["id"]][at]) for c in columns})
    assert len(rows) == root["rows"] - root["deleted"]
    return root["schema"], ids, rows


def shown(kind: Mapping[str, Any], cell: Any) -> Any:
    """A cell as its column has it."""
    if cell is None or kind["type"] in BINARY:
        return cell and BINARY[kind["type"]](cell[1])
    if kind["type"] in nested.NESTED:
        return nested.nested_row(kind, bytes(cell[1]))
    if kind["type"] in ("date", "time", "duration", "decimal"):
        return nested.counted(kind, nested.stored_number(cell[1]))
    dtype, value = cell
    assert dtype == kind.get("dtype", "int64")
    value = value.view(f"<M8[{kind['unit']}]") if kind["type"] == "timestamp" else value
    return value if value.shape else value[()]

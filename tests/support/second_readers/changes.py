"""What the second reader needs to read datasets that were changed, and to prove all their sums.

Patches, deletions, row ids that moved, defaults of columns that came later, and widened values:
from docs/spec alone, like `second_readers.dataset`.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from xxhash import xxh3_64_intdigest as xxh3

from tests.support.second_readers import dataset
from tests.support.second_readers.dataset import (
    BINARY,
    BITS,
    Column,
    Leaf,
    Objects,
    PageParts,
    Parts,
    Rows,
    cells_of,
    spans,
)


def read(objects: Objects, digest: bytes) -> tuple[Any, list[Any], Rows]:
    """The schema of a dataset, the ids of all its rows that are not deleted, and the rows."""
    return dataset.read(objects, digest, ChangedLeaf)


class ProvedColumn(Column):
    """A column whose sums of rows and claims of bytes are proved as well."""

    def add_page(self, entry: tuple[int, ...], data: bytes, tiles: list[bytes]) -> PageParts:
        buffers, found = super().add_page(entry, data, tiles)
        raw_bytes, form, flags, values = entry[4], entry[8], entry[9], self.rows[-entry[1] :]
        if flags & 1:
            sums = [self._sum(*each, value) for each, value in zip(found, values, strict=True)]
            assert struct.pack(f"<{len(sums)}I", *sums) == buffers[2]
        spread = sum(len(buffer) + -len(buffer) % 64 for buffer in buffers)
        tiled = sum(value.nbytes for value in values if form == 2 and value is not None)
        assert raw_bytes == 64 + spread + tiled
        return buffers, found

    def _sum(self, raw: bytes, shape: list[int], value: Any) -> int:
        dims = [dim for dim, known in zip(shape, self.shape, strict=True) if known is None]
        seed = xxh3(struct.pack(f"<{len(dims)}I", *dims)) if self.stores_dims else 0
        return xxh3(raw, ~seed % 2**64 if value is None else seed) & 0xFFFFFFFF


class ChangedLeaf(Leaf):
    """A leaf with all that changes left in it."""

    column = ProvedColumn

    def __init__(self, objects: Objects, data: bytes, columns: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(objects, data, columns)
        for first, index in spans(objects, self.parts, 5, b"TRPI"):
            self._patch(ProvedColumn(objects, index, index[1]), index, self.starts[first:])
        for first, deletions in spans(objects, self.parts, 4, b"TRPD"):
            self._delete(deletions, self.starts[first:])
        for first, runs in spans(objects, self.parts, 6, b"TRPW"):
            self._move(runs, self.starts[first:])
        assert len(self.dead) == sum(fragment[2] for fragment in self.fragments)
        for each in columns:
            cells = self.cells[each["id"]]
            self.cells[each["id"]] = [widened(each["type"], cell) for cell in cells]

    def default(self, column: Mapping[str, Any]) -> Any:
        return default_of(column["type"], column.get("default"))

    def _patch(self, column: Column, parts: Parts, starts: list[int]) -> None:
        counts = np.frombuffer(parts[3], "<u4").reshape(-1, 16)[:, 1]
        fragments = np.repeat(np.frombuffer(parts[16], "<u4"), counts)
        offsets = struct.unpack(f"<{len(parts[17]) // 4}I", parts[17])
        cells = self.cells.get(column.id, {})
        for fragment, offset, value in zip(fragments, offsets, cells_of(column), strict=True):
            cells[starts[fragment] + offset] = value

    def _delete(self, parts: Parts, starts: list[int]) -> None:
        at = 0
        for fragment, deleted, form, size in struct.iter_unpack("<IIII", parts[1]):
            data, at = np.frombuffer(parts[2][at : at + size], np.uint8), at + size
            bits = np.unpackbits(data, bitorder="little")
            found = data.view("<u4") if form == 0 else np.flatnonzero(bits)
            assert len(found) == deleted
            self.dead |= {starts[fragment] + offset for offset in found.tolist()}

    def _move(self, parts: Parts, starts: list[int]) -> None:
        runs = struct.iter_unpack("<QII", parts[2])
        for fragment, count in struct.iter_unpack("<II", parts[1]):
            some = [next(runs) for _ in range(count)]
            ids = [(uid, first + row) for uid, first, rows in some for row in range(rows)]
            assert len(ids) == starts[fragment + 1] - starts[fragment]
            self.ids[starts[fragment] : starts[fragment + 1]] = ids


def default_of(kind: Mapping[str, Any], value: Any) -> Any:
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


def widened(kind: Mapping[str, Any], cell: Any) -> Any:
    """A cell in the element type that its column has now."""
    if cell is None or kind["type"] in BINARY or "dtype" not in kind:
        return cell
    (dtype, value), wanted = cell, kind.get("dtype", "int64")
    if dtype != wanted:
        value = (value.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else value
        value = value.astype(BITS.get(wanted, wanted))
    return wanted, value

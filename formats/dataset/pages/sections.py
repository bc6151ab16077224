"""Section container of indexes and leaves: numbered arrays, each with its own codec.

A second reader needs struct and numpy only.

    0 magic, 4 bytes | 4 version u16 | 6 sections u16
    8 per section: id u16 | item u8 | codec u8 | reserved u32 = 0 | stored u64 | raw u64
                   stored bytes, zeros to a multiple of 8

Source:
    docs/spec/dataset.md, section "Sections".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import Codec, decode_buffer
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import Buffer

VERSION = 1
HEAD = Struct("<4sHH")
SECTION = Struct("<HBBIQQ")
assert (HEAD.size, SECTION.size) == (8, 24), "docs/spec/dataset.md promises these sizes"


def encode_sections(magic: bytes, sections: Mapping[int, NDArray[Any]]) -> bytes:
    """The payload of these arrays, in ascending order of their ids; empty ones are left out."""
    kept = [(number, sections[number]) for number in sorted(sections) if sections[number].nbytes]
    parts = [HEAD.pack(magic, VERSION, len(kept))]
    for number, array in kept:
        item = min(array.dtype.itemsize, 255)
        size = array.nbytes
        parts.append(SECTION.pack(number, item, Codec.NONE, 0, size, size))
        parts.append(array.tobytes())
        parts.append(bytes(-size % 8))
    return b"".join(parts)


def decode_sections(magic: bytes, payload: Buffer, what: str) -> dict[int, memoryview]:
    """The decoded bytes of every section, by id.

    Raises:
        CorruptError: not such a payload; `what` names it.
        UnsupportedError: a version or codec that this version does not know.
    """
    view = memoryview(payload).cast("B")
    if view.nbytes < HEAD.size:
        raise CorruptError(f"{what}: {view.nbytes} bytes are fewer than its head")
    found, version, count = HEAD.unpack_from(view)
    if found != magic:
        raise CorruptError(f"{what}: expected magic {magic!r}, found {found!r}")
    if version != VERSION:
        raise UnsupportedError(
            f"{what}: version {version}, this reads {VERSION}. Update tensorrepo."
        )
    sections: dict[int, memoryview] = {}
    at = HEAD.size
    previous = -1
    for _ in range(count):
        if view.nbytes - at < SECTION.size:
            raise CorruptError(f"{what}: cut short at byte {at}")
        number, item, codec, reserved, stored, raw = SECTION.unpack_from(view, at)
        at += SECTION.size
        if reserved or number <= previous or stored > view.nbytes - at:
            raise CorruptError(f"{what}: section {number} is out of order or cut short")
        sections[number] = decode_buffer(codec, view[at : at + stored], raw, item)
        at += stored
        if any(view[at : at + -stored % 8]):
            raise CorruptError(f"{what}: padding after section {number} is not zero")
        at += -stored % 8
        previous = number
    if at != view.nbytes:
        raise CorruptError(f"{what}: {view.nbytes - at} bytes after the last section")
    return sections


def section_array(
    sections: Mapping[int, memoryview], number: int, dtype: np.dtype[Any], what: str
) -> NDArray[Any]:
    """Section `number` as an array of records; empty when it is not there."""
    raw = sections.get(number, memoryview(b""))
    if raw.nbytes % dtype.itemsize:
        raise CorruptError(
            f"{what}: section {number} has {raw.nbytes} bytes, no whole records of {dtype.itemsize}"
        )
    return np.frombuffer(raw, dtype)


def join_records(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Arrays of one type of records, and of one shape beyond the first axis, one after the other.

    As bytes: numpy promotes the types of records anew for every part, field by field, and casts
    each, which takes many times as long as there is to copy.
    """
    kind, beyond = parts[0].dtype, parts[0].shape[1:]
    assert all((part.dtype, part.shape[1:]) == (kind, beyond) for part in parts), "of one type"
    joined = bytearray().join([np.ascontiguousarray(part).data for part in parts])
    return np.frombuffer(joined, kind).reshape(-1, *beyond)

"""A second reader of stored models, written from docs/spec/model.md alone.

It shares no code with the package: struct, numpy, msgpack, BLAKE3 and xxh3. It finds, checks and
describes everything that a pack holds, and decodes what is raw; `second_readers.codecs` decodes
the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec
from blake3 import blake3
from xxhash import xxh3_64_intdigest

NAMES = ("raw", "planes", "palette", "delta", "rows", "adam", "low-rank", "decay", "cast")
CODECS = dict(enumerate(NAMES, 1))
SIGNATURES = 0x80000001


def derived(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=f"tensorrepo {context} v1").digest()


def fingerprint(name: str, block: tuple[int, int], shape: list[int], digests: list[bytes]) -> bytes:
    head = struct.pack("<B32sIII", len(name), name.encode(), *block, len(shape))
    dims = b"".join(struct.pack("<Q", dim) for dim in shape)
    count = struct.pack("<Q", len(digests))
    return derived("tensor", head + dims + count + b"".join(digests))


@dataclass(frozen=True)
class SpecFrame:
    size_bytes: int
    digest: bytes
    planes: tuple[tuple[int, bytes], ...]  # plane codec, stored bytes


@dataclass(frozen=True)
class SpecMember:
    first_frame: int
    codec: str
    depth: int
    stored_bytes: int
    bases: tuple[tuple[bytes, int], ...]
    params: bytes
    frames: tuple[SpecFrame, ...]


class SpecPack:
    """A pack's payload, or its end: `missing` bytes at its beginning are not there."""

    def __init__(self, payload: bytes, missing: int = 0) -> None:
        self.payload, self.missing = payload, missing
        magic, version, self.start, size, checksum = struct.unpack("<4sIQQQ", payload[-32:])
        at = self.start - missing
        self.directory = payload[at : at + size]
        assert (magic, version) == (b"TRPK", 2)
        assert at + size + 32 == len(payload)
        assert xxh3_64_intdigest(self.directory) == checksum
        self.tag = derived("content", self.directory)[:16]
        self.members = tuple(self._members())
        self.signatures = dict(self._signatures())

    def _members(self) -> Iterator[SpecMember]:
        data = self.directory
        head = struct.unpack_from("<4sIIIQQII", data)
        magic, version, members, self.sections, frames, planes, bases, params = head
        assert (magic, version) == (b"TRPD", 2)
        sizes = (48 * members, 40 * bases, params + -params % 8, 32 * frames, 40 * planes)
        rows_at, bases_at, params_at, digests_at, planes_at, self.sections_at = accumulate(
            sizes, initial=40
        )
        for number in range(members):
            row = struct.unpack_from("<QQQIIIBBBBB7x", data, rows_at + 48 * number)
            offset, stored, first, count, size, last, codec, per_frame, depth, based, own = row
            found_bases = tuple(
                struct.unpack_from("<32sI4x", data, bases_at + 40 * at) for at in range(based)
            )
            sizes_of = [size] * (count - 1) + [last]
            table = [
                struct.unpack_from("<QIB3xQ16s", data, planes_at + 40 * at)
                for at in range(count * per_frame)
            ]
            self._check_order(offset, stored, per_frame, table)
            planes_of = [(one[2], self._stored(*one)) for one in table]
            found = tuple(
                SpecFrame(
                    sizes_of[at],
                    data[digests_at + 32 * at :][:32],
                    tuple(planes_of[at * per_frame : (at + 1) * per_frame]),
                )
                for at in range(count)
            )
            held = data[params_at : params_at + own]
            yield SpecMember(first, CODECS[codec], depth, stored, found_bases, held, found)  # type: ignore[arg-type]  # struct gives Any
            bases_at, params_at = bases_at + 40 * based, params_at + own
            digests_at, planes_at = digests_at + 32 * count, planes_at + 40 * len(table)

    def _check_order(
        self, offset: int, stored: int, per_frame: int, table: list[tuple[Any, ...]]
    ) -> None:
        """Back to back, plane by plane in groups of 16 frames."""
        count = len(table) // per_frame
        at = offset
        for group in range(0, count, 16):
            for plane in range(per_frame):
                for frame in range(group, min(group + 16, count)):
                    assert table[frame * per_frame + plane][0] == at
                    at += table[frame * per_frame + plane][1]
        assert at == offset + stored

    def _stored(self, offset: int, size: int, codec: int, checksum: int, tag: bytes) -> bytes:
        if offset < self.missing:
            return b""
        data = self.payload[offset - self.missing : offset - self.missing + size]
        assert xxh3_64_intdigest(data) == checksum
        assert derived("content", data)[:16] == tag
        return data

    def _signatures(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        at = self.sections_at
        for _ in range(self.sections):
            section, _, size = struct.unpack_from("<IIQ", self.directory, at)
            at += 16
            for row in range(at, at + size, 520) if section == SIGNATURES else ():
                member, *items = struct.unpack_from("<I4x256H", self.directory, row)
                yield member, tuple(items)
            at += size + -size % 8
        assert at == len(self.directory)


def read_raw(member: SpecMember) -> bytes:
    """The bytes of a raw member, each frame checked."""
    assert member.codec == "raw"
    for frame in member.frames:
        ((codec, data),) = frame.planes
        assert codec == 0
        assert derived("frame", data) == frame.digest
    return b"".join(frame.planes[0][1] for frame in member.frames)


def read_placement(payload: bytes, packs: Mapping[bytes, SpecPack]) -> dict[bytes, list[Any]]:
    """The members of each tensor by fingerprint, and everything said of them checked."""
    placement: dict[str, Any] = msgspec.msgpack.decode(payload)
    assert placement["version"] == 2
    assert set(placement) == {"version", "packs", "tensors", "bases", "chosen"}
    rows = placement["packs"]
    for digest, start, size, tag in rows:
        pack = packs[digest]
        assert (start, size, tag) == (pack.start, len(pack.directory), pack.tag)
    listed = [row for _, members in placement["tensors"] for row in members] + placement["bases"]
    depths = {(pack, member): depth for pack, member, _, depth, _, _ in listed}
    for pack, member, codec, depth, stored, bases in listed:
        own = packs[rows[pack][0]].members[member]
        assert (own.codec, own.depth, own.stored_bytes) == (codec, depth, stored)
        assert depth == max((1 + depths[tuple(base)] for base in bases), default=0)
        named = [(rows[at][0] if at != pack else bytes(32), number) for at, number in bases]
        assert list(own.bases) == named
    return {
        name: [packs[rows[pack][0]].members[member] for pack, member, *_ in members]
        for name, members in placement["tensors"]
    }

"""How do stored frames lie in a pack?

    members, each aligned | directory | footer

A member holds consecutive frames of one tensor, each frame as one or more planes. The directory
says for every plane where it lies and how it is encoded, and for every frame its digest. A
placement carries the directory's tag, so a ranged read verifies everything without reading a
whole pack; the footer finds the directory when only the pack is there.

Source:
    docs/spec/model.md, section "Pack".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

VERSION: Final = 1
LARGE_ALIGNMENT: Final = 4096  # members that may be mapped begin on a memory page
SMALL_ALIGNMENT: Final = 64
LARGE_BYTES: Final = 64 << 10
RAW: Final = "raw"
CODECS: Final = {1: RAW}  # 2 planes, 3 palette, 4 delta, 5 rows, 6 adam: with a later version
PLANE_RAW: Final = 0  # 1 zstd, 2 copy of base, 3 constant: with a later version
_OPTIONAL_SECTION: Final = 1 << 31

# Layout of a directory: header | members | frame digests | planes | sections.
DIRECTORY = Struct("<4sIIIQQ")  # magic, version, members, sections, frames, planes
assert DIRECTORY.size == 32, "docs/spec/model.md promises a 32-byte directory header"
SECTION = Struct("<IIQ")  # id, reserved 0, bytes; the data is padded to a multiple of 8
assert SECTION.size == 16, "docs/spec/model.md promises a 16-byte section header"
FOOTER = Struct("<4sIQQQ")  # magic, version, directory start, directory bytes, its xxh3_64
assert FOOTER.size == 32, "docs/spec/model.md promises a 32-byte footer"
MEMBER: Final = np.dtype(
    [
        ("offset", "<u8"),  # of the first plane, in the pack's payload
        ("stored_bytes", "<u8"),
        ("first_frame", "<u8"),  # of the tensor
        ("frames", "<u4"),
        ("frame_bytes", "<u4"),  # of a decoded frame, but the last
        ("last_frame_bytes", "<u4"),
        ("codec", "u1"),
        ("planes", "u1"),  # of each frame
        ("depth", "u1"),
        ("reserved", "u1"),
        ("base_member", "<u4"),
        ("zero", "<u4"),
        ("base_pack", "u1", (DIGEST_BYTES,)),
    ]
)
assert MEMBER.itemsize == 80, "docs/spec/model.md promises 80 bytes a member"
PLANE: Final = np.dtype(
    [
        ("offset", "<u8"),  # in the pack's payload
        ("bytes", "<u4"),
        ("codec", "u1"),
        ("reserved", "u1", (3,)),
        ("xxh3", "<u8"),  # of the stored bytes
        ("tag", "u1", (16,)),  # content_tag of the stored bytes
    ]
)
assert PLANE.itemsize == 40, "docs/spec/model.md promises 40 bytes a plane"


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a raw member: its stored bytes are its bytes."""

    offset: int
    size_bytes: int
    xxh3: int
    tag: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """Consecutive frames of a tensor, from its frame number `first_frame`."""

    first_frame: int
    frames: tuple[Frame, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(frame.size_bytes for frame in self.frames)

    @property
    def digests(self) -> bytes:
        return b"".join(frame.digest for frame in self.frames)


def align(offset: int, member_bytes: int) -> int:
    """Where a member of that many bytes may begin at or after `offset`."""
    unit = LARGE_ALIGNMENT if member_bytes >= LARGE_BYTES else SMALL_ALIGNMENT
    return (offset + unit - 1) // unit * unit


def encode_directory(members: Sequence[Member]) -> bytes:
    """The directory of a pack of raw members."""
    frames = [frame for member in members for frame in member.frames]
    table = np.zeros(len(members), MEMBER)
    for row, member in zip(table, members, strict=True):
        row["offset"] = member.frames[0].offset
        row["stored_bytes"] = member.stored_bytes
        row["first_frame"] = member.first_frame
        row["frames"] = len(member.frames)
        row["frame_bytes"] = member.frames[0].size_bytes
        row["last_frame_bytes"] = member.frames[-1].size_bytes
        row["codec"], row["planes"] = 1, 1
    planes = np.zeros(len(frames), PLANE)
    planes["offset"] = [frame.offset for frame in frames]
    planes["bytes"] = [frame.size_bytes for frame in frames]
    planes["xxh3"] = [frame.xxh3 for frame in frames]
    tags = b"".join(frame.tag for frame in frames)
    planes["tag"] = np.frombuffer(tags, "u1").reshape(-1, 16)
    digests = b"".join(frame.digest for frame in frames)
    head = DIRECTORY.pack(b"TRPD", VERSION, len(members), 0, len(frames), len(frames))
    return b"".join((head, table.tobytes(), digests, planes.tobytes()))


def encode_footer(directory: Buffer, directory_start: int) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(directory)
    return FOOTER.pack(b"TRPK", VERSION, directory_start, len(directory), checksum)


def decode_footer(footer: Buffer, name: str) -> tuple[int, int, int]:
    """Start, bytes and xxh3_64 of the directory, of a pack called `name` in messages."""
    if len(footer) != FOOTER.size:
        raise CorruptError(f"{name}: a footer has {FOOTER.size} bytes, found {len(footer)}")
    magic, version, start, size, checksum = FOOTER.unpack(footer)
    _check_head(magic, b"TRPK", version, name)
    return start, size, checksum


@dataclass(frozen=True, slots=True)
class Directory:
    """The directory of one pack, parsed and checked against itself."""

    name: str
    members: NDArray[Any]
    digests: memoryview
    planes: NDArray[Any]
    first_frames: NDArray[np.int64]
    first_planes: NDArray[np.int64]

    def member(self, index: int) -> Member:
        """One member.

        Raises:
            CorruptError: no such member, or its frames do not lie as its codec says.
            UnsupportedError: it is encoded in a way that this version cannot decode.
        """
        name = f"{self.name}, member {index}"
        if not 0 <= index < len(self.members):
            raise CorruptError(f"{name}: the pack has {len(self.members)} members")
        row = self.members[index]
        if int(row["codec"]) not in CODECS or row["depth"] or row["planes"] != 1:
            raise UnsupportedError(
                f"{name}: codec {row['codec']} with {row['planes']} planes at depth "
                f"{row['depth']} is unknown here. Update tensorrepo."
            )
        first = int(self.first_frames[index])
        first_plane = int(self.first_planes[index])
        planes = self.planes[first_plane : first_plane + int(row["frames"])]
        if planes["codec"].any():
            raise UnsupportedError(
                f"{name}: plane codec {planes['codec'].max()} is unknown here. Update tensorrepo."
            )
        _check_raw(row, planes, name)
        digests = self.digests[first * DIGEST_BYTES :]
        return Member(
            int(row["first_frame"]),
            tuple(
                Frame(
                    int(plane["offset"]),
                    int(plane["bytes"]),
                    int(plane["xxh3"]),
                    plane["tag"].tobytes(),
                    bytes(digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]),
                )
                for at, plane in enumerate(planes)
            ),
        )


def decode_directory(data: Buffer, directory_start: int, name: str) -> Directory:
    """Parse the directory of the pack called `name` in messages.

    Args:
        data: exactly the directory's bytes, verified.
        directory_start: where it lies in the payload: all members lie before.
        name: for messages.

    Raises:
        CorruptError: the directory contradicts itself.
        UnsupportedError: a newer version, or a section that a reader must understand.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < DIRECTORY.size:
        raise CorruptError(f"{name}: {view.nbytes} bytes cannot hold a directory")
    magic, version, members, sections, frames, planes = DIRECTORY.unpack_from(view)
    _check_head(magic, b"TRPD", version, name)
    sizes = (members * MEMBER.itemsize, frames * DIGEST_BYTES, planes * PLANE.itemsize)
    if DIRECTORY.size + sum(sizes) > view.nbytes:
        raise CorruptError(
            f"{name}: the directory lists {members} members, {frames} frames and {planes} planes, "
            f"more than its {view.nbytes} bytes hold"
        )
    digests_start = DIRECTORY.size + sizes[0]
    planes_start = digests_start + sizes[1]
    _check_sections(view[planes_start + sizes[2] :], sections, name)
    table = np.frombuffer(view[DIRECTORY.size : digests_start], MEMBER)
    plane_table = np.frombuffer(view[planes_start : planes_start + sizes[2]], PLANE)
    _check_tables(table, plane_table, frames, directory_start, name)
    counts = table["frames"].astype(np.int64)
    per_member = counts * table["planes"]
    return Directory(
        name,
        table,
        view[digests_start:planes_start],
        plane_table,
        np.cumsum(counts) - counts,
        np.cumsum(per_member) - per_member,
    )


def _check_head(magic: bytes, expected: bytes, version: int, name: str) -> None:
    if magic != expected:
        raise CorruptError(f"{name}: expected magic {expected!r}, found {magic!r}")
    if version != VERSION:
        raise UnsupportedError(
            f"{name}: pack version {version}, this tensorrepo reads {VERSION}. Update it."
        )


def _check_sections(view: memoryview, count: int, name: str) -> None:
    at = 0
    for _ in range(count):
        if at + SECTION.size > view.nbytes:
            raise CorruptError(f"{name}: the directory ends inside its sections")
        section, zero, size = SECTION.unpack_from(view, at)
        if zero:
            raise CorruptError(f"{name}: a reserved field is set")
        if not section & _OPTIONAL_SECTION:
            raise UnsupportedError(
                f"{name}: directory section {section} is unknown here. Update tensorrepo."
            )
        at += SECTION.size + (size + 7) // 8 * 8
    if at != view.nbytes:
        raise CorruptError(f"{name}: {view.nbytes - at} bytes after the directory's sections")


def _check_tables(
    members: NDArray[Any], planes: NDArray[Any], frames: int, directory_start: int, name: str
) -> None:
    """Everything that the tables say of each other; numpy's sums here stay far below 2^64."""
    counts = members["frames"].astype(np.uint64)
    if int(counts.sum()) != frames:
        raise CorruptError(f"{name}: its members have {counts.sum()} frames, expected {frames}")
    if int((counts * members["planes"]).sum()) != len(planes):
        raise CorruptError(f"{name}: its members need another number of planes")
    if not counts.all() or members["reserved"].any() or members["zero"].any():
        raise CorruptError(f"{name}: a member has no frames, or a reserved field is set")
    if planes["reserved"].any():
        raise CorruptError(f"{name}: a reserved field of a plane is set")
    starts, sizes = planes["offset"], planes["bytes"].astype(np.uint64)
    limit = np.uint64(directory_start)
    if (starts > limit).any() or (sizes > limit - starts).any():
        raise CorruptError(f"{name}: a plane lies beyond the members")


def _check_raw(row: np.void, planes: NDArray[Any], name: str) -> None:
    """Whether the frames of a raw member lie back to back, each of the promised size."""
    sizes = planes["bytes"].astype(np.uint64)
    if (sizes[:-1] != row["frame_bytes"]).any() or sizes[-1] != row["last_frame_bytes"]:
        raise CorruptError(f"{name}: its frames have other sizes than it says")
    ends = np.cumsum(sizes)
    begins = planes["offset"] - row["offset"]
    if (begins != ends - sizes).any() or ends[-1] != row["stored_bytes"]:
        raise CorruptError(f"{name}: its frames do not lie back to back")
    if row["base_pack"].any() or row["base_member"]:
        raise CorruptError(f"{name}: a raw member has no base")

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.model.delta.similarity import SIGNATURE_ITEMS
from tensorrepo.formats.model.layout.pack import (
    BASE,
    DIRECTORY,
    MEMBER,
    NUMBERS,
    PLANE,
    SECTION,
    THIS_PACK,
    DirectoryTables,
    MemberRef,
    MemberRow,
    PackMember,
    Plane,
    StoredFrame,
    align,
    decode_directory,
    decode_footer,
    encode_footer,
    plane_order,
)
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError

START = 1 << 20
ITEMS = np.arange(SIGNATURE_ITEMS, dtype=np.uint16)


def raw(offset: int, size: int, name: bytes) -> StoredFrame:
    return StoredFrame(size, name * 32, (Plane(offset, size, 0, 7, name * 16),))


def two_planes(offsets: tuple[int, int], sizes: tuple[int, int], name: bytes) -> StoredFrame:
    planes = zip(offsets, sizes, strict=True)
    return StoredFrame(
        800, name * 32, tuple(Plane(at, size, 1, 8, name * 16) for at, size in planes)
    )


def encode_directory(
    members: Sequence[PackMember], signatures: Sequence[tuple[int, NDArray[np.uint16]]] = ()
) -> bytes:
    """The directory of a pack of these members, and of signatures (member, items)."""
    tables, items = DirectoryTables(), dict(signatures)
    for number, member in enumerate(members):
        for frame in member.frames:
            tables.add_frame(frame.digest)
            for one in frame.planes:
                tables.add_plane(one.offset, one.size_bytes, one.codec, one.xxh3, one.tag)
        tables.add_member(_row(member), member.params, items.get(number))
    return tables.encode([base for member in members for base in member.bases])


def _row(member: PackMember) -> MemberRow:
    first, last = member.frames[0], member.frames[-1]
    return MemberRow(
        first.planes[0].offset,
        member.stored_bytes,
        member.first_frame,
        len(member.frames),
        first.size_bytes,
        last.size_bytes,
        NUMBERS[member.codec],
        len(first.planes),
        member.depth,
        len(member.bases),
        len(member.params),
    )


MEMBERS = (
    PackMember(0, (raw(0, 100, b"a"),)),
    PackMember(16, (raw(4096, 500, b"b"), raw(4596, 500, b"c"), raw(5096, 20, b"d"))),
    PackMember(
        3,
        (two_planes((6000, 6150), (100, 10), b"e"), two_planes((6100, 6160), (50, 20), b"f")),
        "delta",
        2,
        (MemberRef(b"p" * 32, 9),),
        b"params",
    ),
    PackMember(3, (raw(7000, 5, b"g"),), "delta", 1, (MemberRef(THIS_PACK, 0),)),
)
DIRECTORY_BYTES = encode_directory(MEMBERS)
SIGNED = encode_directory(MEMBERS, [(2, ITEMS)])


def test_every_member_is_read_as_it_was_written() -> None:
    directory = decode_directory(DIRECTORY_BYTES, START, "pack")
    assert tuple(directory.member(index) for index in range(4)) == MEMBERS


def test_signatures_are_read_as_they_were_written() -> None:
    found = decode_directory(SIGNED, START, "pack").signatures
    assert list(found) == [2]
    assert np.array_equal(found[2], ITEMS)


def test_planes_lie_one_after_the_other_in_groups_of_16_frames() -> None:
    order = plane_order(18, 2)
    assert order[:17] == [*((frame, 0) for frame in range(16)), (0, 1)]
    assert order[-4:] == [(16, 0), (17, 0), (16, 1), (17, 1)]


@pytest.mark.parametrize("index", [-1, 4])
def test_a_member_that_is_not_there_is_damage(index: int) -> None:
    with pytest.raises(CorruptError):
        decode_directory(DIRECTORY_BYTES, START, "pack").member(index)


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [(1, 100, 64), (64, 100, 64), (65, 65_535, 128), (1, 65_536, 4096), (4097, 1 << 20, 8192)],
)
def test_large_members_begin_on_a_memory_page(offset: int, size: int, expected: int) -> None:
    assert align(offset, size) == expected


def test_the_footer_finds_the_directory() -> None:
    start, size, checksum = decode_footer(encode_footer(DIRECTORY_BYTES, START), "pack")
    assert (start, size) == (START, len(DIRECTORY_BYTES))
    assert encode_footer(DIRECTORY_BYTES, START)[-8:] == checksum.to_bytes(8, "little")


def members_with(member: int = 1, **changes: Any) -> bytes:
    """The directory, with fields of a member changed."""
    data = bytearray(DIRECTORY_BYTES)
    table = np.frombuffer(memoryview(data)[DIRECTORY.size :], MEMBER, 4)
    for name, value in changes.items():
        table[member][name] = value
    return bytes(data)


def bases_with(base: int = 1, **changes: Any) -> bytes:
    data = bytearray(DIRECTORY_BYTES)
    table = np.frombuffer(memoryview(data)[DIRECTORY.size + 4 * MEMBER.itemsize :], BASE, 2)
    for name, value in changes.items():
        table[base][name] = value
    return bytes(data)


def planes_with(plane: int = 2, **changes: Any) -> bytes:
    """The directory, with fields of a plane changed."""
    data = bytearray(DIRECTORY_BYTES)
    table = np.frombuffer(memoryview(data)[-9 * PLANE.itemsize :], PLANE, 9)
    for name, value in changes.items():
        table[plane][name] = value
    return bytes(data)


def head_with(**changes: int) -> bytes:
    names = (
        "magic", "version", "members", "sections", "frames", "planes", "bases", "params",
    )  # fmt: skip
    values = dict(zip(names, DIRECTORY.unpack_from(DIRECTORY_BYTES), strict=True)) | changes
    return DIRECTORY.pack(*values.values()) + DIRECTORY_BYTES[DIRECTORY.size :]


@pytest.mark.parametrize(
    "data",
    [
        members_with(codec=200),
        head_with(version=1),
        head_with(version=3),
        head_with(sections=1) + SECTION.pack(7, 0, 0),
    ],
    ids=["codec", "an old version", "a newer version", "section"],
)
def test_what_another_version_writes_is_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedError):
        decode_directory(data, START, "pack").member(1)


def test_a_section_that_may_be_skipped_is_skipped() -> None:
    extra = SECTION.pack(1 << 31, 0, 3) + b"abc" + bytes(5)
    directory = decode_directory(head_with(sections=1) + extra, START, "pack")
    assert directory.member(1) == MEMBERS[1]


@pytest.mark.parametrize(
    ("data", "member"),
    [
        (head_with(magic=b"TRPX"), 1),
        (head_with(members=5), 1),
        (head_with(members=0xFFFFFFFF), 1),
        (head_with(frames=8), 1),
        (head_with(frames=0xFFFFFFFFFFFFFFFF), 1),
        (head_with(planes=8), 1),
        (head_with(bases=1), 1),
        (head_with(bases=0xFFFFFFFF), 1),
        (head_with(params=5), 1),
        (head_with(params=0xFFFFFFFF), 1),
        (head_with(sections=1), 1),
        (SIGNED[:-8], 1),
        (head_with(sections=1) + SECTION.pack(1 << 31, 1, 0), 1),
        (DIRECTORY_BYTES + b"\0", 1),
        (DIRECTORY_BYTES[:-1], 1),
        (b"", 1),
        (members_with(frames=4), 1),
        (members_with(frames=0), 1),
        (members_with(planes=0), 1),
        (members_with(reserved=1), 1),
        (members_with(bases=1), 1),
        (members_with(depth=1), 1),
        (members_with(2, depth=0), 2),
        (members_with(2, depth=17), 2),
        (members_with(2, param_bytes=65), 2),
        (members_with(frame_bytes=499), 1),
        (members_with(last_frame_bytes=21), 1),
        (members_with(stored_bytes=1), 1),
        (members_with(offset=0), 1),
        (members_with(2, offset=5999), 2),
        (bases_with(member=3), 3),
        (bases_with(zero=1), 1),
        (planes_with(offset=START), 1),
        (planes_with(offset=0xFFFFFFFFFFFFFFFF), 1),
        (planes_with(offset=5000), 1),
        (planes_with(4, offset=6100), 2),
        (planes_with(bytes=499), 1),
        (planes_with(bytes=0xFFFFFFFF), 1),
        (planes_with(codec=1), 1),
        (planes_with(reserved=1), 1),
    ],
)
def test_a_directory_that_contradicts_itself_is_damage(data: bytes, member: int) -> None:
    with pytest.raises(CorruptError):
        decode_directory(data, START, "pack").member(member)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_directory(data: bytes) -> None:
    with pytest.raises(Error):
        decode_directory(b"TRPD\x02\0\0\0" + data, START, "pack").member(0)


@pytest.mark.parametrize("footer", [b"", bytes(32), b"TRPK" + bytes(28)])
def test_what_is_no_footer_is_refused(footer: bytes) -> None:
    with pytest.raises((CorruptError, UnsupportedError)):
        decode_footer(footer, "pack")

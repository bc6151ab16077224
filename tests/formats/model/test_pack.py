from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.pack import (
    DIRECTORY,
    MEMBER,
    PLANE,
    SECTION,
    Frame,
    Member,
    align,
    decode_directory,
    decode_footer,
    encode_directory,
    encode_footer,
)
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError

START = 1 << 20
MEMBERS = (
    Member(0, (Frame(0, 100, 1, b"t" * 16, b"a" * 32),)),
    Member(
        16,
        (
            Frame(4096, 500, 2, b"u" * 16, b"b" * 32),
            Frame(4596, 500, 3, b"v" * 16, b"c" * 32),
            Frame(5096, 20, 4, b"w" * 16, b"d" * 32),
        ),
    ),
)
DIRECTORY_BYTES = encode_directory(MEMBERS)


def test_every_member_is_read_as_it_was_written() -> None:
    directory = decode_directory(DIRECTORY_BYTES, START, "pack")
    assert (directory.member(0), directory.member(1)) == MEMBERS


@pytest.mark.parametrize("index", [-1, 2])
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


def members_with(**changes: Any) -> bytes:
    """The directory, with fields of the second member changed."""
    data = bytearray(DIRECTORY_BYTES)
    table = np.frombuffer(memoryview(data)[DIRECTORY.size :], MEMBER, 2)
    for name, value in changes.items():
        table[1][name] = value
    return bytes(data)


def planes_with(**changes: Any) -> bytes:
    """The directory, with fields of the third plane changed."""
    data = bytearray(DIRECTORY_BYTES)
    start = DIRECTORY.size + 2 * MEMBER.itemsize + 4 * 32
    table = np.frombuffer(memoryview(data)[start:], PLANE, 4)
    for name, value in changes.items():
        table[2][name] = value
    return bytes(data)


def head_with(**changes: int) -> bytes:
    names = ("magic", "version", "members", "sections", "frames", "planes")
    values = dict(zip(names, DIRECTORY.unpack_from(DIRECTORY_BYTES), strict=True)) | changes
    return DIRECTORY.pack(*values.values()) + DIRECTORY_BYTES[DIRECTORY.size :]


@pytest.mark.parametrize(
    "data",
    [
        members_with(codec=2),
        members_with(depth=1),
        planes_with(codec=1),
        head_with(version=2),
        head_with(sections=1) + SECTION.pack(7, 0, 0),
    ],
    ids=["codec", "depth", "plane codec", "version", "section"],
)
def test_what_a_newer_version_may_write_is_unsupported(data: bytes) -> None:
    with pytest.raises(UnsupportedError):
        decode_directory(data, START, "pack").member(1)


def test_a_section_that_may_be_skipped_is_skipped() -> None:
    extra = SECTION.pack(1 << 31, 0, 3) + b"abc" + bytes(5)
    directory = decode_directory(head_with(sections=1) + extra, START, "pack")
    assert directory.member(1) == MEMBERS[1]


@pytest.mark.parametrize(
    "data",
    [
        head_with(magic=b"TRPX"),
        head_with(members=3),
        head_with(members=0xFFFFFFFF),
        head_with(frames=5),
        head_with(frames=0xFFFFFFFFFFFFFFFF),
        head_with(planes=3),
        head_with(sections=1),
        head_with(sections=1) + SECTION.pack(1 << 31, 1, 0),
        DIRECTORY_BYTES + b"\0",
        DIRECTORY_BYTES[:-1],
        b"",
        members_with(frames=4),
        members_with(frames=0),
        members_with(reserved=1),
        members_with(zero=1),
        members_with(base_member=1),
        members_with(base_pack=1),
        members_with(frame_bytes=499),
        members_with(last_frame_bytes=21),
        members_with(stored_bytes=1),
        members_with(offset=0),
        planes_with(offset=START),
        planes_with(offset=0xFFFFFFFFFFFFFFFF),
        planes_with(offset=5000),
        planes_with(bytes=499),
        planes_with(bytes=0xFFFFFFFF),
        planes_with(reserved=1),
    ],
)
def test_a_directory_that_contradicts_itself_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptError):
        decode_directory(data, START, "pack").member(1)


@given(st.binary(max_size=300))
def test_random_bytes_are_no_directory(data: bytes) -> None:
    with pytest.raises(Error):
        decode_directory(b"TRPD\x01\0\0\0" + data, START, "pack").member(0)


@pytest.mark.parametrize("footer", [b"", bytes(32), b"TRPK" + bytes(28)])
def test_what_is_no_footer_is_refused(footer: bytes) -> None:
    with pytest.raises((CorruptError, UnsupportedError)):
        decode_footer(footer, "pack")

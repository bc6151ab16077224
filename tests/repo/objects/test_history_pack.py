"""A history pack is as its specification says, and whatever is damaged in one is noticed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from weakref import ref

import pytest
import zstandard
from blake3 import blake3

from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.history_pack import (
    FRAME_BYTES,
    HistoryPacks,
    PackWriter,
    expand_frame,
    read_table,
    table_bytes,
)

NAME = Digest("ab" * 32)
MEMBERS = {
    Digest(f"{at * 7 % 251:02x}" + "0" * 60 + f"{at % 256:02x}"): b"%d " % at * 900
    for at in range(40)
}


def payload(members: dict[Digest, bytes] = MEMBERS) -> bytes:
    writer = PackWriter()
    for digest, envelope in members.items():
        writer.add(digest, envelope)
        writer.add(digest, b"a second time is passed over")
    return b"".join(writer.payload(77))


def packs(data: bytes) -> HistoryPacks:
    return HistoryPacks(lambda: (NAME,), lambda _: lambda start, stop: data[start:stop])


def by_the_specification(data: bytes) -> dict[str, bytes]:
    """All members, read without any of our code."""
    magic, version, count, frames, generation = struct.unpack_from("<4sB3xIIQ", data)
    assert (magic, version, generation) == (b"TRHP", 1, 77)
    end = 24 + 44 * count + 16 * frames
    context = blake3(derive_key_context="tensorrepo content v1")
    assert context.update(data[:end]).digest(length=16) == data[end : end + 16]
    expanded = []
    for number in range(frames):
        start, stored, size = struct.unpack_from("<QII", data, 24 + 44 * count + 16 * number)
        expanded.append(zstandard.decompress(data[start : start + stored]))
        assert len(expanded[-1]) == size
    found = {}
    for number in range(count):
        raw, frame, start, size = struct.unpack_from("<32sIII", data, 24 + 44 * number)
        found[raw.hex()] = expanded[frame][start : start + size]
    assert list(found) == sorted(found)
    return found


def test_all_members_are_where_the_specification_says() -> None:
    data = payload()
    assert by_the_specification(data) == MEMBERS
    assert struct.unpack_from("<I", data, 12)[0] == 1 + sum(map(len, MEMBERS.values())) // (
        FRAME_BYTES + 2700
    )


def test_members_are_found_and_nothing_else_is() -> None:
    reader = packs(payload())
    assert {digest: reader.read(digest) for digest in MEMBERS} == MEMBERS
    assert all(map(reader.holds, MEMBERS))
    assert not reader.holds(Digest("ff" * 32))
    first = next(iter(MEMBERS))
    assert (reader.home(first, 77), reader.home(first, 78)) == (NAME, None)
    with pytest.raises(NotFoundError, match="no history pack has"):
        reader.read(Digest("ff" * 32))


def test_members_from_a_digest_on_are_listed_in_order() -> None:
    table = read_table(memoryview(payload()), NAME)
    listed = [raw.hex() for raw in table.digests(bytes.fromhex("40"))]
    assert listed == sorted(digest for digest in MEMBERS if digest >= "40")


TABLE = table_bytes(payload()[:24], NAME)


@pytest.mark.parametrize("at", [0, 9, 13, 20, 60, TABLE - 20, TABLE - 1, TABLE + 3, TABLE + 90])
def test_no_flipped_byte_gives_other_members(at: int) -> None:
    data = bytearray(payload())
    data[at] ^= 0x41
    reader, wrong = packs(bytes(data)), 0
    for digest, envelope in MEMBERS.items():
        try:
            wrong += reader.read(digest) != envelope  # its own name tells that
        except CorruptError:
            wrong += 1
    assert wrong


def test_a_pack_of_a_newer_version_says_so() -> None:
    data = bytearray(payload())
    data[4] = 2
    with pytest.raises(UnsupportedError, match="version 2"):
        packs(bytes(data)).tables()


def test_what_a_pack_promises_is_not_believed() -> None:
    data = bytearray(payload())
    data[8:12] = struct.pack("<I", 1 << 21)
    with pytest.raises(CorruptError, match="header is damaged"):
        packs(bytes(data)).tables()


def test_a_frame_that_claims_much_is_refused_before_memory_is_taken() -> None:
    header = zstandard.ZstdCompressor().compress(bytes(300))[:4]
    bomb = header + b"\xe0" + b"\xff" * 7 + b"\x0f" + bytes(20)  # a size of eight bytes
    with pytest.raises(CorruptError, match="claims"):
        expand_frame(bomb, 448, Digest("ab" * 32))


def test_a_pack_that_was_joined_into_another_is_let_go() -> None:
    data = payload()
    names, maps = [NAME], []

    def open_pack(_name: Digest) -> Callable[[int, int], bytes]:
        def read(start: int, stop: int) -> bytes:
            return data[start:stop]

        maps.append(ref(read))
        return read

    opened = HistoryPacks(lambda: names, open_pack)
    assert opened.read(next(iter(MEMBERS))) == next(iter(MEMBERS.values()))
    names[0] = Digest("cd" * 32)
    assert opened.holds(next(iter(MEMBERS)))
    assert [read() is None for read in maps] == [True, False]

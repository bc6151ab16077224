"""Tar archives walked member by member in bounded memory.

Archives of samples are read once, from front to back, and they come from strangers. Python's
`tarfile` keeps every member in memory, believes lengths in extended headers and unrolls sparse
files; this walk allocates what the archive's own bytes justify. Plain, ustar, pax and GNU long
names are understood; sparse members are refused.

Source:
    POSIX.1-2017, pax: "ustar Interchange Format" and "pax Header Block".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import IO

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.exchange.records.samples import read_exactly
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

BLOCK_BYTES = 512
MAX_EXTENDED_BYTES = 1 << 20  # of a long name or a pax header
MAX_PADDING_BYTES = 64 << 20  # zeros after the end; tar writes up to a record, of 10 KiB or so
# name | mode, uid, gid | size | mtime | checksum | kind | link | magic | ... | prefix
_HEADER = Struct("<100s24x12s12x8sc100x6s82x155s12x")
assert _HEADER.size == BLOCK_BYTES
_CHECKSUM = slice(148, 156)
_REGULAR = frozenset((b"0", b"\0", b"7"))
_WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))  # links, devices, folders, pipes
_END = bytes(BLOCK_BYTES)
_OCTAL = re.compile(rb"[0-7]+")


@dataclass(frozen=True, slots=True)
class TarMember:
    """One regular file of an archive; `offset` counts the archive's bytes, uncompressed."""

    name: str
    offset: int
    bytes: int


@dataclass(slots=True)
class _Extended:
    """What extended headers say of the member that follows them."""

    name: bytes | None = None
    bytes: int | None = None


def walk_members(stream: IO[bytes], where: str) -> Iterator[TarMember]:
    """The regular files of an archive, in order. `stream` stands at the bytes of the one yielded.

    It must be seekable at least forward, and may be moved freely between two members.

    Raises:
        InvalidInputError: not a tar archive, cut short, or damaged.
    """
    at = 0
    extended = _Extended()
    while (block := _header_block(stream, where, at)) != _END:
        kind, name, size = _parse(block, f"{where}, byte {at}")
        at += BLOCK_BYTES
        if kind in (b"x", b"L"):
            size = _extend(stream, kind, size, extended, f"{where}, byte {at}")
        elif kind in _REGULAR:
            size = size if extended.bytes is None else extended.bytes
            raw = name if extended.name is None else extended.name
            extended = _Extended()
            yield TarMember(_text(raw, f"{where}, byte {at}"), at, size)
        else:
            _refuse_sparse(kind, f"{where}, byte {at}")
            size = 0 if kind in _WITHOUT_DATA else size
            extended = _Extended() if kind not in (b"g", b"K") else extended
        at += -(-size // BLOCK_BYTES) * BLOCK_BYTES
        stream.seek(at)
    _expect_end(stream, where, at)


def read_member(stream: IO[bytes], member: TarMember, where: str, most: int | None = None) -> bytes:
    """The bytes of the member at which `stream` stands, or the first `most` of them."""
    size = member.bytes if most is None else min(member.bytes, most)
    return read_exactly(stream, size, f"{where}, member {member.name!r}")


def _header_block(stream: IO[bytes], where: str, at: int) -> bytes:
    block = stream.read(BLOCK_BYTES)
    if len(block) < BLOCK_BYTES:
        raise damage(
            where,
            f"ends at byte {at + len(block)} or before, without the two empty blocks that end a "
            "tar archive. Is it cut short?",
        )
    return block


def _parse(block: bytes, where: str) -> tuple[bytes, bytes, int]:
    """Kind, name and size of one header."""
    name, size, checksum, kind, magic, prefix = _HEADER.unpack(block)
    expected = sum(block) - sum(block[_CHECKSUM]) + 8 * ord(" ")
    octal = checksum.strip(b"\0 ")
    if not _OCTAL.fullmatch(octal) or int(octal, 8) != expected:
        raise damage(where, "has no header of a tar archive there: its checksum is wrong")
    name = name.partition(b"\0")[0]
    if magic == b"ustar\0" and prefix[0]:  # GNU keeps other things there
        name = prefix.partition(b"\0")[0] + b"/" + name
    return kind, name, _number(size, where)


def _number(field: bytes, where: str) -> int:
    """Octal text or, above 8 GiB, a binary number with the highest bit set."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") & ~(0x80 << 8 * (len(field) - 1))
    try:
        number = int(field.rstrip(b"\0 ") or b"0", 8)
    except ValueError as problem:
        raise damage(where, f"has {field!r} where a tar header has a number") from problem
    if number < 0:
        raise damage(where, f"has {field!r} where a tar header has a size")
    return number


def _extend(stream: IO[bytes], kind: bytes, size: int, extended: _Extended, where: str) -> int:
    """Note what an extended header says; its size."""
    if size > MAX_EXTENDED_BYTES:
        raise damage(
            where, f"has an extended header of {size} bytes; at most {MAX_EXTENDED_BYTES} are read"
        )
    data = read_exactly(stream, size, where)
    if kind == b"L":
        extended.name = data.rstrip(b"\0")
        return size
    for key, value in _pax_records(data, where):
        if key == b"path":
            extended.name = value
        elif key == b"size":
            extended.bytes = _decimal(value, where)
        elif key.startswith(b"GNU.sparse"):
            _refuse_sparse(b"S", where)
    return size


def _pax_records(data: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each line ``<length> <key>=<value>``."""
    at = 0
    while at < len(data):
        digits, _, _ = data[at : at + 20].partition(b" ")
        stop = at + _decimal(digits, where)
        record = data[at:stop]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or stop > len(data) or not record.endswith(b"\n"):
            raise damage(where, f"has a damaged pax header: {record[:40]!r}")
        yield key, value
        at = stop


def _decimal(digits: bytes, where: str) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise damage(where, f"has {digits[:40]!r} where a pax header has a number")
    return int(digits)


def _text(name: bytes, where: str) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise damage(where, f"has the member name {name!r}, which is not UTF-8") from problem


def _refuse_sparse(kind: bytes, where: str) -> None:
    if kind == b"S":
        raise InvalidInputError(
            f"{where}: is a sparse member, which is not read. Write the archive again without -S."
        )


def _expect_end(stream: IO[bytes], where: str, at: int) -> None:
    """A second empty block, then only more of them, to the end, so that gzip checks its CRC."""
    if _header_block(stream, where, at + BLOCK_BYTES) != _END:
        raise damage(where, f"has one empty block at byte {at}, but not the second that ends it")
    padding = 0
    while block := stream.read(1 << 16):
        padding += len(block)
        if padding > MAX_PADDING_BYTES:
            raise damage(where, f"goes on for more than {MAX_PADDING_BYTES:,} zeros after its end")
        if len(block) % BLOCK_BYTES:
            raise damage(where, "does not end at a whole block. Is it cut short?")
        if any(block):
            raise damage(where, "goes on after its end. Are these several archives in one file?")

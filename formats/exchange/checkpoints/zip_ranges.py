"""Ranges of the members of a zip file.

Two readers of one zip may see different files: by names that are there twice, by local headers that
say other than the directory, by members that overlap. Nothing of that is needed, all is refused.
"""

from __future__ import annotations

import stat
import struct
import zipfile
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tensorrepo.formats.common.damage import refusals
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from tensorrepo.formats.exchange.checkpoints.file_tensors import RangeFile

BAD_ZIP: Final = (
    zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OverflowError, struct.error,
)  # fmt: skip
MAX_MEMBERS: Final = 1 << 20
_LOCAL_HEADER_BYTES: Final = 30
_ENCRYPTED: Final = 1


def zip_members(file: RangeFile, *, compressed: bool) -> dict[str, zipfile.ZipInfo]:
    """The members by name, in the order of the directory.

    Args:
        file: the zip, open.
        compressed: whether members may be compressed with deflate.

    Raises:
        InvalidInputError: no zip file, or one with tricks; names the member.
    """
    with refusals(file.path, file.what, *BAD_ZIP):
        if not zipfile.is_zipfile(file.path):
            raise InvalidInputError(
                "no zip file, or cut short: the directory at its end is missing. Fetch it again"
            )
        with zipfile.ZipFile(file.path) as archive:
            members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise InvalidInputError(f"{len(members)} members; at most {MAX_MEMBERS} are read")
    known: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        if member.filename in known:
            raise InvalidInputError(f"member {member.filename!r:.80} is there twice")
        _check(member, compressed=compressed)
        known[member.filename] = member
    _check_apart(file, members)
    return known


def check_stored(members: Iterable[zipfile.ZipInfo]) -> None:
    """Whether no member is compressed. Raises InvalidInputError; names one that is."""
    for member in members:
        _check(member, compressed=False)


def data_start(file: RangeFile, member: zipfile.ZipInfo) -> int:
    """Where the bytes of a member begin. Raises InvalidInputError: not where the directory says."""
    head = file.read(member.header_offset, _LOCAL_HEADER_BYTES)
    if head[:4] != b"PK\x03\x04":
        raise InvalidInputError(f"{member.filename!r:.80} is not where the zip's directory says")
    name_bytes = int.from_bytes(head[26:28], "little")
    start = member.header_offset + _LOCAL_HEADER_BYTES
    name = file.read(start, name_bytes)
    if name.decode(_encoding(member), "replace") != member.orig_filename:
        raise InvalidInputError(
            f"{member.filename!r:.80} is called {name!r:.80} where its bytes are: two readers "
            "would see two files"
        )
    if int.from_bytes(head[8:10], "little") != member.compress_type:
        raise InvalidInputError(f"{member.filename!r:.80} is compressed in two ways at once")
    start += name_bytes + int.from_bytes(head[28:30], "little")
    if start + member.compress_size > file.size:
        raise InvalidInputError(f"{member.filename!r:.80} is cut short")
    return start


def _encoding(member: zipfile.ZipInfo) -> str:
    return "utf-8" if member.flag_bits & 0x800 else "cp437"


def _check(member: zipfile.ZipInfo, *, compressed: bool) -> None:
    name = f"member {member.filename!r:.80}"
    allowed = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if compressed else {zipfile.ZIP_STORED}
    if member.flag_bits & _ENCRYPTED:
        raise InvalidInputError(f"{name} is encrypted")
    if member.compress_type not in allowed:
        raise InvalidInputError(f"{name} is compressed; this format never is")
    if member.compress_type == zipfile.ZIP_STORED and member.compress_size != member.file_size:
        raise InvalidInputError(
            f"{name} is not compressed, and has {member.compress_size} bytes that shall be "
            f"{member.file_size}"
        )
    parts = member.orig_filename.replace("\\", "/").split("/")
    if ".." in parts or member.orig_filename[:1] in ("/", "\\") or "\0" in member.orig_filename:
        raise InvalidInputError(f"{name}: its name leads out of the file")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise InvalidInputError(f"{name} is a link")


def _check_apart(file: RangeFile, members: list[zipfile.ZipInfo]) -> None:
    """Members that overlap make a few bytes pose as many files (a bomb without compression)."""
    at = 0
    for member in sorted(members, key=lambda each: each.header_offset):
        if member.header_offset < at:
            raise InvalidInputError(f"member {member.filename!r:.80} overlaps the one before")
        name_bytes = len(member.orig_filename.encode(_encoding(member), "replace"))
        at = member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + member.compress_size
        if at > file.size:
            raise InvalidInputError(f"member {member.filename!r:.80} is cut short")

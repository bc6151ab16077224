"""Which records does a TFRecord file hold, and are they whole?

A file is records one after another, plain or as one gzip or zlib stream. Both the length of a
record and its bytes have a checksum, which is checked before either is believed.

Layout of a record: length u64 | masked CRC-32C of the length u32 | bytes | masked CRC-32C of them.

Source:
    TensorFlow's tutorial "TFRecord and tf.train.Example", "TFRecords format details".
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from struct import Struct
from typing import IO

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.exchange.shards.records import ends_early, read_exactly
from tensorrepo.repo.errors import UnsupportedError

NAME = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?(\.gz|\.zlib|\.z)?")
_HEAD = Struct("<QI")
_CRC = Struct("<I")
_BLOCK_BYTES = 1 << 20
Checksum = Callable[[bytes], int]


def masked_crc() -> Checksum:
    """The checksum function: CRC-32C, rotated and moved so that it may be stored beside its data.

    Raises:
        UnsupportedError: its library is not installed. In Python a table does 12 MB/s.
    """
    try:
        import google_crc32c  # an optional library
    except ImportError as problem:
        raise UnsupportedError(
            "TFRecord files have CRC-32C checksums, which need google-crc32c: "
            "pip install 'tensorrepo[tfrecord]'"
        ) from problem

    def masked(data: bytes) -> int:
        crc: int = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    return masked


def begins_with_record(head: bytes) -> bool:
    """Whether these are the first bytes of a plain file: a length and its checksum agree."""
    if len(head) < _HEAD.size:
        return False
    crc: int = _HEAD.unpack_from(head)[1]
    try:
        return masked_crc()(head[:8]) == crc
    except UnsupportedError:
        return False


def walk_records(file: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 0, bytes) of each record of a file.

    Raises:
        InvalidInputError: cut short, or a checksum that disagrees; names the record.
        UnsupportedError: the checksum's library is not installed.
    """
    crc = masked_crc()
    number = 0
    with refusals(file, "TFRecord file"), _opened(file) as stream:
        while head := stream.read(_HEAD.size):
            where = f"{file}, record {number}"
            yield number, _read_record(stream, head, where, crc)
            number += 1


def write_record(stream: IO[bytes], data: bytes, crc: Checksum) -> None:
    length = len(data).to_bytes(8, "little")
    stream.write(length + _CRC.pack(crc(length)) + data + _CRC.pack(crc(data)))


def _read_record(stream: IO[bytes], head: bytes, where: str, crc: Checksum) -> bytes:
    if len(head) < _HEAD.size:
        raise ends_early(where, _HEAD.size - len(head))
    length, expected = _HEAD.unpack(head)
    if crc(head[:8]) != expected:
        raise damage(where, "is damaged, or no TFRecord at all: its length fails its checksum")
    data = read_exactly(stream, length + _CRC.size, where)
    content = data[: -_CRC.size]
    if crc(content) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise damage(where, f"is damaged: its {length} bytes fail their checksum")
    return content


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """The records of a file, decompressed when they are a gzip or zlib stream."""
    with file.open("rb") as raw:
        head = raw.read(_HEAD.size)
        raw.seek(0)
        if head[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as inner:
                yield inner  # type: ignore[misc]  # a binary stream in all but name
        elif _is_zlib(head) and not begins_with_record(head):
            yield _Inflated(raw)  # type: ignore[misc]  # the one method that is used
        else:
            yield raw


def _is_zlib(head: bytes) -> bool:
    return len(head) > 1 and head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0


class _Inflated:
    """The content of a zlib stream, decompressed as far as it is asked for."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj()
        self._ready = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._ready) < size and not self._inflate.eof:
            block = self._inflate.unconsumed_tail or self._raw.read(_BLOCK_BYTES)
            if not block:
                raise EOFError("the zlib stream ends before its end mark")
            self._ready += self._inflate.decompress(block, _BLOCK_BYTES)
        if self._inflate.eof and (self._inflate.unused_data or self._raw.read(1)):
            raise zlib.error("bytes follow the end of the zlib stream")
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data

"""Xorbs and shards of Xet, as clients upload them: chunks in one, recipes of files in the other.

    xorb    chunk header | chunk | chunk header | chunk ... perhaps a footer, which is passed over
    shard   header | files | end | xorbs | end ... perhaps a footer; the files alone are read

A xorb is named by the root of a tree of hashes over its chunks, so that its name proves them. All
numbers are little-endian.

Source:
    The Xet protocol specification 1.1 of Hugging Face: hashing, xorb format, shard format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from struct import Struct
from typing import Final

import numpy as np
import pyarrow as pa
from blake3 import blake3

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer

MAX_CHUNK_BYTES: Final = 128 << 10
MAX_CHUNKS: Final = 8 << 10  # of a xorb
MAX_XORB_BYTES: Final = 64 << 20  # of its chunks, as they are
MAX_BODY_BYTES: Final = 80 << 20  # of a xorb or a shard, with headers and a footer
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_CHUNK_KEY: Final = bytes.fromhex(
    "6697f5775b9550de3135cbaca597181c9de421109beb2b58b4d0b04b93adf229"
)
_NODE_KEY: Final = bytes.fromhex("017ec5c7a5472996fd946666b48a02e65ddd536f37c76dd2f86352e64a53713f")
_BRANCHES: Final = 4  # of a node of the tree, on average
_MOST_BRANCHES: Final = 2 * _BRANCHES + 1
_CHUNK_HEADER: Final = Struct("<B3sB3s")  # version, bytes as sent, codec, bytes as they are
_FOOTER: Final = b"XETBLOB"
_LZ4, _LZ4_GROUPED = 1, 2
_SHARD_HEADER: Final = Struct("<32sQQ")  # tag, version, bytes of the footer
_SHARD_TAG: Final = b"HFRepoMetaData\0" + bytes.fromhex("556967456a7b815783a5bdd95ccdd14aa9")
_SHARD_VERSION: Final = 2
_FILE: Final = Struct("<32sII8s")  # hash, flags, number of segments, unused
_SEGMENT: Final = Struct("<32sIIII")  # xorb, flags, bytes, first chunk, chunk behind the last
_EXTRA: Final = Struct("<32s16s")  # SHA-256, unused; as long as what proves a range
assert _FILE.size == _SEGMENT.size == _EXTRA.size == 48, "a shard is made of entries of 48 bytes"
_END: Final = b"\xff" * 32
_WITH_PROOFS: Final = 1 << 31
_WITH_SHA256: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """A run of chunks of one xorb.

    Attributes:
        xorb: its name.
        size_bytes: bytes of the chunks.
        start: number of the first chunk.
        stop: number of the chunk behind the last.
    """

    xorb: str
    size_bytes: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A file as a shard tells it.

    Attributes:
        sha256: hex digits of its hash.
        count: number of its segments, at least one.
        shard: the whole shard.
        at: where the segments begin in it.
    """

    sha256: str
    count: int
    shard: Buffer
    at: int

    def segments(self) -> Iterator[ChunkRun]:
        """What it is made of, in order."""
        for number in range(self.count):
            entry = _SEGMENT.unpack_from(self.shard, self.at + number * _SEGMENT.size)
            xorb, _, size_bytes, start, stop = entry
            if not start < stop <= MAX_CHUNKS:
                raise _bad(f"a segment of the chunks {start} to {stop} of a xorb")
            yield ChunkRun(hash_text(xorb), size_bytes, start, stop)


def check_hash(text: str) -> str:
    """`text`, when it may name a xorb. Raises InvalidInputError."""
    if _HASH.fullmatch(text) is None:
        raise InvalidInputError(f"{text!r:.80} names no xorb: expected 64 hex digits")
    return text


def hash_text(digest: bytes) -> str:
    """A hash as the protocol writes it: four numbers of 64 bits, each in hex digits."""
    return b"".join(digest[at : at + 8][::-1] for at in range(0, 32, 8)).hex()


def read_chunks(body: Buffer) -> Iterator[bytes]:
    """The chunks of a xorb, decoded.

    Raises:
        InvalidInputError: it is none, or too large.
    """
    view, at, total, count = memoryview(body).cast("B"), 0, 0, 0
    while at < len(view) and bytes(view[at : at + len(_FOOTER)]) != _FOOTER:
        if len(view) - at < _CHUNK_HEADER.size:
            raise _bad("a xorb that ends within the header of a chunk")
        version, sent, codec, size = _CHUNK_HEADER.unpack_from(view, at)
        at += _CHUNK_HEADER.size
        sent_bytes, size_bytes = (int.from_bytes(one, "little") for one in (sent, size))
        total, count = total + size_bytes, count + 1
        if version != 0 or not 0 < size_bytes <= MAX_CHUNK_BYTES or sent_bytes > len(view) - at:
            raise _bad(
                f"chunk {count - 1} of version {version}, {sent_bytes:,} bytes that were sent of "
                f"{size_bytes:,}"
            )
        if total > MAX_XORB_BYTES or count > MAX_CHUNKS:
            raise _bad(f"a xorb of more than {MAX_XORB_BYTES:,} bytes or {MAX_CHUNKS:,} chunks")
        yield _decoded(view[at : at + sent_bytes], codec, size_bytes)
        at += sent_bytes


def chunk_hash(chunk: Buffer) -> bytes:
    return blake3(chunk, key=_CHUNK_KEY).digest()


def xorb_hash(chunks: list[tuple[bytes, int]]) -> str:
    """Name of the xorb of some chunks, at least one: their hashes and sizes in bytes."""
    nodes = chunks
    while len(nodes) > 1:
        nodes = list(_parents(nodes))
    return hash_text(nodes[0][0])


def read_shard(shard: Buffer) -> Iterator[ShardFile]:
    """The files that a shard tells of.

    Raises:
        InvalidInputError: it is no shard, or does not tell the SHA-256 of a file.
    """
    size = memoryview(shard).nbytes
    if size < _SHARD_HEADER.size:
        raise _bad("a shard that is shorter than its header")
    tag, version, _ = _SHARD_HEADER.unpack_from(shard, 0)
    if (tag, version) != (_SHARD_TAG, _SHARD_VERSION):
        raise _bad(f"a shard of version {version}, or none: expected {_SHARD_VERSION}")
    at = _SHARD_HEADER.size
    while True:
        if at + _FILE.size > size:
            raise _bad("a shard that ends within its list of files")
        name, flags, count, _ = _FILE.unpack_from(shard, at)
        at += _FILE.size
        if name == _END:
            return
        proofs = count if flags & _WITH_PROOFS else 0
        behind = at + (count + proofs) * _SEGMENT.size
        if not flags & _WITH_SHA256 or count == 0 or behind + _EXTRA.size > size:
            raise _bad(f"a file of {count} segments, cut short or without its SHA-256")
        sha256, _ = _EXTRA.unpack_from(shard, behind)
        yield ShardFile(hash_text(sha256), count, shard, at)
        at = behind + _EXTRA.size


def _decoded(sent: memoryview, codec: int, size_bytes: int) -> bytes:
    if codec == 0 and sent.nbytes == size_bytes:
        return bytes(sent)
    if codec not in (_LZ4, _LZ4_GROUPED):
        raise _bad(f"a chunk of codec {codec}, or not of the size that it tells")
    try:
        plain = pa.decompress(pa.py_buffer(sent), size_bytes, "lz4", asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise _bad(f"a chunk that is no LZ4 frame of {size_bytes:,} bytes ({error})") from error
    return bytes(plain) if codec == _LZ4 else _ungrouped(plain)


def _ungrouped(grouped: bytes) -> bytes:
    """Bytes whose first, second, third and fourth ones of every four stand together."""
    source = np.frombuffer(grouped, np.uint8)
    plain = np.empty_like(source)
    at = 0
    for number in range(4):
        count = len(plain[number::4])
        plain[number::4] = source[at : at + count]
        at += count
    return plain.tobytes()


def _parents(nodes: list[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Nodes of the next level: a child whose hash divides by four is the last of its parent's."""
    at = 0
    while at < len(nodes):
        group = nodes[at : at + _MOST_BRANCHES]
        ends = (
            number + 1
            for number in range(2, len(group))
            if int.from_bytes(group[number][0][24:], "little") % _BRANCHES == 0
        )
        group = group[: next(ends, len(group))]
        lines = "".join(f"{hash_text(digest)} : {size}\n" for digest, size in group)
        yield blake3(lines.encode(), key=_NODE_KEY).digest(), sum(size for _, size in group)
        at += len(group)


def _bad(what: str) -> InvalidInputError:
    return InvalidInputError(f"this is not what Xet's clients upload: {what}")

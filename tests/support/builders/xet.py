"""Xorbs and shards of Xet, written by their specification rather than by our reader."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from struct import pack

import pyarrow as pa

from tensorrepo.api.huggingface.xet_format import chunk_hash, xorb_hash

TAG = b"HFRepoMetaData\0" + bytes(
    [85, 105, 103, 69, 106, 123, 129, 87, 131, 165, 189, 217, 92, 205, 209, 74, 169]
)
END = b"\xff" * 32 + bytes(16)


@dataclass(frozen=True)
class Xorb:
    """A xorb: its name, what is sent for it, and its chunks."""

    name: str
    body: bytes
    chunks: tuple[bytes, ...]

    @property
    def content(self) -> bytes:
        return b"".join(self.chunks)


def make_xorb(*chunks: bytes, codec: int = 0, footer: bytes = b"") -> Xorb:
    body = b"".join(make_chunk(chunk, codec) for chunk in chunks) + footer
    name = xorb_hash([(chunk_hash(chunk), len(chunk)) for chunk in chunks])
    return Xorb(name, body, chunks)


def make_chunk(chunk: bytes, codec: int = 0, *, size: int | None = None) -> bytes:
    """One chunk as it is sent; `size` is what it tells, where that is a lie."""
    grouped = b"".join(chunk[at::4] for at in range(4)) if codec == 2 else chunk
    sent = bytes(pa.compress(grouped, "lz4", asbytes=True)) if codec in (1, 2) else chunk
    told = len(chunk) if size is None else size
    return pack("<B", 0) + _three(len(sent)) + pack("<B", codec) + _three(told) + sent


def make_shard(*files: bytes) -> bytes:
    """A shard of files, each as `make_file` makes it."""
    return pack("<32sQQ", TAG, 2, 0) + b"".join(files) + END + END


def make_file(
    sha256: str, segments: Sequence[tuple[str, int, int, int]], *, flags: int = 3 << 30
) -> bytes:
    """A file of segments: xorb, bytes, first chunk, chunk behind the last."""
    head = pack("<32sII8x", bytes(32), flags, len(segments))
    told = b"".join(pack("<32sIIII", _raw(name), 0, *rest) for name, *rest in segments)
    proofs = bytes(48) * len(segments) if flags & 1 << 31 else b""
    extra = pack("<32s16x", _raw(sha256)) if flags & 1 << 30 else b""
    return head + told + proofs + extra


def file_of(*xorbs: Xorb) -> bytes:
    """The file that is these xorbs, one behind the other."""
    content = b"".join(xorb.content for xorb in xorbs)
    segments = [(xorb.name, len(xorb.content), 0, len(xorb.chunks)) for xorb in xorbs]
    return make_file(hashlib.sha256(content).hexdigest(), segments)


def _raw(text: str) -> bytes:
    """Bytes of a hash that is written as four numbers."""
    return b"".join(bytes.fromhex(text[at : at + 16])[::-1] for at in range(0, 64, 16))


def _three(number: int) -> bytes:
    return number.to_bytes(3, "little")

"""Fingerprints: of tensors, by frames that are verified one by one, and of architectures.

A tensor is cut into frames of 2^19 elements. Each frame has a digest, the fingerprint is the hash
of type, shape and frame digests: equal for equal tensors, wherever and however they are stored,
and a slice is verified by its own frames.

Models of one architecture have one fingerprint, whatever their weights: candidates for a delta's
base, and for merging, are found by it.

Source:
    docs/spec/model.md, section "Identity".
    docs/spec/model-graph.md, section "Architecture fingerprint".
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from struct import Struct, pack
from typing import Final, NewType, Protocol

import msgspec
from blake3 import blake3

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.repo.hashing.hasher import BEST
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer

Fingerprint = NewType("Fingerprint", bytes)

FRAME_ELEMENTS: Final = 1 << 19
INLINE_BYTES: Final = 64  # tensors of at most this many bytes stand in the manifest

_TYPE_HEAD = Struct("<B32sIII")  # name bytes, name zero-padded, block elements, block bytes, rank
assert _TYPE_HEAD.size == 45, "docs/spec/model.md promises 45 bytes before the dimensions"
FRAME_CONTEXT: Final = "tensorrepo frame v1"
_TENSOR = blake3(derive_key_context="tensorrepo tensor v1")


def frame_bytes(element: TensorType) -> int:
    """Bytes of a whole frame."""
    return FRAME_ELEMENTS // element.block_elements * element.block_bytes


def frame_digest(frame: Buffer) -> bytes:
    return BEST.digests(FRAME_CONTEXT, (frame,))[0]


def copied_frame_digest(frame: Buffer, room: memoryview) -> bytes:
    """The digest of what a frame was when it was copied to `room`, which is as large."""
    return BEST.digests(FRAME_CONTEXT, (frame,), (room,))[0]


def fingerprint(
    element: TensorType, shape: tuple[int, ...], frame_digests: bytes | bytearray
) -> Fingerprint:
    """Name of a tensor's content, from the digests of its frames, one after the other."""
    head = _fingerprint_head(
        element.name,
        element.block_elements,
        element.block_bytes,
        shape,
        len(frame_digests) // DIGEST_BYTES,
    )
    return Fingerprint(_TENSOR.copy().update(head + frame_digests).digest())


def frame_digests(frames: Iterable[Buffer]) -> list[bytes]:
    """The digest of each of many frames."""
    return BEST.digests(FRAME_CONTEXT, list(frames))


def fingerprints(
    element: TensorType, shape: tuple[int, ...], digests: Iterable[bytes]
) -> list[Fingerprint]:
    """Names of tensors of one type and shape, of one frame each, from the digests of those."""
    begin = (
        _TENSOR.copy()
        .update(
            _fingerprint_head(element.name, element.block_elements, element.block_bytes, shape, 1)
        )
        .copy
    )
    return [Fingerprint(begin().update(digest).digest()) for digest in digests]


@lru_cache(4096)  # as many tensors have the same one
def _fingerprint_head(
    name: str, block_elements: int, block_bytes: int, shape: tuple[int, ...], frames: int
) -> bytes:
    word = name.encode("ascii")
    head = _TYPE_HEAD.pack(len(word), word, block_elements, block_bytes, len(shape))
    return head + pack(f"<{len(shape) + 1}Q", *shape, frames)


_ARCHITECTURE: Final = blake3(derive_key_context="tensorrepo architecture v1")


class NamedShape(Protocol):
    """What of a tensor the architecture is made of."""

    @property
    def name(self) -> str: ...

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def architecture_fingerprint(tensors: Iterable[NamedShape]) -> str:
    """64 hex digits: equal for equal sets of (name, shape, type), in any order.

    An alias counts as the tensor that it is one with: a file that names tied tensors twice, and
    one that does not, are two architectures.
    """
    rows = sorted((tensor.name, tuple(tensor.shape), tensor.type.name) for tensor in tensors)
    return _ARCHITECTURE.copy().update(msgspec.msgpack.encode(rows)).hexdigest()

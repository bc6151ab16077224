"""Batch BLAKE3 of frames: their digests, or a check against them, and copies on the way.

`NATIVE` does it in C (digests.c beside this) where it was built, `PYTHON` everywhere, with
identical results. `BEST` is the faster one: without vectors of AVX-512 that is the blake3 package.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from blake3 import blake3

from tensorrepo.formats.native.extensions import kernels
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer


class FrameHasher:
    """Hashes buffers by BLAKE3, one after the other."""

    name = "python"

    def check(
        self,
        context: str,
        frames: Sequence[Buffer],
        rooms: Sequence[memoryview] | None,
        digests: bytes,
    ) -> int:
        """Verify frames, and copy them first.

        Args:
            context: text that the key is derived from.
            frames: contiguous buffers.
            rooms: target of each frame's copy, of its size; what arrives there is what is
                verified. None: frames are verified where they are.
            digests: digests of all frames, one after the other.

        Returns:
            The first frame that is not what its digest says, or -1. What the rooms after it hold
            means nothing.

        Raises:
            ValueError: sizes that contradict each other.
        """
        if len(digests) != DIGEST_BYTES * len(frames):
            raise ValueError(f"{len(frames)} frames, {len(digests)} bytes of digests: do not fit")
        for at, found in enumerate(_hashed(context, frames, rooms)):
            if found != digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]:
                return at
        return -1

    def digests(
        self, context: str, frames: Sequence[Buffer], rooms: Sequence[memoryview] | None = None
    ) -> list[bytes]:
        """The digest of each frame; arguments are those of `check`."""
        return list(_hashed(context, frames, rooms))


class NativeFrames(FrameHasher):
    """In C, without the interpreter lock where that pays."""

    name = "native"

    def check(
        self,
        context: str,
        frames: Sequence[Buffer],
        rooms: Sequence[memoryview] | None,
        digests: bytes,
    ) -> int:
        into = None if rooms is None else list(rooms)
        return kernels.check_frames(context.encode(), list(frames), into, digests)

    def digests(
        self, context: str, frames: Sequence[Buffer], rooms: Sequence[memoryview] | None = None
    ) -> list[bytes]:
        into = None if rooms is None else list(rooms)
        found = kernels.hash_frames(context.encode(), list(frames), into)
        if len(found) == DIGEST_BYTES:
            return [found]
        return [found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES)]


@lru_cache(64)  # to derive a key costs a compression; copies of a prepared hasher share it
def _keyed(context: str) -> blake3:
    return blake3(derive_key_context=context)


def _hashed(
    context: str, frames: Sequence[Buffer], rooms: Sequence[memoryview] | None
) -> Iterator[bytes]:
    """The digest of each frame, and before it its copy."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    if rooms is not None and [memoryview(room).nbytes for room in rooms] != sizes:
        raise ValueError(f"{len(sizes)} frames, and places for copies: do not fit")
    keyed = _keyed(context)
    for at, frame in enumerate(frames):
        data = np.frombuffer(frame, np.uint8)
        if rooms is not None:
            room = np.frombuffer(rooms[at], np.uint8)
            room[...] = data
            data = room
        yield keyed.copy().update(data.data).digest()


PYTHON = FrameHasher()
NATIVE: FrameHasher | None = None if kernels is None else NativeFrames()
BEST: FrameHasher = NATIVE if NATIVE is not None and kernels.fast else PYTHON

"""Batch BLAKE3 check-and-copy of frames.

`NATIVE` does it in C (digests.c beside this) where it was built, `PYTHON` everywhere, with
identical results. `BEST` is the faster one: without vectors of AVX-512 that is the blake3 package.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from blake3 import blake3

from tensorrepo.formats.native.extensions import kernels
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer


class FrameChecker:
    """Hashes buffers by BLAKE3 and compares them with their digests, one after the other."""

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
        _check_sizes(frames, rooms, digests)
        keyed = blake3(derive_key_context=context)
        for at, frame in enumerate(frames):
            data = np.frombuffer(frame, np.uint8)
            if rooms is not None:
                room = np.frombuffer(rooms[at], np.uint8)
                room[...] = data
                data = room
            expected = digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]
            if keyed.copy().update(data.data).digest() != expected:
                return at
        return -1


class NativeFrames(FrameChecker):
    """In C, without the interpreter lock."""

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


def _check_sizes(
    frames: Sequence[Buffer], rooms: Sequence[memoryview] | None, digests: bytes
) -> None:
    sizes = [memoryview(frame).nbytes for frame in frames]
    fits = rooms is None or [memoryview(room).nbytes for room in rooms] == sizes
    if not fits or len(digests) != DIGEST_BYTES * len(sizes):
        raise ValueError(f"{len(sizes)} frames, {len(digests)} bytes of digests: do not fit")


PYTHON = FrameChecker()
NATIVE: FrameChecker | None = None if kernels is None else NativeFrames()
BEST: FrameChecker = NATIVE if NATIVE is not None and kernels.fast else PYTHON

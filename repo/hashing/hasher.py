"""Batch BLAKE3: digests of many buffers, or a check against them and copies on the way; and of one
input that lies in parts.

`NATIVE` does it in C (_hashing.c beside this) where it was built, `PYTHON` everywhere, with
identical results. `BEST` is the faster one: without vectors of AVX-512 that is the blake3 package.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from blake3 import blake3

from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, byte_view

try:
    from tensorrepo.repo.hashing import _hashing
except ImportError:  # no compiler when this was installed, or built for another machine
    _hashing = None  # type: ignore[assignment]

_STEP_BYTES = 32 << 10  # as many chunks as machines hash side by side, twice


class Hasher:
    """Hashes by the blake3 package, buffers one after the other."""

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

    def joined(self, context: str, parts: Sequence[Buffer]) -> bytes:
        """The digest of the bytes of all parts, one after the other."""
        hasher = _keyed(context).copy()
        for piece in _in_steps(parts) if len(parts) > 1 else parts:
            hasher.update(piece)
        return hasher.digest()


class NativeHasher(Hasher):
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
        return _hashing.check_frames(context.encode(), list(frames), into, digests)

    def digests(
        self, context: str, frames: Sequence[Buffer], rooms: Sequence[memoryview] | None = None
    ) -> list[bytes]:
        into = None if rooms is None else list(rooms)
        found = _hashing.hash_frames(context.encode(), list(frames), into)
        if len(found) == DIGEST_BYTES:
            return [found]
        return [found[at : at + DIGEST_BYTES] for at in range(0, len(found), DIGEST_BYTES)]

    def joined(self, context: str, parts: Sequence[Buffer]) -> bytes:
        return _hashing.hash_parts(context.encode(), list(parts))


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
        data = byte_view(frame)
        if rooms is not None and len(data):
            room = byte_view(rooms[at])
            room[:] = data
            data = room
        yield keyed.copy().update(data).digest()


def _in_steps(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in pieces that begin at multiples of _STEP_BYTES.

    BLAKE3 hashes as many chunks side by side as lie in one subtree, and what begins anywhere
    begins with the smallest ones: of pieces of 80 KB that takes a third of all time.
    """
    held = bytearray()
    for part in parts:
        data, start = byte_view(part), 0
        if held:
            start = min(_STEP_BYTES - len(held), len(data))
            held += data[:start]
            if len(held) < _STEP_BYTES:
                continue
            yield held
            held = bytearray()
        stop = len(data) - (len(data) - start) % _STEP_BYTES
        yield data[start:stop]
        held += data[stop:]
    yield held


PYTHON = Hasher()
NATIVE: Hasher | None = None if _hashing is None else NativeHasher()
BEST: Hasher = NATIVE if NATIVE is not None and _hashing.fast else PYTHON

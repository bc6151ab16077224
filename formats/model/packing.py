"""How do tensors become members of packs, in bounded memory?

A packer owns one buffer of a pack's size. A tensor is read straight into it, frame by frame on
several threads, hashed where it lies, and kept or, when the content turns out to be known,
overwritten by the next one. Full buffers are handed to `emit`, which stores them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
import xxhash

from tensorrepo.formats.model.frames import frame_bytes, frame_digest
from tensorrepo.formats.model.pack import (
    LARGE_ALIGNMENT,
    Frame,
    Member,
    align,
    encode_directory,
    encode_footer,
)
from tensorrepo.formats.model.placement import PackEntry
from tensorrepo.repo.ids import content_tag, digest_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from tensorrepo.formats.tensors import TensorReader
    from tensorrepo.repo.ids import Buffer, Digest

T = TypeVar("T")
PACK_BYTES: Final = 64 << 20
_NOTHING: Final = np.empty(0, np.uint8)
_PARALLEL_BYTES: Final = 1 << 20  # below this, handing work to threads costs more than it saves


class OpenPack:
    """A pack being filled, or on its way."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._emitted: tuple[Future[Digest], int, int, bytes] | None = None

    def emitted(self, stored: Future[Digest], directory_start: int, directory: bytes) -> None:
        self._emitted = stored, directory_start, len(directory), content_tag(directory)

    def entry(self) -> PackEntry:
        """What a placement says of the pack; waits until it is stored."""
        assert self._emitted is not None, "a pack is named once it was emitted"
        stored, start, size, tag = self._emitted
        return PackEntry(digest_bytes(stored.result()), start, size, tag)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a kept member will be found."""

    pack: OpenPack
    index: int
    stored_bytes: int


class Packer:
    """Fills packs one after the other. Not thread-safe; `pool` reads and hashes frames."""

    def __init__(
        self, pack_bytes: int, pool: Executor, emit: Callable[[tuple[Buffer, ...]], Future[Digest]]
    ) -> None:
        assert pack_bytes % LARGE_ALIGNMENT == 0, "a pack ends where a member may begin"
        self.pack_bytes = pack_bytes
        self._pool = pool
        self._emit = emit
        self._buffer = self._spare = _NOTHING
        self._used = 0
        self._pack = OpenPack()
        self._offered: tuple[Member, bool] | None = None

    def offer(self, reader: TensorReader, start: int, stop: int) -> Member:
        """Read bytes ``[start, stop)`` of a tensor, at most `pack_bytes`; `keep` keeps them.

        The bytes begin at a frame. What is not kept is overwritten by the next offer, and never
        makes a pack end early: where it does not fit, it is read into a second buffer.
        """
        size = stop - start
        at = align(self._used, size)
        fits = at + size <= self.pack_bytes
        if fits:
            self._buffer = self._ready(self._buffer)
            self._buffer[self._used : at] = 0
        else:
            at, self._spare = 0, self._ready(self._spare)
        room = (self._buffer if fits else self._spare).data[at : at + size]
        frames = seal_frames(reader, start, room, at, self._pool)
        member = Member(start // frame_bytes(reader.type), frames)
        self._offered = member, fits
        return member

    def keep(self) -> Slot:
        """Make the last offer part of a pack."""
        assert self._offered is not None, "keep follows offer"
        member, fits = self._offered
        self._offered = None
        if not fits:
            self.flush()
            self._buffer, self._spare = self._spare, _NOTHING
        self._pack.members.append(member)
        last = member.frames[-1]
        self._used = last.offset + last.size_bytes
        return Slot(self._pack, len(self._pack.members) - 1, member.stored_bytes)

    def flush(self) -> None:
        """Emit the pack, if anything is in it. The buffer then belongs to whoever took it."""
        pack = self._pack
        if not pack.members:
            return
        start = align(self._used, 0)  # within the buffer, whose size is a multiple of 4096
        self._buffer[self._used : start] = 0
        directory = encode_directory(pack.members)
        tail = directory + encode_footer(directory, start)
        pack.emitted(self._emit((self._buffer.data[:start], tail)), start, directory)
        self._buffer, self._used, self._pack = _NOTHING, 0, OpenPack()

    def _ready(self, buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
        # The system hands out the pages of a fresh buffer as they are first written.
        return buffer if len(buffer) else np.empty(self.pack_bytes, np.uint8)


def seal_frames(
    reader: TensorReader, start: int, room: memoryview, offset: int, pool: Executor
) -> tuple[Frame, ...]:
    """Fill `room` from byte `start` of a tensor and describe its frames.

    Args:
        reader: the tensor.
        start: where to begin, in the tensor: at a frame.
        room: where the bytes go, as many as it holds.
        offset: where `room` begins in its pack.
        pool: threads that read and hash.
    """
    size = frame_bytes(reader.type)

    def seal(at: int) -> Frame:
        frame = room[at : at + size]
        reader.read_into(start + at, frame)
        return Frame(
            offset + at,
            frame.nbytes,
            xxhash.xxh3_64_intdigest(frame),
            content_tag(frame),
            frame_digest(frame),
        )

    return tuple(_each(seal, range(0, room.nbytes, size), room.nbytes, pool))


def hash_frames(reader: TensorReader, tensor_bytes: int, pool: Executor) -> bytes:
    """The digests of a tensor's frames, one after the other, without keeping its bytes."""
    size = frame_bytes(reader.type)

    def digest(at: int) -> bytes:
        frame = np.empty(min(size, tensor_bytes - at), np.uint8).data
        reader.read_into(at, frame)
        return frame_digest(frame)

    return b"".join(_each(digest, range(0, tensor_bytes, size), tensor_bytes, pool))


def _each(work: Callable[[int], T], starts: range, size: int, pool: Executor) -> Iterator[T]:
    if size < _PARALLEL_BYTES or len(starts) == 1:
        return map(work, starts)
    return iter(pool.map(work, starts))

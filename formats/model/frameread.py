"""How do a tensor's bytes come out of the packs that hold them, verified?

A tensor is found through the placement, its members through each pack's directory, which the
placement's tag verifies. The frame digests in the directories must hash to the fingerprint that
the manifest names: from then on each frame is checked alone, in any order, on any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.frames import fingerprint, frame_bytes, frame_count, frame_digest
from tensorrepo.formats.model.pack import RAW, Directory, Frame, Member, decode_directory
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Executor, Future

    from tensorrepo.formats.model.manifest import TensorEntry
    from tensorrepo.formats.model.placement import MemberEntry, Placement, StoredTensor
    from tensorrepo.formats.tensors import TensorType
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Link, ObjectSource

AHEAD_FRAMES: Final = 4


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """One frame, and the pack that it lies in."""

    pack: Link
    frame: Frame


@dataclass(frozen=True, slots=True, eq=False)
class StoredFrames:
    """A tensor in a repository: a `TensorReader` of which every byte is verified.

    Small ones stand in the manifest: `value`. `name` is for messages.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    objects: ObjectSource
    frames: tuple[PlacedFrame, ...]
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        return self.type.bytes_of(self.shape)

    def frame_into(self, index: int, buffer: memoryview) -> None:
        """Fill `buffer` with one frame.

        Raises:
            CorruptError: the stored bytes are not those of the tensor; names it.
        """
        placed = self.frames[index]
        frame, pack = placed.frame, placed.pack
        try:
            if self.objects.map(pack) is not None:
                self.objects.read_into(pack, frame.offset, buffer)
            else:
                # From far away: through the disk cache, and asked for again when damaged.
                stop = frame.offset + frame.size_bytes
                buffer[:] = self.objects.read_checked(pack, frame.offset, stop, frame.tag)
        except (CorruptError, NotFoundError) as error:
            raise type(error)(f"tensor {self.name!r}: {error}") from error
        self._check(index, buffer)

    def mapped(self) -> memoryview | None:
        """The whole tensor where it lies on a local disk, verified and read-only, else None.

        None also when its frames do not lie back to back in one pack.
        """
        if self.value is not None:
            return memoryview(self.value)
        first, last = self.frames[0], self.frames[-1]
        stop = last.frame.offset + last.frame.size_bytes
        if first.pack != last.pack or stop - first.frame.offset != self.size_bytes:
            return None
        pack = self.objects.map(first.pack)
        return None if pack is None else pack[first.frame.offset : stop].toreadonly()

    def check_mapped(self, index: int, whole: memoryview) -> None:
        """Verify one frame of what `mapped` returned."""
        size = frame_bytes(self.type)
        self._check(index, whole[index * size : (index + 1) * size])

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes from `start_byte`: whole frames are verified for any part."""
        if self.value is not None:
            buffer[:] = memoryview(self.value)[start_byte : start_byte + buffer.nbytes]
            return
        size, at = frame_bytes(self.type), 0
        while at < buffer.nbytes:
            index, skip = divmod(start_byte + at, size)
            frame = self.frames[index].frame
            part = min(frame.size_bytes - skip, buffer.nbytes - at)
            if part == frame.size_bytes:
                self.frame_into(index, buffer[at : at + part])
            else:
                whole = np.empty(frame.size_bytes, np.uint8).data
                self.frame_into(index, whole)
                buffer[at : at + part] = whole[skip : skip + part]
            at += part

    def _check(self, index: int, data: memoryview) -> None:
        placed = self.frames[index]
        found = frame_digest(data)
        if found != placed.frame.digest:
            raise CorruptError(
                f"tensor {self.name!r}, frame {index} (pack {placed.pack.digest:.12}, payload "
                f"byte {placed.frame.offset}): expected {placed.frame.digest.hex():.12}, found "
                f"{found.hex():.12}. Run `tensorrepo doctor`; restore the pack from a copy of the "
                "repository."
            )


class PackReader:
    """The packs of one placement. Directories are read once each; thread-safe."""

    def __init__(
        self, objects: ObjectSource, placement: Placement, links: Mapping[Digest, Link]
    ) -> None:
        self._objects = objects
        self._placement = placement
        self._packs = [links[digest] for digest in placement.links()]
        self._stored = {tensor.fingerprint: tensor for tensor in placement.tensors}
        # Two threads may read the same directory at once: both find the same.
        self._directories: dict[int, Directory] = {}

    def tensor(self, entry: TensorEntry, element: TensorType) -> StoredFrames:
        """The frames of one tensor of the manifest.

        Raises:
            CorruptError: the placement lacks it, or holds another tensor in its place.
            UnsupportedError: stored by a codec that this version does not know.
        """
        piece = entry.pieces[0]
        if piece.value is not None:
            return StoredFrames(entry.name, element, entry.shape, self._objects, (), piece.value)
        stored = self._stored.get(piece.fingerprint or b"")
        if stored is None:
            raise CorruptError(f"tensor {entry.name!r}: the placement does not say where it lies")
        try:
            frames = self._frames(stored)
        except (CorruptError, UnsupportedError, NotFoundError) as error:
            raise type(error)(f"tensor {entry.name!r}: {error}") from error
        _check_frames(entry, element, frames)
        return StoredFrames(entry.name, element, entry.shape, self._objects, frames, None)

    def _frames(self, stored: StoredTensor) -> tuple[PlacedFrame, ...]:
        frames: list[PlacedFrame] = []
        for entry in stored.members:
            member = self._member(entry)
            if member.first_frame != len(frames):
                raise CorruptError(
                    f"member {entry.member} of pack {self._packs[entry.pack].digest:.12} begins "
                    f"at frame {member.first_frame}, expected {len(frames)}"
                )
            frames.extend(PlacedFrame(self._packs[entry.pack], frame) for frame in member.frames)
        return tuple(frames)

    def _member(self, entry: MemberEntry) -> Member:
        if entry.codec != RAW or entry.depth:
            raise UnsupportedError(
                f"stored by codec {entry.codec!r} at depth {entry.depth}, which is unknown here. "
                "Update tensorrepo."
            )
        return self._directory(entry.pack).member(entry.member)

    def _directory(self, number: int) -> Directory:
        known = self._directories.get(number)
        if known is None:
            entry, link = self._placement.packs[number], self._packs[number]
            start, stop = entry.directory_start, entry.directory_start + entry.directory_bytes
            data = self._objects.read_checked(link, start, stop, entry.tag)
            known = decode_directory(data, start, f"pack {link.digest:.12}")
            self._directories[number] = known
        return known


def tensor_chunks(tensor: StoredFrames, pool: Executor) -> Iterator[memoryview]:
    """A tensor's bytes, frame by frame, while `pool` reads the next ones.

    Each piece is valid until the next one is asked for.
    """
    if tensor.value is not None:
        yield memoryview(tensor.value)
        return
    size, frames = frame_bytes(tensor.type), tensor.frames
    rooms = np.empty((min(AHEAD_FRAMES, len(frames)), min(size, tensor.size_bytes)), np.uint8)
    reads: list[Future[memoryview]] = []

    def read(index: int) -> memoryview:
        part: memoryview = rooms[index % len(rooms)].data[: frames[index].frame.size_bytes]
        tensor.frame_into(index, part)
        return part

    for index in range(len(frames)):
        # The piece before is given up: all rooms are being filled, or hold the piece in hand.
        while len(reads) < min(index + len(rooms), len(frames)):
            reads.append(pool.submit(read, len(reads)))
        yield reads[index].result()


def _check_frames(entry: TensorEntry, element: TensorType, frames: tuple[PlacedFrame, ...]) -> None:
    """Whether the frames are as many and as large as the tensor's, and hash to its fingerprint."""
    size, whole = element.bytes_of(entry.shape), frame_bytes(element)
    expected = [whole] * (frame_count(element, size) - 1)
    expected.append(size - whole * len(expected))
    if [placed.frame.size_bytes for placed in frames] != expected:
        raise CorruptError(
            f"tensor {entry.name!r}: expected {len(expected)} frames and {size} bytes, found "
            f"{len(frames)} and {sum(placed.frame.size_bytes for placed in frames)}"
        )
    digests = b"".join(placed.frame.digest for placed in frames)
    found, named = fingerprint(element, entry.shape, digests), entry.pieces[0].fingerprint
    if found != named:
        raise CorruptError(
            f"tensor {entry.name!r}: expected fingerprint {(named or b'').hex():.12}, the frames "
            f"stored for it have {found.hex():.12}"
        )

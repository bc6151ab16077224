"""How do a tensor's bytes come out of the packs that hold them, verified?

A tensor is found through the placement, its members through each pack's directory, which the
placement's tag verifies. The frame digests in the directories must hash to the fingerprint that
the manifest names: from then on each frame is checked alone, in any order, on any thread.
`memberread` decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.framefill import fills
from tensorrepo.formats.model.frames import fingerprint, frame_bytes, frame_count, frame_digest
from tensorrepo.formats.model.memberread import MemberReader, PlacedFrame, about_frame
from tensorrepo.formats.model.pack import RAW
from tensorrepo.formats.model.pieces import PiecedTensor
from tensorrepo.formats.model.selection import select
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor, Future

    from tensorrepo.formats.model.manifest import Piece, TensorEntry
    from tensorrepo.formats.model.placement import Placement, StoredTensor
    from tensorrepo.formats.model.selection import Index
    from tensorrepo.formats.tensors import TensorType
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Link, ObjectSource

AHEAD_FRAMES: Final = 4
RUN_BYTES: Final = 8 << 20  # decoded bytes of the frames that are asked for together from afar


@dataclass(frozen=True, slots=True, eq=False)
class StoredFrames:
    """A tensor in a repository: a `TensorReader` of which every byte is verified.

    Small ones stand in the manifest: `value`. `name` is for messages.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    members: MemberReader
    frames: tuple[PlacedFrame, ...]
    value: bytes | None

    @property
    def size_bytes(self) -> int:
        return self.type.bytes_of(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of its planes, without those of its bases."""
        return sum(plane.size_bytes for placed in self.frames for plane in placed.frame.planes)

    def runs(self, frames: range | None = None) -> Iterator[range]:
        """Frames that are best read together, by one thread."""
        wanted = range(len(self.frames)) if frames is None else frames
        step = max(1, RUN_BYTES // frame_bytes(self.type))
        start = wanted.start
        while start < wanted.stop:
            placed = self.frames[start]
            stop = start + 1
            if not self.members.is_local(placed):
                last = min(placed.group_stop, start + step, wanted.stop)
                stop = max(stop, last)
            yield range(start, stop)
            start = stop

    def fills(
        self, index: Index | None, out: memoryview, planes: int | None
    ) -> Iterator[Callable[[], None]]:
        """What fills `out` with ``tensor[index]``, all of it for None; see `framefill.fills`."""
        blocks = None
        if index is not None:
            blocks = select(self.shape, index).in_blocks(self.type.block_elements)
        return fills(self, blocks, out, planes)

    def frame_into(self, index: int, buffer: memoryview) -> None:
        """Fill `buffer` with one frame.

        Raises:
            CorruptError: the stored bytes are not those of the tensor; names it.
        """
        self.run_into(range(index, index + 1), buffer)

    def run_into(self, frames: range, buffer: memoryview, *, planes: int | None = None) -> None:
        """Fill `buffer` with frames that lie in one member.

        Args:
            frames: as `runs` gives them.
            buffer: for all of them, one after the other.
            planes: only so many of the most significant bytes of each number; the others are 0.
        """
        size = frame_bytes(self.type)
        rooms = [buffer[at : at + size] for at in range(0, buffer.nbytes, size)]
        about = [about_frame(self.type, self.shape, index) for index in frames]
        placed = self.frames[frames.start]
        try:
            if planes is not None:
                self.members.truncated_into(placed.place, frames, about, rooms, planes)
                return
            self.members.frames_into(placed.place, frames, about, rooms)
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            raise type(error)(f"tensor {self.name!r}: {error}") from error
        for index, room in zip(frames, rooms, strict=True):
            self._check(index, room)

    def mapped(self) -> memoryview | None:
        """The whole tensor where it lies on a local disk, not verified and read-only, else None.

        None also when it is encoded, or its frames do not lie back to back in one pack.
        """
        if self.value is not None:
            return memoryview(self.value)
        if not self.frames:
            return None
        first, last = self.frames[0], self.frames[-1]
        start = first.frame.planes[0].offset
        stop = last.frame.planes[-1].offset + last.frame.size_bytes
        raw = all(placed.codec == RAW for placed in self.frames)
        if not raw or first.pack != last.pack or stop - start != self.size_bytes:
            return None
        pack = self.members.objects.map(first.pack)
        return None if pack is None else pack[start:stop].toreadonly()

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
            whole_bytes = self.frames[index].frame.size_bytes
            part = min(whole_bytes - skip, buffer.nbytes - at)
            if part == whole_bytes:
                self.frame_into(index, buffer[at : at + part])
            else:
                whole = np.empty(whole_bytes, np.uint8).data
                self.frame_into(index, whole)
                buffer[at : at + part] = whole[skip : skip + part]
            at += part

    def _check(self, index: int, data: memoryview) -> None:
        placed = self.frames[index]
        found = frame_digest(data)
        if found == placed.frame.digest:
            return
        self.members.blame_base(placed, about_frame(self.type, self.shape, index), self.name)
        raise CorruptError(
            f"tensor {self.name!r}, frame {index} (pack {placed.pack.digest:.12}, payload "
            f"byte {placed.frame.planes[0].offset}): expected {placed.frame.digest.hex():.12}, "
            f"found {found.hex():.12}. Run `tensorrepo doctor`; restore the pack from a copy of "
            "the repository."
        )


class PackReader:
    """The tensors of one placement. Thread-safe."""

    def __init__(
        self, objects: ObjectSource, placement: Placement, links: Mapping[Digest, Link]
    ) -> None:
        self.members = MemberReader(objects, placement, links)
        self.stored = {tensor.fingerprint: tensor for tensor in placement.tensors}

    def piece(self, name: str, element: TensorType, piece: Piece) -> StoredFrames:
        """The frames of one piece of the tensor called `name`.

        Raises:
            CorruptError: the placement lacks it, or holds another tensor in its place.
            UnsupportedError: stored by a codec that this version does not know.
        """
        if piece.value is not None:
            return StoredFrames(name, element, piece.shape, self.members, (), piece.value)
        stored = self.stored.get(piece.fingerprint or b"")
        if stored is None:
            raise CorruptError(f"tensor {name!r}: the placement does not say where it lies")
        try:
            frames = self._frames(stored)
        except (CorruptError, UnsupportedError, NotFoundError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from error
        _check_frames(name, element, piece, frames)
        return StoredFrames(name, element, piece.shape, self.members, frames, None)

    def tensor(self, entry: TensorEntry, element: TensorType) -> StoredFrames | PiecedTensor:
        """A tensor of the manifest; see `piece`."""
        if len(entry.pieces) == 1:
            return self.piece(entry.name, element, entry.pieces[0])
        parts = tuple(
            (piece.offset, self.piece(entry.name, element, piece)) for piece in entry.pieces
        )
        return PiecedTensor(entry.name, element, entry.shape, parts)

    def _frames(self, stored: StoredTensor) -> tuple[PlacedFrame, ...]:
        frames: list[PlacedFrame] = []
        for entry in stored.members:
            placed = self.members.placed(entry.place)
            if placed[0].index != len(frames):
                raise CorruptError(
                    f"member {entry.member} of pack {placed[0].pack.digest:.12} begins at frame "
                    f"{placed[0].index}, expected {len(frames)}"
                )
            frames.extend(placed)
        return tuple(frames)


def tensor_chunks(tensor: StoredFrames | PiecedTensor, pool: Executor) -> Iterator[memoryview]:
    """A tensor's bytes, frame by frame, while `pool` reads the next ones.

    Each piece is valid until the next one is asked for.
    """
    if isinstance(tensor, PiecedTensor):
        yield from tensor.chunks(RUN_BYTES)
        return
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


def _check_frames(
    name: str, element: TensorType, piece: Piece, frames: tuple[PlacedFrame, ...]
) -> None:
    """Whether the frames are as many and as large as the tensor's, and hash to its fingerprint."""
    size, whole = element.bytes_of(piece.shape), frame_bytes(element)
    count = max(frame_count(element, size), 1)
    sizes = [placed.frame.size_bytes for placed in frames]
    # Counted first: a shape is a claim, and a list as long as it claims is memory without bound.
    if len(sizes) != count or sizes != [whole] * (count - 1) + [size - whole * (count - 1)]:
        raise CorruptError(
            f"tensor {name!r}: expected {count} frames and {size} bytes, found "
            f"{len(frames)} and {sum(placed.frame.size_bytes for placed in frames)}"
        )
    digests = b"".join(placed.frame.digest for placed in frames)
    found, named = fingerprint(element, piece.shape, digests), piece.fingerprint
    if found != named:
        raise CorruptError(
            f"tensor {name!r}: expected fingerprint {(named or b'').hex():.12}, the frames "
            f"stored for it have {found.hex():.12}"
        )

"""Readers of stored tensors: frames out of packs, each verified by its digest.

A tensor is found through the placement, its members through each pack's directory, which the
placement's tag verifies. The frame digests in the directories must hash to the fingerprint that
the manifest names: from then on each frame is checked alone, in any order, on any thread, or many
small ones in one call. `MemberReader` decodes them. A tensor of several pieces is a grid of boxes,
each a tensor with frames of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.layout.fingerprints import (
    FRAME_CONTEXT,
    fingerprint,
    frame_bytes,
    frame_digest,
)
from tensorrepo.formats.model.layout.manifest import TensorEntry, TensorPiece
from tensorrepo.formats.model.layout.pack import RAW
from tensorrepo.formats.model.layout.placement import Placement, StoredTensor
from tensorrepo.formats.model.read.members import (
    MappedPacks,
    MemberCache,
    MemberPlace,
    MemberReader,
    PlacedFrame,
    about_frame,
    truncate,
)
from tensorrepo.formats.model.read.selection import (
    ElementIndex,
    ElementSelection,
    RowNumbers,
    index_ranges,
    select,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError, UnsupportedError
from tensorrepo.repo.hashing.hasher import BEST
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSource, mending

AHEAD_FRAMES: Final = 4
RUN_BYTES: Final = 8 << 20  # decoded bytes of the frames that are asked for together from afar
HASHED_TOGETHER: Final = 64 << 10  # a larger frame fills all lanes alone, and is still in cache
Fill = Callable[[], None]


class StoredFrames(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tensor in a repository: a `TensorReader` of which every byte is verified.

    Small ones stand in the manifest: `value`. `name` is for messages.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    size_bytes: int
    members: MemberReader
    frames: tuple[PlacedFrame, ...]
    value: bytes | None

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
            if not self.members.local[placed.place[0]]:
                last = min(placed.group_stop, start + step, wanted.stop)
                stop = max(stop, last)
            yield range(start, stop)
            start = stop

    def fills(
        self,
        index: ElementIndex | None,
        out: memoryview,
        planes: int | None,
        *,
        once: bool = False,
    ) -> Iterator[Fill]:
        """What fills `out` with ``tensor[index]``, all of it for None; in any order, on any thread.

        A part is a run of frames, fetched together, decoded into place or beside it, and verified
        whole, also when only some of it is wanted.

        Args:
            index: selected elements.
            out: memory for exactly those.
            planes: number of most significant bytes of each number that are read; the others are 0.
            once: whether nobody is going to ask for other parts of the same frames.
        """
        chosen = None
        if index is not None:
            chosen = select(self.shape, index).in_blocks(self.type.block_elements)
        if self.value is not None:
            yield _value_fill(self.type, self.value, chosen, out, planes)
        elif chosen is None:
            size = frame_bytes(self.type)
            for run in self.runs():
                room = out[run.start * size : run.stop * size]
                yield partial(self.run_into, run, room, planes=planes, once=True)
        else:
            yield from _part_fills(self, chosen, out, planes, keep=planes is None and not once)

    def frame_into(self, index: int, buffer: memoryview) -> None:
        """Fill `buffer` with one frame. Raises CorruptError."""
        self.run_into(range(index, index + 1), buffer)

    def run_into(
        self,
        frames: range,
        buffer: memoryview,
        *,
        planes: int | None = None,
        once: bool = False,
    ) -> None:
        """Fill `buffer` with frames that lie in one member, as `runs` gives them.

        Of each number only the `planes` most significant bytes are read, the others are 0. `once`:
        nobody is going to ask for them again.
        """
        size = frame_bytes(self.type)
        rooms = [buffer[at : at + size] for at in range(0, buffer.nbytes, size)]
        self.rooms_into(frames, rooms, planes=planes, once=once)

    def rooms_into(
        self,
        frames: range,
        rooms: Sequence[memoryview],
        *,
        planes: int | None = None,
        once: bool = False,
    ) -> None:
        """As `run_into`, each frame into a room of its own."""
        if planes is None:
            self.decode_into(frames, rooms, once=once)
            for index, room in zip(frames, rooms, strict=True):
                self.check(index, room)
            return
        about = [about_frame(self.type, self.shape, index) for index in frames]
        place = self.frames[frames.start].place
        try:
            self.members.truncated_into(place, frames, about, rooms, planes)
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            raise self._named(error, frames, about) from error

    def decode_into(
        self,
        frames: range,
        rooms: Sequence[memoryview],
        packs: MappedPacks | None = None,
        *,
        once: bool = False,
    ) -> None:
        """As `MemberReader.frames_into`, which verifies nothing; errors name the tensor."""
        about = [about_frame(self.type, self.shape, index) for index in frames]
        place = self.frames[frames.start].place
        try:
            if len(rooms) == 1 and (once or len(self.frames) == 1):
                packs = self.members.mapped_packs() if packs is None else packs
                self.members.frame_into(place, frames.start, about[0], rooms[0], packs)
            else:
                self.members.frames_into(place, frames, about, rooms, once=once)
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            raise self._named(error, frames, about) from error

    def _named(self, error: Error, frames: range, about: Sequence[FrameShape]) -> Error:
        """What ended the decoding of `frames`, with the tensor and the pack that is damaged.

        Raises:
            CorruptError: that is the pack of a base.
        """
        pack = self.frames[frames.start].pack.digest
        where = f"tensor {self.name!r}, frame {frames.start} of pack {pack:.12}"
        if not isinstance(error, CorruptError):
            return type(error)(f"{where} or of its base: {error}")
        for index, shape in zip(frames, about, strict=True):
            self.members.blame_base(self.frames[index], shape, self.name)
        return type(error)(f"{where}: {error}. {mending(self.members.objects, pack)}.")

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
        pack = self.members.mapped_pack(first.place[0])
        return None if pack is None else pack[start:stop].toreadonly()

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

    def check(self, index: int, data: memoryview) -> None:
        """Verify the bytes of one frame. Raises CorruptError."""
        placed = self.frames[index]
        found = frame_digest(data)
        if found == placed.frame.digest:
            return
        self.members.blame_base(placed, about_frame(self.type, self.shape, index), self.name)
        raise CorruptError(
            f"tensor {self.name!r}, frame {index} (pack {placed.pack.digest:.12}, payload "
            f"byte {placed.frame.planes[0].offset}): expected {placed.frame.digest.hex():.12}, "
            f"found {found.hex():.12}. {mending(self.members.objects, placed.pack.digest)}."
        )


@dataclass(frozen=True, slots=True, eq=False)
class PiecedTensor:
    """A tensor that lies in several pieces, as ranks of a training saved it: a `TensorReader`.

    `parts` are (offset, piece): boxes that lie side by side and cover it.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], StoredFrames], ...]

    @property
    def size_bytes(self) -> int:
        return self.type.bytes_of(self.shape)

    @property
    def stored_bytes(self) -> int:
        return sum(part.stored_bytes for _, part in self.parts)

    @property
    def frames(self) -> tuple[PlacedFrame, ...]:
        """None of its own: those of its pieces are not those of the whole."""
        return ()

    def mapped(self) -> memoryview | None:
        """None: its bytes lie nowhere in one piece."""
        return None

    def fills(
        self,
        index: ElementIndex | None,
        out: memoryview,
        planes: int | None,
        *,
        once: bool = False,
    ) -> Iterator[Fill]:
        """What fills `out` with ``tensor[index]``, all of it for None; a piece at a time."""
        if isinstance(index, RowNumbers):
            yield from self._row_fills(index, out, planes, once=once)
            return
        ranges = index_ranges(self.shape, () if index is None else index)
        lengths = [len(picked) for picked in ranges]
        if not all(lengths):
            return
        items = np.frombuffer(out, _item_of(self.type)).reshape(self._in_blocks(lengths))
        for offset, part in self.parts:
            inner, outer = [], []
            for picked, start, size in zip(ranges, offset, part.shape, strict=True):
                low = max(0, -(-(start - picked.start) // picked.step))
                high = min(len(picked), -(-(start + size - picked.start) // picked.step))
                inner.append((low, high, picked, start))
                outer.append(slice(low, high))
            if all(low < high for low, high, _, _ in inner):
                local = tuple(
                    slice(picked[low] - start, picked[high - 1] - start + 1, picked.step)
                    for low, high, picked, start in inner
                )
                yield self._fill(part, local, items, tuple(outer), planes, once=once)

    def _row_fills(
        self, rows: RowNumbers, out: memoryview, planes: int | None, *, once: bool
    ) -> Iterator[Fill]:
        if not out.nbytes:
            return
        items = np.frombuffer(out, _item_of(self.type))
        items = items.reshape(self._in_blocks([len(rows.numbers), *self.shape[1:]]))
        for offset, part in self.parts:
            ends = (offset[0], offset[0] + part.shape[0])
            low, high = (int(at) for at in np.searchsorted(rows.numbers, ends))
            if low < high and part.size_bytes:
                numbers = rows.numbers[low:high] - offset[0]
                local = RowNumbers((high - low,), numbers, np.arange(high - low))
                outer = [
                    slice(start, start + size)
                    for start, size in zip(offset[1:], part.shape[1:], strict=True)
                ]
                places = rows.places[low:high]
                yield self._fill(part, local, items, (places, *outer), planes, once=once)

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes from `start_byte`: the rows that hold them are read."""
        if not buffer.nbytes:
            return
        row_bytes = self.size_bytes // self.shape[0]
        first, stop = start_byte // row_bytes, -(-(start_byte + buffer.nbytes) // row_bytes)
        rows = np.empty((stop - first) * row_bytes, np.uint8).data
        for fill in self.fills(slice(first, stop), rows, None):
            fill()
        skip = start_byte - first * row_bytes
        buffer[:] = rows[skip : skip + buffer.nbytes]

    def chunks(self, chunk_bytes: int) -> Iterator[memoryview]:
        """Its bytes in order, some rows at a time."""
        row_bytes = self.size_bytes // self.shape[0]
        step = max(1, chunk_bytes // row_bytes) * row_bytes
        for start in range(0, self.size_bytes, step):
            data = np.empty(min(step, self.size_bytes - start), np.uint8).data
            self.read_into(start, data)
            yield data

    def _fill(
        self,
        part: StoredFrames,
        local: ElementIndex,
        items: NDArray[Any],
        outer: tuple[slice | NDArray[np.int64], ...],
        planes: int | None,
        *,
        once: bool,
    ) -> Fill:
        def fill() -> None:
            lengths = [
                place.stop - place.start if isinstance(place, slice) else len(place)
                for place in outer
            ]
            shape = self._in_blocks(lengths)
            found = np.empty(shape, items.dtype)
            room = found.reshape(-1).view(np.uint8).data
            for one in part.fills(local, room, planes, once=once):
                one()
            *before, last = outer
            block = self.type.block_elements
            if isinstance(last, slice):
                last = slice(last.start // block, -(-last.stop // block))
            items[(*before, last)] = found

        return fill

    def _in_blocks(self, lengths: Sequence[int]) -> tuple[int, ...]:
        *before, last = lengths
        return (*before, last // self.type.block_elements)


class FrameChecks:
    """Frames that are verified in one call, and copied to where they belong on the way."""

    def __init__(self) -> None:
        self._frames: list[tuple[StoredFrames, int, Any, Any, bytes]] = []

    def add(self, tensor: StoredFrames, index: int, source: Any, room: Any = None) -> None:
        """Frame `index` of `tensor` at `source`; all frames have a `room` to copy to, or none."""
        self._frames.append((tensor, index, source, room, tensor.frames[index].frame.digest))

    def finish(self) -> None:
        """Copy and verify them. Raises CorruptError."""
        left = self._frames
        while left:
            _, _, sources, rooms, digests = zip(*left, strict=True)
            copied = None if rooms[0] is None else rooms
            wrong = BEST.check(FRAME_CONTEXT, sources, copied, b"".join(digests))
            if wrong < 0:
                return
            tensor, index, source, room, _ = left[wrong]
            tensor.check(index, _bytes_of(source))
            # The bytes changed between two looks at them, and are right now.
            if room is not None:
                tensor.frame_into(index, _bytes_of(room))
            left = left[wrong + 1 :]


class FrameBatch:
    """Frames of one model that one task reads, and verifies in few calls."""

    def __init__(self, members: MemberReader) -> None:
        self.copied, self.in_place = FrameChecks(), FrameChecks()
        self._packs = members.mapped_packs()

    def read(self, tensor: StoredFrames, index: int, room: Any) -> None:
        """Bring frame `index` of `tensor` to `room`; what is raw is copied with its check."""
        placed = tensor.frames[index]
        pack = self._packs[placed.place[0]] if placed.codec == RAW else None
        if pack is not None:
            start, size = placed.frame.planes[0].offset, placed.frame.size_bytes
            source = pack[start : start + size]
            if source.nbytes != size:
                raise CorruptError(f"frame {index} lies beyond pack {placed.pack.digest:.12}")
            self.copied.add(tensor, index, source, room)
            return
        data = _bytes_of(room)
        tensor.decode_into(range(index, index + 1), [data], self._packs)
        if data.nbytes < HASHED_TOGETHER:
            self.in_place.add(tensor, index, data)
        else:
            tensor.check(index, data)


def read_together(members: MemberReader, wanted: Iterable[tuple[StoredFrames, Any, bool]]) -> None:
    """Read whole tensors in one task, and verify small frames of all of them together.

    Args:
        members: those of the tensors' model.
        wanted: (tensor, array for its bytes, whether those bytes are there already: mapped).
    """
    batch = FrameBatch(members)
    for tensor, room, is_mapped in wanted:
        if tensor.value is not None:
            if not is_mapped:
                _bytes_of(room)[:] = tensor.value
            continue
        take = batch.in_place.add if is_mapped else batch.read
        if len(tensor.frames) == 1:
            take(tensor, 0, room)
            continue
        size, data = frame_bytes(tensor.type), _bytes_of(room)
        for index in range(len(tensor.frames)):
            take(tensor, index, data[index * size : (index + 1) * size])
    batch.copied.finish()
    batch.in_place.finish()


class PackReader:
    """The tensors of one placement. Thread-safe."""

    def __init__(
        self,
        objects: ObjectSource,
        placement: Placement,
        links: Mapping[Digest, ObjectLink],
        cache: MemberCache | None = None,
    ) -> None:
        self.placement = placement
        self.members = MemberReader(objects, placement, links, cache)
        self.stored = {tensor.fingerprint: tensor for tensor in placement.tensors}

    @property
    def is_decoded_here(self) -> bool:
        """Whether to read most of it is the processors' work, and not that of a disk or a link.

        More threads than there are of them would only push each other's frames out of the cache.
        """
        sizes = Counter[bool]()
        for tensor in self.placement.tensors:
            for member in tensor.members:
                sizes[member.codec != RAW] += member.stored_bytes
        try:
            local = all(self.members.local[number] for number in range(len(self.placement.packs)))
        except Error:  # whoever reads it says what is wrong
            return False
        return local and sizes[True] > sizes[False]

    def places(self, entry: TensorEntry) -> list[MemberPlace]:
        """The members that hold a tensor of the manifest, as far as the placement knows it."""
        return [
            (member.pack, member.member)
            for piece in entry.pieces
            if (stored := self.stored.get(piece.fingerprint or b"")) is not None
            for member in stored.members
        ]

    def piece(self, name: str, element: TensorType, piece: TensorPiece) -> StoredFrames:
        """The frames of one piece of the tensor called `name`.

        Raises:
            CorruptError: the placement lacks it, or holds another tensor in its place.
            UnsupportedError: stored by a codec that this version does not know.
        """
        shape, size = piece.shape, element.bytes_of(piece.shape)
        if piece.value is not None:
            return StoredFrames(name, element, shape, size, self.members, (), piece.value)
        stored = self.stored.get(piece.fingerprint or b"")
        if stored is None:
            raise CorruptError(f"tensor {name!r}: the placement does not say where it lies")
        try:
            frames = (
                self.members.placed((stored.members[0].pack, stored.members[0].member))
                if len(stored.members) == 1
                else self._frames(stored)
            )
        except (CorruptError, UnsupportedError, NotFoundError) as error:
            raise type(error)(f"tensor {name!r}: {error}") from error
        tensor = StoredFrames(name, element, shape, size, self.members, frames, None)
        first = frames[0].frame
        if (
            len(frames) > 1
            or not first.size_bytes == size <= frame_bytes(element)
            or fingerprint(element, shape, first.digest) != piece.fingerprint
        ):
            _check_frames(tensor, piece.fingerprint)
        return tensor

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


def _check_frames(tensor: StoredFrames, named: bytes | None) -> None:
    """Whether the frames are as many and as large as the tensor's, and hash to its fingerprint."""
    size, whole, frames = tensor.size_bytes, frame_bytes(tensor.type), tensor.frames
    # Counted first: a shape is a claim, and a list as long as it claims is memory without bound.
    count = max(-(-size // whole), 1)
    sizes = [placed.frame.size_bytes for placed in frames]
    if len(sizes) != count or sizes != [whole] * (count - 1) + [size - whole * (count - 1)]:
        raise CorruptError(
            f"tensor {tensor.name!r}: expected {count} frames and {size} bytes, found "
            f"{len(frames)} and {sum(sizes)}"
        )
    digests = b"".join([placed.frame.digest for placed in frames])
    actual = fingerprint(tensor.type, tensor.shape, digests)
    if actual != named:
        raise CorruptError(
            f"tensor {tensor.name!r}: expected fingerprint {(named or b'').hex():.12}, the frames "
            f"stored for it have {actual.hex():.12}"
        )


def _part_fills(
    tensor: StoredFrames,
    chosen: ElementSelection,
    out: memoryview,
    planes: int | None,
    *,
    keep: bool,
) -> Iterator[Fill]:
    """What fills `out` with a selection: one part of all frames that were kept, one of each run."""
    touched = chosen.frames(frame_bytes(tensor.type) // tensor.type.block_bytes)
    kept: dict[int, memoryview] = {}
    if planes is None:
        proved = ((at, tensor.members.proved(tensor.frames[at].frame.digest)) for at in touched)
        kept = {at: frame for at, frame in proved if frame is not None}
    if kept:
        yield partial(_copy_parts, tensor, kept, chosen, out)
    for run in _joined(tensor, [at for at in touched if at not in kept]):
        yield partial(_read_parts, tensor, run, chosen, out, planes, keep=keep)


def _joined(tensor: StoredFrames, touched: Sequence[int]) -> Iterator[range]:
    """Runs of some frames."""
    start = 0
    for at in range(1, len(touched) + 1):
        if at == len(touched) or touched[at] != touched[at - 1] + 1:
            yield from tensor.runs(range(touched[start], touched[at - 1] + 1))
            start = at


def _read_parts(
    tensor: StoredFrames,
    run: range,
    chosen: ElementSelection,
    out: memoryview,
    planes: int | None,
    *,
    keep: bool,
) -> None:
    size = frame_bytes(tensor.type)
    rooms = [np.empty(min(size, tensor.size_bytes - at * size), np.uint8).data for at in run]
    tensor.rooms_into(run, rooms, planes=planes)
    frames = dict(zip(run, rooms, strict=True))
    _copy_parts(tensor, frames, chosen, out)
    if keep:
        items = size // tensor.type.block_bytes
        for at, room in frames.items():
            if not chosen.has_all(at * items, at * items + room.nbytes // tensor.type.block_bytes):
                tensor.members.keep_proved(tensor.frames[at].frame.digest, room)


def _copy_parts(
    tensor: StoredFrames,
    frames: Mapping[int, memoryview],
    chosen: ElementSelection,
    out: memoryview,
) -> None:
    item = _item_of(tensor.type)
    target, items = np.frombuffer(out, item), frame_bytes(tensor.type) // item.itemsize
    for at, frame in frames.items():
        chosen.copy(np.frombuffer(frame, item), at * items, target)


def _value_fill(
    element: TensorType,
    value: bytes,
    chosen: ElementSelection | None,
    out: memoryview,
    planes: int | None,
) -> Fill:
    def fill() -> None:
        if chosen is None:
            out[:] = value
        else:
            item = _item_of(element)
            chosen.copy(np.frombuffer(value, item), 0, np.frombuffer(out, item))
        if planes is not None:
            truncate(out, element, planes)

    return fill


def _item_of(element: TensorType) -> np.dtype[Any]:
    """An item for each block, whatever it means."""
    size = element.block_bytes
    return np.dtype(f"<u{size}") if size in {1, 2, 4, 8} else np.dtype((np.void, size))


def _bytes_of(array: Any) -> memoryview:
    if isinstance(array, memoryview):
        return array
    data: memoryview = array.reshape(-1).view(np.uint8).data
    return data

"""How do thousands of small tensors come into memory without much of Python for each?

Tensors of one frame in packs on this machine are planned all at once. So many of them as make a
batch are read by one task: raw ones are copied and verified by one call of C, others are decoded
one after the other. Whatever is not as it should be is read again by `frameread`, as a large tensor
is, which says what is wrong and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np

from tensorrepo.formats.model.codecs.framecodec import FrameShape
from tensorrepo.formats.model.codecs.planecodec import StoredPlane
from tensorrepo.formats.model.codecs.registry import CODECS
from tensorrepo.formats.model.frames import FRAME_CONTEXT, fingerprint, frame_bytes, frame_digest
from tensorrepo.formats.model.loading import Wish, as_wanted
from tensorrepo.formats.model.pack import RAW, Single
from tensorrepo.formats.native.digests import BEST
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor, Future

    from tensorrepo.formats.model.frameread import PackReader
    from tensorrepo.formats.model.manifest import TensorEntry
    from tensorrepo.formats.model.memberread import Place
    from tensorrepo.formats.tensors import TensorType
    from tensorrepo.repo.ids import Buffer

SMALL_BYTES: Final = 4 << 20  # decoded; a larger tensor is a task of its own
BATCH_BYTES: Final = 4 << 20
BATCH_TENSORS: Final = 1024
HASHED_TOGETHER: Final = 64 << 10  # a larger one fills all lanes by itself, and is still in cache


class Small(msgspec.Struct, frozen=True, gc=False):
    """A small tensor: `value` are its bytes, or it is the member at `place`.

    The collector does not look at it, nor need it: there are thousands, and no circles.
    """

    entry: TensorEntry
    type: TensorType
    size_bytes: int
    place: Place
    value: bytes | None


class SmallTensors(NamedTuple):
    """Small tensors, in the order in which they lie, and all the members that they need."""

    packs: PackReader
    tensors: list[Small]
    singles: Mapping[Place, Single | None]


def find_small(
    packs: PackReader, entries: Iterable[TensorEntry], types: Mapping[str, TensorType]
) -> SmallTensors:
    """Those of `entries` that are small, whole, on this machine, and what they claim to be."""
    found = [small for entry in entries if (small := _small(packs, entry, types[entry.type]))]
    singles = packs.members.singles(small.place for small in found if small.value is None)
    sound = [small for small in found if small.value is not None or _is_sound(small, singles)]
    sound.sort(key=lambda small: small.place)
    return SmallTensors(packs, sound, singles)


def _small(packs: PackReader, entry: TensorEntry, element: TensorType) -> Small | None:
    if len(entry.pieces) != 1:
        return None
    piece = entry.pieces[0]
    size = element.bytes_of(entry.shape)
    if piece.value is not None:
        return Small(entry, element, size, (-1, -1), piece.value)
    stored = packs.stored.get(piece.fingerprint or b"")
    if stored is None or len(stored.members) != 1 or size > min(SMALL_BYTES, frame_bytes(element)):
        return None
    return Small(entry, element, size, stored.members[0].place, None)


def _is_sound(small: Small, singles: Mapping[Place, Single | None]) -> bool:
    single = singles[small.place]
    if single is None or single.size_bytes != small.size_bytes:
        return False
    named = small.entry.pieces[0].fingerprint
    return fingerprint(small.type, small.entry.shape, single.digest) == named


def batches(found: SmallTensors, most_bytes: int) -> Iterator[list[Small]]:
    """Small tensors that are read together, in no more memory than that; larger ones alone."""
    batch: list[Small] = []
    size = 0
    for small in found.tensors:
        if batch and (size + small.size_bytes > most_bytes or len(batch) == BATCH_TENSORS):
            yield batch
            batch, size = [], 0
        batch.append(small)
        size += small.size_bytes
    if batch:
        yield batch


class SmallRead:
    """Small tensors being read together."""

    def __init__(self, batch: list[Small], found: SmallTensors, wish: Wish, pool: Executor) -> None:
        """Begin; `wish` is of whole tensors, with all their planes."""
        self.size_bytes = sum(small.size_bytes for small in batch)
        self._batch, self._wish = batch, wish
        # Taken here and not by the task: what other threads take, malloc gives back to the system
        # as soon as it is free, and the next model's pages are new ones.
        rooms = None if wish.mapped else [_room(small, wish) for small in batch]
        self._work: Future[list[Any]] | None = pool.submit(_read, batch, rooms, found, wish)

    def when_done(self, tell: Callable[[], None]) -> None:
        """Call `tell` once they are read, well or not: on any thread, or here."""
        if self._work is not None:
            self._work.add_done_callback(lambda _: tell())

    def results(self) -> Iterator[tuple[str, Any]]:
        """The tensors as they are wanted; each is let go of when the next one is asked for."""
        work, self._work = self._work, None
        made = work.result() if work is not None else []
        del work  # holds them all, and what was told
        made.reverse()
        for small in self._batch:
            yield small.entry.name, self._as_wanted(small, made.pop())

    def _as_wanted(self, small: Small, data: Any) -> Any:
        if self._wish.plain:
            return data
        try:
            return as_wanted(memoryview(data), small.type, small.entry.shape, self._wish)
        except UnsupportedError as error:
            raise UnsupportedError(f"tensor {small.entry.name!r}: {error}") from error


def _read(
    batch: list[Small], rooms: list[Any] | None, found: SmallTensors, wish: Wish
) -> list[Any]:
    """Of each tensor its array where `wish` is plain, else its bytes; verified.

    `rooms` is memory for all of them; None: they are mapped where that is possible.
    """
    reader = _Reader(found)
    made: list[Any] = [None] * len(batch) if rooms is None else rooms
    raw, decoded = _Checks([], [], []), _Checks([], [], [])
    for at, small in enumerate(batch):
        single = found.singles.get(small.place)
        if small.value is not None or single is None:
            made[at] = _of_value(small, made[at], wish)
            continue
        try:
            if single.codec != RAW:
                made[at] = _room(small, wish) if rooms is None else rooms[at]
                data = made[at].reshape(-1).view(np.uint8).data
                reader.decode(small, single, data)
                if small.size_bytes < HASHED_TOGETHER:
                    decoded.add(at, single, data)
                elif frame_digest(data) != single.digest:
                    made[at] = _again(small, found, wish)
                continue
            part = reader.part(small.place, single)
        except Error:
            made[at] = _again(small, found, wish)
            continue
        if rooms is None:
            made[at] = _of_bytes(part, small, wish)
        raw.add(at, single, part)
    into = None if rooms is None else [rooms[at] for at in raw.places]
    for at in (*raw.wrong(into), *decoded.wrong(None)):
        made[at] = _again(batch[at], found, wish)
    if wish.mapped:
        for array in made:
            array.flags.writeable = False
    return made


class _Checks(NamedTuple):
    """Frames to be verified: which of the batch, their bytes and their digests."""

    places: list[int]
    frames: list[Any]
    digests: list[bytes]

    def add(self, place: int, single: Single, frame: Any) -> None:
        self.places.append(place)
        self.frames.append(frame)
        self.digests.append(single.digest)

    def wrong(self, rooms: Sequence[Any] | None) -> Iterator[int]:
        """Those of the batch that are not what they should be; they are copied to `rooms` first."""
        start = 0
        while start < len(self.places):
            wrong = BEST.check(
                FRAME_CONTEXT,
                self.frames[start:],
                None if rooms is None else rooms[start:],
                b"".join(self.digests[start:]),
            )
            if wrong < 0:
                return
            yield self.places[start + wrong]
            start += wrong + 1


class _Reader:
    """Reads members of one frame for one task."""

    def __init__(self, found: SmallTensors) -> None:
        self._found = found
        self._members = found.packs.members
        self._payloads: dict[int, memoryview] = {}

    def part(self, place: Place, single: Single) -> memoryview:
        """The bytes of a raw member, where they are mapped."""
        _, start, size = single.planes[0]
        part = self._payload(place[0])[start : start + size]
        if part.nbytes != single.size_bytes:
            raise CorruptError("a member lies beyond its pack")
        return part

    def decode(self, small: Small, single: Single, room: memoryview) -> None:
        shape = small.entry.shape
        row = small.size_bytes // shape[0] if len(shape) > 1 and shape[0] else 0
        self._decode(small.place, single, FrameShape(small.type, small.size_bytes, row), room)

    def _decode(self, place: Place, single: Single, about: FrameShape, room: memoryview) -> None:
        payload = self._payload(place[0])
        planes = [StoredPlane(codec, payload[at : at + size]) for codec, at, size in single.planes]
        bases = [self._base(base, about) for base in self._members.entries[place].bases]
        if single.params != about.params:
            about = about._replace(params=single.params)
        CODECS[single.codec].decode(planes, bases, about, room)

    def _base(self, place: Place, about: FrameShape) -> memoryview:
        single = self._found.singles.get(place)
        if single is None or single.size_bytes != about.size_bytes:
            raise CorruptError("a base is of another size, or of several frames")
        if single.codec == RAW:
            return self.part(place, single)
        if place in self._members.shared:
            (whole,) = self._members.base_frames(place, range(1), [about])
            return whole
        room = np.empty(single.size_bytes, np.uint8).data
        self._decode(place, single, about, room)
        return room

    def _payload(self, number: int) -> memoryview:
        known = self._payloads.get(number)
        if known is None:
            known = self._members.payload(number)
            if known is None:
                raise CorruptError("a pack is on this machine no more")
            self._payloads[number] = known
        return known


def _room(small: Small, wish: Wish) -> Any:
    """Memory for a tensor, as the array that is wanted or as bytes."""
    if not wish.plain:
        return np.empty(small.size_bytes, np.uint8)
    return np.empty(small.type.units_shape(small.entry.shape), small.type.units)


def _of_bytes(data: Buffer, small: Small, wish: Wish) -> Any:
    """Bytes that are not to be written as they are handed out."""
    found = np.frombuffer(
        memoryview(data).toreadonly(), small.type.units if wish.plain else np.uint8
    )
    return found.reshape(small.type.units_shape(small.entry.shape)) if wish.plain else found


def _of_value(small: Small, room: Any, wish: Wish) -> Any:
    if wish.mapped:
        return _of_bytes(small.value or b"", small, wish)
    room.reshape(-1).view(np.uint8)[...] = np.frombuffer(small.value or b"", np.uint8)
    return room


def _again(small: Small, found: SmallTensors, wish: Wish) -> Any:
    """A tensor by the way of large ones, which says what is wrong with it, if something is."""
    tensor = found.packs.tensor(small.entry, small.type)
    room = _room(small, wish)
    for fill in tensor.fills(None, room.reshape(-1).view(np.uint8).data, None):
        fill()
    return room

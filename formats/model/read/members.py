"""Decoding of frames from packs, through bases, local or remote.

A member names its bases, and the placement lists every one of them, so a read never looks
elsewhere. Frames that are asked for together are fetched together: their planes lie side by side.
What is decoded here is not verified; whoever has a frame's digest does that, and a frame that was
decoded from a wrong base is a wrong frame.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import cached_property
from typing import Final, TypeVar

import msgspec
import numpy as np

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.delta.plane_codec import StoredPlane
from tensorrepo.formats.model.delta.registry import CODECS, PLANES
from tensorrepo.formats.model.layout.fingerprints import frame_bytes, frame_digest
from tensorrepo.formats.model.layout.pack import (
    RAW,
    THIS_PACK,
    PackDirectory,
    PackMember,
    Plane,
    StoredFrame,
    decode_directory,
)
from tensorrepo.formats.model.layout.placement import MemberEntry, Placement
from tensorrepo.formats.native.thread_buffers import buffer_for
from tensorrepo.repo.errors import CorruptError, Error
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import (
    CheckedSpan,
    ObjectLink,
    ObjectSource,
    mending,
    read_spans,
)


def truncate(data: memoryview, element: TensorType, planes: int) -> None:
    """Set all but the `planes` most significant bytes of each number to 0."""
    size = PLANES.planes(element)
    if planes < size:
        np.frombuffer(data, np.uint8).reshape(-1, size)[:, : size - planes] = 0


CACHE_BYTES: Final = 64 << 20
DIRECTORY_BYTES: Final = 16 << 20
_BYTE: Final = np.dtype(np.uint8)
# A smaller frame is copied from the mapped pack: to open the file for it takes longer than that.
_READ_BYTES: Final = 256 << 10
MemberPlace = tuple[int, int]  # pack of the placement, member of the pack
K = TypeVar("K")
V = TypeVar("V")


class PlacedFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame of a tensor, its number there, and the member that it lies in.

    Frames before `group_stop` follow it in its group, or begin one: they can be read together.
    """

    index: int
    pack: ObjectLink
    place: MemberPlace
    codec: str
    frame: StoredFrame
    group_stop: int


def about_frame(element: TensorType, shape: tuple[int, ...], index: int) -> FrameShape:
    """What a codec is told of frame number `index` of a tensor."""
    size, whole = element.bytes_of(shape), frame_bytes(element)
    first = index * whole
    row = size // shape[0] if len(shape) > 1 and shape[0] else 0
    return FrameShape(element, min(whole, size - first), row, first)


class LazyDict(dict[K, V]):
    """A dict that makes what it lacks; two threads may make the same at once."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make

    def __missing__(self, key: K) -> V:
        value = self[key] = self._make(key)
        return value


MappedPacks = LazyDict[int, memoryview | None]


class MemberCache:
    """What readers of several placements may have in common, as models that are compared do.

    Attributes:
        directories: by pack, and by what a placement says of where they lie and how they hash.
        decoded: frames of bases, by pack, member and number, as they were decoded; and those of
            which parts were read, by their digests, which were verified.
    """

    def __init__(self, decoded_bytes: int = CACHE_BYTES) -> None:
        self.directories = LimitedCache[PackDirectory](DIRECTORY_BYTES)
        self.decoded = LimitedCache[memoryview](decoded_bytes)


class MemberReader:
    """The members of one placement. Directories are read once each; thread-safe."""

    def __init__(
        self,
        objects: ObjectSource,
        placement: Placement,
        links: Mapping[Digest, ObjectLink],
        cache: MemberCache | None = None,
    ) -> None:
        self.objects = objects
        self.packs = placement.packs
        self._links = [links[digest] for digest in placement.links()]
        self._numbers = {entry.pack: number for number, entry in enumerate(placement.packs)}
        self.entries: dict[MemberPlace, MemberEntry] = {
            member.place: member for tensor in placement.tensors for member in tensor.members
        } | {member.place: member for member in placement.bases}
        self._directories = LazyDict(self._read_directory)
        self._members = LazyDict(self._find_member)
        # Packs on this machine, by number: nothing is gained by fetching frames together.
        self.local = LazyDict[int, bool](lambda number: self.mapped_pack(number) is not None)
        self._cache = MemberCache() if cache is None else cache
        self._kept: dict[tuple[Digest, int], Buffer] = {}

    def member(self, place: MemberPlace) -> PackMember:
        """One member, as its pack's directory describes it.

        Raises:
            CorruptError: the directory and the placement contradict each other.
            UnsupportedError: stored by a codec that this version does not know.
        """
        return self._members[place]

    def _find_member(self, place: MemberPlace) -> PackMember:
        member = self.directory(place[0]).member(place[1])
        self._check(place, member)
        return member

    def directory(self, number: int) -> PackDirectory:
        """The directory of pack number `number` of the placement."""
        return self._directories[number]

    def _read_directory(self, number: int) -> PackDirectory:
        entry, link = self.packs[number], self._links[number]
        start, stop = entry.directory_start, entry.directory_start + entry.directory_bytes

        def load() -> tuple[PackDirectory, int]:
            data = self.objects.read_checked(link, start, stop, entry.tag)
            return decode_directory(data, start, f"pack {link.digest:.12}"), len(data)

        return self._cache.directories.get_or_load(entry, load)

    def mapped_pack(self, number: int) -> memoryview | None:
        """The pack of that number as it lies on this machine; None for one from afar."""
        return self.objects.map(self._links[number])

    def mapped_packs(self) -> MappedPacks:
        """Packs as `mapped_pack` gives them, each asked for once: for one task, no longer."""
        return LazyDict(self.mapped_pack)

    def prepare(self, places: Iterable[MemberPlace], pool: Executor) -> None:
        """Look members and all their bases up, thousands in few steps.

        Directories from afar are read side by side. Nothing is raised here: `member` says what is
        wrong with one, and its caller knows the tensor's name.
        """
        pending = set(places) - self._members.keys()
        with suppress(Error):
            if not all(self.local[number] for number in range(len(self._links))):
                numbers = {number for number, _ in self.with_bases(pending)}
                unread = sorted(numbers - self._directories.keys())
                list(pool.map(self._try_directory, unread))
        asked: set[MemberPlace] = set()
        while pending:
            asked |= pending
            by_pack: dict[int, list[int]] = {}
            for number, index in sorted(pending):
                by_pack.setdefault(number, []).append(index)
            for number, indices in by_pack.items():
                with suppress(Error):
                    directory = self.directory(number)
                    for index, member in directory.single_frame_members(indices).items():
                        self._check((number, index), member)
                        self._members[number, index] = member
            pending = {
                base for place in pending if place in self._members
                for base in self.entries[place].bases
            } - asked - self._members.keys()  # fmt: skip

    def look_up(self, places: Iterable[MemberPlace]) -> None:
        """As `prepare`, one by one: for few members, of many frames each."""
        with suppress(Error):
            for place in self.with_bases(places):
                self.member(place)

    def _try_directory(self, number: int) -> None:
        with suppress(Error):
            self.directory(number)

    @cached_property
    def shared(self) -> frozenset[MemberPlace]:
        """Members that several others are encoded against: those are worth keeping decoded."""
        named = Counter(base for entry in self.entries.values() for base in entry.bases)
        return frozenset(place for place, times in named.items() if times > 1)

    def with_bases(self, places: Iterable[MemberPlace]) -> set[MemberPlace]:
        """Members, and all that a read of them needs."""
        found: set[MemberPlace] = set()
        pending = list(places)
        while pending:
            place = pending.pop()
            if place not in found:
                found.add(place)
                pending += self.entries[place].bases
        return found

    def keep(self, places: Iterable[MemberPlace]) -> None:
        """Fetch all that a read of members needs, in few requests, for the reads that follow.

        What of it is not used stays until `forget`.
        """
        by_pack: dict[int, list[Plane]] = {}
        for number, at in sorted(self.with_bases(places)):
            if self.local[number]:
                continue
            frames = self.member((number, at)).frames
            by_pack.setdefault(number, []).extend(plane for one in frames for plane in one.planes)
        for number, planes in by_pack.items():
            link = self._links[number]
            for plane, data in zip(planes, self._read(link, planes), strict=True):
                self._kept[link.digest, plane.offset] = data

    def forget(self) -> None:
        """Let go of what `keep` fetched. Reads that go on ask for it themselves."""
        self._kept.clear()

    def proved(self, digest: bytes) -> memoryview | None:
        """A whole frame of that digest, which was verified before, if it is still there."""
        return self._cache.decoded.get(digest)

    def keep_proved(self, digest: bytes, frame: memoryview) -> None:
        """Keep a whole frame that was verified, for reads of other parts of it."""
        self._cache.decoded.put(digest, frame.toreadonly(), frame.nbytes)

    def placed(self, place: MemberPlace) -> tuple[PlacedFrame, ...]:
        """The frames of a member."""
        member = self._members[place]
        first, pack, codec = member.first_frame, self._links[place[0]], member.codec
        if len(member.frames) == 1:
            return (PlacedFrame(first, pack, place, codec, member.frames[0], first + 1),)
        return tuple(
            [
                PlacedFrame(first + at, pack, place, codec, frame, first + member.group_stop(at))
                for at, frame in enumerate(member.frames)
            ]
        )

    def frames_into(
        self,
        place: MemberPlace,
        frames: range,
        about: Sequence[FrameShape],
        rooms: Sequence[memoryview],
        *,
        once: bool = False,
        use: str = "base",
    ) -> None:
        """Decode consecutive frames of one member, each into a room exactly as large as it is.

        Nothing is verified but what is on disk. `once` says that the caller reads whole tensors:
        then decoded frames of a base are kept only where several members need them, and else lie in
        memory of the thread; `use` says in which.
        """
        member = self.member(place)
        found = self._inside(place, member, frames, [room.nbytes for room in rooms])
        link = self._links[place[0]]
        large = rooms[0].nbytes >= _READ_BYTES
        if member.codec == RAW and large and self.objects.map(link) is not None:
            for frame, room in zip(found, rooms, strict=True):
                self.objects.read_into(link, frame.planes[0].offset, room)
            return
        stored = self._fetch(link, [plane for frame in found for plane in frame.planes])
        if member.codec == RAW:
            for (_, data), room in zip(stored, rooms, strict=True):
                room[:] = data
            return
        per_frame = len(found[0].planes)
        codec = CODECS[member.codec]
        theirs = [codec.base_shape(one) for one in about] if codec.base_type else about
        bases = [
            self.base_frames(base, frames, theirs, once=once, use=f"{use} {at}")
            for at, base in enumerate(self.entries[place].bases)
        ]
        for at, room in enumerate(rooms):
            codec.decode(
                stored[at * per_frame : (at + 1) * per_frame],
                [base[at] for base in bases],
                about[at]._replace(params=member.params),
                room,
            )

    def frame_into(
        self,
        place: MemberPlace,
        index: int,
        about: FrameShape,
        room: memoryview,
        packs: MappedPacks,
        use: str = "base",
    ) -> None:
        """Decode one frame of a member and of its bases, without runs and lists of them.

        What `frames_into` does with `once`, in a third of the Python: what a frame leaves in a
        processor's caches is no code of ours. `packs` is `mapped_packs` of the task.
        """
        member, pack = self._members[place], packs[place[0]]
        frame = _frame_of(member, index, room.nbytes)
        if pack is None or frame is None or member.codec == RAW:
            frames = range(index, index + 1)
            self.frames_into(place, frames, [about], [room], once=True, use=use)
            return
        planes = [
            StoredPlane(plane.codec, pack[plane.offset : plane.offset + plane.size_bytes])
            for plane in frame.planes
        ]
        codec, bases = CODECS[member.codec], []
        if codec.bases:
            theirs = codec.base_shape(about)
            bases = [
                self._base_frame(base, index, theirs, packs, f"{use} {at}")
                for at, base in enumerate(self.entries[place].bases)
            ]
        if member.params != about.params:
            about = about._replace(params=member.params)
        codec.decode(planes, bases, about, room)

    def _base_frame(
        self, place: MemberPlace, index: int, about: FrameShape, packs: MappedPacks, use: str
    ) -> memoryview:
        member = self._members[place]
        if member.codec != RAW and place not in self.shared:
            room = buffer_for(use, about.size_bytes, _BYTE).data
            self.frame_into(place, index, about, room, packs, use)
            return room
        frame, pack = _frame_of(member, index, about.size_bytes), packs[place[0]]
        if member.codec == RAW and pack is not None and frame is not None:
            start = frame.planes[0].offset
            data = pack[start : start + frame.size_bytes]
            if data.nbytes == frame.size_bytes:
                return data
        return self.base_frames(place, range(index, index + 1), [about], once=True, use=use)[0]

    def truncated_into(
        self,
        place: MemberPlace,
        frames: range,
        about: Sequence[FrameShape],
        rooms: Sequence[memoryview],
        planes: int,
    ) -> None:
        """As `frames_into` with only the `planes` most significant bytes of each number.

        Of members of codec `planes` only those are read, verified by their tags. Others are decoded
        whole and verified, and cut short then.
        """
        member = self.member(place)
        found = self._inside(place, member, frames, [room.nbytes for room in rooms])
        read = max(planes, 2)  # the first plane of a float has no sign, the second one has
        if member.codec == PLANES.name and read < len(found[0].planes):
            taken = [plane for frame in found for plane in frame.planes[:read]]
            stored = self._fetch(self._links[place[0]], taken, verify=True)
            for at, room in enumerate(rooms):
                PLANES.truncated(stored[at * read : (at + 1) * read], about[at], room)
                truncate(room, about[at].element, planes)
            return
        self.frames_into(place, frames, about, rooms)
        self._check_digests(frames, found, rooms)
        for room in rooms:
            truncate(room, about[0].element, planes)

    def refine_into(
        self,
        place: MemberPlace,
        frames: range,
        about: Sequence[FrameShape],
        rooms: Sequence[memoryview],
        *,
        known: int,
        planes: int,
    ) -> tuple[int, int]:
        """Bring frames of which the first `known` planes are in `rooms` to the first `planes`.

        Of a member of codec `planes` only what is new is read, verified by its tags, and the frame
        by its digest once it is whole. Others are decoded whole, and verified, at once.

        Returns:
            Planes that are in `rooms` now, and stored bytes that were read, those of bases aside.
        """
        member = self.member(place)
        found = self._inside(place, member, frames, [room.nbytes for room in rooms])
        size = PLANES.planes(about[0].element)
        stop = min(max(planes, 2), size)
        if member.codec != PLANES.name:
            self.frames_into(place, frames, about, rooms)
            self._check_digests(frames, found, rooms)
            return size, sum(plane.size_bytes for frame in found for plane in frame.planes)
        taken = [plane for frame in found for plane in frame.planes[known:stop]]
        stored = self._fetch(self._links[place[0]], taken, verify=True)
        step = stop - known
        for at, room in enumerate(rooms):
            some = stored[at * step : (at + 1) * step]
            if known:
                PLANES.add(some, known, about[at], room)
            else:
                PLANES.truncated(some, about[at], room)
        if stop == size:
            self._check_digests(frames, found, rooms)
        return stop, sum(plane.size_bytes for plane in taken)

    def _check_digests(
        self, frames: range, found: Sequence[StoredFrame], rooms: Sequence[memoryview]
    ) -> None:
        for index, frame, room in zip(frames, found, rooms, strict=True):
            if frame_digest(room) != frame.digest:
                raise CorruptError(f"frame {index} differs from its digest")

    def blame_base(self, placed: PlacedFrame, about: FrameShape, name: str) -> None:
        """Say which base of a frame that came out wrong is damaged, if one is.

        Raises:
            CorruptError: names the tensor `name` and the base's pack.
        """
        codec = CODECS.get(placed.codec)
        about = about if codec is None else codec.base_shape(about)
        for base in self.entries[placed.place].bases:
            member = self.member(base)
            frame = member.frames[placed.index - member.first_frame]
            room = np.empty(about.size_bytes, np.uint8).data
            is_whole = False
            with suppress(CorruptError):  # what is damaged need not decode
                self.frames_into(base, range(placed.index, placed.index + 1), [about], [room])
                is_whole = frame_digest(room) == frame.digest
            if not is_whole:
                link = self._links[base[0]]
                whole = PlacedFrame(placed.index, link, base, member.codec, frame, 0)
                self.blame_base(whole, about, name)
                raise CorruptError(
                    f"tensor {name!r}, frame {placed.index}: its base, member {base[1]} of pack "
                    f"{link.digest:.12}, is damaged. {mending(self.objects, link.digest)}."
                )

    def frame_or_mapped(
        self, place: MemberPlace, index: int, about: FrameShape, room: memoryview
    ) -> memoryview:
        """One frame of a member that is to be a base: mapped where it can be, else in `room`."""
        packs = self.mapped_packs()
        if self.member(place).codec == RAW and packs[place[0]] is not None:
            return self._base_frame(place, index, about, packs, "base")
        self.frame_into(place, index, about, room, packs)
        return room

    def base_frames(
        self,
        place: MemberPlace,
        frames: range,
        about: Sequence[FrameShape],
        *,
        once: bool = False,
        use: str = "base",
    ) -> list[memoryview]:
        """Frames of a base: mapped where that is possible, else from the cache, else decoded.

        With `once` a single one lies in memory of the thread, which `use` names.
        """
        member = self.member(place)
        mapped = self.objects.map(self._links[place[0]]) if member.codec == RAW else None
        sizes = [one.size_bytes for one in about]
        if mapped is not None:
            inside = self._inside(place, member, frames, sizes)
            starts = [frame.planes[0].offset for frame in inside]
            parts = [mapped[at : at + size] for at, size in zip(starts, sizes, strict=True)]
            if [part.nbytes for part in parts] != sizes:
                raise CorruptError(f"a base lies beyond pack {self._links[place[0]].digest:.12}")
            return parts
        pack, decoded = self.packs[place[0]].pack, self._cache.decoded
        keys = [(pack, place[1], index) for index in frames]
        if once and place not in self.shared:
            keys = []
        cached = [frame for key in keys if (frame := decoded.get(key)) is not None]
        if len(cached) == len(frames):
            return cached
        if keys or len(sizes) > 1:
            rooms = [np.empty(size, np.uint8).data for size in sizes]
        else:
            rooms = [buffer_for(use, size, _BYTE).data for size in sizes]
        self.frames_into(place, frames, about, rooms, once=once, use=use)
        for key, room in zip(keys, rooms, strict=bool(keys)):
            decoded.put(key, room, room.nbytes)
        return rooms

    def _fetch(
        self,
        link: ObjectLink,
        planes: Sequence[Plane],
        *,
        verify: bool = False,
    ) -> list[StoredPlane]:
        """The stored bytes of planes, which lie side by side or nearly so.

        From afar they are verified before they enter a cache. From a local disk only with `verify`.
        """
        mapped = self.objects.map(link)
        if mapped is None:
            kept = [self._kept.pop((link.digest, plane.offset), None) for plane in planes]
            whole = [data for data in kept if data is not None]
            read = whole if len(whole) == len(planes) else self._read(link, planes)
            return [StoredPlane(one.codec, data) for one, data in zip(planes, read, strict=True)]
        local = [mapped[one.offset : one.offset + one.size_bytes] for one in planes]
        if verify:
            for plane, data in zip(planes, local, strict=True):
                if content_tag(data) != plane.tag:
                    raise CorruptError(
                        f"pack {link.digest:.12}, payload byte {plane.offset}: a plane differs "
                        f"from its tag. {mending(self.objects, link.digest)}."
                    )
        return [StoredPlane(one.codec, data) for one, data in zip(planes, local, strict=True)]

    def _read(self, link: ObjectLink, planes: Sequence[Plane]) -> list[Buffer]:
        """The stored bytes of planes from afar, verified by their tags."""
        spans = [CheckedSpan(one.offset, one.offset + one.size_bytes, one.tag) for one in planes]
        return read_spans(self.objects, link, spans)

    def _inside(
        self, place: MemberPlace, member: PackMember, frames: range, sizes: Sequence[int]
    ) -> tuple[StoredFrame, ...]:
        """The frames asked for, which must be there and of the sizes expected."""
        first = frames.start - member.first_frame
        found = member.frames[first : first + len(frames)] if first >= 0 else ()
        if [frame.size_bytes for frame in found] != list(sizes):
            raise CorruptError(
                f"member {place[1]} of pack {self._links[place[0]].digest:.12} does not hold "
                f"frames {frames.start} to {frames.stop} of the tensor that it is a base of"
            )
        return found

    def _check(self, place: MemberPlace, member: PackMember) -> None:
        """Whether a member is what the placement says of it."""
        entry = self.entries[place]
        bases: tuple[MemberPlace, ...] = ()
        if member.bases:
            bases = tuple(
                [
                    (place[0] if base.pack == THIS_PACK else self._numbers.get(base.pack, -1),
                     base.member)
                    for base in member.bases
                ]
            )  # fmt: skip
        stored = member.codec, member.depth, member.stored_bytes, bases
        expected = entry.codec, entry.depth, entry.stored_bytes, entry.bases
        if stored != expected:
            raise CorruptError(
                f"member {place[1]} of pack {self.packs[place[0]].pack.hex():.12}: the placement "
                f"says {expected}, the pack {stored}"
            )
        codec = CODECS.get(member.codec)
        if codec is not None and codec.bases != len(bases):
            raise CorruptError(
                f"member {place[1]} of pack {self.packs[place[0]].pack.hex():.12}: codec "
                f"{member.codec} needs {codec.bases} bases, found {len(bases)}"
            )


def _frame_of(member: PackMember, index: int, size_bytes: int) -> StoredFrame | None:
    """Frame number `index` of the tensor; None where the member has none, or of another size."""
    at = index - member.first_frame
    if not 0 <= at < len(member.frames):
        return None
    frame = member.frames[at]
    return frame if frame.size_bytes == size_bytes else None

"""How are the frames of a member decoded, through however many bases?

A member names its bases, and the placement lists every one of them, so a read never looks
elsewhere. Frames that are asked for together are fetched together: their planes lie side by side.
What is decoded here is not verified; whoever has a frame's digest does that, and a frame that was
decoded from a wrong base is a wrong frame.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.codecs.framecodec import FrameShape
from tensorrepo.formats.model.codecs.planecodec import StoredPlane
from tensorrepo.formats.model.codecs.registry import CODECS, PLANES
from tensorrepo.formats.model.frames import frame_bytes, frame_digest
from tensorrepo.formats.model.pack import (
    RAW,
    THIS_PACK,
    Directory,
    Frame,
    Member,
    Plane,
    Single,
    decode_directory,
)
from tensorrepo.formats.model.truncate import truncate
from tensorrepo.repo.errors import CorruptError, Error
from tensorrepo.repo.ids import content_tag
from tensorrepo.repo.ranges import Span, read_spans

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tensorrepo.formats.model.placement import MemberEntry, Placement
    from tensorrepo.formats.tensors import TensorType
    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import Link, ObjectSource

CACHE_BYTES: Final = 64 << 20
# A smaller frame is copied from the mapped pack: to open the file for it takes longer than that.
_READ_BYTES: Final = 256 << 10
Place = tuple[int, int]  # pack of the placement, member of the pack


@dataclass(frozen=True, slots=True)
class PlacedFrame:
    """One frame of a tensor, its number there, and the member that it lies in.

    Frames before `group_stop` follow it in its group, or begin one: they can be read together.
    """

    index: int
    pack: Link
    place: Place
    codec: str
    frame: Frame
    group_stop: int


def about_frame(element: TensorType, shape: tuple[int, ...], index: int) -> FrameShape:
    """What a codec is told of frame number `index` of a tensor."""
    size, whole = element.bytes_of(shape), frame_bytes(element)
    first = index * whole
    row = size // shape[0] if len(shape) > 1 and shape[0] else 0
    return FrameShape(element, min(whole, size - first), row, first)


class MemberReader:
    """The members of one placement. Directories are read once each; thread-safe."""

    def __init__(
        self,
        objects: ObjectSource,
        placement: Placement,
        links: Mapping[Digest, Link],
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.objects = objects
        self.packs = placement.packs
        self._links = [links[digest] for digest in placement.links()]
        self._numbers = {entry.pack: number for number, entry in enumerate(placement.packs)}
        self.entries: dict[Place, MemberEntry] = {
            member.place: member for tensor in placement.tensors for member in tensor.members
        } | {member.place: member for member in placement.bases}
        # Two threads may read the same directory at once: both find the same.
        self._directories: dict[int, Directory] = {}
        self._members: dict[Place, Member] = {}
        self._decoded = _FrameCache(cache_bytes)
        self._kept: dict[tuple[Digest, int], Buffer] = {}

    def member(self, place: Place) -> Member:
        """One member, as its pack's directory describes it.

        Raises:
            CorruptError: the directory and the placement contradict each other.
            UnsupportedError: stored by a codec that this version does not know.
        """
        known = self._members.get(place)
        if known is None:
            known = self.directory(place[0]).member(place[1])
            self._check(place, known)
            self._members[place] = known
        return known

    def directory(self, number: int) -> Directory:
        """The directory of pack number `number` of the placement."""
        known = self._directories.get(number)
        if known is None:
            entry, link = self.packs[number], self._links[number]
            start, stop = entry.directory_start, entry.directory_start + entry.directory_bytes
            data = self.objects.read_checked(link, start, stop, entry.tag)
            known = decode_directory(data, start, f"pack {link.digest:.12}")
            self._directories[number] = known
        return known

    def singles(self, places: Iterable[Place]) -> dict[Place, Single | None]:
        """Members of one frame in packs on this machine, and all their bases, in few steps.

        None for one that is not, or where something is wrong: `member` says what.
        """
        found: dict[Place, Single | None] = {}
        pending = set(places)
        while pending:
            by_pack: dict[int, list[int]] = {}
            for number, at in sorted(pending):
                by_pack.setdefault(number, []).append(at)
            for number, members in by_pack.items():
                for at, single in zip(members, self._singles(number, members), strict=True):
                    place = number, at
                    found[place] = single if single and self._fits(place, single) else None
            needed = (self.entries[place].bases for place in pending if found[place] is not None)
            pending = {base for bases in needed for base in bases} - found.keys()
        return found

    def _singles(self, number: int, members: list[int]) -> Sequence[Single | None]:
        try:
            if self.payload(number) is not None:
                return self.directory(number).singles(members)
        except Error:
            pass  # said by whoever asks for one of them alone, who knows the tensor's name
        return [None] * len(members)

    def _fits(self, place: Place, found: Single) -> bool:
        """As `_check`."""
        entry = self.entries[place]
        if (
            found.codec != entry.codec
            or found.depth != entry.depth
            or found.stored_bytes != entry.stored_bytes
            or len(found.bases) != len(entry.bases)
        ):
            return False
        if not found.bases:
            return found.codec == RAW or not CODECS[found.codec].bases
        if CODECS[found.codec].bases != len(found.bases):
            return False
        numbers, own = self._numbers, place[0]
        return all(
            (own if base.pack == THIS_PACK else numbers.get(base.pack, -1)) == expected[0]
            and base.member == expected[1]
            for base, expected in zip(found.bases, entry.bases, strict=True)
        )

    @cached_property
    def shared(self) -> frozenset[Place]:
        """Members that several others are encoded against: those are worth keeping decoded."""
        named = Counter(base for entry in self.entries.values() for base in entry.bases)
        return frozenset(place for place, times in named.items() if times > 1)

    def payload(self, number: int) -> memoryview | None:
        """The payload of pack number `number`, where it lies on this machine."""
        return self.objects.map(self._links[number])

    def with_bases(self, places: Iterable[Place]) -> set[Place]:
        """Members, and all that a read of them needs."""
        found: set[Place] = set()
        pending = list(places)
        while pending:
            place = pending.pop()
            if place not in found:
                found.add(place)
                pending += self.entries[place].bases
        return found

    def keep(self, places: Iterable[Place]) -> None:
        """Fetch all that a read of members needs, in few requests, for the reads that follow.

        What of it is not used stays until `forget`.
        """
        by_pack: dict[int, list[Plane]] = {}
        for number, at in sorted(self.with_bases(places)):
            if self.objects.map(self._links[number]) is not None:
                continue  # nothing is gained on a local disk
            frames = self.member((number, at)).frames
            by_pack.setdefault(number, []).extend(plane for one in frames for plane in one.planes)
        for number, planes in by_pack.items():
            link = self._links[number]
            for plane, data in zip(planes, self._read(link, planes), strict=True):
                self._kept[link.digest, plane.offset] = data

    def forget(self) -> None:
        """Let go of what `keep` fetched. Reads that go on ask for it themselves."""
        self._kept.clear()

    def placed(self, place: Place) -> tuple[PlacedFrame, ...]:
        """The frames of a member."""
        member = self.member(place)
        first, pack = member.first_frame, self._links[place[0]]
        return tuple(
            PlacedFrame(first + at, pack, place, member.codec, frame, first + member.group(at).stop)
            for at, frame in enumerate(member.frames)
        )

    def is_local(self, placed: PlacedFrame) -> bool:
        """Whether its pack lies on this machine: nothing is gained by fetching frames together."""
        return self.objects.map(placed.pack) is not None

    def frames_into(
        self,
        place: Place,
        frames: range,
        about: Sequence[FrameShape],
        rooms: Sequence[memoryview],
    ) -> None:
        """Decode consecutive frames of one member. Nothing is verified but what is on disk.

        Args:
            place: the member.
            frames: their numbers in the tensor.
            about: what is known of each.
            rooms: memory for each, exactly as large as it is.
        """
        member = self.member(place)
        found = self._inside(place, member, frames, rooms)
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
        bases = [self.base_frames(base, frames, about) for base in self.entries[place].bases]
        codec = CODECS[member.codec]
        for at, room in enumerate(rooms):
            codec.decode(
                stored[at * per_frame : (at + 1) * per_frame],
                [base[at] for base in bases],
                about[at]._replace(params=member.params),
                room,
            )

    def truncated_into(
        self,
        place: Place,
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
        found = self._inside(place, member, frames, rooms)
        read = max(planes, 2)  # the first plane of a float has no sign, the second one has
        if member.codec == PLANES.name and read < len(found[0].planes):
            taken = [plane for frame in found for plane in frame.planes[:read]]
            stored = self._fetch(self._links[place[0]], taken, verify=True)
            for at, room in enumerate(rooms):
                PLANES.truncated(stored[at * read : (at + 1) * read], about[at], room)
                truncate(room, about[at].element, planes)
            return
        self.frames_into(place, frames, about, rooms)
        for index, frame, room in zip(frames, found, rooms, strict=True):
            if frame_digest(room) != frame.digest:
                raise CorruptError(f"frame {index} differs from its digest")
            truncate(room, about[0].element, planes)

    def blame_base(self, placed: PlacedFrame, about: FrameShape, name: str) -> None:
        """Say which base of a frame that came out wrong is damaged, if one is.

        Raises:
            CorruptError: names the tensor `name` and the base's pack.
        """
        for base in self.entries[placed.place].bases:
            member = self.member(base)
            frame = member.frames[placed.index - member.first_frame]
            room = np.empty(about.size_bytes, np.uint8).data
            self.frames_into(base, range(placed.index, placed.index + 1), [about], [room])
            if frame_digest(room) != frame.digest:
                link = self._links[base[0]]
                whole = PlacedFrame(placed.index, link, base, member.codec, frame, 0)
                self.blame_base(whole, about, name)
                raise CorruptError(
                    f"tensor {name!r}, frame {placed.index}: its base, member {base[1]} of pack "
                    f"{link.digest:.12}, is damaged. Run `tensorrepo doctor`; restore that pack "
                    "from a copy of the repository."
                )

    def base_frames(
        self, place: Place, frames: range, about: Sequence[FrameShape]
    ) -> list[memoryview]:
        """Frames of a base: mapped where that is possible, else from the cache, else decoded."""
        member = self.member(place)
        mapped = self.objects.map(self._links[place[0]]) if member.codec == RAW else None
        sizes = [one.size_bytes for one in about]
        if mapped is not None:
            inside = self._inside_sizes(place, member, frames, sizes)
            starts = [frame.planes[0].offset for frame in inside]
            parts = [mapped[at : at + size] for at, size in zip(starts, sizes, strict=True)]
            if [part.nbytes for part in parts] != sizes:
                raise CorruptError(f"a base lies beyond pack {self._links[place[0]].digest:.12}")
            return parts
        keys = [(*place, index) for index in frames]
        kept = [self._decoded.get(key) for key in keys]
        if all(one is not None for one in kept):
            return [one for one in kept if one is not None]
        rooms = [np.empty(size, np.uint8).data for size in sizes]
        self.frames_into(place, frames, about, rooms)
        for key, room in zip(keys, rooms, strict=True):
            self._decoded.put(key, room)
        return rooms

    def _fetch(
        self,
        link: Link,
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
            return [StoredPlane(plane[2], data) for plane, data in zip(planes, read, strict=True)]
        local = [mapped[offset : offset + size] for offset, size, *_ in planes]
        if verify:
            for (offset, _, _, _, tag), data in zip(planes, local, strict=True):
                if content_tag(data) != tag:
                    raise CorruptError(
                        f"pack {link.digest:.12}, payload byte {offset}: a plane differs from its "
                        "tag. Run `tensorrepo doctor`; restore the pack from a copy of the "
                        "repository."
                    )
        return [StoredPlane(plane[2], data) for plane, data in zip(planes, local, strict=True)]

    def _read(self, link: Link, planes: Sequence[Plane]) -> list[Buffer]:
        """The stored bytes of planes from afar, verified by their tags."""
        spans = [Span(offset, offset + size, tag) for offset, size, _, _, tag in planes]
        return read_spans(self.objects, link, spans)

    def _inside(
        self, place: Place, member: Member, frames: range, rooms: Sequence[memoryview]
    ) -> tuple[Frame, ...]:
        return self._inside_sizes(place, member, frames, [room.nbytes for room in rooms])

    def _inside_sizes(
        self, place: Place, member: Member, frames: range, sizes: Sequence[int]
    ) -> tuple[Frame, ...]:
        """The frames asked for, which must be there and of the sizes expected."""
        first = frames.start - member.first_frame
        found = member.frames[first : first + len(frames)] if first >= 0 else ()
        if [frame.size_bytes for frame in found] != list(sizes):
            raise CorruptError(
                f"member {place[1]} of pack {self._links[place[0]].digest:.12} does not hold "
                f"frames {frames.start} to {frames.stop} of the tensor that it is a base of"
            )
        return found

    def _check(self, place: Place, member: Member) -> None:
        """Whether a member is what the placement says of it."""
        entry = self.entries[place]
        pack = self.packs[place[0]].pack
        bases = tuple(
            (place[0] if base.pack == THIS_PACK else self._numbers.get(base.pack, -1), base.member)
            for base in member.bases
        )
        found = member.codec, member.depth, member.stored_bytes, bases
        expected = entry.codec, entry.depth, entry.stored_bytes, entry.bases
        if found != expected:
            raise CorruptError(
                f"member {place[1]} of pack {pack.hex():.12}: the placement says {expected}, the "
                f"pack {found}"
            )
        codec = CODECS.get(member.codec)
        if codec is not None and codec.bases != len(bases):
            raise CorruptError(
                f"member {place[1]} of pack {pack.hex():.12}: codec {member.codec} needs "
                f"{codec.bases} bases, found {len(bases)}"
            )


class _FrameCache:
    """The decoded frames used last, within a limit of bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._frames: OrderedDict[tuple[int, int, int], memoryview] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[int, int, int]) -> memoryview | None:
        with self._lock:
            found = self._frames.get(key)
            if found is not None:
                self._frames.move_to_end(key)
            return found

    def put(self, key: tuple[int, int, int], frame: memoryview) -> None:
        with self._lock:
            if key in self._frames:
                return
            self._frames[key] = frame
            self._bytes += frame.nbytes
            while self._bytes > self._limit_bytes:
                self._bytes -= self._frames.popitem(last=False)[1].nbytes

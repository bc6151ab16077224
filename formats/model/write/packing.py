"""Packing of encoded frames into packs, and the places of those that are stored already.

A packer collects the planes of members, in the order in which they will lie, until the next member
would make the pack too large; then it hands all parts to `emit`, which stores them. Nothing is
copied but what is small.

A large tensor whose fingerprint is known is never stored again (codec `same`), however it is
encoded: its bases come along. A small one would keep a whole foreign pack alive for a few bytes: it
is reused only from packs that the model needs anyway, or uses half of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.model.delta.plane_codec import StoredPlane
from tensorrepo.formats.model.layout.fingerprints import Fingerprint
from tensorrepo.formats.model.layout.pack import (
    LARGE_ALIGNMENT,
    NUMBERS,
    RAW,
    SMALL_ALIGNMENT,
    THIS_PACK,
    DirectoryTables,
    MemberRef,
    MemberRow,
    align,
    encode_footer,
    plane_order,
)
from tensorrepo.formats.model.layout.placement import (
    ChosenBase,
    MemberEntry,
    PackEntry,
    Placement,
    StoredTensor,
)
from tensorrepo.repo.hashing.digests import content_tag, content_tags
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectSink

PACK_BYTES: Final = 64 << 20
_JOINED_BELOW: Final = 64 << 10  # smaller parts are copied together


class SealedPlane(msgspec.Struct, frozen=True, gc=False):
    """A plane to be stored, and what will prove it.

    The garbage collector looks at neither planes nor frames: a pack has thousands.
    """

    stored: StoredPlane
    size_bytes: int
    xxh3: int
    tag: bytes


class SealedFrame(msgspec.Struct, frozen=True, gc=False):
    """An encoded frame: its decoded bytes, their digest, and its planes."""

    size_bytes: int
    digest: bytes
    planes: tuple[SealedPlane, ...]

    @property
    def stored_bytes(self) -> int:
        return sum([plane.size_bytes for plane in self.planes])


def seal(size_bytes: int, digest: bytes, planes: Sequence[StoredPlane]) -> SealedFrame:
    """What a pack says of an encoded frame. Hashes; call it beside other work."""
    return SealedFrame(size_bytes, digest, tuple(_sealed(planes)))


def seal_together(
    size_bytes: int, digests: Sequence[bytes], planes: Sequence[Sequence[StoredPlane]]
) -> list[SealedFrame]:
    """`seal` for frames of one size."""
    sealed = iter(_sealed([one for own in planes for one in own]))
    return [
        SealedFrame(size_bytes, digest, tuple(islice(sealed, len(own))))
        for digest, own in zip(digests, planes, strict=True)
    ]


def _sealed(planes: Sequence[StoredPlane]) -> list[SealedPlane]:
    stored = [plane.data for plane in planes]
    return [
        SealedPlane(plane, memoryview(data).nbytes, xxh3_64_intdigest(data), tag)
        for plane, data, tag in zip(planes, stored, content_tags(stored), strict=True)
    ]


class MemberDraft(NamedTuple):
    """A member to be packed. `bases` lie in known packs, or were packed before it."""

    first_frame: int
    frames: tuple[SealedFrame, ...]
    stored_bytes: int
    codec: str = RAW
    bases: tuple[Location | PackSlot, ...] = ()
    params: bytes = b""
    signature: NDArray[np.uint16] | None = None

    @property
    def depth(self) -> int:
        return 1 + max([base.depth for base in self.bases]) if self.bases else 0


class OpenPack:
    """A pack being filled, or on its way."""

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.used = 0
        self._tail = bytearray()
        self._tables = DirectoryTables()
        self._bases: list[MemberRef | PackSlot] = []
        self._emitted: tuple[Future[Digest], int, int, bytes] | None = None
        self._entry: PackEntry | None = None

    @property
    def members(self) -> int:
        return self._tables.members

    def add(self, draft: MemberDraft) -> None:
        """Put a member's planes behind what is there."""
        frames, stored_bytes, bases = draft.frames, draft.stored_bytes, draft.bases
        unit = align(self.used, stored_bytes if draft.codec == RAW else 0)
        if unit > self.used:
            self._append(bytes(unit - self.used))
        first, last = frames[0], frames[-1]
        row = MemberRow(
            self.used,
            stored_bytes,
            draft.first_frame,
            len(frames),
            first.size_bytes,
            last.size_bytes,
            NUMBERS[draft.codec],
            len(first.planes),
            draft.depth,
            len(bases),
            len(draft.params),
        )
        self._put_frames(frames)
        self._tables.add_member(row, draft.params, draft.signature)
        for base in bases:
            self._bases.append(self._base(base))

    def _put_frames(self, frames: Sequence[SealedFrame]) -> None:
        tables = self._tables
        if len(frames) == 1:
            tables.add_frame(frames[0].digest)
            for plane in frames[0].planes:
                tables.add_plane(*self._put(plane))
            return
        per_frame = len(frames[0].planes)
        rows = {
            (frame, plane): self._put(frames[frame].planes[plane])
            for frame, plane in plane_order(len(frames), per_frame)
        }
        for at, frame in enumerate(frames):
            tables.add_frame(frame.digest)
            for plane_at in range(per_frame):
                tables.add_plane(*rows[at, plane_at])

    def _put(self, sealed: SealedPlane) -> tuple[int, int, int, int, bytes]:
        """Put a plane behind what is there; its row in the directory."""
        stored, offset = sealed.stored, self.used
        self._append(stored.data)
        return offset, sealed.size_bytes, stored.codec, sealed.xxh3, sealed.tag

    def room_after(self, stored_bytes: int) -> int:
        """How large the pack's members would be together with one of so many bytes."""
        return align(self.used, stored_bytes) + stored_bytes

    def emit(self, store: Callable[[tuple[Buffer, ...]], Future[Digest]]) -> None:
        """Hand all of the pack to `store`; waits for the packs of bases that are on their way."""
        directory = self._tables.encode(
            [
                MemberRef(one.pack.entry().pack, one.index) if isinstance(one, PackSlot) else one
                for one in self._bases
            ]
        )
        self._append(bytes(-self.used % SMALL_ALIGNMENT))
        self._flush_tail()
        tail = directory + encode_footer(directory, self.used)
        stored = store((*self.parts, tail))
        self._emitted = stored, self.used, len(directory), content_tag(directory)
        # All is on its way: only where the directory lies is needed from now on.
        self.parts, self._bases, self._tables = [], [], DirectoryTables()

    def entry(self) -> PackEntry:
        """What a placement says of the pack; waits until it is stored."""
        assert self._emitted is not None, "a pack is named once it was emitted"
        if self._entry is None:
            stored, start, size, tag = self._emitted
            self._entry = PackEntry(digest_bytes(stored.result()), start, size, tag)
        return self._entry

    def _base(self, base: Location | PackSlot) -> MemberRef | PackSlot:
        """What the directory says of a base; itself where its pack has no name yet."""
        if isinstance(base, PackSlot):
            return MemberRef(THIS_PACK, base.index) if base.pack is self else base
        return MemberRef(base.pack.pack, base.member)

    def _append(self, data: Buffer) -> None:
        view = data if type(data) is bytes else memoryview(data).cast("B")  # or a codec's array
        size = len(view)
        self.used += size
        if size < _JOINED_BELOW:
            self._tail += view
            return
        self._flush_tail()
        self.parts.append(view)

    def _flush_tail(self) -> None:
        if self._tail:
            self.parts.append(self._tail)
            self._tail = bytearray()


class PackSlot(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Where a packed member will be found."""

    pack: OpenPack
    index: int
    codec: str
    depth: int
    stored_bytes: int
    bases: tuple[Location | PackSlot, ...]
    frames: range  # of the tensor


class Packer:
    """Fills packs one after the other, large members and small ones apart. Not thread-safe.

    Small ones lie together: a pack that large ones are reused from holds no others.
    """

    def __init__(
        self, pack_bytes: int, emit: Callable[[tuple[Buffer, ...]], Future[Digest]]
    ) -> None:
        assert pack_bytes % LARGE_ALIGNMENT == 0, "a pack ends where a member may begin"
        self.pack_bytes = pack_bytes
        self._emit = emit
        self._packs = {True: OpenPack(), False: OpenPack()}

    def add(self, draft: MemberDraft, *, large: bool) -> PackSlot:
        """Make a member part of a pack. Its planes must not change before that is stored."""
        pack, stored_bytes = self._packs[large], draft.stored_bytes
        if pack.room_after(stored_bytes) > self.pack_bytes:
            self._flush(large)
            pack = self._packs[large]
        index = pack.members
        pack.add(draft)
        frames = range(draft.first_frame, draft.first_frame + len(draft.frames))
        return PackSlot(pack, index, draft.codec, draft.depth, stored_bytes, draft.bases, frames)

    def flush(self) -> None:
        """Emit the packs in which anything is."""
        self._flush(True)
        self._flush(False)

    def _flush(self, large: bool) -> None:
        pack = self._packs[large]
        if pack.members:
            self._packs[large] = OpenPack()
            pack.emit(self._emit)


class PackUploads:
    """Stores one pack while the next one is filled, and no more: memory is bounded."""

    def __init__(self, objects: ObjectSink, thread: Executor) -> None:
        self._objects = objects
        self._thread = thread
        self._last: Future[Digest] | None = None

    def emit(self, parts: tuple[Buffer, ...]) -> Future[Digest]:
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(lambda: self._objects.put(Kind.PACK, parts).digest)
        return self._last


class Location(msgspec.Struct, frozen=True, gc=False):
    """A stored member, the pack that it lies in, and the members that it is encoded against."""

    pack: PackEntry
    member: int
    stored_bytes: int
    codec: str = "raw"
    depth: int = 0
    bases: tuple[Location, ...] = ()

    @property
    def place(self) -> tuple[bytes, int]:
        return self.pack.pack, self.member


Locations = tuple[Location, ...]


def with_bases(locations: Iterable[Location]) -> Iterator[Location]:
    """These members, and all that a read of them needs, each once."""
    pending, seen = list(locations), set()
    while pending:
        location = pending.pop()
        place = location.place
        if place not in seen:
            seen.add(place)
            pending += location.bases
            yield location


def known_tensors(placements: Iterable[Placement]) -> dict[Fingerprint, Locations]:
    """What the placements hold; where several hold a tensor, the first says where."""
    return known_among([(one, locate(one)) for one in placements], alone=False)


def known_among(
    placements: Iterable[tuple[Placement, Mapping[tuple[int, int], Location]]], *, alone: bool
) -> dict[Fingerprint, Locations]:
    """`known_tensors` of placements whose members were located before.

    `alone`: only tensors that need no base.
    """
    known: dict[Fingerprint, Locations] = {}
    for placement, located in placements:
        for tensor in placement.tensors:
            name = Fingerprint(tensor.fingerprint)
            if alone and any(member.bases for member in tensor.members):
                continue
            if name not in known:
                known[name] = tuple([located[one.pack, one.member] for one in tensor.members])
    return known


def locate(placement: Placement) -> dict[tuple[int, int], Location]:
    """Every member of a placement by (pack, member), with its bases."""
    members = [member for tensor in placement.tensors for member in tensor.members]
    located: dict[tuple[int, int], Location] = {}
    # A base is less deep than what it is a base of: it comes first.
    for member in sorted((*members, *placement.bases), key=lambda member: member.depth):
        located[member.place] = Location(
            placement.packs[member.pack],
            member.member,
            member.stored_bytes,
            member.codec,
            member.depth,
            tuple([located[base] for base in member.bases]) if member.bases else (),
        )
    return located


def worth_reusing(
    wanted: Mapping[Fingerprint, Locations], used: Iterable[PackEntry]
) -> frozenset[Fingerprint]:
    """Which of the small tensors `wanted` may stay in the known packs that hold them.

    `used` are packs that the model being written needs for large tensors.
    """
    alive = {pack.pack for pack in used}
    taken: dict[bytes, int] = {}
    for locations in wanted.values():
        for location in locations:
            pack = location.pack.pack
            taken[pack] = taken.get(pack, 0) + location.stored_bytes
            if taken[pack] * 2 >= location.pack.directory_start:
                alive.add(pack)
    return frozenset(
        name
        for name, locations in wanted.items()
        if all(at.pack.pack in alive for at in with_bases(locations))
    )


def build_placement(
    tensors: Mapping[Fingerprint, Locations], chosen: Iterable[ChosenBase] = ()
) -> Placement:
    """The placement of a model whose tensors lie at these places."""
    own = {location.place for at in tensors.values() for location in at}
    under = [base for at in tensors.values() for location in at for base in location.bases]
    further = [base for base in with_bases(under) if base.place not in own]
    packs = {location.pack.pack: location.pack for at in tensors.values() for location in at}
    packs |= {base.pack.pack: base.pack for base in further}
    ordered = sorted(packs)
    number = {pack: index for index, pack in enumerate(ordered)}
    bases = [_entry(base, number) for base in further]
    return Placement(
        packs=tuple(packs[pack] for pack in ordered),
        tensors=tuple(
            StoredTensor(name, tuple([_entry(at, number) for at in tensors[name]]))
            for name in sorted(tensors)
        ),
        bases=tuple(sorted(bases, key=lambda base: base.place)),
        chosen=tuple(chosen),
    )


def _entry(at: Location, number: Mapping[bytes, int]) -> MemberEntry:
    return MemberEntry(
        number[at.pack.pack],
        at.member,
        at.codec,
        at.depth,
        at.stored_bytes,
        tuple([(number[base.pack.pack], base.member) for base in at.bases]) if at.bases else (),
    )

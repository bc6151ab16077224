"""History packs: commits and tree pages by the ten thousand in one object, found by a sorted table.

A small commit is two objects, and history is read seldom: as files of their own they cost inodes
and listings. In a pack they lie as envelopes, in frames of their neighbors, so that what is alike
is compressed together. A member is verified by its own name, whoever wrote the pack.

    0 magic "TRHP" | 4 version u8 = 1 | 5 reserved u8[3] | 8 member_count u32 | 12 frame_count u32
    16 generation u64: of the log that its maker knew
    24 members by digest: digest 32 | frame u32 | start in the frame u32 | envelope_bytes u32
       frames in order: start in the payload u64 | stored_bytes u32 | bytes u32
       content tag of all that before, 16
       frames: one zstd frame each

Source:
    docs/spec/objects.md, section "History packs".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

import zstandard

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_bytes
from tensorrepo.repo.objects.cache import LimitedCache

MAGIC: Final = b"TRHP"
VERSION: Final = 1
HEADER: Final = Struct("<4sB3xIIQ")
MEMBER: Final = Struct("<32sIII")
FRAME: Final = Struct("<QII")
TAG_BYTES: Final = 16
assert (HEADER.size, MEMBER.size, FRAME.size) == (24, 44, 16), "docs/spec/objects.md promises them"

FRAME_BYTES: Final = 64 << 10  # of envelopes; the last one may go beyond
MOST_FRAME_BYTES: Final = 1 << 20  # that a reader expands
MOST_MEMBERS: Final = 1 << 20
MOST_ENVELOPE_BYTES: Final = 64 << 10  # of a member
_CACHED_BYTES: Final = 16 << 20


class Member(NamedTuple):
    """Where an envelope lies: the number of its frame, and bytes ``[start, stop)`` of that."""

    frame: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PackTable:
    """The table of one pack, verified; `data` is its payload up to the frames.

    Attributes:
        name: digest of the pack.
        data: header, members, frames, tag.
        members: number of members.
        frames: number of frames.
        generation: newest record of the log that its maker knew; what was buried since is needed no
            longer.
    """

    name: Digest
    data: memoryview
    members: int
    frames: int
    generation: int

    def find(self, digest: Digest) -> Member | None:
        """Where a member lies, None where it is none."""
        raw = digest_bytes(digest)
        place = bisect_left(range(self.members), raw, key=self._raw)
        if place == self.members or self._raw(place) != raw:
            return None
        _, frame, start, size = MEMBER.unpack_from(self.data, HEADER.size + place * MEMBER.size)
        return Member(frame, start, start + size)

    def digests(self, first: bytes = b"") -> Iterator[bytes]:
        """Raw digests of members, ascending, from the first that is not below `first`."""
        start = bisect_left(range(self.members), first, key=self._raw) if first else 0
        return map(self._raw, range(start, self.members))

    def frame_span(self, number: int) -> tuple[int, int, int]:
        """Where a frame begins in the payload and ends, and its bytes once it is expanded."""
        if number >= self.frames:
            raise CorruptError(f"history pack {self.name:.12} has no frame {number}")
        at = HEADER.size + self.members * MEMBER.size + number * FRAME.size
        start, stored, size = FRAME.unpack_from(self.data, at)
        return start, start + stored, size

    def _raw(self, place: int) -> bytes:
        at = HEADER.size + place * MEMBER.size
        return bytes(self.data[at : at + DIGEST_BYTES])


def table_bytes(head: Buffer, name: Digest) -> int:
    """Length of a pack's table, by the first 24 bytes of its payload.

    Raises:
        CorruptError: they are no header of a pack.
        UnsupportedError: of a newer version.
    """
    magic, version, members, frames, _ = HEADER.unpack_from(head)
    if magic != MAGIC or members > MOST_MEMBERS or frames > members:
        raise CorruptError(f"history pack {name:.12}: its header is damaged")
    if version != VERSION:
        raise UnsupportedError(
            f"history pack {name:.12} has version {version}, this tensorrepo reads {VERSION}. "
            "Update it."
        )
    return int(HEADER.size + members * MEMBER.size + frames * FRAME.size + TAG_BYTES)


def read_table(data: memoryview, name: Digest) -> PackTable:
    """The table of a pack. Raises CorruptError where its bytes differ from its tag."""
    length = table_bytes(data[: HEADER.size], name)
    table, tag = data[: length - TAG_BYTES], bytes(data[length - TAG_BYTES : length])
    if content_tag(table) != tag:
        raise CorruptError(f"history pack {name:.12}: its table is damaged")
    _, _, members, frames, generation = HEADER.unpack_from(table)
    return PackTable(name, data[:length], members, frames, generation)


def expand_frame(stored: Buffer, size: int, name: Digest) -> bytes:
    """The envelopes of one frame."""
    if size > MOST_FRAME_BYTES:
        raise CorruptError(f"history pack {name:.12} promises a frame of {size:,} bytes")
    try:
        claimed = zstandard.get_frame_parameters(stored).content_size
        if claimed not in {size, zstandard.CONTENTSIZE_UNKNOWN}:  # as much would be allocated
            raise CorruptError(
                f"history pack {name:.12}: a frame claims {claimed:,} bytes, expected {size:,}"
            )
        found = zstandard.ZstdDecompressor().decompress(stored, max_output_size=size)
    except zstandard.ZstdError as error:
        raise CorruptError(f"history pack {name:.12}: a frame is damaged: {error}") from error
    if len(found) != size:
        raise CorruptError(
            f"history pack {name:.12}: a frame has {len(found):,} bytes, expected {size:,}"
        )
    return found


class PackWriter:
    """Makes the payload of one pack, in memory; `stored_bytes` grows as frames are made."""

    def __init__(self) -> None:
        self.stored_bytes = 0
        self._members: dict[bytes, tuple[int, int, int]] = {}
        self._frames: list[bytes] = []
        self._sizes: list[int] = []
        self._open = bytearray()
        self._compressor = zstandard.ZstdCompressor(level=9)

    def __len__(self) -> int:
        return len(self._members)

    def add(self, digest: Digest, envelope: Buffer) -> None:
        """Add a member, whose bytes were verified; one that is there already is left out."""
        raw = digest_bytes(digest)
        if raw in self._members:
            return
        size = memoryview(envelope).nbytes
        assert size <= MOST_ENVELOPE_BYTES, "larger objects lie better by themselves"
        self._members[raw] = (len(self._frames), len(self._open), size)
        self._open += envelope
        if len(self._open) >= FRAME_BYTES:
            self._end_frame()

    def payload(self, generation: int) -> list[Buffer]:
        """All of it, in parts, made by who knows the log up to `generation`."""
        self._end_frame()
        counts = len(self._members), len(self._frames)
        header = HEADER.pack(MAGIC, VERSION, *counts, generation)
        members = b"".join(MEMBER.pack(raw, *self._members[raw]) for raw in sorted(self._members))
        at = len(header) + len(members) + FRAME.size * len(self._frames) + TAG_BYTES
        spans = []
        for frame, size in zip(self._frames, self._sizes, strict=True):
            spans.append(FRAME.pack(at, len(frame), size))
            at += len(frame)
        table = header + members + b"".join(spans)
        return [table, content_tag(table), *self._frames]

    def _end_frame(self) -> None:
        if self._open:
            frame = self._compressor.compress(bytes(self._open))
            self._frames.append(frame)
            self._sizes.append(len(self._open))
            self.stored_bytes += len(frame)
            self._open = bytearray()


@dataclass(frozen=True, slots=True)
class _OpenPack:
    """A pack whose table was read; `read` gives bytes ``[start, stop)`` of its payload."""

    table: PackTable
    read: Callable[[int, int], Buffer]


class HistoryPacks:
    """Reads members of packs. Thread-safe; keeps tables, and some megabytes of frames."""

    def __init__(
        self,
        names: Callable[[], Sequence[Digest]],
        open_pack: Callable[[Digest], Callable[[int, int], Buffer]],
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            names: packs of the newest state that this process has seen.
            open_pack: gives what reads bytes ``[start, stop)`` of the payload of a pack.
        """
        self._names = names
        self._open = open_pack
        self._opened: dict[Digest, _OpenPack] = {}
        self._frames = LimitedCache[bytes](_CACHED_BYTES)

    def tables(self) -> list[PackTable]:
        """Tables of all packs. Raises NotFoundError, CorruptError."""
        return [self._pack(name).table for name in self._names()]

    def readable(self) -> Iterator[PackTable]:
        """Tables of those packs that can be read."""
        for name in self._names():
            with suppress(CorruptError, NotFoundError):
                yield self._pack(name).table

    def holds(self, digest: Digest) -> bool:
        """Whether a pack that can be read has it."""
        return any(self._places(digest, []))

    def home(self, digest: Digest, label: int) -> Digest | None:
        """The pack that has an object for good: made when `label` had buried it already."""
        tables = (pack.table for pack, _ in self._places(digest, []))
        return next((table.name for table in tables if table.generation >= label), None)

    def read(self, digest: Digest) -> bytes:
        """The envelope of a member, not verified.

        Raises:
            NotFoundError: no pack has it.
            CorruptError: none has it of those that can be read.
        """
        damaged: list[CorruptError | NotFoundError] = []
        for pack, member in self._places(digest, damaged):
            try:
                return self._frame(pack, member.frame)[member.start : member.stop]
            except (CorruptError, NotFoundError) as error:
                damaged.append(error)
        if damaged:
            raise CorruptError(f"object {digest:.12} may lie in a pack: {damaged[0]}")
        raise NotFoundError(f"no history pack has object {digest:.12}")

    def _places(
        self, digest: Digest, damaged: list[CorruptError | NotFoundError]
    ) -> Iterator[tuple[_OpenPack, Member]]:
        """Where an object lies, the newest pack first; what cannot be read goes to `damaged`."""
        for name in reversed(self._names()):
            try:
                pack = self._pack(name)
            except (CorruptError, NotFoundError) as error:
                damaged.append(error)
                continue
            if (member := pack.table.find(digest)) is not None:
                yield pack, member

    def _pack(self, name: Digest) -> _OpenPack:
        known = self._opened.get(name)
        if known is None:
            read = self._open(name)
            length = table_bytes(read(0, HEADER.size), name)
            known = _OpenPack(read_table(memoryview(read(0, length)), name), read)
            # A pack that was joined into another is let go: a map of it would hold its room on the
            # disk for as long as this process lives. In a new dict: other threads read the old one.
            named = frozenset(self._names())
            kept = {each: pack for each, pack in self._opened.items() if each in named}
            self._opened = {**kept, name: known}
        return known

    def _frame(self, pack: _OpenPack, number: int) -> bytes:
        table = pack.table
        key = (table.name, number)
        known = self._frames.get(key)
        if known is None:
            start, stop, size = table.frame_span(number)
            known = expand_frame(pack.read(start, stop), size, table.name)
            self._frames.put(key, known, len(known))
        return known

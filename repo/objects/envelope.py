"""Object envelope: kind, links and payload of every stored object, and its compression at rest.

Every object is an envelope: `kind | links | payload`. Garbage collection, transfer and fsck walk
links and never parse a payload, so this layer needs to know no tensor format.

    0 magic "TRPO" | 4 version u8 | 5 kind u8 | 6 alignment u8 (log2) | 7 flags u8 = 0
    8 link_count u32 | 12 reserved u32 = 0 | 16 payload_bytes u64 | 24 reserved u64 = 0
    32 links, sorted by digest, unique, 40 bytes each
       zeros to the alignment, payload

Metadata is compressed where that pays; what is read by ranges is not. Names are taken over the
envelope itself, so they never depend on a compressor's version.

Source:
    docs/spec/objects.md, sections "Envelope" and "Compression at rest".
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from enum import IntEnum
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple, Protocol, runtime_checkable

import msgspec
import zstandard

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import has_digest, object_digest
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, byte_view, digest_bytes
from tensorrepo.repo.objects.zstd_frames import expand_frame

MAGIC = b"TRPO"
VERSION = 1
HEADER = Struct("<4sBBBBIIQQ")
assert HEADER.size == 32, "docs/spec/objects.md promises a 32-byte header"
LINK = Struct("<32sIHBB")  # digest, low 32 and high 16 bits of `bytes`, kind, flags
assert LINK.size == 40, "docs/spec/objects.md promises 40-byte links"
LEAF_FLAG = 1
_DIGEST_OF = attrgetter("digest")


class Kind(IntEnum):
    """Every kind of object there is: the one registry that gc, fsck and transfer enumerate."""

    BLOB = 1
    TREE_PAGE = 2
    COMMIT = 3
    REF_UPDATES = 4
    GC_LIST = 5
    GRAVES = 6
    DATASET = 16
    LEAF = 17
    PAGE_INDEX = 18
    CHUNK = 19
    DELETION_MAP = 20
    PATCH = 21
    VIEW = 22
    ROW_RUNS = 23
    FOREIGN = 24
    SEARCH_INDEX = 25
    MODEL = 32
    PLACEMENT = 33
    PACK = 34
    RUN = 48
    METRICS = 49
    HISTORY_PACK = 64

    @property
    def label(self) -> str:
        """Name for people: ``page index``."""
        return self.name.lower().replace("_", " ")

    @property
    def noun(self) -> str:
        """What people call an entry of this kind: a blob is a file."""
        return "file" if self is Kind.BLOB else self.label

    @property
    def alignment(self) -> int:
        """log2 of where the payload starts: mapped kinds begin on a memory page."""
        return 12 if self in _MAPPED else 6

    @property
    def compressible(self) -> bool:
        """Whether the stored envelope may be zstd-compressed as a whole (it is read whole)."""
        return self not in _RANGED

    @property
    def may_be_packed(self) -> bool:
        """Whether small objects of this kind are put into history packs when they are old."""
        return self in _PACKED


_MAPPED = frozenset({Kind.CHUNK, Kind.PACK})
_RANGED = _MAPPED | {Kind.BLOB, Kind.HISTORY_PACK}
_PACKED = frozenset({Kind.BLOB, Kind.TREE_PAGE, Kind.COMMIT})
_KINDS = {int(kind): kind for kind in Kind}
_KIND_BYTES = bytes(_KINDS)
_KIND_IN_LINK = 38  # where `LINK` has it
_ALIGNMENTS = {int(kind): kind.alignment for kind in Kind}


# A struct without a place in the garbage collector's lists: an index has one for each chunk.
class ObjectLink(msgspec.Struct, frozen=True, order=True, gc=False):
    """An object as its parents know it.

    `bytes` counts the whole envelope before compression; `leaf` says that it links to nothing.
    """

    digest: Digest
    bytes: int
    kind: Kind
    leaf: bool

    @property
    def payload_start(self) -> int | None:
        """Where the payload lies in the envelope; None when only its own header can tell."""
        return _aligned(HEADER.size, self.kind.alignment) if self.leaf else None


@dataclass(frozen=True, slots=True)
class Envelope:
    """One object, parsed: its payload is a view into the bytes that it was decoded from."""

    kind: Kind
    links: tuple[ObjectLink, ...]
    payload: memoryview

    def link(self, digest: Digest) -> ObjectLink:
        """What a parent says of this object, whose name is `digest`."""
        head = _aligned(HEADER.size + len(self.links) * LINK.size, self.kind.alignment)
        return ObjectLink(digest, head + self.payload.nbytes, self.kind, not self.links)


@dataclass(frozen=True, slots=True)
class EncodedObject:
    """One object, ready to be stored: `parts` are its bytes, `link` what its parents will say."""

    link: ObjectLink
    parts: tuple[Buffer, ...]
    _decoded: Envelope | None = field(default=None, repr=False, compare=False)
    _links: tuple[ObjectLink, ...] | None = field(default=None, repr=False, compare=False)

    def envelope(self) -> Envelope:
        """What its bytes decode to; parsed once, for a commit's judge looks at it several times."""
        if self._decoded is None:
            # A copy: whoever gave the parts may change them once they are stored.
            if self._links is None:
                decoded = decode_object(b"".join(self.parts))
            else:
                payload = memoryview(b"".join(self.parts[1:]))
                decoded = Envelope(self.link.kind, self._links, payload)
            object.__setattr__(self, "_decoded", decoded)
        assert self._decoded is not None, "it was decoded"
        return self._decoded


class EnvelopeReader(Protocol):
    """Whoever can read whole objects: enough for commits and what links say."""

    @property
    def shallow(self) -> frozenset[Digest]:
        """Commits at which history ends here: nobody follows them to their parents."""

    def get(self, digest: Digest) -> Envelope:
        """The whole object, its digest verified."""


class ObjectSource(EnvelopeReader, Protocol):
    """Whoever can read objects: what it returns is verified."""

    def describe(self, digest: Digest) -> ObjectLink:
        """What a parent of the object would say of it, read from its header."""

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        """Payload bytes ``[start, stop)``, NOT verified: the caller holds the sums."""

    def read_checked(self, link: ObjectLink, start: int, stop: int, tag: bytes) -> Buffer:
        """Payload bytes ``[start, stop)`` whose `content_tag` is `tag`, else CorruptError.

        May come from a local disk cache, which only ever holds what was verified.
        """

    def read_into(self, link: ObjectLink, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with payload bytes from `start`, NOT verified."""

    def map(self, link: ObjectLink) -> memoryview | None:
        """The payload mapped copy-on-write where it lies on a local disk, else None."""


@runtime_checkable
class ReadsOnce(Protocol):
    """A source that can leave it to the caller to repeat a read."""

    def read_once(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        """As `ObjectSource.read_range`; what fails for a moment is raised, not repeated."""


@runtime_checkable
class ExpectsReads(Protocol):
    """A source that can prepare for reads that are going to come."""

    def expect_reads(self, links: Iterable[ObjectLink]) -> None:
        """Several ranges of each of these will be read soon. Never waits, and never fails.

        Who has nothing to prepare looks at none of them, so they may be worked out on demand.
        """


@runtime_checkable
class KnowsPlaces(Protocol):
    """A source that can say from which repository it reads an object."""

    def place(self, digest: Digest) -> str:
        """URL of that repository: of a lazy clone's data that of its origin."""


def mending(objects: object, digest: Digest) -> str:
    """What to do about a damaged object: the command that finds it, and fetches it from a copy."""
    where = f" --repo {objects.place(digest)}" if isinstance(objects, KnowsPlaces) else ""
    return f"`tensorrepo fsck --deep --repair{where}` finds it, and fetches it from a copy"


class CheckedSpan(NamedTuple):
    """Payload bytes ``[start, stop)``, whose `content_tag` is `tag`."""

    start: int
    stop: int
    tag: bytes


@runtime_checkable
class ReadsSpans(Protocol):
    """A source that joins ranges by itself."""

    def read_spans(self, link: ObjectLink, spans: Sequence[CheckedSpan]) -> list[Buffer]:
        """The bytes of each span, verified; raises CorruptError as `read_checked`."""


def read_spans(
    objects: ObjectSource, link: ObjectLink, spans: Sequence[CheckedSpan]
) -> list[Buffer]:
    """The bytes of each span of an object, verified, in few requests where the source can."""
    if isinstance(objects, ReadsSpans):
        return objects.read_spans(link, spans)
    return [objects.read_checked(link, *span) for span in spans]


class ObjectSink(ObjectSource, Protocol):
    """Whoever can store objects, and read back what it stored."""

    def put(
        self, kind: Kind, payload: Buffer | Sequence[Buffer], links: Iterable[Digest] = ()
    ) -> ObjectLink:
        """Store one object. The parts of `payload` must not change afterwards.

        It is durable once the transaction (or `flush`) says so, not before.
        """


def encode_object(
    kind: Kind, payload: Buffer | Sequence[Buffer], links: Iterable[ObjectLink] | LinkTable = ()
) -> EncodedObject:
    """The bytes and the name of an object. No payload byte is copied.

    Args:
        kind: what it is.
        payload: its content, in one part or several.
        links: what it refers to, in any order; repeated ones are stored once.
    """
    parts = [payload] if isinstance(payload, (bytes, bytearray, memoryview)) else list(payload)
    views = [view for view in map(byte_view, parts) if view.nbytes]
    payload_bytes = sum(view.nbytes for view in views)
    table = links if isinstance(links, LinkTable) else link_table(links)
    count = len(table.links)
    head = HEADER.pack(MAGIC, VERSION, kind, kind.alignment, 0, count, 0, payload_bytes, 0)
    head_bytes = _aligned(len(head) + len(table.data), kind.alignment)
    stored: tuple[Buffer, ...] = ((head + table.data).ljust(head_bytes, b"\0"), *views)
    whole_bytes = head_bytes + payload_bytes
    # Each part that is hashed by itself gives the interpreter away.
    digest = object_digest(stored if whole_bytes >= _JOINED_BYTES else (b"".join(stored),))
    link = ObjectLink(digest, whole_bytes, kind, not count)
    return EncodedObject(link, stored, _links=table.links)


def leaf_header(kind: Kind, size_bytes: int) -> bytes:
    """How an object of so many bytes begins that links to nothing; b"" where there can be none."""
    alignment = _ALIGNMENTS[kind]
    payload_bytes = size_bytes - _aligned(HEADER.size, alignment)
    if payload_bytes < 0:
        return b""
    return HEADER.pack(MAGIC, VERSION, kind, alignment, 0, 0, 0, payload_bytes, 0)


@dataclass(frozen=True, slots=True)
class LinkTable:
    """Links in the order of their digests, each once, and their bytes."""

    links: tuple[ObjectLink, ...]
    data: bytes

    def edited(self, gone: Iterable[Digest], come: Iterable[ObjectLink]) -> LinkTable:
        """Without the links of the digests `gone`, and with those that `come`."""
        links, data = list(self.links), bytearray(self.data)
        for digest in gone:
            place, is_there = _place(links, digest)
            del links[place : place + is_there]
            del data[place * LINK.size : (place + is_there) * LINK.size]
        for link in come:
            place, is_there = _place(links, link.digest)
            links[place : place + is_there] = [link]
            data[place * LINK.size : (place + is_there) * LINK.size] = _packed(link)
        return LinkTable(tuple(links), bytes(data))


def link_table(links: Iterable[ObjectLink]) -> LinkTable:
    """The table of links in any order; repeated ones are in it once."""
    by_digest = {link.digest: link for link in links}
    ordered = tuple(by_digest[digest] for digest in sorted(by_digest))
    return LinkTable(ordered, b"".join(map(_packed, ordered)))


def _place(links: list[ObjectLink], digest: Digest) -> tuple[int, bool]:
    """Where a link stands, or would, and whether it is there."""
    place = bisect_left(links, digest, key=_DIGEST_OF)
    return place, place < len(links) and links[place].digest == digest


def _packed(link: ObjectLink) -> bytes:
    low, high = link.bytes & 0xFFFFFFFF, link.bytes >> 32
    return LINK.pack(bytes.fromhex(link.digest), low, high, link.kind, link.leaf)


@dataclass(frozen=True, slots=True)
class EditedLinks:
    """What an object links to, as a change of what another one does.

    Attributes:
        beside: that other object.
        gone: what it alone links to.
        come: what the new one alone links to.
        whole: gives all that the new one links to.
    """

    beside: Digest
    gone: Sequence[Digest]
    come: Sequence[Digest]
    whole: Callable[[], Iterable[Digest]]

    def __iter__(self) -> Iterator[Digest]:
        return iter(self.whole())


def decode_object(data: Buffer, digest: Digest | None = None) -> Envelope:
    """Parse one whole object.

    Args:
        data: exactly the bytes of an envelope, not compressed.
        digest: the name it must have; None when the caller verified already.

    Raises:
        CorruptError: the bytes are not that object, or no well-formed object.
        UnsupportedError: an envelope version or kind that this version does not know.
    """
    view = memoryview(data).cast("B")
    if digest is not None and (found := object_digest((view,))) != digest:
        raise CorruptError(
            f"object {digest:.12}: its {view.nbytes} bytes have digest {found:.12}. "
            "`tensorrepo fsck --deep --repair` fetches it from a copy."
        )
    kind, link_count, payload_start = _decode_whole_header(view, digest)
    links = _decode_links(view[HEADER.size : payload_start], link_count, digest)
    return Envelope(kind, links, view[payload_start:].toreadonly())


def decode_payload(data: Buffer) -> tuple[Kind, memoryview]:
    """What a whole object is and holds, without its links, which take most of the time.

    For who does not ask what it refers to, and had its digest verified. Raises as `decode_object`.
    """
    view = memoryview(data).cast("B")
    kind, _, payload_start = _decode_whole_header(view, None)
    return kind, view[payload_start:].toreadonly()


def _decode_whole_header(view: memoryview, digest: Digest | None) -> tuple[Kind, int, int]:
    """Kind, number of links and where the payload starts, which must end where `view` does."""
    kind, link_count, payload_start, payload_bytes = decode_header(view, digest)
    if payload_start + payload_bytes != view.nbytes:
        raise CorruptError(
            f"object {digest or '?':.12}: header promises {payload_start + payload_bytes} bytes, "
            f"found {view.nbytes}"
        )
    return kind, link_count, payload_start


def decode_header(view: memoryview, digest: Digest | None) -> tuple[Kind, int, int, int]:
    """Kind, number of links, where the payload starts, and its bytes, from the first 32 bytes."""
    if view.nbytes < HEADER.size:
        raise CorruptError(
            f"{_name(digest)}: {view.nbytes} bytes cannot hold a {HEADER.size}-byte header"
        )
    magic, version, kind, alignment, flags, link_count, zero, payload_bytes, zeros = (
        HEADER.unpack_from(view)
    )
    if magic != MAGIC:
        raise CorruptError(f"{_name(digest)}: expected magic {MAGIC!r}, found {magic!r}")
    if version != VERSION:
        raise UnsupportedError(
            f"{_name(digest)}: envelope version {version}, this tensorrepo reads {VERSION}. "
            "Update it."
        )
    if kind not in _KINDS:
        raise UnsupportedError(f"{_name(digest)}: kind {kind} is unknown here. Update tensorrepo.")
    known = _KINDS[kind]
    if alignment != _ALIGNMENTS[kind] or flags or zero or zeros:
        raise CorruptError(
            f"{_name(digest)}: reserved header fields are set or the alignment is wrong"
        )
    start = _aligned(HEADER.size + link_count * LINK.size, alignment)
    return known, link_count, start, payload_bytes


def _name(digest: Digest | None) -> str:
    return f"object {digest or '?':.12}"


def _decode_links(view: memoryview, count: int, digest: Digest | None) -> tuple[ObjectLink, ...]:
    name = f"object {digest or '?':.12}"
    if any(view[count * LINK.size :]):
        raise CorruptError(f"{name}: padding after the links is not zero")
    links = []
    previous = b""
    for raw, low, high, kind, flags in LINK.iter_unpack(view[: count * LINK.size]):
        if raw <= previous:
            raise CorruptError(f"{name}: links are not sorted and unique")
        if kind not in _KINDS:
            raise UnsupportedError(
                f"{name}: links to kind {kind}, which is unknown here. Update tensorrepo."
            )
        if flags & ~LEAF_FLAG:
            raise CorruptError(f"{name}: a link has unknown flags {flags:#x}")
        previous = raw
        size = low | high << 32
        links.append(ObjectLink(Digest(raw.hex()), size, _KINDS[kind], bool(flags & LEAF_FLAG)))
    return tuple(links)


def raw_links(data: Buffer, digest: Digest) -> bytes:
    """The links of one whole object as it stores them, for who walks millions.

    Args:
        data: exactly the bytes of an envelope, not compressed.
        digest: the name that it must have.

    Raises:
        CorruptError: the bytes are not that object.
        UnsupportedError: an envelope version or kind that this version does not know.
    """
    return _verified(data, digest)[1]


def raw_object(
    data: Buffer, digest: Digest
) -> tuple[Kind, list[tuple[bytes, int, int, int, int]], int]:
    """Its kind, the fields of its links, and where its payload starts. Raises as `raw_links`."""
    kind, links, payload_start = _verified(data, digest)
    return kind, list(LINK.iter_unpack(links)) if links else [], payload_start


def _verified(data: Buffer, digest: Digest) -> tuple[Kind, bytes, int]:
    if not has_digest(data, digest):
        found = object_digest((data,))
        raise CorruptError(
            f"object {digest:.12}: its {len(data)} bytes have digest {found:.12}. "
            "`tensorrepo fsck --deep --repair` fetches it from a copy."
        )
    kind, count, payload_start = _decode_whole_header(memoryview(data), digest)
    if not count:
        return kind, b"", payload_start
    links = bytes(data[HEADER.size : HEADER.size + count * LINK.size])
    if links[_KIND_IN_LINK :: LINK.size].translate(None, _KIND_BYTES):
        raise UnsupportedError(
            f"object {digest:.12}: links to a kind that is unknown here. Update tensorrepo."
        )
    return kind, links, payload_start


def pack_links(links: Iterable[ObjectLink]) -> list[tuple[bytes, int, int, int, int]]:
    """The same of links that were parsed."""
    return [
        (digest_bytes(one.digest), one.bytes & 0xFFFFFFFF, one.bytes >> 32, one.kind, one.leaf)
        for one in links
    ]


def _aligned(offset: int, log2: int) -> int:
    unit = 1 << log2
    return (offset + unit - 1) // unit * unit


assert DIGEST_BYTES == 32, "links hold 32-byte digests"


ZSTD_MAGIC = zstandard.FRAME_HEADER
_COMPRESS_FROM_BYTES = 512
_JOINED_BYTES = 64 << 10
_COMPRESS_UPTO_BYTES = 64 << 20
_SMALLEST_STORED_BYTES = 64  # so that reading the first 32 bytes of any object works


_COMPRESSORS: Final = threading.local()  # one each: it takes longer to make one than to use it


def _compressor() -> zstandard.ZstdCompressor:
    made: zstandard.ZstdCompressor | None = getattr(_COMPRESSORS, "made", None)
    if made is None:
        made = _COMPRESSORS.made = zstandard.ZstdCompressor(level=3)
    return made


def stored_form(encoded: EncodedObject) -> tuple[Buffer, ...]:
    """The bytes to store: metadata is zstd-compressed where that pays. Names never depend on it."""
    if not _may_shrink(encoded):
        return encoded.parts
    return _smaller_form(encoded, _compressor().compress(b"".join(encoded.parts)))


def stored_forms(many: Sequence[EncodedObject]) -> list[tuple[Buffer, ...]]:
    """As `stored_form` of each, for small ones: the interpreter is given away once for all."""
    compress = getattr(_compressor(), "multi_compress_to_buffer", None)  # one build has no such
    shrinking = [place for place, encoded in enumerate(many) if _may_shrink(encoded)]
    if compress is None or len(shrinking) < 2:
        return list(map(stored_form, many))
    forms = [encoded.parts for encoded in many]
    packed = compress([b"".join(forms[place]) for place in shrinking])
    for number, place in enumerate(shrinking):
        forms[place] = _smaller_form(many[place], packed[number].tobytes())
    return forms


def _may_shrink(encoded: EncodedObject) -> bool:
    size = encoded.link.bytes
    fits = _COMPRESS_FROM_BYTES <= size <= _COMPRESS_UPTO_BYTES
    return fits and encoded.link.kind.compressible


def _smaller_form(encoded: EncodedObject, packed: bytes) -> tuple[Buffer, ...]:
    worth = _SMALLEST_STORED_BYTES <= len(packed) <= encoded.link.bytes * 7 // 8
    return (packed,) if worth else encoded.parts


def expand(data: bytes, digest: Digest) -> bytes:
    """The envelope's own bytes, of what was stored."""
    if data[:4] != ZSTD_MAGIC:
        return data
    return expand_frame(data, f"object {digest:.12}", _COMPRESS_UPTO_BYTES)

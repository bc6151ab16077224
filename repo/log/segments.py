"""Log segments: runs of records with their commits and Bloom filters of changed paths.

A segment holds the records of a whole stretch of the log verbatim, with the commits they
introduced and, for each commit, a Bloom filter of the paths it changed. Stretches are short at
first, and long ones take their place as the log grows: so new records are found in few requests,
too, and the writer of a long one reads short ones. Segments are caches: written by the client whose
record completes a stretch, believed only where the chain agrees.

     0 magic "TRSG" | 4 version u8 = 1 | 5 zeros | 8 first generation u64
    16 record_count u32 | 20 commit_count u32 | 24 bytes of all that follows but the tag u64
    32 records:  bytes u32 | record
       commits:  generation u64 | digest 32 | envelope_bytes u32 | filter_bytes u32
                 filter | envelope
       tag: 16-byte truncated BLAKE3 of everything before it

It is stored zstd-compressed, as one commit is much like the next.

Source:
    docs/spec/log.md, section "Segment".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from struct import Struct
from typing import Final

import zstandard

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tensorrepo.repo.hashing.digests import content_tag, object_digest, record_digest
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes, digest_from_bytes
from tensorrepo.repo.log.log_slots import LogSlot, LogSlots, segment_key
from tensorrepo.repo.objects.zstd_frames import claimed_bytes, expand_frame

MAGIC = b"TRSG"
VERSION = 1
HEADER = Struct("<4sB3xQIIQ")
assert HEADER.size == 32, "docs/spec/log.md promises a 32-byte header"
RECORD = Struct("<I")
COMMIT = Struct("<Q32sII")
assert COMMIT.size == 48, "docs/spec/log.md promises 48 bytes before each filter"
TAG_BYTES: Final = 16

SEGMENT_LENGTHS: Final = (64, 512, 4096)  # in records; each divides the next
MAX_SEGMENT_BYTES: Final = 256 << 20
MAX_WINDOW: Final = 256  # slots read at once where there is no segment: at most 16 MiB
BITS_PER_PATH: Final = 10
HASHES: Final = 7  # with 10 bits a path: 0.8% false positives


@dataclass(frozen=True, slots=True)
class SegmentCommit:
    """A commit for a segment.

    Attributes:
        generation: generation of the record that introduced it.
        digest: its name.
        envelope: all bytes of the object.
        paths: what `changed_filter` made of the paths it changed; empty where they are unknown.
    """

    generation: int
    digest: Digest
    envelope: Buffer
    paths: Buffer

    def may_touch(self, path: str) -> bool:
        """False only when the commit certainly changed neither `path` nor anything below it."""
        if not self.paths:
            return True
        return all(self.paths[bit // 8] >> bit % 8 & 1 for bit in _bits(path, len(self.paths) * 8))


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the log: the bytes of slots from `first` on, and their commits."""

    first: int
    records: tuple[bytes, ...]
    commits: tuple[SegmentCommit, ...]


def changed_filter(paths: Iterable[str] | None) -> bytes:
    """Bloom filter of paths and of the folders above them; empty for None (unknown).

    A path is 16 bytes of BLAKE3 (`content_tag`), two little-endian u64 a and b; its bits are
    ``(a + i * b) % bits`` for i from 0 to 6. Bit n is ``1 << n % 8`` of byte ``n // 8``.
    """
    if paths is None:
        return b""
    names = {name for path in paths for name in _with_folders(path)}
    size = max(8, (len(names) * BITS_PER_PATH + 7) // 8)
    found = bytearray(size)
    for name in names:
        for bit in _bits(name, size * 8):
            found[bit // 8] |= 1 << bit % 8
    return bytes(found)


def encode_segment(segment: Segment) -> bytes:
    parts: list[Buffer] = []
    for record in segment.records:
        parts += [RECORD.pack(len(record)), record]
    for commit in segment.commits:
        sizes = len(commit.envelope), len(commit.paths)
        parts += [
            COMMIT.pack(commit.generation, digest_bytes(commit.digest), *sizes),
            commit.paths,
            commit.envelope,
        ]
    counts = len(segment.records), len(segment.commits)
    head = HEADER.pack(MAGIC, VERSION, segment.first, *counts, sum(map(len, parts)))
    data = b"".join([head, *parts])
    return data + content_tag(data)


def decode_segment(data: Buffer, where: str = "segment", *, commits: bool = True) -> Segment:
    """Parse a segment and verify its tag and the digests of its commits.

    Whether its records are those of the log is for the chain to say, and the filters are the
    word of whoever wrote them. Without `commits` they are passed over.

    Raises:
        CorruptError: cut short or damaged.
        UnsupportedError: of a newer version.
    """
    view = memoryview(data)
    if view.nbytes < HEADER.size + TAG_BYTES:
        raise CorruptError(f"{where}: {view.nbytes} bytes are too short")
    magic, version, first, records, commit_count, body_bytes = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise CorruptError(f"{where}: expected magic {MAGIC!r}, found {magic!r}")
    if version > VERSION:
        raise UnsupportedError(
            f"{where}: version {version}, this tensorrepo reads {VERSION}. Update it."
        )
    body = view[HEADER.size : -TAG_BYTES]
    if body.nbytes != body_bytes or content_tag(view[:-TAG_BYTES]) != view[-TAG_BYTES:]:
        raise CorruptError(f"{where}: its {view.nbytes} bytes do not match their tag")
    reader = _Reader(body, where)
    slots = tuple(
        bytes(reader.take(*RECORD.unpack(reader.take(RECORD.size)))) for _ in range(records)
    )
    if not commits:
        return Segment(first, slots, ())
    segment = Segment(first, slots, tuple(_decode_commit(reader) for _ in range(commit_count)))
    if reader.rest:
        raise CorruptError(f"{where}: {reader.rest} bytes too many")
    return segment


class _Reader:
    """Takes bytes from the front; CorruptError when there are not enough."""

    def __init__(self, view: memoryview, where: str) -> None:
        self.where = where
        self._view = view
        self._at = 0

    @property
    def rest(self) -> int:
        return self._view.nbytes - self._at

    def take(self, count: int) -> memoryview:
        if count > self.rest:
            raise CorruptError(f"{self.where}: promises {count} bytes where {self.rest} are left")
        self._at += count
        return self._view[self._at - count : self._at]


def segment_length(gen: int, lengths: Sequence[int]) -> int:
    """How many records the segment that ends with record `gen` holds; 0 where none ends."""
    return max((length for length in lengths if gen % length == 0), default=0)


def short_ends(head: int, lengths: Sequence[int]) -> list[int]:
    """Last records of the fewest segments of what comes after the last one of full length."""
    longest, *shorter = sorted(lengths, reverse=True)
    at, ends = head - head % longest, list[int]()
    for length in shorter:
        ends += range(at + length, head + 1, length)
        at = head - head % length
    return ends


def read_run(
    slots: LogSlots,
    start: int,
    stop: int,
    previous: Digest,
    *,
    lengths: Sequence[int],
    report: Callable[[str], None],
) -> list[LogSlot]:
    """Slots from `start` on, as many of ``[start, stop)`` as are read together; none: the end.

    From a segment when that saves requests and there is one that the chain agrees with.

    Args:
        slots: where they lie.
        start: first generation.
        stop: generation after the last.
        previous: digest of the slot before `start`.
        lengths: lengths of segments, in records.
        report: is told of a segment that cannot be used.
    """
    for last in _useful_ends(start, stop, lengths):
        try:
            found = _from_segment(slots, last, start, min(stop, last + 1), previous)
        except Error as error:
            report(f"skipping a segment: {error}")
            continue
        if found is not None:
            return found
    return slots.chain(start, previous, slots.run(start, min(stop, start + MAX_WINDOW)))


def _useful_ends(start: int, stop: int, lengths: Sequence[int]) -> list[int]:
    """Last records of the segments much of which is of use, the longest first: all is read."""
    ends = {-(-start // length) * length: length for length in lengths}
    useful = (
        end for end, length in ends.items() if min(stop, end + 1) - start > max(1, length // 64)
    )
    return sorted(useful, reverse=True)


def read_segment(
    slots: LogSlots, last: int, limit_bytes: int = MAX_SEGMENT_BYTES, *, commits: bool = True
) -> Segment | None:
    """The segment that ends with record `last`, None when there is none of up to `limit_bytes`.

    Without `commits` it has none: who reads the log need not verify them all.

    Raises:
        CorruptError: damaged, or its last record is not that of the log.
    """
    where = f"{slots.backend.url}: segment {last}"
    size = slots.backend.size(segment_key(last))
    stored = None if size is None or size > limit_bytes else slots.read(segment_key(last))
    data = None if stored is None else _expand(stored, limit_bytes, where)
    if data is None:
        return None
    segment = decode_segment(data, where, commits=commits)
    if not segment.records or segment.first + len(segment.records) != last + 1:
        raise CorruptError(f"{where}: does not end with record {last}")
    return segment


def _expand(stored: bytes, limit_bytes: int, where: str) -> bytes | None:
    """A segment's own bytes, of what was stored; None when they are more than `limit_bytes`."""
    if stored[:4] != zstandard.FRAME_HEADER:
        return stored
    if claimed_bytes(stored, where) > limit_bytes:
        return None
    return expand_frame(stored, where, limit_bytes)


def write_segment(
    slots: LogSlots,
    run: Sequence[LogSlot],
    commits: Callable[[LogSlot], Iterable[SegmentCommit]],
    *,
    lengths: Sequence[int],
) -> None:
    """Store the segment of `run`, unless somebody else did.

    Commits are taken from the shorter segments of `run` where those exist; `commits` gives those
    of a record.
    """
    introduced: list[SegmentCommit] = []
    at = 0
    while at < len(run):
        known = _shorter_segment(slots, run[at:], lengths)
        if known is not None:
            introduced += known.commits
            at += len(known.records)
            continue
        single = run[at : at + min(lengths)]
        found = slots.side_by_side(lambda slot: tuple(commits(slot)), single)
        introduced += chain.from_iterable(found)
        at += len(single)
    segment = Segment(run[0].record.gen, tuple(slot.data for slot in run), tuple(introduced))
    data = encode_segment(segment)
    if len(data) <= MAX_SEGMENT_BYTES:
        slots.backend.create(segment_key(run[-1].record.gen), [zstandard.compress(data)])


def _shorter_segment(
    slots: LogSlots, run: Sequence[LogSlot], lengths: Sequence[int]
) -> Segment | None:
    """A segment that `run` begins with, but not all of it; None when there is none."""
    first, last = run[0].record.gen, run[-1].record.gen
    for length in sorted(lengths, reverse=True):
        end = first + length - 1
        if end >= last or segment_length(end, lengths) != length:
            continue
        try:
            found = read_segment(slots, end)
        except Error:
            continue  # who reads records reports it
        if found is not None and found.records == tuple(slot.data for slot in run[:length]):
            return found
    return None


def _from_segment(
    slots: LogSlots, last: int, start: int, stop: int, previous: Digest
) -> list[LogSlot] | None:
    segment = read_segment(slots, last, commits=False)
    if segment is None or segment.first > start:
        return None
    values = segment.records[start - segment.first : stop - segment.first]
    found = slots.chain(start, previous, values, is_copy=True)
    # The chain tells where the run begins; the slot itself tells that it ends where the log does.
    if record_digest(slots.slot_bytes(stop - 1)) != found[-1].digest:
        raise CorruptError(f"{slots.backend.url}: segment {last} is not of this log")
    return found


def _decode_commit(reader: _Reader) -> SegmentCommit:
    generation, raw, envelope_bytes, filter_bytes = COMMIT.unpack(reader.take(COMMIT.size))
    paths, envelope = reader.take(filter_bytes), reader.take(envelope_bytes)
    digest = digest_from_bytes(raw)
    if object_digest((envelope,)) != digest:
        raise CorruptError(f"{reader.where}: commit {digest:.12} has other bytes")
    return SegmentCommit(generation, digest, envelope, paths)


def _with_folders(path: str) -> Iterable[str]:
    """`path` and every folder above it."""
    segments = path.split("/")
    return ("/".join(segments[:count]) for count in range(1, len(segments) + 1))


def _bits(name: str, bits: int) -> list[int]:
    tag = content_tag(name.encode())
    a, b = int.from_bytes(tag[:8], "little"), int.from_bytes(tag[8:], "little")
    return [(a + i * b) % bits for i in range(HASHES)]

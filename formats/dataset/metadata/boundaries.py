"""Builders of chunks, page indexes and leaves, which end at content-defined boundaries.

Mutable builders without any I/O: `span_write` stores what they give. Chunks never span two page
indexes, page indexes never span two leaves.

Boundaries depend on the fragments alone, never on history: equal runs of fragments in two versions
of a dataset make equal objects, and a change rewrites one of them. Each fragment has a size (its
record in a leaf, its page entries in an index); a boundary falls after a fragment whose uid is low
enough, with a chance in proportion to its size. A uid has upper bits of its fragment's content.

Source:
    docs/spec/dataset.md, section "Boundaries".
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.chunk import ChunkColumn, LaidChunk, lay_out
from tensorrepo.formats.dataset.metadata.index import ColumnPages, PageIndex, join_pages
from tensorrepo.formats.dataset.metadata.manifest import ColumnStatistics
from tensorrepo.formats.dataset.pages.page import HAS_RANGE, PAGE_ENTRY, TAG_BYTES, EncodedPage
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest

MIN_BYTES = 64 << 10
MEAN_BYTES = 256 << 10
MAX_BYTES = 384 << 10  # with its root, a changed leaf stays under half a megabyte
CONTENT_BITS, UNIQUE_BITS = 16, 48  # of a uid


@dataclass(frozen=True, slots=True)
class Cuts:
    """Bytes gathered since the last boundary. `closed` says that the next fragment starts anew."""

    bytes: int = 0
    closed: bool = False

    def must_end_before(self, fragment_bytes: int) -> bool:
        """Whether a boundary falls between what was gathered and the next fragment."""
        too_much = self.bytes > 0 and self.bytes + fragment_bytes > MAX_BYTES
        return self.closed or too_much

    def add(self, uid: int, fragment_bytes: int) -> Cuts:
        """With one more fragment, on whichever side of the boundary it falls."""
        before = 0 if self.must_end_before(fragment_bytes) else self.bytes
        total = before + fragment_bytes
        chance = (fragment_bytes << CONTENT_BITS) // (MEAN_BYTES - MIN_BYTES)
        return Cuts(total, total >= MIN_BYTES and uid >> UNIQUE_BITS < chance)

    def fitting(self, uids: Sequence[int], sizes: Sequence[int]) -> int:
        """How many fragments come before the next boundary, the first one in any case."""
        cuts = self
        for at, (uid, size) in enumerate(zip(uids, sizes, strict=True)):
            if at and cuts.must_end_before(size):
                return at
            cuts = cuts.add(uid, size)
        return len(sizes)


def new_uid(content: int, rng: random.Random) -> int:
    """The uid of a new fragment: its upper bits are of its content, and decide where spans end.

    So equal rows are cut alike, and make equal chunks. `content` are 64 bits of the content.
    """
    return content >> UNIQUE_BITS << UNIQUE_BITS | rng.getrandbits(UNIQUE_BITS)


ENTRY_BYTES = PAGE_ENTRY.itemsize + TAG_BYTES + 4  # what one page takes in an index
StoredForm = tuple[tuple[str, "Storage"], ...]  # ids and stored forms of the columns of an index


@dataclass(slots=True, eq=False)
class WaitingPage:
    """A page that lies in no chunk yet.

    `tiles` give the digests of the chunks that hold its tiles, when called; these take
    `tile_bytes`.
    """

    first_row: int
    encoded: Callable[[], EncodedPage]  # may block until a thread has encoded it
    raw_bytes: int
    fragment: int = 0  # counted within the leaf
    is_new: bool = True  # not yet counted in statistics
    tiles: Sequence[Callable[[], Digest]] = ()
    tile_bytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPart:
    """One fragment's pages of one column: laid in `chunks`, whose places they name, or waiting."""

    id: str
    storage: Storage
    pages: ColumnPages | Sequence[WaitingPage]
    chunks: tuple[Digest, ...] = ()

    @property
    def count(self) -> int:
        return len(self.pages.entries if isinstance(self.pages, ColumnPages) else self.pages)


@dataclass(frozen=True, slots=True, eq=False)
class FragmentPart:
    """One fragment's pages of one column group, column by column."""

    columns: tuple[ColumnPart, ...]

    @property
    def index_bytes(self) -> int:
        """What the fragment takes in the group's page index."""
        return ENTRY_BYTES * sum(column.count for column in self.columns)

    @property
    def form(self) -> StoredForm:
        return tuple((column.id, column.storage) for column in self.columns)

    def replaced(self, columns: Sequence[ColumnPart]) -> FragmentPart:
        """With other pages for some columns; a column that was not there is put behind."""
        new = {column.id: column for column in columns}
        kept = [new.pop(column.id, column) for column in self.columns]
        return FragmentPart((*kept, *new.values()))


@dataclass(slots=True, eq=False)
class OpenColumn:
    """The pages of one column in an open span, in order: laid in chunks, or waiting for one."""

    id: str
    storage: Storage
    pieces: list[ColumnPages | list[WaitingPage]] = field(default_factory=list)

    @property
    def waiting(self) -> Iterator[WaitingPage]:
        return (page for piece in self.pieces if isinstance(piece, list) for page in piece)

    def add_waiting(self, pages: Sequence[WaitingPage]) -> None:
        if not self.pieces or not isinstance(self.pieces[-1], list):
            self.pieces.append([])
        last = self.pieces[-1]
        assert isinstance(last, list), "it has just been made sure"
        last.extend(pages)

    def settle(self, laid: ColumnPages) -> None:
        """Put the pages of a chunk where they were waiting."""
        at = 0
        for place, piece in enumerate(self.pieces):
            if isinstance(piece, list):
                self.pieces[place] = part_of(laid, at, at + len(piece))
                at += len(piece)

    def pages(self) -> ColumnPages:
        """All pages; none may be waiting."""
        laid = [piece for piece in self.pieces if isinstance(piece, ColumnPages)]
        if not laid:
            tags, chunk = np.zeros((0, TAG_BYTES), np.uint8), np.zeros(0, np.uint32)
            return ColumnPages(self.id, self.storage, np.zeros(0, PAGE_ENTRY), tags, chunk)
        return laid[0] if len(laid) == 1 else join_pages(laid)


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A page index in the making, over fragments ``[first_fragment, first_fragment + fragments)``.

    `chunks` gives digests when called: a chunk may still be on its way to the store. None is the
    chunk whose pages are `inline`.
    """

    group: str
    first_fragment: int
    fragments: int = 0
    columns: tuple[OpenColumn, ...] = ()
    cuts: Cuts = field(default_factory=Cuts)
    chunks: list[Callable[[], Digest] | None] = field(default_factory=list)
    inline: memoryview = field(default_factory=lambda: memoryview(b""))
    waiting_bytes: int = 0
    _known: dict[Digest, int] = field(default_factory=dict)

    def takes(self, part: FragmentPart, fragment: int) -> bool:
        """Whether `part` can be put behind what is here: next fragment, same columns and forms."""
        if not self.fragments:
            return self.first_fragment == fragment
        form = tuple((column.id, column.storage) for column in self.columns)
        return self.first_fragment + self.fragments == fragment and form == part.form

    def encoded_bytes(self) -> int:
        """Stored bytes of the pages that wait; blocks until all are encoded."""
        return sum(page.encoded().data.nbytes for column in self.columns for page in column.waiting)

    def add_fragment(self, uid: int, fragment: int, part: FragmentPart) -> None:
        """One more fragment, `fragment` in its leaf."""
        if not self.columns:
            self.columns = tuple(OpenColumn(name, storage) for name, storage in part.form)
        for column, added in zip(self.columns, part.columns, strict=True):
            if isinstance(added.pages, ColumnPages):
                column.pieces.append(self.renumbered(added.pages, added.chunks))
                continue
            for page in added.pages:
                page.fragment = fragment
                self.waiting_bytes += page.raw_bytes
            column.add_waiting(added.pages)
        self.cuts = self.cuts.add(uid, part.index_bytes)
        self.fragments += 1

    def add_parts(self, parts: IndexParts, uids: Sequence[int]) -> None:
        """All fragments of an index: what is laid at once, what stands inline one by one.

        Small appends leave hundreds that are laid, and a few inline behind them.
        """
        for run in parts.runs():
            part = parts.of(run.start, run.stop)
            if len(run) > 1:
                self.add_run(parts, run, part, uids[run.start : run.stop])
            else:
                at = self.first_fragment + self.fragments
                self.add_fragment(uids[run.start], at, part)

    def add_run(
        self, parts: IndexParts, run: range, part: FragmentPart, uids: Sequence[int]
    ) -> None:
        """Several fragments of an index at once, all laid: `part` is what `parts` has of them."""
        if not parts.are_laid:
            self._name_chunks(parts.chunks_of(run))
        self.add_laid(part, uids, parts.sizes[run.start : run.stop])

    def add_laid(self, part: FragmentPart, uids: Sequence[int], sizes: Sequence[int]) -> None:
        """Several more fragments at once, all of whose pages are laid; `sizes` in the index."""
        if not self.columns:
            self.columns = tuple(OpenColumn(name, storage) for name, storage in part.form)
        for column, added in zip(self.columns, part.columns, strict=True):
            assert isinstance(added.pages, ColumnPages), "the caller has made sure"
            column.pieces.append(self.renumbered(added.pages, added.chunks))
        for uid, size in zip(uids, sizes, strict=True):
            self.cuts = self.cuts.add(uid, size)
        self.fragments += len(uids)

    def renumbered(self, pages: ColumnPages, chunks: Sequence[Digest]) -> ColumnPages:
        """The same pages with places in this span's list of chunks."""
        places = np.array([self._place(digest) for digest in chunks], np.uint32)
        tiles = tuple(tuple(places[list(each)].tolist()) for each in pages.tiles)
        return _in_chunks(pages, places[pages.chunk], tiles)

    def _name_chunks(self, chunks: Sequence[Digest]) -> None:
        """Give chunks the next places, so that what lies in them can be added in any order."""
        for digest in chunks:
            self._place(digest)

    def _place(self, digest: Digest) -> int:
        if digest not in self._known:
            self._known[digest] = len(self.chunks)
            self.chunks.append(lambda: digest)
        return self._known[digest]

    def lay_out(self) -> LaidChunk:
        """Put all waiting pages into the next chunk; the caller stores it and adds to `chunks`."""
        tiles = [[self._tile_places(page) for page in column.waiting] for column in self.columns]
        laid = lay_out(
            [
                ChunkColumn(
                    column.id,
                    column.storage,
                    [page.encoded() for page in column.waiting],
                    [page.first_row for page in column.waiting],
                )
                for column in self.columns
            ],
            len(self.chunks),
        )
        for column, pages, places in zip(self.columns, laid.columns, tiles, strict=True):
            is_tiled = column.storage.layout is ColumnLayout.TILED  # pages without tiles count, too
            column.settle(replace(pages, tiles=tuple(places) if is_tiled else ()))
        self.waiting_bytes = 0
        return laid

    def _tile_places(self, page: WaitingPage) -> tuple[int, ...]:
        first = len(self.chunks)
        self.chunks.extend(page.tiles)
        return tuple(range(first, len(self.chunks)))

    def page_index(self) -> PageIndex:
        """The index over all pages, none of which may still be waiting."""
        chunks = tuple(None if chunk is None else chunk() for chunk in self.chunks)
        return PageIndex(tuple(column.pages() for column in self.columns), chunks, self.inline)


def part_of(pages: ColumnPages, start: int, stop: int) -> ColumnPages:
    """Pages ``[start, stop)``."""
    # Not by `replace`, which takes longer than the rest: there are as many as fragments.
    return ColumnPages(
        pages.id,
        pages.storage,
        pages.entries[start:stop],
        pages.tags[start:stop],
        pages.chunk[start:stop],
        pages.tiles[start:stop],
        pages.bounds[start:stop],
        pages.previews[start:stop],
    )


def _in_chunks(
    pages: ColumnPages, chunk: NDArray[np.uint32], tiles: tuple[tuple[int, ...], ...]
) -> ColumnPages:
    """The same pages, with other places in a list of chunks."""
    given = pages.entries, pages.tags, chunk, tiles, pages.bounds, pages.previews
    return ColumnPages(pages.id, pages.storage, *given)


def fragment_bounds(entries: NDArray[Any]) -> list[int]:
    """Where the pages of each fragment begin in one column's entries, and where the last end."""
    return [*np.flatnonzero(entries["first_row"] == 0).tolist(), len(entries)]


def index_parts(index: PageIndex, only: frozenset[str] | None = None) -> Iterator[FragmentPart]:
    """The pages of a page index, fragment by fragment; `only`: ids of the columns wanted."""
    parts = IndexParts(index, only)
    return (parts.of(at, at + 1) for at in range(parts.fragments))


class IndexParts:
    """The pages of a page index, by fragment of its span; `only`: ids of the columns wanted."""

    def __init__(self, index: PageIndex, only: frozenset[str] | None = None) -> None:
        self._index = index
        self._columns = [each for each in index.columns if only is None or each.id in only]
        self._bounds = [fragment_bounds(column.entries) for column in self._columns]
        counts = {len(bounds) - 1 for bounds in self._bounds}
        if len(counts) > 1:
            raise CorruptError(f"columns of a page index have {sorted(counts)} fragments")
        self.fragments = counts.pop() if counts else 0
        pages = sum((np.diff(bounds) for bounds in self._bounds), np.zeros(self.fragments, int))
        self.sizes: list[int] = (ENTRY_BYTES * pages).tolist()  # of each fragment, in an index

    def of(self, start: int, stop: int) -> FragmentPart:
        """The pages of fragments ``[start, stop)``; of several all must be laid in chunks."""
        return FragmentPart(
            tuple(
                column_part(self._index, part_of(column, bounds[start], bounds[stop]))
                for column, bounds in zip(self._columns, self._bounds, strict=True)
            )
        )

    @property
    def are_laid(self) -> bool:
        """Whether no page stands inline."""
        return None not in self._index.chunks

    @cached_property
    def _laid(self) -> NDArray[np.bool_]:
        """Of each fragment whether its pages lie in chunks."""
        laid = np.ones(self.fragments, bool)
        if not self.are_laid:
            inline = self._index.chunks.index(None)
            for column, bounds in zip(self._columns, self._bounds, strict=True):
                laid &= column.chunk[bounds[:-1]] != inline
        return laid

    def runs(self, start: int = 0, stop: int | None = None) -> Iterator[range]:
        """Fragments in order: as many as are laid in chunks together, others one by one."""
        laid = self._laid[start:stop]
        ends = [*np.flatnonzero(~(laid[1:] & laid[:-1])).tolist(), len(laid) - 1]
        first = 0
        for end in ends if len(laid) else ():
            yield range(start + first, start + end + 1)
            first = end + 1

    def chunks_of(self, run: range) -> list[Digest]:
        """The chunks of fragments that are laid, in the order in which one by one names them.

        Of each fragment, and there of each column, the chunks of its pages and of their tiles as
        the index numbers them: an index has the same bytes however its fragments came to it.
        """
        found = [np.zeros((0, 3), np.int64)]  # fragment, column, place of a chunk
        for at, (column, bounds) in enumerate(zip(self._columns, self._bounds, strict=True)):
            first, last = bounds[run.start], bounds[run.stop]
            fragment = np.repeat(run, np.diff(bounds[run.start : run.stop + 1]))
            tiles = [
                (fragment[page], at, place)
                for page, places in enumerate(column.tiles[first:last])
                for place in places
            ]
            pages = np.full(last - first, at), column.chunk[first:last]
            found += [np.column_stack((fragment, *pages)), np.array(tiles, np.int64).reshape(-1, 3)]
        rows = np.concatenate(found)
        numbers = rows[np.lexsort(rows.T[::-1]), 2].tolist()
        chunks = [self._index.chunks[number] for number in dict.fromkeys(numbers)]
        return [chunk for chunk in chunks if chunk is not None]


def column_part(index: PageIndex, pages: ColumnPages) -> ColumnPart:
    """Pages of `index` as what they are in it: laid in chunks, or waiting where they are inline.

    Of a fragment either all pages of a column stand inline, or none.
    """
    if None in index.chunks and index.chunks[int(pages.chunk[0])] is None:
        waiting = [
            inline_page(pages, at, index.inline, _tile_digests(index, pages, at))
            for at in range(len(pages.entries))
        ]
        return ColumnPart(pages.id, pages.storage, waiting)
    used = sorted({*pages.chunk.tolist(), *(n for each in pages.tiles for n in each)})
    chunks = [index.chunks[number] for number in used]
    assert None not in chunks, "a fragment stands inline as a whole"
    places = np.zeros(len(index.chunks), np.uint32)
    places[used] = np.arange(len(used))
    tiles = tuple(tuple(places[list(each)].tolist()) for each in pages.tiles)
    numbered = _in_chunks(pages, places[pages.chunk], tiles)
    named = tuple(chunk for chunk in chunks if chunk is not None)
    return ColumnPart(pages.id, pages.storage, numbered, named)


def _tile_digests(index: PageIndex, pages: ColumnPages, at: int) -> list[Callable[[], Digest]]:
    numbers = pages.tiles[at] if pages.tiles else ()
    digests = [index.chunks[number] for number in numbers]
    return [lambda digest=digest: digest for digest in digests]  # type: ignore[misc]  # bound now


def inline_page(
    pages: ColumnPages, at: int, inline: memoryview, tiles: Sequence[Callable[[], Digest]] = ()
) -> WaitingPage:
    """The page at a place that stands in an index, to be laid into a chunk anew."""
    entry = pages.entries[at]
    offset, stored_bytes = int(entry["offset"]), int(entry["stored_bytes"])
    data = np.frombuffer(inline, np.uint8)[offset : offset + stored_bytes]
    bounds = pages.bounds[at : at + 1].tobytes()
    previews = pages.previews[at : at + 1]
    previews = previews if (previews["stored_bytes"] > 0).any() else previews[:0]
    tag = pages.tags[at].tobytes()
    page = EncodedPage(data, entry.copy(), tag, bounds, previews.tobytes())
    first_row = int(entry["first_row"])
    return WaitingPage(first_row, lambda: page, stored_bytes, is_new=False, tiles=tiles)


@dataclass(slots=True)
class ColumnTally:
    """Statistics of one column, as pages come and go."""

    nulls: int = 0
    stored_bytes: int = 0
    raw_bytes: int = 0
    min: int | None = None
    max: int | None = None

    @classmethod
    def of(cls, known: ColumnStatistics | None) -> ColumnTally:
        return cls() if known is None else cls(*msgspec.structs.astuple(known)[1:])

    def add(self, entry: NDArray[Any], tile_bytes: int = 0) -> None:
        """Count one page, given its PAGE_ENTRY record and what its tiles take beside it."""
        self.nulls += int(entry["nulls"])
        self.stored_bytes += int(entry["stored_bytes"]) + tile_bytes
        self.raw_bytes += int(entry["raw_bytes"])
        if entry["flags"] & HAS_RANGE:
            self.cover(int(entry["min"]), int(entry["max"]))

    def add_all(self, entries: NDArray[Any]) -> None:
        """Count several pages, given their PAGE_ENTRY records."""
        self.count(entries)
        ranged = entries[(entries["flags"] & HAS_RANGE) != 0]
        if len(ranged):
            self.cover(min(ranged["min"].tolist()), max(ranged["max"].tolist()))

    def cover(self, low: int | None, high: int | None) -> None:
        """Widen the bounds to these order keys; None says nothing."""
        if low is not None:
            self.min = low if self.min is None else min(self.min, low)
        if high is not None:
            self.max = high if self.max is None else max(self.max, high)

    def count(self, entries: NDArray[Any], times: int = 1) -> None:
        """Count pages without their bounds; with `times` -1 no more: bounds are bounds still."""
        # A fragment has few pages: Python's sum of them takes half of numpy's time.
        self.nulls += times * sum(entries["nulls"].tolist())
        self.stored_bytes += times * sum(entries["stored_bytes"].tolist())
        self.raw_bytes += times * sum(entries["raw_bytes"].tolist())

"""Gathering pages until a chunk, a page index and a leaf are complete.

Mutable builders without any I/O: `write` feeds them and stores what they give. Chunks never span
two page indexes, page indexes never span two leaves.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.chunk import ChunkColumn, LaidChunk, encode_footer, lay_out
from tensorrepo.formats.dataset.cuts import Cuts
from tensorrepo.formats.dataset.index import ColumnPages, PageIndex
from tensorrepo.formats.dataset.manifest import FRAGMENT, Span
from tensorrepo.formats.dataset.page import (
    HAS_RANGE,
    PAGE_ENTRY,
    TAG_BYTES,
    EncodedPage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.manifest import ColumnStatistics
    from tensorrepo.formats.dataset.types import Storage
    from tensorrepo.repo.ids import Digest

ENTRY_BYTES = PAGE_ENTRY.itemsize + TAG_BYTES + 4  # what one page takes in an index


@dataclass(slots=True, eq=False)
class WaitingPage:
    """A page that lies in no chunk yet."""

    first_row: int
    encoded: Callable[[], EncodedPage]  # may block until a thread has encoded it
    raw_bytes: int
    fragment: int = 0  # counted within the leaf
    is_new: bool = True  # not yet counted in statistics


@dataclass(frozen=True, slots=True, eq=False)
class FragmentPart:
    """One fragment's pages of one column group, per column, waiting for a chunk."""

    pages: Sequence[Sequence[WaitingPage]]

    @property
    def index_bytes(self) -> int:
        """What the fragment takes in the group's page index."""
        return ENTRY_BYTES * sum(len(column) for column in self.pages)


@dataclass(frozen=True, slots=True, eq=False)
class LaidPart(FragmentPart):
    """The same for pages that lie in the chunk `digest` already."""

    pages: Sequence[Sequence[WaitingPage]] = field(default=(), init=False)
    columns: tuple[ColumnPages, ...]
    digest: Digest

    @property
    def index_bytes(self) -> int:
        return ENTRY_BYTES * sum(len(column.entries) for column in self.columns)


@dataclass(slots=True, eq=False)
class OpenColumn:
    """The pages of one column in an open span: those in chunks, and those waiting."""

    id: str
    storage: Storage
    laid: list[ColumnPages] = field(default_factory=list)
    waiting: list[WaitingPage] = field(default_factory=list)

    def pages(self) -> ColumnPages:
        """All pages that lie in chunks."""
        entries = np.concatenate([np.zeros(0, PAGE_ENTRY), *(part.entries for part in self.laid)])
        tags = np.concatenate(
            [np.zeros((0, TAG_BYTES), np.uint8), *(part.tags for part in self.laid)]
        )
        chunk = np.concatenate([np.zeros(0, np.uint32), *(part.chunk for part in self.laid)])
        return ColumnPages(self.id, self.storage, entries, tags, chunk)


@dataclass(slots=True, eq=False)
class OpenSpan:
    """A page index in the making, over fragments ``[first_fragment, first_fragment + fragments)``.

    `chunks` gives digests when called: a chunk may still be on its way to the store. None is the
    chunk whose pages are `inline`.
    """

    group: str
    columns: tuple[OpenColumn, ...]
    first_fragment: int
    fragments: int = 0
    cuts: Cuts = field(default_factory=Cuts)
    chunks: list[Callable[[], Digest] | None] = field(default_factory=list)
    inline: memoryview = field(default_factory=lambda: memoryview(b""))
    chunk_uids: list[int] = field(default_factory=list)  # of fragments whose pages wait
    _known: dict[Digest, int] = field(default_factory=dict)

    @property
    def waiting_bytes(self) -> int:
        return sum(page.raw_bytes for column in self.columns for page in column.waiting)

    def encoded_bytes(self) -> int:
        """Stored bytes of the pages that wait; blocks until all are encoded."""
        return sum(page.encoded().data.nbytes for column in self.columns for page in column.waiting)

    def add_fragment(self, uid: int, fragment: int, part: FragmentPart) -> None:
        """One more fragment, `fragment` in its leaf. Laid pages need that none is waiting."""
        if isinstance(part, LaidPart):
            number = self._chunk_number(part.digest)
            for column, pages in zip(self.columns, part.columns, strict=True):
                chunk = np.full(len(pages.entries), number, np.uint32)
                column.laid.append(replace(pages, chunk=chunk))
        else:
            self.chunk_uids.append(uid)
            for column, added in zip(self.columns, part.pages, strict=True):
                for page in added:
                    page.fragment = fragment
                column.waiting.extend(added)
        self.cuts = self.cuts.add(uid, part.index_bytes)
        self.fragments += 1

    def _chunk_number(self, digest: Digest) -> int:
        if digest not in self._known:
            self._known[digest] = len(self.chunks)
            self.chunks.append(lambda: digest)
        return self._known[digest]

    def lay_out(self) -> LaidChunk:
        """Put all waiting pages into the next chunk; the caller stores it and adds to `chunks`."""
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
        for column, pages in zip(self.columns, laid.columns, strict=True):
            column.laid.append(pages)
            column.waiting.clear()
        return laid

    def footer(self, laid: LaidChunk) -> bytes:
        """What closes the chunk that was laid out last."""
        footer = encode_footer(laid.columns, self.chunk_uids)
        self.chunk_uids = []
        return footer

    def page_index(self) -> PageIndex:
        """The index over all pages, none of which may still be waiting."""
        chunks = tuple(None if chunk is None else chunk() for chunk in self.chunks)
        return PageIndex(tuple(column.pages() for column in self.columns), chunks, self.inline)


@dataclass(slots=True, eq=False)
class OpenLeaf:
    """A leaf in the making: its fragments, spans that are complete, and the open one per group."""

    spans: dict[str, list[Span]]
    open: dict[str, OpenSpan]
    uids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)

    @property
    def fragments(self) -> int:
        return len(self.uids)

    @property
    def inline_bytes(self) -> int:
        """Bytes of the page indexes that stand in the leaf."""
        indexes = (span.index for spans in self.spans.values() for span in spans)
        return sum(index.nbytes for index in indexes if isinstance(index, memoryview))

    def add_fragment(self, uid: int, rows: int) -> None:
        self.uids.append(uid)
        self.rows.append(rows)
        self.stored_bytes.append(0)
        self.cuts = self.cuts.add(uid, FRAGMENT.itemsize)

    def records(self) -> NDArray[Any]:
        """FRAGMENT records of all fragments."""
        found = np.zeros(self.fragments, FRAGMENT)
        found["uid"], found["rows"], found["stored_bytes"] = self.uids, self.rows, self.stored_bytes
        return found


def fragment_bounds(entries: NDArray[Any]) -> list[tuple[int, int]]:
    """Where the pages of each fragment begin and end in one column's entries."""
    starts = np.flatnonzero(entries["first_row"] == 0).tolist()
    return list(pairwise([*starts, len(entries)]))


@dataclass(slots=True)
class Tally:
    """Statistics of one column, as pages come in."""

    nulls: int = 0
    stored_bytes: int = 0
    raw_bytes: int = 0
    min: int | None = None
    max: int | None = None

    @classmethod
    def of(cls, known: ColumnStatistics | None) -> Tally:
        if known is None:
            return cls()
        return cls(known.nulls, known.stored_bytes, known.raw_bytes, known.min, known.max)

    def add(self, entry: NDArray[Any]) -> None:
        """Count one page, given its PAGE_ENTRY record."""
        self.nulls += int(entry["nulls"])
        self.stored_bytes += int(entry["stored_bytes"])
        self.raw_bytes += int(entry["raw_bytes"])
        if entry["flags"] & HAS_RANGE:
            low, high = int(entry["min"]), int(entry["max"])
            self.min = low if self.min is None else min(self.min, low)
            self.max = high if self.max is None else max(self.max, high)

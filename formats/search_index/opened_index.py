"""Opened index: one that can be asked, with what is remembered between questions.

OpenedIndexes.of(index, dataset) -> OpenedIndex -> nearest_by_index, texts_by_index, rows_by_indexes
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Final

import numpy as np

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.deletions import LiveRows
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, narrowed
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.searching.top_rows import Ranked
from tensorrepo.formats.exchange.child_main import TableFile
from tensorrepo.formats.search_index.kinds import Family
from tensorrepo.formats.search_index.known_rows import KnownRows
from tensorrepo.formats.search_index.lance_segment import SegmentReaders
from tensorrepo.formats.search_index.segment_files import IndexFolders
from tensorrepo.formats.search_index.sorted_values import KeyBlock, SortedSegment
from tensorrepo.formats.search_index.stored_index import LENGTHS, IndexSegment, StoredIndex
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import ObjectSource

REMEMBERED: Final = 16  # pairs of an index and a version
LENGTHS_BYTES: Final = 256 << 20  # of lengths of texts that are kept
BLOCK_BYTES: Final = 128 << 20  # of blocks of sorted values that are kept
SEGMENTS: Final = 256  # of sorted values


@dataclass(frozen=True, slots=True)
class IndexedVersion:
    """Digests of contents of an index and of a version of its dataset, and the id of a column.

    Where something was purged they are those of what took its place.
    """

    index: Digest
    dataset: Digest
    column_id: str


@dataclass(frozen=True, slots=True)
class TextSums:
    """Texts that are not null, and words of all of them."""

    texts: int
    words: int

    def __add__(self, other: TextSums) -> TextSums:
        return TextSums(self.texts + other.texts, self.words + other.words)


@dataclass(eq=False)
class OpenedIndexes:
    """What this process has open of indexes; one for each folder of caches.

    Attributes:
        folders: folders of segments.
        readers: children that have segments open.
    """

    folders: IndexFolders
    readers: SegmentReaders = field(default_factory=SegmentReaders)
    _indexes: LimitedCache[StoredIndex] = field(default_factory=lambda: LimitedCache(REMEMBERED))
    _known: LimitedCache[KnownRows] = field(default_factory=lambda: LimitedCache(REMEMBERED))
    _lengths: LimitedCache[Ints] = field(default_factory=lambda: LimitedCache(LENGTHS_BYTES))
    _sums: LimitedCache[TextSums] = field(default_factory=lambda: LimitedCache(REMEMBERED))
    _blocks: LimitedCache[KeyBlock] = field(default_factory=lambda: LimitedCache(BLOCK_BYTES))
    _sorted: LimitedCache[SortedSegment] = field(default_factory=lambda: LimitedCache(SEGMENTS))

    def index(self, content: Digest, read: Callable[[], StoredIndex]) -> StoredIndex:
        """The index that `read` reads, remembered by its content: a purge changes what it names."""
        return self._indexes.get_or_load(content, lambda: (read(), 1))

    def of(
        self, key: IndexedVersion, index: StoredIndex, dataset: StoredDataset, column: Column
    ) -> OpenedIndex:
        """An index, to be asked about the rows of a version of its dataset.

        Args:
            key: what is remembered is of these.
            index: an index of the column.
            dataset: all rows of the version.
            column: the column, as the version has it.
        """
        known = self._known.get_or_load(key, lambda: (KnownRows.of(index, dataset, column), 1))
        return OpenedIndex(self, key, known)

    def tables(self, known: KnownRows, family: Family) -> dict[int, TableFile]:
        """What answers for each segment that has files, by its number."""
        asked = {at: each for at, each in enumerate(known.index.segments) if each.files}
        if not asked:
            return {}
        objects, segments = known.dataset.objects, [*asked.values()]
        tables = self.readers.tables(objects, self.folders, segments, family)
        return dict(zip(asked, tables, strict=True))

    def sorted_segments(self, known: KnownRows) -> dict[int, SortedSegment]:
        """Each segment of sorted values that has some, by its number."""
        return {
            at: self._sorted_segment(known.dataset.objects, segment)
            for at, segment in enumerate(known.index.segments)
            if segment.files
        }

    def _sorted_segment(self, objects: ObjectSource, segment: IndexSegment) -> SortedSegment:
        # By the store, too: one that was closed answers nothing.
        key = (id(objects), segment.name)
        return self._sorted.get_or_load(
            key, lambda: (SortedSegment(objects, segment, self._blocks), 1)
        )

    def lengths(self, known: KnownRows, at: int) -> Ints:
        """How many words each text of a segment has, int32 by place; -1 where it is null.

        Raises:
            CorruptError: there are not so many.
        """
        segment = known.index.segments[at]

        def load() -> tuple[Ints, int]:
            folder = self.folders.folder(known.dataset.objects, segment)
            found = np.fromfile(folder / LENGTHS, "<i4")
            if len(found) != segment.rows:
                raise CorruptError(
                    f"a search index of {segment.rows:,} texts has lengths of {len(found):,}"
                )
            return found, found.nbytes

        return self._lengths.get_or_load(segment.name, load)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedIndex:
    """An index that is asked about one version of its dataset."""

    indexes: OpenedIndexes
    key: IndexedVersion
    known: KnownRows

    @property
    def index(self) -> StoredIndex:
        return self.known.index

    def sorted_segments(self) -> dict[int, SortedSegment]:
        """Its segments of sorted values that have some, by their numbers."""
        return self.indexes.sorted_segments(self.known)

    def text_sums(self, scope: IndexScope) -> TextSums:
        """What is counted of all texts that the index knows, of those in `scope`."""
        if scope.is_whole:
            sums = self.indexes._sums  # noqa: SLF001  its module
            return sums.get_or_load(self.key, lambda: (self._count(scope), 1))
        return self._count(scope)

    def _count(self, scope: IndexScope) -> TextSums:
        total = TextSums(0, 0)
        for at in range(len(self.index.segments)):
            inside = scope.fresh.live(self.known.every_row(at)) >= 0
            lengths = self.indexes.lengths(self.known, at)[inside]
            some = lengths[lengths >= 0]
            total += TextSums(len(some), int(some.sum(dtype=np.int64)))
        return total


@dataclass(frozen=True, slots=True, eq=False)
class IndexScope:
    """Rows that may come in an answer.

    Attributes:
        fresh: those of them that the index knows, as if all others were deleted.
        beside: those that it does not know; None: there are none.
        is_whole: whether they are all rows of the version.
    """

    fresh: LiveRows
    beside: StoredDataset | None
    is_whole: bool

    @classmethod
    def of(cls, opened: OpenedIndex, searched: StoredDataset) -> IndexScope:
        """The rows of `searched`, some rows of the version that the index is asked about."""
        known = opened.known
        if searched.rows == known.dataset.rows:
            return cls(known.fresh, known.beside, True)
        live = live_rows(searched)
        unknown = known.unknown[live.live(known.unknown) >= 0]
        dead = np.union1d(live.dead, unknown) if len(unknown) else live.dead
        beside = narrowed(known.dataset, unknown) if len(unknown) else None
        return cls(LiveRows(live.total, dead), beside, False)

    @property
    def indexed(self) -> int:
        """Rows that the index knows."""
        return self.fresh.rows

    @property
    def told_beside(self) -> str:
        """Of the others, in words."""
        if self.beside is None:
            return ""
        return f"; {counted(self.beside.rows, 'row')} that it does not know compared as well"


@dataclass(frozen=True, slots=True, eq=False)
class IndexedAnswer:
    """Rows that were found by an index, and how.

    Attributes:
        ranked: rows for each query, as exact search gives them.
        told: how they were found, in words.
    """

    ranked: list[Ranked]
    told: str

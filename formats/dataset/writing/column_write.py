"""Writer of new pages for columns of fragments that are there.

Columns that are added, values that are set, and columns that a merge brings all go this way, page
boundaries nested in those that a fragment has. Pages wait for a chunk that they share with those of
other fragments; where they are so many that memory would not hold them, they go into chunks of
their own as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import field

import numpy as np

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, WaitingPage
from tensorrepo.formats.dataset.metadata.chunk import ChunkColumn, encode_footer, lay_out
from tensorrepo.formats.dataset.metadata.deletions import unpack_deletions
from tensorrepo.formats.dataset.metadata.index import ColumnPages, join_pages
from tensorrepo.formats.dataset.metadata.span_write import Fragment, SpanWriter
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit, TreeEditor
from tensorrepo.formats.dataset.metadata.tree_write import Groups
from tensorrepo.formats.dataset.pages.page import DIRECTORY, column_codec, encode_page, padded
from tensorrepo.formats.dataset.pages.stripes import NO_LIMIT, PageFiller, page_cuts, page_limit
from tensorrepo.formats.dataset.pages.tile_io import TileStore, tiled_rows
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.reading.overlay import RowPiece, collect
from tensorrepo.formats.dataset.schema.derived import derived_values
from tensorrepo.formats.dataset.schema.schema import Column, ColumnLayout, Schema
from tensorrepo.formats.dataset.schema.values import (
    ColumnValues,
    RaggedValues,
    TiledValues,
    blank_values,
    concat,
)
from tensorrepo.formats.dataset.writing.fragment_write import (
    MIN_QUARTER_BYTES,
    tile_page,
    writer_threads,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSink

STEP_BYTES = 4 << 20  # of values that are looked at, at a time


@dataclass(slots=True, eq=False)
class ColumnPartWriter:
    """Takes the rows of one column of one fragment, in order. Used by one thread.

    `spans` counts pages, too; `fragment` is numbered within its leaf; `codec` is tried on every
    page. Without `filler`, which joins rows to pages, each `add` is a page. A tiled column has one
    page anyway.
    """

    spans: SpanWriter
    column: Column
    fragment: int
    uid: int
    encoders: Executor
    waiting_bytes: int
    codec: CodecChoice = Codec.NONE
    filler: PageFiller | None = None
    nbytes: int = 0
    rows: int = 0
    _waiting: list[WaitingPage] = field(default_factory=list)
    _held: int = 0
    _laid: list[ColumnPages] = field(default_factory=list)
    _chunks: list[Callable[[], Digest]] = field(default_factory=list)
    _tiled: list[TiledValues] = field(default_factory=list)
    _tiles: TileStore[Callable[[], Digest]] | None = None

    def add(self, values: ColumnValues) -> None:
        """More rows, which must not change afterwards."""
        if self.column.storage.layout is ColumnLayout.TILED:
            assert isinstance(values, RaggedValues), "rows that will be cut into tiles"
            self._tiles = self._tiles or TileStore(
                self.column.storage,
                self.spans.store_parts,
                encoders=self.encoders,
                codec=self.codec,
                budget_bytes=self.waiting_bytes,
            )
            self._tiled.append(self._tiles.add(tiled_rows(values)))
        elif self.filler is None:
            self._add_page(values)
        else:
            for pieces in self.filler.add(values):
                self._add_page(concat(pieces))

    def finish(self) -> ColumnPart:
        """All pages."""
        column = self.column
        if self._tiles is not None:
            self._waiting.append(tile_page(self._tiles, self._tiled, column.storage))
        if not self._chunks:
            return ColumnPart(column.id, column.storage, self._waiting)
        if self._waiting:
            self._store_waiting()
        chunks = tuple(each() for each in self._chunks)
        return ColumnPart(column.id, column.storage, join_pages(self._laid), chunks)

    def _add_page(self, values: ColumnValues) -> None:
        codec = column_codec(self.column.type, self.codec)
        encoded = self.encoders.submit(encode_page, values, self.column.storage, codec)
        size = padded(values.nbytes) + DIRECTORY.size
        self._waiting.append(WaitingPage(self.rows, encoded.result, size))
        self.rows += values.rows
        self.nbytes += values.nbytes
        self._held += size
        if self._held > self.waiting_bytes:
            self._store_waiting()

    def _store_waiting(self) -> None:
        column = self.column
        pages = [page.encoded() for page in self._waiting]
        firsts = [page.first_row for page in self._waiting]
        laid = lay_out([ChunkColumn(column.id, column.storage, pages, firsts)], len(self._chunks))
        footer = encode_footer(laid.columns)
        self._chunks.append(self.spans.store_parts([*laid.parts, footer]))
        self._laid += laid.columns
        for page in self._waiting:
            page.fragment = self.fragment
            self.spans.count(column.id, page)
        self._waiting, self._held = [], 0


@dataclass(frozen=True, slots=True)
class Editing:
    """What a change of a dataset in place is made with."""

    tree: TreeEditor
    encoders: Executor
    quarter_bytes: int

    def writer(
        self,
        column: Column,
        fragment: int,
        uid: int,
        codec: CodecChoice,
        filler: PageFiller | None = None,
    ) -> ColumnPartWriter:
        """The writer of one column of one fragment."""
        spans, waiting_bytes = self.tree.spans, self.quarter_bytes
        return ColumnPartWriter(
            spans, column, fragment, uid, self.encoders, waiting_bytes, codec, filler
        )


@contextmanager
def editing(
    objects: ObjectSink,
    dataset: StoredDataset,
    budget_bytes: int,
    schema: Schema | None = None,
    groups: Groups | None = None,
) -> Iterator[Editing]:
    """Threads, and an editor of `dataset`; a schema comes with its groups, if it is another one."""
    quarter_bytes = max(MIN_QUARTER_BYTES, budget_bytes // 4)
    schema, groups = schema or dataset.schema, groups or dataset.root.groups
    with writer_threads() as (encoders, storers):
        tree = TreeEditor(objects, dataset, schema, groups, storers, quarter_bytes)
        yield Editing(tree, encoders, quarter_bytes)


def page_filler(
    column: Column,
    others: Sequence[Ints],
    rows: int,
    row_bytes: float,
    page_bytes: int | None = None,
) -> PageFiller:
    """Pages of a new column of a fragment of `rows` rows, where pages of others end as they do."""
    limit = page_limit(column.storage, row_bytes, page_bytes)
    return PageFiller(page_cuts(others, rows, limit / row_bytes), min(limit, NO_LIMIT))


def page_ends(fragment: Fragment) -> list[Ints]:
    """Per column of a fragment where its pages end, counted in rows of the fragment."""
    ends = []
    for column in fragment.columns:
        pages = column.pages
        firsts = (
            pages.entries["first_row"].astype(np.int64)
            if isinstance(pages, ColumnPages)
            else np.array([page.first_row for page in pages], np.int64)
        )
        if column.storage.layout is not ColumnLayout.TILED:
            ends.append(np.append(firsts[1:], fragment.rows))
    return ends


def unread_row(column: Column) -> ColumnValues:
    """What a row holds that nobody reads, as it is deleted: null even where nulls are refused."""
    return blank_values(column.storage, 1, np.zeros(1, np.bool_) if column.nullable else None)


# ------------------------------------------------------------------------------ whole columns


class ValueFeed:
    """Values of consecutive rows, in the portions that are asked for."""

    def __init__(self, pieces: Iterator[ColumnValues]) -> None:
        self._pieces = pieces
        self._left: ColumnValues | None = None
        self.rows = self.nbytes = 0

    def take(self, rows: int) -> list[ColumnValues]:
        """The next `rows` rows, or as many as there are."""
        parts: list[ColumnValues] = []
        while rows and (piece := self._next()) is not None:
            part, self._left = piece.slice(0, rows), None
            if piece.rows > rows:
                self._left = piece.slice(rows, piece.rows)
            parts.append(part)
            rows -= part.rows
            self.rows += part.rows
            self.nbytes += part.nbytes
        return parts

    def row_bytes(self) -> float:
        """What a row of the next piece takes."""
        self._left = self._next()
        return 1.0 if self._left is None else max(1.0, self._left.nbytes / self._left.rows)

    def end(self, rows: int) -> None:
        """Check that exactly so many rows were given.

        Raises:
            InvalidInputError: more or fewer.
        """
        count = self.rows
        while (piece := self._next()) is not None:
            count += piece.rows
            self._left = None
        if count != rows:
            raise InvalidInputError(f"the new column has {count} values for {rows} rows")

    def _next(self) -> ColumnValues | None:
        if self._left is not None:
            return self._left
        return next((piece for piece in self._pieces if piece.rows), None)


@dataclass(frozen=True, slots=True, eq=False)
class NewColumns:
    """A column, and the hidden ones that follow it, brought into every fragment.

    `new` is the column, then its followers; `feed` has the values of its rows.
    """

    new: Sequence[Column]
    feed: ValueFeed
    edit: Editing
    total_rows: int
    codec: CodecChoice
    page_bytes: int | None
    progress: Callable[[int, int], None] | None

    def edits(self, fragments: Iterator[Fragment]) -> Iterator[tuple[int, FragmentEdit]]:
        """The edits of one leaf."""
        for at, fragment in enumerate(fragments):
            yield at, FragmentEdit(pages=self._parts(fragment, at))

    def _parts(self, fragment: Fragment, at: int) -> dict[str, ColumnPart]:
        row_bytes = self.feed.row_bytes()
        writers = [self._writer(column, fragment, at, row_bytes) for column in self.new]
        dead = np.zeros(0, np.int64)
        if fragment.deletions is not None:
            dead = unpack_deletions(fragment.deletions, fragment.rows)
        step = max(1, int(STEP_BYTES / row_bytes))
        for start in range(0, fragment.rows, step):
            stop = min(start + step, fragment.rows)
            low, high = np.searchsorted(dead, [start, stop]).tolist()
            values = self._values(stop - start, dead[low:high] - start)
            writers[0].add(values)
            if writers[1:]:
                facts = derived_values(Schema(tuple(self.new)), {self.new[0].name: values})
                for writer in writers[1:]:
                    writer.add(facts[writer.column.name])
            if self.progress is not None:
                self.progress(self.feed.rows, self.feed.nbytes)
        return {writer.column.id: writer.finish() for writer in writers}

    def _writer(
        self, column: Column, fragment: Fragment, at: int, row_bytes: float
    ) -> ColumnPartWriter:
        if column is not self.new[0]:
            row_bytes = float(max(8, column.storage.row_bytes))
        filler = page_filler(column, page_ends(fragment), fragment.rows, row_bytes, self.page_bytes)
        return self.edit.writer(column, at, fragment.uid, self.codec, filler)

    def _values(self, rows: int, dead: Ints) -> ColumnValues:
        """Values of the next `rows` rows of a fragment, of which `dead` get none."""
        wanted = rows - len(dead)
        pieces = self.feed.take(wanted)
        if sum(piece.rows for piece in pieces) != wanted:
            self.feed.end(self.total_rows)
        if not len(dead):
            return concat(pieces)
        alive = np.setdiff1d(np.arange(rows), dead)
        placed = [RowPiece(unread_row(self.new[0]), np.zeros(len(dead), np.int64), dead)]
        if len(alive):
            placed.insert(0, RowPiece(concat(pieces), np.arange(len(alive)), alive))
        return collect(placed, rows)

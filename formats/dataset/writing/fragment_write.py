"""Fragment writer: rows go in, pages in chunks come out, cut so that their boundaries nest.

Rows are copied once, from the caller's batch into a page. Threads encode and hash while the next
rows arrive. Memory is bounded by a byte budget whatever the width of a row: a quarter for pages
that are being filled, a quarter for pages that wait for their chunk, a quarter for chunks on their
way to the store.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.metadata.boundaries import (
    ColumnPart,
    FragmentPart,
    WaitingPage,
    new_uid,
)
from tensorrepo.formats.dataset.metadata.chunk import CHUNK_BYTES
from tensorrepo.formats.dataset.metadata.row_ids import join_runs, runs_of_ids
from tensorrepo.formats.dataset.metadata.span_write import Fragment
from tensorrepo.formats.dataset.metadata.tree_write import Groups, TreeWriter
from tensorrepo.formats.dataset.pages.page import (
    DIRECTORY,
    Allocate,
    EncodedPage,
    PageCodec,
    PageInput,
    column_codec,
    encode_pages,
    padded,
)
from tensorrepo.formats.dataset.pages.stripes import Stripes, StripeStep, page_limit
from tensorrepo.formats.dataset.pages.tile_io import TileStore, tiled_rows
from tensorrepo.formats.dataset.pages.tiles import encode_tile_table, number_chunks
from tensorrepo.formats.dataset.schema.schema import ColumnLayout, Schema, Storage
from tensorrepo.formats.dataset.schema.values import (
    ColumnValues,
    RaggedValues,
    TiledValues,
    concat,
    concat_tiled,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest

SLAB_BYTES = 8 << 20
TOGETHER_BYTES = 2 << 20  # of pages that a thread encodes one after the other
HEAVY_ROW_BYTES = 256  # columns with rows of at least this many bytes get a group of their own
MIN_QUARTER_BYTES = 4 << 10  # below this, chunks would be all footer
# Whoever gives rows waits for them, and the thread that stores chunks often for the disk.
ENCODE_THREADS = min(4, os.cpu_count() or 1)
_RANDOM = random.SystemRandom()


@contextmanager
def writer_threads() -> Iterator[tuple[ThreadPoolExecutor, ThreadPoolExecutor]]:
    """Threads that encode, and one that stores; an error drops what they have not begun."""
    with (
        ThreadPoolExecutor(ENCODE_THREADS, "encode") as encoders,
        ThreadPoolExecutor(1, "store") as storers,
    ):
        try:
            yield encoders, storers
        except BaseException:
            encoders.shutdown(wait=True, cancel_futures=True)
            storers.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows become pages.

    Attributes:
        encoders: threads that encode.
        budget_bytes: bound of the memory used, beside one batch and one row.
        page_bytes: bytes of a full page; None: 1 MiB, or 256 KiB where rows are under 4 KiB.
        codec: codec tried on every page and tile.
        rng: source of the fragments' uids.
    """

    encoders: ThreadPoolExecutor
    budget_bytes: int
    page_bytes: int | None = None
    codec: CodecChoice = Codec.NONE
    rng: random.Random = _RANDOM

    def __post_init__(self) -> None:
        if self.page_bytes is not None and self.page_bytes < 1:
            raise InvalidInputError(
                f"a page of {self.page_bytes} bytes: expected at least 1, or None for the usual"
            )

    @property
    def quarter_bytes(self) -> int:
        return max(MIN_QUARTER_BYTES, self.budget_bytes // 4)


class FragmentWriter:
    """Cuts rows into fragments and gives them to a tree. Used by one thread.

    `tree` makes the tree, once groups of columns are chosen: by what the first rows weigh, unless
    `groups` says them.
    """

    def __init__(
        self,
        schema: Schema,
        options: WriteOptions,
        tree: Callable[[Groups], TreeWriter],
        groups: Groups,
    ) -> None:
        self.rows = 0
        self.bytes = 0
        self._schema = schema
        self._options = options
        self.groups = groups
        self._make_tree = tree
        self._tree: TreeWriter | None = None
        # Asked for each page, and made anew by each question.
        self._storages = [column.storage for column in schema.columns]
        self._codecs = [column_codec(column.type, options.codec) for column in schema.columns]
        count = len(schema.columns)
        self._pieces: list[list[ColumnValues]] = [[] for _ in range(count)]
        self._tiled: dict[int, list[TiledValues]] = {
            place: []
            for place, storage in enumerate(self._storages)
            if storage.layout is ColumnLayout.TILED
        }
        self._owned = [0] * count  # pieces that are no views into the caller's batch
        self._first = [0] * count  # row of the caller's batch behind those pieces
        self._fragment: list[list[WaitingPage]] = [[] for _ in range(count)]
        self._page_start = [0] * count
        self._fragment_rows = 0
        self._runs: list[NDArray[Any]] = []
        self._filling: _Filling | None = None
        self._encoders = _Encoders(options.encoders)
        self._encoding: list[Future[Any]] = []  # of the last rows that were `lasting`

    def add(
        self,
        values: Sequence[ColumnValues],
        ids: NDArray[Any] | None = None,
        *,
        lasting: bool = False,
    ) -> None:
        """Take in rows; nothing refers to `values` afterwards, unless they are `lasting`.

        `ids` are ROW_ID of rows that were written elsewhere; of all or of none. Nobody writes again
        to the memory of `lasting` values: pages are encoded from it while the next rows are taken
        in, but not those after them.
        """
        rows = values[0].rows
        if not rows:
            return
        if self._filling is None:
            self._filling = self._begin(values)
        for step in self._filling.stripes.advance(values):
            if ids is not None and step.stop > step.start:
                self._runs.append(runs_of_ids(ids[step.start : step.stop]))
            self._take(self._filling, step, values)
        borrowed = self._encoders.begun()
        wait(self._encoding if lasting else borrowed)
        self._encoding = borrowed if lasting else []
        for place, column in enumerate(values):
            if place not in self._tiled:
                self._add_piece(place, column, rows)
            if not lasting:
                self._pieces[place] = _owned(self._pieces[place], self._owned[place])
            self._owned[place] = len(self._pieces[place])
        self._first = [0] * len(values)
        self.rows += rows
        self.bytes += sum(column.nbytes for column in values)

    @property
    def tree(self) -> TreeWriter:
        """Where fragments go; without groups or rows, heavy columns are guessed."""
        return self._tree or self._grown(self.groups or column_groups(self._schema, None))

    def _grown(self, groups: Groups) -> TreeWriter:
        self._tree = self._make_tree(groups)
        return self._tree

    def finish(self) -> TreeWriter:
        """End the last fragment; the tree, which has yet to be finished."""
        self.end_fragment()
        return self.tree

    def end_fragment(self) -> None:
        """The next rows begin a fragment."""
        if self._filling is not None:
            self._end_fragment(self._filling)
            self._filling.stripes.restart()

    def _begin(self, values: Sequence[ColumnValues]) -> _Filling:
        """Choose groups and page sizes by what the first rows weigh."""
        options = self._options
        storages = self._storages
        means = [max(1.0, column.nbytes / column.rows) for column in values]
        limits = [
            page_limit(storage, mean, options.page_bytes)
            for storage, mean in zip(storages, means, strict=True)
        ]
        speeds = [mean / limit for mean, limit in zip(means, limits, strict=True)]
        groups = self.groups or column_groups(self._schema, means)
        tree = self._tree or self._grown(groups)
        tiles = {
            place: TileStore(
                storages[place],
                tree.spans.store_parts,
                encoders=options.encoders,
                codec=options.codec,
                budget_bytes=options.quarter_bytes // len(self._tiled),
            )
            for place in self._tiled
        }
        pool = Pool(3 * options.quarter_bytes)
        slab_bytes = min(SLAB_BYTES, options.quarter_bytes // (2 * len(groups)))
        slabs = {group[0]: Slab(pool, slab_bytes) for group in groups}
        stripes = Stripes(limits, speeds, min(CHUNK_BYTES, options.quarter_bytes))
        by_column = {name: slabs[group[0]] for group in groups for name in group}
        ordered = [by_column[column.id] for column in self._schema.columns]
        return _Filling(stripes, groups, ordered, tree, tiles)

    def _take(
        self,
        filling: _Filling,
        step: StripeStep,
        values: Sequence[ColumnValues],
    ) -> None:
        if step.stop > step.start:
            for place, tiled in self._tiled.items():
                rows = values[place].slice(step.start, step.stop)
                if isinstance(rows, RaggedValues):
                    tiled.append(filling.tiles[place].add(tiled_rows(rows)))
            self._fragment_rows += step.stop - step.start
        for place in step.closes:
            if place not in self._tiled:
                self._add_piece(place, values[place], step.stop)
                self._end_page(filling, place)
        if step.fragment_ends:
            self._end_fragment(filling)

    def _add_piece(self, place: int, column: ColumnValues, stop: int) -> None:
        """Put the rows of the caller's batch up to `stop` that are in no piece yet into one."""
        start, self._first[place] = self._first[place], stop
        if stop > start:
            self._pieces[place].append(column.slice(start, stop))

    def _end_page(self, filling: _Filling, place: int) -> None:
        pieces, self._pieces[place] = self._pieces[place], []
        self._owned[place] = 0
        value_bytes = pieces[0].nbytes if len(pieces) == 1 else sum(each.nbytes for each in pieces)
        raw_bytes = padded(value_bytes) + DIRECTORY.size
        storage, codec = self._storages[place], self._codecs[place]
        encoded = self._encoders.add(
            _Page(pieces, storage, codec, filling.slabs[place].array), raw_bytes
        )
        self._fragment[place].append(WaitingPage(self._page_start[place], encoded, raw_bytes))
        self._page_start[place] = self._fragment_rows

    def _end_fragment(self, filling: _Filling) -> None:
        if not self._fragment_rows:
            return
        for place, pieces in enumerate(self._pieces):
            if pieces:
                self._end_page(filling, place)
        for place, rows in self._tiled.items():
            page = tile_page(filling.tiles[place], rows, self._storages[place])
            self._fragment[place].append(page)
            self._tiled[place] = []
        places = {column.id: place for place, column in enumerate(self._schema.columns)}
        columns = [
            ColumnPart(column.id, storage, pages)
            for column, storage, pages in zip(
                self._schema.columns, self._storages, self._fragment, strict=True
            )
        ]
        parts = {
            group[0]: FragmentPart(tuple(columns[places[name]] for name in group if name in places))
            for group in filling.groups
        }
        self._encoders.begin()
        first = self._fragment[0][0].encoded()
        uid = new_uid(int(first.entry["checksum"]), self._options.rng)
        runs = join_runs(self._runs) if self._runs else None
        filling.tree.add(Fragment(uid, self._fragment_rows, parts, runs=runs))
        self._runs = []
        self._fragment = [[] for _ in self._fragment]
        self._page_start = [0] * len(self._page_start)
        self._fragment_rows = 0


@dataclass(frozen=True, slots=True)
class _Filling:
    """What is chosen when the first rows have come; `slabs` per column, `tiles` of tiled ones."""

    stripes: Stripes
    groups: Groups
    slabs: list[Slab]
    tree: TreeWriter
    tiles: dict[int, TileStore[Callable[[], Digest]]]


def tile_page(
    store: TileStore[Callable[[], Digest]], rows: Sequence[TiledValues], storage: Storage
) -> WaitingPage:
    """The table of a tiled column: one page for the whole fragment."""
    store.flush()
    table, used = number_chunks(concat_tiled(rows))
    page = encode_tile_table(table, storage)
    tiles = [store.places[number] for number in used]
    tile_bytes = int(table.tiles["stored_bytes"].sum())
    return WaitingPage(0, lambda: page, page.data.nbytes, tiles=tiles, tile_bytes=tile_bytes)


def column_groups(schema: Schema, mean_row_bytes: Sequence[float] | None) -> Groups:
    """Ids of the columns that share chunks: each heavy one alone, the light ones together.

    Without `mean_row_bytes`, columns whose rows differ in size count as heavy.
    """
    heavy: list[str] = []
    light: list[str] = []
    for place, column in enumerate(schema.columns):
        row_bytes: float = column.storage.row_bytes
        if column.storage.layout is not ColumnLayout.FIXED:
            row_bytes = HEAVY_ROW_BYTES if mean_row_bytes is None else mean_row_bytes[place]
        (heavy if row_bytes >= HEAVY_ROW_BYTES else light).append(column.id)
    groups = tuple((name,) for name in heavy)
    return (tuple(light), *groups) if light else groups


class _Page:
    """A page that a thread encodes; called, it waits for that and gives it."""

    __slots__ = ("_given", "_page", "begun")

    def __init__(
        self,
        pieces: Sequence[ColumnValues],
        storage: Storage,
        codec: PageCodec,
        allocate: Allocate,
    ) -> None:
        self.begun: Future[None] | None = None  # of all that are encoded with it
        self._given: tuple[Any, ...] | None = (pieces, storage, codec, allocate)
        self._page: EncodedPage | None = None

    def take(self) -> PageInput:
        """What it is made of; once."""
        assert self._given is not None, "encoded once"
        (pieces, *how), self._given = self._given, None
        return PageInput(concat(pieces), *how)

    def settle(self, page: EncodedPage) -> None:
        self._page = page

    def __call__(self) -> EncodedPage:
        if self._page is None:
            assert self.begun is not None, "begun with the rows that it was made of"
            self.begun.result()
        assert self._page is not None, "else the thread has raised"
        return self._page


class _Encoders:
    """Hands pages to threads, several at a time: to hand over each would take as long as what
    Python does to encode it. Used by one thread.
    """

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._pages: list[_Page] = []
        self._bytes = 0
        self._begun: list[Future[None]] = []

    def add(self, page: _Page, size_bytes: int) -> _Page:
        """Encode a page of about so many bytes: soon, or when `begin` is called."""
        self._pages.append(page)
        self._bytes += size_bytes
        if self._bytes >= TOGETHER_BYTES:
            self.begin()
        return page

    def begun(self) -> list[Future[None]]:
        """What was begun since the last call, now that nothing is left to begin."""
        self.begin()
        begun, self._begun = self._begun, []
        return begun

    def begin(self) -> None:
        """Begin all that was added."""
        if not self._pages:
            return
        pages, self._pages, self._bytes = self._pages, [], 0
        future = self._threads.submit(_encode_all, pages)
        for page in pages:
            page.begun = future
        self._begun.append(future)


def _encode_all(pages: list[_Page]) -> None:
    for page, encoded in zip(pages, encode_pages([page.take() for page in pages]), strict=True):
        page.settle(encoded)


class Slab:
    """Memory for pages that leave together, so that it is used again: fresh memory costs more
    than filling it. Thread-safe.

    Only pages of one column group may share slabs: a page of a slow group would keep a whole one.
    """

    def __init__(self, pool: Pool, slab_bytes: int) -> None:
        self._pool = pool
        self._slab_bytes = slab_bytes
        self._slab: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._used = 0
        self._lock = Lock()

    def array(self, size: int) -> NDArray[np.uint8]:
        """`size` bytes of any content, at a multiple of 64."""
        if size > self._slab_bytes // 2:
            return np.empty(size, np.uint8)
        with self._lock:
            if self._used + size > len(self._slab):
                self._slab = self._pool.array((self._slab_bytes,), np.dtype(np.uint8))
                self._used = 0
            start, self._used = self._used, self._used + padded(size)
            return self._slab[start : start + size]


def _owned(pieces: list[ColumnValues], owned: int) -> list[ColumnValues]:
    """The same rows, in pieces that share no memory with the caller's batch."""
    borrowed = pieces[owned:]
    if not borrowed:
        return pieces
    joined = concat(borrowed)
    return [*pieces[:owned], joined.copy() if len(borrowed) == 1 else joined]

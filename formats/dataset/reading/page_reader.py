"""Verified pages of one column, and the LRU cache of those that were read from a store.

A page is proved before anything of it is returned. Bytes mapped from a local disk are compared
with their xxh3, once per page and process: that finds damage. Bytes that come from a store are
compared with their truncated BLAKE3, which a hostile store cannot forge, and the last ones read
are kept. What a page holds is given as the schema says: converted where the column was widened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import (
    PAGE_FOREIGN,
    PAGE_PLAIN,
    PAGE_TILES,
    decode_page,
    verify_page,
)
from tensorrepo.formats.dataset.pages.tile_io import ByteRange, TileSource, read_rows
from tensorrepo.formats.dataset.pages.tiles import decode_tile_table
from tensorrepo.formats.dataset.reading.overlay import RowPiece, by_page, collect, overlay, repeated
from tensorrepo.formats.dataset.reading.plain_pages import plain_views
from tensorrepo.formats.dataset.reading.range_read import fetch
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import ColumnValues, TiledValues, blank_values
from tensorrepo.formats.dataset.schema.widen import convert_values
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSource, mending
from tensorrepo.repo.threads import ordered_map

READ_THREADS = 16
AHEAD_BYTES = 32 << 20  # read ahead of a scan
CACHE_BYTES = 64 << 20

# Reads all rows of a page that lies in a foreign file, verified: given the link of the object that
# says where they are, the column's id, the page's entry and the form that it is stored in.
ForeignPage = Callable[[ObjectLink, str, "NDArray[Any]", Storage], ColumnValues]


class DecodedPageCache:
    """What was last read from a store: decoded pages, and row tables for single rows."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.pages: LimitedCache[ColumnValues] = LimitedCache(limit_bytes * 3 // 4)
        self.tables: LimitedCache[Any] = LimitedCache(limit_bytes // 4)


class PageReader:
    """Reads pages of one column. Thread-safe: what it remembers is only ever added to.

    Rows are physical ones: deleted rows count. `name` is for errors, `cache` is shared by the
    columns of a dataset; without `foreign`, pages that lie in foreign files are refused.
    """

    def __init__(
        self,
        objects: ObjectSource,
        index: ColumnIndex,
        name: str,
        cache: DecodedPageCache,
        foreign: ForeignPage | None = None,
    ) -> None:
        self.index = index
        self.objects = objects
        self.cache = cache
        self.verified = np.zeros(index.pages, np.bool_)  # of pages in memory
        # xxh3 of the row sums of pages in memory that a stream has proved; 0: not yet.
        self.proved_sums = np.zeros(index.pages, np.uint64)
        self.patches: PageReader | None = None
        if index.patches is not None:
            self.patches = PageReader(objects, index.patches.pages, name, cache, foreign)
        self._name = name
        self._foreign = foreign
        self._token = object()  # tells this reader's pages from those of others in the cache

    def bytes(self, page: int) -> memoryview:
        """The stored bytes of one page, proved; read-only.

        Raises:
            CorruptError: names column, page and object.
            UnsupportedError: the page has no bytes of ours: a default, or a foreign file.
        """
        if self.link(page) is None or self.is_foreign(page):
            raise UnsupportedError(
                f"column {self._name!r}, page {page} has no bytes of its own: read its values"
            )
        view = self._mapped(page)
        return self._fetched(page) if view is None else view

    def values(self, page: int) -> ColumnValues:
        """All rows of one page: read-only views where it is stored as it is wanted."""
        start, stop = self.index.first_row[page : page + 2].tolist()
        return self._patched(self.unpatched(page), start, stop)

    def unpatched(self, page: int) -> ColumnValues:
        """The same without the patches that lie over it."""
        if self.link(page) is None:
            return repeated(self.default(page), int(self.index.entries["rows"][page]))
        if self.is_tiled(page):
            return self.tiled_rows(page, np.arange(int(self.index.entries["rows"][page])))
        if self._is_view(page) and (view := self._mapped(page)) is not None:
            return self._decoded(page, view)
        return self.cache.pages.get_or_load(self.key(page), lambda: self._load(page))

    def range(self, start: int, stop: int) -> list[ColumnValues]:
        """Rows ``[start, stop)`` page by page, as views."""
        if start >= stop:
            return []
        low, last = self.index.page_of(np.array([start, stop - 1])).tolist()
        return list(self._ahead(range(low, last + 1), lambda page: self._part(page, start, stop)))

    def scan(self, pages: Sequence[int], *, patched: bool = True) -> Iterator[ColumnValues]:
        """The values of many pages, in order; those in a store are read ahead in parallel."""
        is_fixed = self.index.storage.layout is ColumnLayout.FIXED
        if is_fixed and len(pages) > 1 and not self._is_any_far(pages):
            return self._plain_or_read(pages, patched)
        return self._ahead(pages, self.values if patched else self.unpatched)

    def take(self, rows: Ints) -> ColumnValues:
        """Some rows in the order asked for, a copy; reads every page of theirs as a whole."""
        pieces = []
        for page, places in by_page(self.index.page_of(rows)):
            within = rows[places] - self.index.first_row[page]
            pieces.append(RowPiece(self.values(page), within, places))
        return collect(pieces, len(rows)) if pieces else blank_values(self.index.storage, 0)

    def _ahead(
        self, pages: Sequence[int], read: Callable[[int], ColumnValues]
    ) -> Iterator[ColumnValues]:
        """`read` of each page, in order; of those in a store in parallel, some bytes ahead."""
        if len(pages) < 2 or not self._is_any_far(pages):
            return map(read, pages)
        rows = self.index.entries["rows"]
        return ordered_map(
            pages,
            read,
            threads=READ_THREADS,
            ahead=len(pages),
            bytes_ahead=AHEAD_BYTES,
            size_of=lambda page: int(self.row_bytes(page) * int(rows[page])),
            name="read",
        )

    def _plain_or_read(self, pages: Sequence[int], patched: bool) -> Iterator[ColumnValues]:
        """As `scan` of pages of which most lie mapped as they are wanted."""
        patches, first_row = self.patches if patched else None, self.index.first_row
        views = plain_views(self.index, pages, self.payload, self._prove)
        for page, view in zip(pages, views, strict=True):
            if view is None:
                yield self.values(page) if patched else self.unpatched(page)
            elif patches is None:
                yield view
            else:
                yield self._patched(view, *first_row[page : page + 2].tolist())

    # -------------------------------------------------------------------------- one page

    def link(self, page: int) -> ObjectLink | memoryview | None:
        """Where the page lies, as the index says it."""
        return self.index.chunks[int(self.index.chunk[page])]

    def row_bytes(self, page: int) -> float:
        """What a row of the page takes in memory: the average, of tiled ones the largest."""
        entry = self.index.entries[page]
        if self.link(page) is None:
            return self.default(page).nbytes
        if self.is_tiled(page):
            return int(entry["max"])
        return max(int(entry["stored_bytes"]), int(entry["raw_bytes"])) / max(1, int(entry["rows"]))

    def key(self, page: int) -> tuple[object, int]:
        """What the page is called in caches."""
        return self._token, page

    def storage(self, page: int) -> Storage:
        """The form in which the page is stored."""
        return self.index.storages[int(self.index.stored_as[page])]

    def is_foreign(self, page: int) -> bool:
        return int(self.index.entries["codec"][page]) == PAGE_FOREIGN

    def is_tiled(self, page: int) -> bool:
        return int(self.index.entries["codec"][page]) == PAGE_TILES

    def payload(self, chunk: int) -> memoryview | None:
        """The payload of a chunk that lies in memory or on a local disk; NOT proved."""
        place = self.index.chunks[chunk]
        if place is None or isinstance(place, memoryview):
            return place
        return self.objects.map(place)

    @cached_property
    def is_far(self) -> bool:
        """Whether pages must be asked of a store, which maps all chunks or none, or elsewhere."""
        links = (chunk for chunk in self.index.chunks if isinstance(chunk, ObjectLink))
        link = next(links, None)
        if link is None or (self.index.entries["codec"] == PAGE_FOREIGN).any():
            return link is not None
        return self.objects.map(link) is None

    def default(self, page: int) -> ColumnValues:
        """The one row that all rows of a page that is nowhere have."""
        if self.index.default is None:
            raise self.located(page, CorruptError("rows without a page, and no default"))
        return self.index.default

    def converted(self, values: ColumnValues, stored: Storage) -> ColumnValues:
        """Values as the schema says, given the form that they were stored in."""
        return convert_values(values, stored, self.index.storage)

    def _part(self, page: int, start: int, stop: int) -> ColumnValues:
        """Those rows of a page that lie in ``[start, stop)``, counted in the dataset."""
        first, end = self.index.first_row[page : page + 2].tolist()
        start, stop = max(start, first), min(stop, end)
        if self.link(page) is None:
            values = repeated(self.default(page), stop - start)
        elif self.is_tiled(page):
            values = self.tiled_rows(page, np.arange(start - first, stop - first))
        else:
            values = self.unpatched(page).slice(start - first, stop - first)
        return self._patched(values, start, stop)

    def _patched(self, values: ColumnValues, start: int, stop: int) -> ColumnValues:
        """`values` of rows ``[start, stop)`` with their patches laid over them."""
        patches = self.index.patches
        if patches is None or self.patches is None:
            return values
        low, high = np.searchsorted(patches.rows, [start, stop]).tolist()
        if low == high:
            return values
        found = self.patches.take(patches.source[low:high])
        return overlay(values, patches.rows[low:high] - start, found)

    # ---------------------------------------------------------------------------- tiles

    def tile_table(self, page: int) -> TiledValues:
        """Which tiles the rows of a page have, proved."""

        def load() -> tuple[TiledValues, int]:
            entry, chunks = self.index.entries[page], len(self.index.tiles[page])
            with self.locating(page):
                table = decode_tile_table(self.bytes(page), entry, self.storage(page), chunks)
            return table, int(entry["raw_bytes"])

        found: TiledValues = self.cache.tables.get_or_load(self.key(page), load)
        return found

    def tile_source(self, page: int) -> TileSource:
        """Where the tiles of a page are read from."""
        index, places = self.index, self.index.tiles[page]
        near = {place: self.payload(place) for place in places}

        def name(chunk: int) -> str:
            return _chunk_name(index.chunks[places[chunk]])

        if all(payload is not None for payload in near.values()):

            def mapped(ranges: Sequence[ByteRange]) -> list[memoryview]:
                payloads = [near[places[each.chunk]] or memoryview(b"") for each in ranges]
                pairs = zip(payloads, ranges, strict=True)
                return [payload[each.start : each.stop].toreadonly() for payload, each in pairs]

            return TileSource(mapped, name, check_tags=False)

        def fetched(ranges: Sequence[ByteRange]) -> list[memoryview]:
            wanted = [ByteRange(places[each.chunk], each.start, each.stop) for each in ranges]
            return fetch(self.objects, index.chunks, wanted, gap_bytes=0)  # joined already

        return TileSource(fetched, name)

    def tiled_rows(self, page: int, rows: Ints) -> ColumnValues:
        """Whole rows of a page of tiles, counted within it, in the order asked for."""
        table, stored = self.tile_table(page), self.storage(page)
        with self.locating(page):
            values = read_rows(table, rows, stored, self.tile_source(page))
        return self.converted(values, stored)

    # ---------------------------------------------------------------------------- parts

    def far(self, pages: Ints) -> Bools:
        """Which of `pages` must be asked of a store, or read from a foreign file."""
        index = self.index
        chunks, which = np.unique(index.chunk[pages], return_inverse=True)
        remote = [
            index.chunks[chunk] is not None and self.payload(chunk) is None
            for chunk in chunks.tolist()
        ]
        foreign: Bools = index.entries["codec"][pages] == PAGE_FOREIGN
        return foreign | np.array(remote, np.bool_)[which]

    def _is_any_far(self, pages: Sequence[int]) -> bool:
        return bool(self.far(np.asarray(pages)).any())

    def _is_view(self, page: int) -> bool:
        """Whether decoding gives nothing but a view, so that there is nothing to remember."""
        entry = self.index.entries[page]
        plain = int(entry["codec"]) == PAGE_PLAIN and not int(entry["nulls"])
        storage = self.index.storage
        return plain and storage.layout is ColumnLayout.FIXED and self.storage(page) == storage

    def _load(self, page: int) -> tuple[ColumnValues, int]:
        """A page's values, and the bytes that they hold in memory."""
        entry = self.index.entries[page]
        if self.is_foreign(page):
            values = self._from_foreign(page)
            return values, values.nbytes
        view = self._mapped(page)
        values = self._decoded(page, self._fetched(page) if view is None else view)
        if view is not None and int(entry["codec"]) == PAGE_PLAIN:
            return values, 32 * values.rows  # a row table; the rest is a view of the map
        return values, max(values.nbytes, int(entry["raw_bytes"]))

    def _mapped(self, page: int) -> memoryview | None:
        """A page that lies in memory or on a local disk, proved; None elsewhere."""
        index = self.index
        payload = self.payload(int(index.chunk[page]))
        if payload is None:
            return None
        start = int(index.entries["offset"][page])
        stop = start + int(index.entries["stored_bytes"][page])
        # Read-only: the map is private but shared by all readers of this process.
        view = payload[start:stop].toreadonly()
        self._prove(page, view)
        return view

    def _prove(self, page: int, view: memoryview) -> None:
        """Compare mapped bytes of a page with its xxh3, once."""
        if not self.verified[page]:
            with self.locating(page):
                verify_page(view, self.index.entries[page])
            self.verified[page] = True

    def _fetched(self, page: int) -> memoryview:
        index = self.index
        chunk = self.link(page)
        assert isinstance(chunk, ObjectLink), "inline pages are in memory"
        start = int(index.entries["offset"][page])
        stop = start + int(index.entries["stored_bytes"][page])
        with self.locating(page):
            data = self.objects.read_checked(chunk, start, stop, index.tags[page].tobytes())
        return memoryview(data).toreadonly()

    def _decoded(self, page: int, data: memoryview) -> ColumnValues:
        stored = self.storage(page)
        with self.locating(page):
            values = decode_page(data, self.index.entries[page], stored)
        return self.converted(values, stored)

    def _from_foreign(self, page: int) -> ColumnValues:
        chunk, stored, entry = self.link(page), self.storage(page), self.index.entries[page]
        if self._foreign is None:
            raise UnsupportedError(
                f"column {self._name!r}, page {page} lies in a foreign file, which this reader "
                "was not given the means to read. Open the dataset through its repository, or "
                "run `tensorrepo dataset compact` where the file is."
            )
        if not isinstance(chunk, ObjectLink):
            raise self.located(page, CorruptError("a foreign page without the object that says it"))
        return self.converted(self._foreign(chunk, self.index.id, entry, stored), stored)

    @contextmanager
    def locating(self, page: int) -> Iterator[None]:
        """Damage that is found meanwhile says where the page lies."""
        try:
            yield
        except CorruptError as error:
            raise self.located(page, error) from error

    def located(self, page: int, error: CorruptError) -> CorruptError:
        """`error`, saying where the page lies."""
        link = self.link(page)
        place = _chunk_name(link)
        rows = self.index.first_row[page : page + 2].tolist()
        text = (
            f"column {self._name!r}, page {page} (rows {rows[0]} to {rows[-1]}) in {place}: {error}"
        )
        if "fsck" not in text and isinstance(link, ObjectLink):
            text = f"{text.rstrip('.')}. {mending(self.objects, link.digest)}."
        return CorruptError(text)


def _chunk_name(link: ObjectLink | memoryview | None) -> str:
    return f"chunk {link.digest:.12}" if isinstance(link, ObjectLink) else "the metadata"

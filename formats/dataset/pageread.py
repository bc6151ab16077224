"""The verified pages and rows of one column.

A page is proved before anything of it is returned. Bytes mapped from a local disk are compared
with their xxh3, once per page and process: that finds damage. Bytes that come from a store are
compared with their truncated BLAKE3, which a hostile store cannot forge, and the last ones read
are kept. Single rows of large fixed pages in a store are read exactly, with their row sums.
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.page import (
    ALIGNMENT,
    DIRECTORY,
    HAS_ROW_SUMS,
    PAGE_PLAIN,
    check_rows,
    decode_page,
    verify_page,
)
from tensorrepo.formats.dataset.ranges import GAP_BYTES, merge_ranges
from tensorrepo.formats.dataset.types import Layout
from tensorrepo.formats.dataset.values import ColumnValues, FixedValues, concat
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.index import ColumnIndex
    from tensorrepo.repo.objects import ObjectSource

READ_THREADS = 16
GATHERED_ROW_BYTES = 32 << 10  # from here on one copy per row is faster
GATHER_BYTES = 128 << 10  # numpy gathers into a buffer of its own, which should stay in cache
AHEAD_BYTES = 32 << 20  # read ahead of a scan


class PageCache:
    """The pages last read from a store, decoded, within a limit in bytes. Thread-safe."""

    def __init__(self, limit_bytes: int = 64 << 20) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._pages: OrderedDict[tuple[str, int], tuple[ColumnValues, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: tuple[str, int]) -> ColumnValues | None:
        with self._lock:
            found = self._pages.get(key)
            if found is None:
                return None
            self._pages.move_to_end(key)
            return found[0]

    def put(self, key: tuple[str, int], values: ColumnValues, size: int) -> None:
        with self._lock:
            if key in self._pages or size > self._limit_bytes:
                return
            self._pages[key] = values, size
            self._bytes += size
            while self._bytes > self._limit_bytes:
                self._bytes -= self._pages.popitem(last=False)[1][1]


class PageReader:
    """Reads pages of one column. Thread-safe: what it remembers is only ever added to."""

    def __init__(
        self, objects: ObjectSource, index: ColumnIndex, name: str, cache: PageCache
    ) -> None:
        self.index = index
        self._objects = objects
        self._name = name
        self._cache = cache
        self._verified = np.zeros(index.pages, np.bool_)
        self._plain_in_memory = np.zeros(index.pages, np.bool_)  # and verified

    def bytes(self, page: int) -> memoryview:
        """The stored bytes of one page, proved; read-only.

        Raises:
            CorruptError: names column, page and object.
        """
        view = self._mapped(page)
        return self._fetched(page) if view is None else view

    def values(self, page: int) -> ColumnValues:
        """All rows of one page: read-only views where it is not compressed."""
        view = self._mapped(page)
        if view is not None:
            return self._decoded(page, view)
        key = (self.index.id, page)
        found = self._cache.get(key)
        if found is None:
            found = self._decoded(page, self._fetched(page))
            self._cache.put(key, found, int(self.index.entries["raw_bytes"][page]))
        return found

    def rows(self, rows: NDArray[np.int64]) -> ColumnValues:
        """Rows in the order asked for, as a copy; each lies in ``[0, index.rows)``."""
        if not len(rows):
            return empty_values(self.index)
        pages = self.index.page_of(rows)
        if self._gatherable(pages):
            return FixedValues(self._gathered(rows, pages))
        ordered, inverse = np.unique(rows, return_inverse=True)
        found = self._sorted_rows(ordered)
        if len(ordered) == len(rows) and bool((rows[1:] > rows[:-1]).all()):
            return found
        return found.take(inverse)

    def range(self, start: int, stop: int) -> list[ColumnValues]:
        """Rows ``[start, stop)`` page by page, as views."""
        if start >= stop:
            return []
        first = self.index.first_row
        low = int(np.searchsorted(first, start, "right")) - 1
        high = int(np.searchsorted(first, stop, "left"))
        pieces = []
        for page, values in zip(range(low, high), self.scan(range(low, high)), strict=True):
            begin = int(first[page])
            pieces.append(values.slice(max(0, start - begin), min(values.rows, stop - begin)))
        return pieces

    def scan(self, pages: Sequence[int]) -> Iterator[ColumnValues]:
        """The values of many pages, in order; those in a store are read ahead in parallel."""
        if len(pages) < 2 or self._mapped(pages[0]) is not None:
            yield from map(self.values, pages)
            return
        with ThreadPoolExecutor(READ_THREADS, "read") as threads:
            for some in self._portions(pages):
                yield from threads.map(self.values, some)

    def _portions(self, pages: Sequence[int]) -> Iterator[list[int]]:
        """Pages in portions of about AHEAD_BYTES, for memory's sake."""
        portion: list[int] = []
        size = 0
        for page in pages:
            portion.append(page)
            size += int(self.index.entries["stored_bytes"][page])
            if size >= AHEAD_BYTES:
                yield portion
                portion, size = [], 0
        if portion:
            yield portion

    def _sorted_rows(self, rows: NDArray[np.int64]) -> ColumnValues:
        pages, starts = np.unique(self.index.page_of(rows), return_index=True)
        stops = np.append(starts[1:], len(rows))
        exact = self._exact(pages, stops - starts)
        whole = self.scan(pages[~exact].tolist())
        single = iter(self._exact_rows(rows[np.repeat(exact, stops - starts)], pages[exact]))
        pieces: list[ColumnValues] = []
        for page, start, stop, alone in zip(
            pages.tolist(), starts.tolist(), stops.tolist(), exact.tolist(), strict=True
        ):
            if alone:
                pieces.append(next(single))
            else:
                within = rows[start:stop] - self.index.first_row[page]
                pieces.append(next(whole).take(within))
        return concat(pieces)

    # -------------------------------------------------------------------------- gathering

    def _gatherable(self, pages: NDArray[np.int64]) -> bool:
        """Whether rows can be copied straight from memory; proves the pages if so."""
        index = self.index
        if not 0 < index.storage.row_bytes < GATHERED_ROW_BYTES:
            return False
        known = self._plain_in_memory[pages]
        if known.all():
            return True
        for page in np.unique(pages[~known]).tolist():
            entry = index.entries[page]
            if entry["codec"] != PAGE_PLAIN or entry["nulls"] or self._mapped(page) is None:
                return False
            self.values(page)  # that the directory says what the entry says
            self._plain_in_memory[page] = True
        return True

    def _gathered(self, rows: NDArray[np.int64], pages: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of plain fixed pages in memory, without Python per row or page."""
        index, storage = self.index, self.index.storage
        row_bytes = storage.row_bytes
        out = np.empty((len(rows), *storage.row_shape), storage.element)
        void = np.dtype(f"V{row_bytes}")
        flat = np.ndarray((len(rows),), void, out.data)
        within = (rows - index.first_row[pages]) * row_bytes
        starts = index.entries["offset"][pages].astype(np.int64) + DIRECTORY.size + within
        chunk_of = index.chunk[pages]
        at_once = max(1, GATHER_BYTES // row_bytes)
        for number in np.unique(chunk_of).tolist():
            payload = self._payload(number)
            # The payload as overlapping rows, one beginning at every byte; indices are checked.
            every = np.ndarray((payload.nbytes - row_bytes + 1,), void, payload, strides=(1,))
            chosen = np.flatnonzero(chunk_of == number)
            for some in (chosen[at : at + at_once] for at in range(0, len(chosen), at_once)):
                flat[some] = every[starts[some]]
        return out

    def _payload(self, number: int) -> memoryview:
        chunk = self.index.chunks[number]
        payload = chunk if isinstance(chunk, memoryview) else self._objects.map(chunk)
        assert payload is not None, "only pages in memory are gathered"
        return payload

    # -------------------------------------------------------------------------- exact rows

    def _exact(self, pages: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Pages of which single rows are read: plain, with sums, far away, and few rows wanted."""
        index = self.index
        entries = index.entries[pages]
        exact: NDArray[np.bool_] = (entries["codec"] == PAGE_PLAIN) & (entries["nulls"] == 0)
        exact &= (entries["flags"] & HAS_ROW_SUMS) != 0
        exact &= wanted * (index.storage.row_bytes + GAP_BYTES) < entries["stored_bytes"]
        if index.storage.layout is not Layout.FIXED or not exact.any():
            return np.zeros(len(pages), np.bool_)
        for at in np.flatnonzero(exact).tolist():
            page = int(pages[at])
            held = self._cache.get((index.id, page)) is not None
            exact[at] = not held and self._mapped(page) is None
        return exact

    def _exact_rows(self, rows: NDArray[np.int64], pages: NDArray[np.int64]) -> list[ColumnValues]:
        """Sorted rows, per page, of pages that `_exact` chose: one round of ranges."""
        if not len(rows):
            return []
        index, row_bytes = self.index, self.index.storage.row_bytes
        page_of = index.page_of(rows)
        within = rows - index.first_row[page_of]
        begin = index.entries["offset"][page_of].astype(np.int64) + DIRECTORY.size
        values = begin + within * row_bytes
        page_rows = index.entries["rows"][page_of].astype(np.int64)
        sums = begin + -(-page_rows * row_bytes // ALIGNMENT) * ALIGNMENT + within * 4
        starts = np.concatenate([values, sums])
        stops = np.concatenate([values + row_bytes, sums + 4])
        data = self._read_ranges(np.tile(index.chunk[page_of], 2), starts, stops)
        found = []
        for page in pages.tolist():
            places = np.flatnonzero(page_of == page).tolist()
            joined = b"".join(data[place] for place in places)
            array = np.frombuffer(joined, index.storage.element)
            part = FixedValues(array.reshape(len(places), *index.storage.row_shape))
            proofs = b"".join(data[len(rows) + place] for place in places)
            try:
                check_rows(part, np.frombuffer(proofs, "<u4"))
            except CorruptError as error:
                raise self._located(page, error) from error
            found.append(part)
        return list(found)

    def _read_ranges(
        self, chunk_of: NDArray[np.uint32], starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> list[memoryview]:
        """The bytes of each range, read in parallel and in as few requests as pay."""
        data: list[memoryview] = [memoryview(b"")] * len(starts)
        with ThreadPoolExecutor(READ_THREADS, "read") as threads:
            reads = []
            for number in np.unique(chunk_of).tolist():
                chosen = np.flatnonzero(chunk_of == number)
                begins, ends, group = merge_ranges(starts[chosen], stops[chosen])
                link = self.index.chunks[number]
                assert not isinstance(link, memoryview), "inline pages are in memory"
                for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                    read = threads.submit(self._objects.read_range, link, begin, end)
                    reads.append((read, begin, chosen[group == at].tolist()))
            for read, begin, places in reads:
                view = memoryview(read.result())
                for place in places:
                    data[place] = view[int(starts[place]) - begin : int(stops[place]) - begin]
        return data

    # -------------------------------------------------------------------------- one page

    def _mapped(self, page: int) -> memoryview | None:
        """A page that lies in memory or on a local disk, proved; None elsewhere."""
        index = self.index
        chunk = index.chunks[index.chunk[page]]
        payload = chunk if isinstance(chunk, memoryview) else self._objects.map(chunk)
        if payload is None:
            return None
        start = int(index.entries["offset"][page])
        stop = start + int(index.entries["stored_bytes"][page])
        # Read-only: the map is private but shared by all readers of this process.
        view = payload[start:stop].toreadonly()
        if not self._verified[page]:
            try:
                verify_page(view, index.entries[page])
            except CorruptError as error:
                raise self._located(page, error) from error
            self._verified[page] = True
        return view

    def _fetched(self, page: int) -> memoryview:
        index = self.index
        chunk = index.chunks[index.chunk[page]]
        assert not isinstance(chunk, memoryview), "inline pages are in memory"
        start = int(index.entries["offset"][page])
        stop = start + int(index.entries["stored_bytes"][page])
        try:
            data = self._objects.read_checked(chunk, start, stop, index.tags[page].tobytes())
        except CorruptError as error:
            raise self._located(page, error) from error
        return memoryview(data).toreadonly()

    def _decoded(self, page: int, data: memoryview) -> ColumnValues:
        try:
            return decode_page(data, self.index.entries[page], self.index.storage)
        except CorruptError as error:
            raise self._located(page, error) from error

    def _located(self, page: int, error: CorruptError) -> CorruptError:
        chunk = self.index.chunks[self.index.chunk[page]]
        place = "the metadata" if isinstance(chunk, memoryview) else f"chunk {chunk.digest:.12}"
        rows = self.index.first_row[page : page + 2].tolist()
        return CorruptError(
            f"column {self._name!r}, page {page} (rows {rows[0]} to {rows[-1]}) in {place}: {error}"
        )


def empty_values(index: ColumnIndex) -> ColumnValues:
    """No rows of a column."""
    entry: Any = np.zeros((), index.entries.dtype)
    entry["raw_bytes"] = 64
    return decode_page(memoryview(bytes(64)), entry, index.storage)

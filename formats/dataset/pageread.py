"""The verified pages of one column.

A page is proved before anything of it is returned. Bytes mapped from a local disk are compared
with their xxh3, once per page and process: that finds damage. Bytes that come from a store are
compared with their truncated BLAKE3, which a hostile store cannot forge, and the last ones read
are kept.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.page import decode_page, verify_page
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorrepo.formats.dataset.index import ColumnIndex
    from tensorrepo.formats.dataset.values import ColumnValues
    from tensorrepo.repo.objects import ObjectSource

READ_THREADS = 16
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
        self.objects = objects
        self.verified = np.zeros(index.pages, np.bool_)  # of pages in memory
        self._name = name
        self._cache = cache

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
        sizes = self.index.entries["stored_bytes"]
        with ThreadPoolExecutor(READ_THREADS, "read") as threads:
            ahead: deque[tuple[Future[ColumnValues], int]] = deque()
            held = 0
            for page in pages:
                size = int(sizes[page])
                while ahead and held + size > AHEAD_BYTES:
                    first, first_bytes = ahead.popleft()
                    held -= first_bytes
                    yield first.result()
                ahead.append((threads.submit(self.values, page), size))
                held += size
            for last, _ in ahead:
                yield last.result()

    # -------------------------------------------------------------------------- one page

    def payload(self, chunk: int) -> memoryview | None:
        """The payload of a chunk that lies in memory or on a local disk; NOT proved."""
        place = self.index.chunks[chunk]
        return place if isinstance(place, memoryview) else self.objects.map(place)

    def is_near(self, page: int) -> bool:
        """Whether a page need not be asked of a store."""
        held = self._cache.get((self.index.id, page)) is not None
        return held or self.payload(int(self.index.chunk[page])) is not None

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
        if not self.verified[page]:
            try:
                verify_page(view, index.entries[page])
            except CorruptError as error:
                raise self.located(page, error) from error
            self.verified[page] = True
        return view

    def _fetched(self, page: int) -> memoryview:
        index = self.index
        chunk = index.chunks[index.chunk[page]]
        assert not isinstance(chunk, memoryview), "inline pages are in memory"
        start = int(index.entries["offset"][page])
        stop = start + int(index.entries["stored_bytes"][page])
        try:
            data = self.objects.read_checked(chunk, start, stop, index.tags[page].tobytes())
        except CorruptError as error:
            raise self.located(page, error) from error
        return memoryview(data).toreadonly()

    def _decoded(self, page: int, data: memoryview) -> ColumnValues:
        try:
            return decode_page(data, self.index.entries[page], self.index.storage)
        except CorruptError as error:
            raise self.located(page, error) from error

    def located(self, page: int, error: CorruptError) -> CorruptError:
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

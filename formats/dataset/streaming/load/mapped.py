"""Mapped pages: rows of fixed size used where a map of the disk shows them, proved.

Pages that are neither compressed nor hold nulls are not copied to be read: their rows are gathered
from the map. Each of them is proved in every epoch, in one of two ways.

Whole: the page is compared with its xxh3 when its run is opened. Row by row: once the page has been
proved whole in this process, the xxh3 of its table of row sums is remembered. When its run is
opened again, the table is copied and compared with that, and every row is compared with its sum as
it is gathered: memory is read once instead of twice. What is compared then is what is handed out,
not what the map showed some seconds before. That is too late for callers who go on without damaged
pages: there, each page is proved whole in every epoch.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.pages.page import (
    DIRECTORY,
    HAS_ROW_SUMS,
    PAGE_PLAIN,
    expected_bytes,
    padded,
    verify_page,
)
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.streaming.collate.gather import InMemory, address_of
from tensorrepo.formats.native.rows import BEST, LEAST_SUMMED_BYTES, RowCopier
from tensorrepo.repo.errors import CorruptError

_SUM_BYTES = 4


class MappedPages:
    """The pages of one column whose rows may be used where they lie. Thread-safe."""

    def __init__(
        self,
        reader: PageReader,
        *,
        copier: RowCopier = BEST,
        by_row: bool = True,
    ) -> None:
        """Prepare.

        Args:
            reader: reader of the column; its store maps chunks.
            copier: copies the rows later. Rows are proved one by one where that costs it little.
            by_row: whether that is allowed: damage is then found as late as rows are gathered.
        """
        index = reader.index
        self._reader, self._copier = reader, copier
        self._entries = index.entries
        self._row_bytes = index.storage.row_bytes
        self._offset, self._stored_bytes = index.entries["offset"], index.entries["stored_bytes"]
        # Other writers may give sums to rows that are too small for the kernel to compare.
        by_row &= copier.proves_rows and self._row_bytes >= LEAST_SUMMED_BYTES
        self._sums = by_row & (index.entries["flags"] & HAS_ROW_SUMS > 0)
        self._lock = Lock()
        # Of each chunk, once it is asked for; its address is the last to be set.
        self._payloads: dict[int, memoryview] = {}
        self._address = np.zeros(len(index.chunks), np.int64)
        self._payload_bytes = np.zeros(len(index.chunks), np.int64)

    def usable(self) -> Bools:
        """Which pages those are: fixed rows, uncompressed, without nulls."""
        if self._reader.index.storage.layout is not ColumnLayout.FIXED or not self._row_bytes:
            return np.zeros(len(self._entries), dtype=np.bool_)
        plain: Bools = (self._entries["codec"] == PAGE_PLAIN) & (self._entries["nulls"] == 0)
        return plain

    def values(self, runs: Ints, rows: Ints, pages: Ints) -> InMemory:
        """The rows of some runs, each a page of so many rows.

        Raises:
            CorruptError: a page is not what its entry says.
        """
        if not np.array_equal(rows, self._entries["rows"][pages]):
            raise AssertionError("a run that is used in place is not all of its page")
        chunks = self._reader.index.chunk[pages].astype(np.int64)
        for chunk in np.unique(chunks[self._address[chunks] == 0]).tolist():
            self._map(chunk)
        at = self._address[chunks] + self._offset[pages].astype(np.int64)
        values_at = at + DIRECTORY.size
        if not self._sums[pages].all():
            for page in pages.tolist():
                self._prove_whole(page)
            return InMemory(runs, rows, values_at, None, None, None, [(self,)] * len(pages))
        self._check_bounds(pages, chunks)
        tables = self._sum_tables(pages, rows, at)
        owners = [(self, tables)] * len(pages)
        sums_at = address_of(tables) + _SUM_BYTES * (np.cumsum(rows) - rows)
        numbers = pages.tolist()

        def prove(place: int, row: int) -> None:
            self._blame(numbers[place], row)

        return InMemory(runs, rows, values_at, None, None, None, owners, sums_at, prove)

    def _sum_tables(self, pages: Ints, rows: Ints, at: Ints) -> NDArray[np.uint32]:
        """The row sums of these pages, copied: what is compared with them later is what was proved.

        Pages that were not proved yet are proved whole.
        """
        values_bytes = rows * self._row_bytes
        sums_at = at + DIRECTORY.size + values_bytes + -values_bytes % padded(1)
        lengths = _SUM_BYTES * rows
        tables = np.empty(int(rows.sum()), np.uint32)
        proved = self._reader.proved_sums
        for page in pages[proved[pages] == 0].tolist():
            self._prove_whole(page)
        self._copier.copy_spans(sums_at, lengths, tables)
        view, start = tables.data.cast("B"), 0
        wanted = zip(pages.tolist(), lengths.tolist(), proved[pages].tolist(), strict=True)
        for page, length, known in wanted:
            found = xxh3_64_intdigest(view[start : start + length])
            if not known:
                proved[page] = found
            elif found != known:
                self._prove_whole(page)
                raise self._reader.located(
                    page, CorruptError("its row sums changed while they were read")
                )
            start += length
        return tables

    def _check_bounds(self, pages: Ints, chunks: Ints) -> None:
        """Nothing is read behind the end of a file that was cut since a page of it was proved."""
        ends = (self._offset[pages] + self._stored_bytes[pages]).astype(np.int64)
        for page in pages[ends > self._payload_bytes[chunks]].tolist():
            self._prove_whole(page)

    def _prove_whole(self, page: int) -> None:
        """Compare a page with its xxh3, and where its values lie with where they must."""
        entry = self._entries[page]
        data = self._page(page)
        with self._reader.locating(page):
            verify_page(data, entry)
            self._check_directory(data, entry)

    def _check_directory(self, data: memoryview, entry: NDArray[Any]) -> None:
        expected = expected_bytes(entry, self._reader.index.storage)
        fields = DIRECTORY.unpack_from(data)
        ends = DIRECTORY.size + sum(map(padded, expected))
        if fields[0::5] != expected or any(fields[1::5]) or len(data) != ends:
            raise CorruptError("its directory contradicts its entry")

    def _blame(self, page: int, row: int) -> None:
        """Say what is wrong with a page of which a row is not what its sum says."""
        self._prove_whole(page)
        raise self._reader.located(
            page,
            CorruptError(
                f"row {row} of the page is not what its sum says, though the page as a whole is "
                "what its checksum says: it changed while it was read. Check memory and disk."
            ),
        )

    def _page(self, page: int) -> memoryview:
        payload = self._payloads[self._reader.index.chunk.item(page)]
        start = self._offset.item(page)
        return payload[start : start + self._stored_bytes.item(page)]

    def _map(self, chunk: int) -> None:
        """Find the payload of a chunk on a local disk or in the metadata, and keep it."""
        payload = self._reader.payload(chunk)
        assert payload is not None, "the store maps all chunks or none"
        with self._lock:  # another thread may have been faster, and its map is in use
            payload = self._payloads.setdefault(chunk, payload.toreadonly())
            self._payload_bytes[chunk] = payload.nbytes
            self._address[chunk] = address_of(np.frombuffer(payload, np.uint8))

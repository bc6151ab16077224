"""Any rows of a column, in any order, proved.

Rows of fixed pages that lie in memory are gathered at once, without Python per row. They are proved
by their page, or by their own sums while only a few rows of a page are asked for: the rest of it is
not even read. A few rows of a large page that lies in a store are read exactly, with their sums.
Everything else goes page by page.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.page import (
    ALIGNMENT,
    DIRECTORY,
    HAS_ROW_SUMS,
    PAGE_PLAIN,
    check_rows,
)
from tensorrepo.formats.dataset.pageread import READ_THREADS, PageReader, empty_values
from tensorrepo.formats.dataset.ranges import GAP_BYTES, merge_ranges
from tensorrepo.formats.dataset.types import Layout
from tensorrepo.formats.dataset.values import ColumnValues, FixedValues, concat
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

GATHERED_ROW_BYTES = 32 << 10  # from here on one copy per row is faster
GATHER_BYTES = 128 << 10  # numpy gathers into a buffer of its own, which should stay in cache
FEW_ROWS = 8  # of a page: up to so many in one call are proved by their own sums


def read_chosen(reader: PageReader, rows: NDArray[np.int64]) -> ColumnValues:
    """Rows in the order asked for, as a copy; each lies in ``[0, index.rows)``.

    Raises:
        CorruptError: names column, page and object.
    """
    if not len(rows):
        return empty_values(reader.index)
    pages = reader.index.page_of(rows)
    if _in_memory(reader, pages):
        return FixedValues(_gather(reader, rows, pages))
    ordered, inverse = np.unique(rows, return_inverse=True)
    found = _sorted_rows(reader, ordered)
    if len(ordered) == len(rows) and bool((rows[1:] > rows[:-1]).all()):
        return found
    return found.take(inverse)


def _sorted_rows(reader: PageReader, rows: NDArray[np.int64]) -> ColumnValues:
    pages, starts = np.unique(reader.index.page_of(rows), return_index=True)
    stops = np.append(starts[1:], len(rows))
    exact = _exact_pages(reader, pages, stops - starts)
    whole = reader.scan(pages[~exact].tolist())
    single = iter(_exact_rows(reader, rows[np.repeat(exact, stops - starts)], pages[exact]))
    pieces: list[ColumnValues] = []
    for page, start, stop, alone in zip(
        pages.tolist(), starts.tolist(), stops.tolist(), exact.tolist(), strict=True
    ):
        if alone:
            pieces.append(next(single))
        else:
            pieces.append(next(whole).take(rows[start:stop] - reader.index.first_row[page]))
    return concat(pieces)


# ------------------------------------------------------------------------------ in memory


def _in_memory(reader: PageReader, pages: NDArray[np.int64]) -> bool:
    """Whether all of `pages` are plain fixed ones without nulls that lie in memory."""
    index = reader.index
    if not 0 < index.storage.row_bytes < GATHERED_ROW_BYTES:
        return False
    entries = index.entries
    plain = (entries["codec"][pages] == PAGE_PLAIN) & (entries["nulls"][pages] == 0)
    chunks = np.unique(index.chunk[pages]).tolist()
    return bool(plain.all()) and all(reader.payload(chunk) is not None for chunk in chunks)


def _gather(reader: PageReader, rows: NDArray[np.int64], pages: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of pages that lie in memory, in the order asked for, proved."""
    alone = _verify_crowded(reader, pages)
    index, storage = reader.index, reader.index.storage
    out = np.empty((len(rows), *storage.row_shape), storage.element)
    values, sums = _places(reader, rows, pages)
    chunk_of = index.chunk[pages]
    _copy(reader, chunk_of, values, out)
    if len(alone):
        proofs = np.empty(len(alone), "<u4")
        _copy(reader, chunk_of[alone], sums[alone], proofs)
        try:
            check_rows(FixedValues(out[alone]), proofs)
        except CorruptError:
            _name_damage(reader, pages[alone])
            raise
    return out


def _verify_crowded(reader: PageReader, pages: NDArray[np.int64]) -> NDArray[np.int64]:
    """Prove pages of which more than a few rows are asked for, or whose rows have no sums.

    Returns:
        Places in `pages` of the rows that are yet to be proved by their own sums.
    """
    unproved = np.flatnonzero(~reader.verified[pages])
    if not len(unproved):
        return unproved
    some, inverse, counts = np.unique(pages[unproved], return_inverse=True, return_counts=True)
    summed = (reader.index.entries["flags"][some] & HAS_ROW_SUMS) != 0
    crowded = (counts > FEW_ROWS) | ~summed
    for page in some[crowded].tolist():
        reader.bytes(page)
    alone: NDArray[np.int64] = unproved[~crowded[inverse]]
    return alone


def _places(
    reader: PageReader, rows: NDArray[np.int64], pages: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where in their chunk's payload the rows of plain fixed pages begin, and their sums."""
    index, row_bytes = reader.index, reader.index.storage.row_bytes
    within = rows - index.first_row[pages]
    begin = index.entries["offset"][pages].astype(np.int64) + DIRECTORY.size
    page_bytes = index.entries["rows"][pages].astype(np.int64) * row_bytes
    sums: NDArray[np.int64] = begin + -(-page_bytes // ALIGNMENT) * ALIGNMENT + within * 4
    return begin + within * row_bytes, sums


def _copy(
    reader: PageReader,
    chunk_of: NDArray[np.uint32],
    starts: NDArray[np.int64],
    out: NDArray[Any],
) -> None:
    """Fill each row of `out` from its place in its chunk's payload."""
    row_bytes = out.nbytes // len(out)
    void = np.dtype(f"V{row_bytes}")
    flat = np.ndarray((len(out),), void, out.data)
    at_once = max(1, GATHER_BYTES // row_bytes)
    for number in np.unique(chunk_of).tolist():
        payload = reader.payload(number)
        chosen = np.flatnonzero(chunk_of == number)
        fits = payload is not None and int(starts[chosen].max()) + row_bytes <= payload.nbytes
        if payload is None or not fits:
            raise CorruptError("a chunk is shorter than its page index says")
        # The payload as overlapping rows, one beginning at every byte.
        every = np.ndarray((payload.nbytes - row_bytes + 1,), void, payload, strides=(1,))
        for some in (chosen[at : at + at_once] for at in range(0, len(chosen), at_once)):
            flat[some] = every[starts[some]]


def _name_damage(reader: PageReader, pages: NDArray[np.int64]) -> None:
    """Raise for the page that is damaged: a row's sum knows only its place in the call."""
    for page in np.unique(pages).tolist():
        reader.bytes(page)


# ------------------------------------------------------------------------------ in a store


def _exact_pages(
    reader: PageReader, pages: NDArray[np.int64], wanted: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Pages of which single rows are read: plain, with sums, far away, and few rows wanted."""
    index = reader.index
    entries = index.entries[pages]
    exact: NDArray[np.bool_] = (entries["codec"] == PAGE_PLAIN) & (entries["nulls"] == 0)
    exact &= (entries["flags"] & HAS_ROW_SUMS) != 0
    exact &= wanted * (index.storage.row_bytes + GAP_BYTES) < entries["stored_bytes"]
    if index.storage.layout is not Layout.FIXED:
        return np.zeros(len(pages), np.bool_)
    for at in np.flatnonzero(exact).tolist():
        exact[at] = not reader.is_near(int(pages[at]))
    return exact


def _exact_rows(
    reader: PageReader, rows: NDArray[np.int64], pages: NDArray[np.int64]
) -> Sequence[ColumnValues]:
    """Sorted rows, per page, of pages that `_exact_pages` chose: one round of ranges."""
    if not len(rows):
        return []
    index, storage = reader.index, reader.index.storage
    page_of = index.page_of(rows)
    values, sums = _places(reader, rows, page_of)
    starts = np.concatenate([values, sums])
    stops = np.concatenate([values + storage.row_bytes, sums + 4])
    data = _read_ranges(reader, np.tile(index.chunk[page_of], 2), starts, stops)
    found = []
    for page in pages.tolist():
        places = np.flatnonzero(page_of == page).tolist()
        array = np.frombuffer(b"".join(data[place] for place in places), storage.element)
        part = FixedValues(array.reshape(len(places), *storage.row_shape))
        proofs = b"".join(data[len(rows) + place] for place in places)
        try:
            check_rows(part, np.frombuffer(proofs, "<u4"))
        except CorruptError as error:
            raise reader.located(page, error) from error
        found.append(part)
    return found


def _read_ranges(
    reader: PageReader,
    chunk_of: NDArray[np.uint32],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
) -> list[memoryview]:
    """The bytes of each range, read in parallel and in as few requests as pay."""
    data: list[memoryview] = [memoryview(b"")] * len(starts)
    with ThreadPoolExecutor(READ_THREADS, "read") as threads:
        reads = []
        for number in np.unique(chunk_of).tolist():
            chosen = np.flatnonzero(chunk_of == number)
            begins, ends, group = merge_ranges(starts[chosen], stops[chosen])
            link = reader.index.chunks[number]
            assert not isinstance(link, memoryview), "inline pages are in memory"
            for at, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
                read = threads.submit(reader.objects.read_range, link, begin, end)
                reads.append((read, begin, chosen[group == at].tolist()))
        for read, begin, places in reads:
            view = memoryview(read.result())
            for place in places:
                data[place] = view[int(starts[place]) - begin : int(stops[place]) - begin]
    return data

"""How long is every row of a column?

Plans that pack rows or bring those of like length together must know before anything is read. Of
pages that are not compressed only the row tables are read: a few bytes a row. A table by itself is
proved by nothing, so a damaged one may misplace rows; the rows themselves are proved when they are
read. The answer takes 4 bytes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.columns.values import ColumnValues, FixedValues
from tensorrepo.formats.dataset.pages.page import (
    PAGE_PLAIN,
    TABLE,
    buffer_starts,
    decode_table,
    expected_bytes,
)
from tensorrepo.formats.dataset.read import live_rows, page_reader
from tensorrepo.formats.dataset.rows.rangeread import ByteRange, fetch
from tensorrepo.formats.dataset.streaming.ordering.items import RowLengths
from tensorrepo.repo.errors import CorruptError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.rows.pageread import PageReader

MOST_LENGTH = (1 << 32) - 1
_TABLES_AT_ONCE_BYTES = 16 << 20


def row_lengths(dataset: Dataset, name: str) -> RowLengths:
    """How many elements (or bytes) each live row of a column has; of whole numbers their values.

    Null rows have length 0.

    Raises:
        InvalidInputError: a column whose rows have neither lengths nor are whole numbers; or a
            number that is no length.
    """
    storage = dataset.schema.column(name).storage
    is_number = (
        storage.layout is Layout.FIXED and not storage.shape and storage.element.kind in "iu"
    )
    if not is_number and storage.layout not in (Layout.RAGGED, Layout.BINARY):
        raise InvalidInputError(
            f"column {name!r} tells no lengths: its rows are neither of different lengths nor "
            "whole numbers"
        )
    reader = page_reader(dataset, name)
    lengths = np.zeros(reader.index.rows, np.uint32)
    read_bytes = _fill_numbers(reader, lengths) if is_number else _fill_lengths(reader, lengths)
    table = live_rows(dataset)
    if table is not None:
        lengths = np.delete(lengths, table.dead)
    return RowLengths(name, lengths, read_bytes)


def page_elements(dataset: Dataset, name: str) -> NDArray[np.int64] | None:
    """Elements of each page of a ragged column, as the entries say; None where they do not."""
    index = page_reader(dataset, name).index
    told = np.isin(index.entries["codec"], (PAGE_PLAIN, PAGE_PLAIN + 1))
    told &= index.entries["stored_bytes"] > 0
    if dataset.root.deleted or index.patches is not None or not told.all():
        return None
    return index.entries["min"].astype(np.int64)


def _fill_numbers(reader: PageReader, out: NDArray[np.uint32]) -> int:
    first = 0
    for values in reader.scan(range(reader.index.pages)):
        assert isinstance(values, FixedValues), "the column's storage says so"
        some = values.values
        if some.size and not 0 <= int(some.min()) <= int(some.max()) <= MOST_LENGTH:
            raise InvalidInputError(
                f"lengths are in [0, {MOST_LENGTH}], found {some.min()} to {some.max()}"
            )
        out[first : first + len(some)] = some
        first += len(some)
    return int(reader.index.entries["stored_bytes"].sum())


# ------------------------------------------------------------------------------ row tables


def _fill_lengths(reader: PageReader, out: NDArray[np.uint32]) -> int:
    """Lengths of all physical rows, patched ones last. Returns the bytes read."""
    index = reader.index
    read_bytes = 0
    for pages in _groups(reader):
        tables = _tables(reader, pages)
        for page in pages:
            start, stop = index.first_row[page : page + 2].tolist()
            table = tables.get(page)
            if table is None:
                read_bytes += int(index.entries["stored_bytes"][page])
                out[start:stop] = _lengths(reader.unpatched(page))
            else:
                read_bytes += table.nbytes
                out[start:stop] = _of_table(reader, page, table)
    if index.patches is not None and reader.patches is not None:
        patches = np.zeros(index.patches.pages.rows, np.uint32)
        read_bytes += _fill_lengths(reader.patches, patches)
        out[index.patches.rows] = patches[index.patches.source]
    return read_bytes


def _groups(reader: PageReader) -> Iterator[range]:
    """All pages, so many at a time that their tables stay small."""
    ends = np.cumsum(reader.index.entries["rows"].astype(np.int64)) * 16
    start = 0
    while start < len(ends):
        limit = int(ends[start]) + _TABLES_AT_ONCE_BYTES
        stop = max(start + 1, int(np.searchsorted(ends, limit)))
        yield range(start, stop)
        start = stop


def _tables(reader: PageReader, pages: range) -> dict[int, memoryview]:
    """Row tables of those pages where they can be read by themselves, NOT proved."""
    found, far = {}, {}
    for page in pages:
        if reader.link(page) is None or int(reader.index.entries["codec"][page]) != PAGE_PLAIN:
            continue
        chunk, start, stop = _place_of_table(reader, page)
        payload = reader.payload(chunk)
        if payload is None:
            far[page] = ByteRange(chunk, start, stop)
        else:
            found[page] = payload[start:stop]
    fetched = fetch(reader.objects, reader.index.chunks, list(far.values()))
    return found | dict(zip(far, fetched, strict=True))


def _place_of_table(reader: PageReader, page: int) -> tuple[int, int, int]:
    entry = reader.index.entries[page]
    sizes = expected_bytes(entry, reader.storage(page))
    start = int(entry["offset"]) + buffer_starts(sizes)[TABLE]
    return int(reader.index.chunk[page]), start, start + sizes[TABLE]


def _of_table(reader: PageReader, page: int, table: memoryview) -> NDArray[np.int64]:
    entry = reader.index.entries[page]
    storage = reader.storage(page)
    try:
        offsets, _ = decode_table(table, int(entry["rows"]), storage, int(entry["min"]))
    except CorruptError:
        return _lengths(reader.unpatched(page))  # proves the page, and says what is wrong
    return np.diff(offsets) // max(1, storage.known_elements)


def _lengths(values: ColumnValues) -> NDArray[np.int64]:
    assert not isinstance(values, FixedValues), "the column's storage says so"
    shape = getattr(values, "shape", ())
    known = int(np.prod([dim for dim in shape if dim is not None], dtype=np.int64))
    return np.diff(values.offsets) // max(1, known)

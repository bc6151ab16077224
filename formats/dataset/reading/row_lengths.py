"""How many bytes each row of a column of bytes has, without reading the rows.

The row tables of pages say so. A table by itself is proved by nothing: whoever reads a row later
proves it, and finds then that a length was wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.page import (
    PAGE_PLAIN,
    TABLE,
    buffer_starts,
    decode_table,
    expected_bytes,
)
from tensorrepo.formats.dataset.pages.tile_io import ByteRange
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.reading.range_read import fetch
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import BinaryValues
from tensorrepo.repo.errors import CorruptError, InvalidInputError

_PAGES_AT_ONCE: Final = 256  # whose tables are asked of a store together


def row_lengths(reader: PageReader) -> Ints:
    """Bytes of each row, int64 ``(rows,)``; rows count physically, null ones have 0.

    Raises:
        InvalidInputError: a column of another layout.
        CorruptError: a table contradicts its page's entry; names column, page and object.
    """
    if reader.index.storage.layout is not ColumnLayout.BINARY:
        raise InvalidInputError("lengths are of columns that hold bytes or text")
    lengths = np.zeros(reader.index.rows, np.int64)
    for page, found in _of_pages(reader):
        start, stop = reader.index.first_row[page : page + 2].tolist()
        lengths[start:stop] = found
    if reader.patches is not None and reader.index.patches is not None:
        patches = reader.index.patches
        lengths[patches.rows] = row_lengths(reader.patches)[patches.source]
    return lengths


def _of_pages(reader: PageReader) -> Iterator[tuple[int, Ints]]:
    """Lengths of the rows of all pages, without patches, in any order."""
    index = reader.index
    has_table = (index.entries["codec"] == PAGE_PLAIN) & (
        index.entries["stored_bytes"] == index.entries["raw_bytes"]
    )
    plain = [page for page in np.flatnonzero(has_table).tolist() if reader.link(page) is not None]
    for at in range(0, len(plain), _PAGES_AT_ONCE):
        pages = plain[at : at + _PAGES_AT_ONCE]
        for page, table in zip(pages, _tables(reader, pages), strict=True):
            entry, storage = index.entries[page], reader.storage(page)
            with reader.locating(page):
                offsets, _ = decode_table(table, int(entry["rows"]), storage, int(entry["min"]))
            yield page, np.diff(offsets)
    for page in sorted(set(range(index.pages)) - set(plain)):
        values = reader.unpatched(page)
        if not isinstance(values, BinaryValues):
            raise reader.located(page, CorruptError("a page of a column of bytes holds no bytes"))
        yield page, np.diff(values.offsets)


def _tables(reader: PageReader, pages: Sequence[int]) -> list[memoryview]:
    """The row tables of uncompressed pages, not proved."""
    ranges = [_table_range(reader, page) for page in pages]
    near = [reader.payload(each.chunk) for each in ranges]
    far = [each for each, payload in zip(ranges, near, strict=True) if payload is None]
    fetched = iter(fetch(reader.objects, reader.index.chunks, far))
    return [
        next(fetched) if payload is None else payload[each.start : each.stop].toreadonly()
        for each, payload in zip(ranges, near, strict=True)
    ]


def _table_range(reader: PageReader, page: int) -> ByteRange:
    sizes = expected_bytes(reader.index.entries[page], reader.storage(page))
    start = int(reader.index.entries["offset"][page]) + buffer_starts(sizes)[TABLE]
    return ByteRange(int(reader.index.chunk[page]), start, start + sizes[TABLE])

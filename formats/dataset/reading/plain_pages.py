"""Rows of one size, as they lie in mapped pages: several pages at once.

Page by page the interpreter takes several times as long as proving the bytes of a page takes. So
what is known of pages is looked up for several of them together, their bytes are proved one after
the other, which pushes all else out of the processor's cache, and a page that begins as every
plain one begins is not taken apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import (
    DIRECTORY,
    HAS_ROW_SUMS,
    PAGE_PLAIN,
    plain_form,
)
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.repo.errors import CorruptError

PAGES_AT_ONCE = 64
BYTES_AT_ONCE = 16 << 20  # that are proved before the first of them is given; a page at least


def plain_views(
    index: ColumnIndex,
    pages: Sequence[int],
    payload: Callable[[int], memoryview | None],
    prove: Callable[[int, memoryview], None],
) -> Iterator[FixedValues | None]:
    """The rows of each page, without patches; None: it is not plain, not mapped, or damaged.

    Args:
        index: the pages of a fixed column.
        pages: in the order in which they are wanted.
        payload: the mapped payload of a chunk, not proved; None where it is not mapped.
        prove: called with a page and its bytes before its rows are given.
    """
    at = 0
    while at < len(pages):
        some = np.asarray(pages[at : at + PAGES_AT_ONCE])
        ends = np.cumsum(index.entries["stored_bytes"][some])
        some = some[: max(1, int(np.searchsorted(ends, BYTES_AT_ONCE, "right")))]
        yield from _views(index, some, payload, prove)
        at += len(some)


def _views(
    index: ColumnIndex,
    pages: Ints,
    payload: Callable[[int], memoryview | None],
    prove: Callable[[int, memoryview], None],
) -> Iterator[FixedValues | None]:
    storage, entries = index.storage, index.entries[pages]
    row_bytes = storage.row_bytes
    own = np.array([each == storage for each in index.storages], np.bool_)
    plain = (entries["codec"] == PAGE_PLAIN) & (entries["nulls"] == 0)
    plain &= own[index.stored_as[pages]]
    plain &= entries["rows"] <= entries["stored_bytes"] // max(1, row_bytes)
    chunks = index.chunk[pages].tolist()
    # Read-only: a map is private but shared by all readers of this process.
    mapped = {
        chunk: found.toreadonly()
        for chunk in dict.fromkeys(chunks)
        if (found := payload(chunk)) is not None
    }
    proved: list[memoryview | None] = []
    starts, sizes = entries["offset"].tolist(), entries["stored_bytes"].tolist()
    places = zip(pages.tolist(), plain.tolist(), chunks, starts, sizes, strict=True)
    for page, is_plain, chunk, start, size in places:
        data = mapped[chunk][start : start + size] if is_plain and chunk in mapped else None
        if data is not None:
            try:
                prove(page, data)
            except CorruptError:
                data = None  # who reads it by itself is told, after the rows before it
        proved.append(data)
    summed = ((entries["flags"] & HAS_ROW_SUMS) != 0).tolist()
    shape, element = storage.row_shape, storage.element
    for data, rows, is_summed in zip(proved, entries["rows"].tolist(), summed, strict=True):
        if data is not None:
            begins, size = plain_form(rows, row_bytes, element.itemsize, is_summed)
            if data.nbytes == size and data[: DIRECTORY.size] == begins:
                yield FixedValues(np.ndarray((rows, *shape), element, data, DIRECTORY.size))
                continue
        yield None

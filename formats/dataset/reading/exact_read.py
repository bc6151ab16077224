"""Single rows of pages that lie in a store, without the rest of their pages.

A page's small parts come first: validity, row table and row sums, its *table*. They are kept. Then
the rows' own bytes. Rows of fixed pages lie where arithmetic says, so both come in one round of
parallel requests; others take two rounds, and one when the table is known. Of a fixed page the sums
are all that is read: a null row is zeros, and its sum tells it from a row of zeros.

The page's tag covers the page as a whole, so a table by itself is proved by nothing. A row is
proved by its sum, which binds its bytes, its dimensions and whether it is null: with a wrong table
a row does not match its sum. Then the table is forgotten and the whole page read, which is proved
by its tag.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.pages.page import (
    DATA,
    HAS_ROW_SUMS,
    PAGE_PLAIN,
    SUMS,
    TABLE,
    VALIDITY,
    buffer_starts,
    check_rows,
    decode_table,
    decode_validity,
    expected_bytes,
    table_row_bytes,
)
from tensorrepo.formats.dataset.pages.tile_io import ByteRange
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.reading.range_read import fetch
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    offsets_of,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ranges import GAP_BYTES

_SUM_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class RowsOfPage:
    """Rows that are wanted of one page: int64, counted within it, ascending, each once."""

    page: int
    rows: Ints


@dataclass(frozen=True, slots=True, eq=False)
class RowTable:
    """What a page says of its rows: their sums and, unless they are fixed, where they lie."""

    offsets: Ints | None
    dims: NDArray[np.uint32] | None
    valid: Bools | None
    sums: NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        arrays = (self.offsets, self.dims, self.valid, self.sums)
        return sum(array.nbytes for array in arrays if array is not None)


def exact_pays(reader: PageReader, pages: Ints, rows: Ints, firsts: Ints) -> Bools:
    """Of which pages reading single rows is possible, and cheaper than reading all of it.

    `pages` and `rows`, which are wanted of them, ascend, each once; ``rows[firsts[i]]`` is the
    first of ``pages[i]``.

    Returns:
        bool ``(pages,)``.
    """
    index = reader.index
    entries = index.entries[pages]
    stored_bytes = entries["stored_bytes"].astype(np.float64)
    possible = (entries["codec"] == PAGE_PLAIN) & ((entries["flags"] & HAS_ROW_SUMS) != 0)
    possible &= entries["stored_bytes"] == entries["raw_bytes"]
    row_bytes = stored_bytes / np.maximum(1, entries["rows"])
    exact = cost_of_rows(rows, firsts, row_bytes)
    for at in np.flatnonzero(possible).tolist():
        if reader.cache.tables.get(reader.key(int(pages[at]))) is None:
            storage = reader.storage(int(pages[at]))
            is_fixed = storage.layout is ColumnLayout.FIXED
            requests, row = (1, 0) if is_fixed else (2, table_row_bytes(storage))
            exact[at] += requests * GAP_BYTES + (_SUM_BYTES + row) * int(entries["rows"][at])
    found: Bools = possible & (exact < stored_bytes + GAP_BYTES)
    return found


def cost_of_rows(rows: Ints, firsts: Ints, row_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """What reading rows by themselves costs, page by page, in bytes; a request as GAP_BYTES.

    `rows` ascend, each once; ``rows[firsts[i]]`` is the first of page i, whose average row takes
    ``row_bytes[i]``.
    """
    each = np.repeat(row_bytes, np.diff(firsts, append=len(rows)))
    steps = np.minimum(np.diff(rows, prepend=rows[:1]) * each, GAP_BYTES + each)
    steps[firsts] = GAP_BYTES + row_bytes
    return np.add.reduceat(steps, firsts)


def read_exact(reader: PageReader, wanted: Sequence[RowsOfPage]) -> list[ColumnValues]:
    """The rows of each of `wanted`, which lie in a store and for which `exact_pays`.

    Raises:
        CorruptError: names column, page and object.
    """
    tables = {each.page: reader.cache.tables.get(reader.key(each.page)) for each in wanted}
    unknown = [page for page, table in tables.items() if table is None]
    # Tables that are not known yet, and with them the rows whose place needs none.
    first = {("table", page): _table_ranges(reader, page) for page in unknown}
    first |= {
        ("rows", each.page): _row_ranges(reader, each, tables[each.page])
        for each in wanted
        if tables[each.page] is not None or _is_fixed(reader, each.page)
    }
    found = _fetch_groups(reader, first)
    for page in unknown:
        tables[page] = _decode_table(reader, page, found["table", page])
    second = {
        ("rows", each.page): _row_ranges(reader, each, tables[each.page])
        for each in wanted
        if ("rows", each.page) not in found and tables[each.page] is not None
    }
    found |= _fetch_groups(reader, second)
    return [
        _proved(reader, each, tables[each.page], found.get(("rows", each.page), []))
        for each in wanted
    ]


_What = tuple[str, int]  # "table" or "rows" of a page


def _fetch_groups(
    reader: PageReader, groups: Mapping[_What, Sequence[ByteRange]]
) -> dict[_What, list[memoryview]]:
    flat = [each for ranges in groups.values() for each in ranges]
    found = iter(fetch(reader.objects, reader.index.chunks, flat))
    return {what: [next(found) for _ in ranges] for what, ranges in groups.items()}


def _is_fixed(reader: PageReader, page: int) -> bool:
    return reader.storage(page).layout is ColumnLayout.FIXED


def _proved(
    reader: PageReader, wanted: RowsOfPage, table: RowTable | None, data: Sequence[memoryview]
) -> ColumnValues:
    """The rows when their sums say so, else from the whole page."""
    if table is not None:
        key, stored = reader.key(wanted.page), reader.storage(wanted.page)
        values = _rows(stored, table, wanted.rows, b"".join(data))
        try:
            check_rows(values, table.sums[wanted.rows])
        except CorruptError:
            reader.cache.tables.drop(key)
        else:
            reader.cache.tables.put(key, table, table.nbytes)
            return reader.converted(values, stored)
    return reader.unpatched(wanted.page).take(wanted.rows)


def _rows(storage: Storage, table: RowTable, rows: Ints, data: bytes) -> ColumnValues:
    items = np.frombuffer(data, storage.element)
    if table.offsets is None:
        return _fixed_rows(storage, items, table.sums[rows])
    valid = None if table.valid is None else table.valid[rows]
    offsets = offsets_of(table.offsets[rows + 1] - table.offsets[rows])
    if storage.layout is ColumnLayout.BINARY:
        return BinaryValues(offsets, items, valid)
    dims = None if table.dims is None else table.dims[rows]
    return RaggedValues(offsets, items, storage.shape, dims, valid)


def _fixed_rows(storage: Storage, items: NDArray[Any], sums: NDArray[np.uint32]) -> FixedValues:
    """Fixed rows with the nulls that their sums tell."""
    values = items.reshape(len(sums), *storage.row_shape)
    sum_of_zeros = xxh3_64_intdigest(bytes(storage.row_bytes)) & 0xFFFFFFFF
    zero = ~items.view(np.uint8).reshape(len(sums), -1).any(axis=1)
    null = zero & (sums != sum_of_zeros)
    return FixedValues(values, ~null if null.any() else None)


# ------------------------------------------------------------------------------ rows in a row


def rows_at(
    entry: NDArray[Any], storage: Storage, first: int, stop: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where rows ``[first, stop)`` of an uncompressed, fixed page with sums lie, and their sums.

    Bytes ``[start, stop)`` of the chunk's payload each.
    """
    starts = buffer_starts(expected_bytes(entry, storage))
    values_at = int(entry["offset"]) + starts[TABLE]
    sums_at = int(entry["offset"]) + starts[SUMS]
    size = storage.row_bytes
    return (
        (values_at + first * size, values_at + stop * size),
        (sums_at + first * _SUM_BYTES, sums_at + stop * _SUM_BYTES),
    )


def proved_rows(storage: Storage, data: memoryview, sums: memoryview) -> FixedValues:
    """The rows whose bytes and sums were found where `rows_at` says.

    Raises:
        CorruptError: they don't belong together.
    """
    expected = np.frombuffer(sums, "<u4")
    values = _fixed_rows(storage, np.frombuffer(data, storage.element), expected)
    check_rows(values, expected)
    return values


# ------------------------------------------------------------------------------ where things lie


def _table_ranges(reader: PageReader, page: int) -> list[ByteRange]:
    """Where a page's table lies: the sums, and of pages that are not fixed what finds its rows."""
    index = reader.index
    sizes = expected_bytes(index.entries[page], reader.storage(page))
    starts = buffer_starts(sizes)
    base, chunk = int(index.entries["offset"][page]), int(index.chunk[page])

    def cover(first: int, last: int) -> ByteRange:
        return ByteRange(chunk, base + starts[first], base + starts[last] + sizes[last])

    sums = cover(SUMS, SUMS)
    return [sums] if _is_fixed(reader, page) else [sums, cover(VALIDITY, TABLE)]


def _decode_table(reader: PageReader, page: int, data: Sequence[memoryview]) -> RowTable | None:
    """The table of a page, not proved, from the bytes of its `_table_ranges`.

    None when it contradicts itself or the page's entry.
    """
    entry, storage = reader.index.entries[page], reader.storage(page)
    sums = np.frombuffer(data[0], "<u4")
    if storage.layout is ColumnLayout.FIXED:
        return RowTable(None, None, None, sums)
    sizes, rows = expected_bytes(entry, storage), int(entry["rows"])
    starts = buffer_starts(sizes)
    try:
        valid = decode_validity(data[1][: sizes[VALIDITY]], rows, int(entry["nulls"]))
        table = data[1][starts[TABLE] - starts[VALIDITY] :]
        offsets, dims = decode_table(table, rows, storage, int(entry["min"]))
    except CorruptError:
        return None
    return RowTable(offsets, dims, valid, sums)


def _row_ranges(reader: PageReader, wanted: RowsOfPage, table: RowTable | None) -> list[ByteRange]:
    """Where the rows of a page lie; those of a fixed one without its table."""
    index, storage = reader.index, reader.storage(wanted.page)
    starts = buffer_starts(expected_bytes(index.entries[wanted.page], storage))
    base, chunk = int(index.entries["offset"][wanted.page]), int(index.chunk[wanted.page])
    if table is None or table.offsets is None:
        size = storage.row_bytes
        begins = base + starts[TABLE] + wanted.rows * size
        ends = begins + size
    else:
        item = storage.element.itemsize
        begins = base + starts[DATA] + table.offsets[wanted.rows] * item
        ends = base + starts[DATA] + table.offsets[wanted.rows + 1] * item
    return [
        ByteRange(chunk, begin, end)
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]

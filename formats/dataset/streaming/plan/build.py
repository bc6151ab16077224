"""Making of a plan from a dataset and the options of a caller.

Reads what a plan needs to know once: page indexes, the columns that a predicate, weights or classes
are about, and lengths of rows. Of pages that are not compressed only the row tables are read: a few
bytes a row. A table by itself is proved by nothing, so a damaged one may misplace rows; the rows
themselves are proved when they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.page import (
    PAGE_PLAIN,
    TABLE,
    buffer_starts,
    decode_table,
    expected_bytes,
)
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    dataset_leaves,
    live_rows,
    page_reader,
)
from tensorrepo.formats.dataset.reading.page_reader import READ_THREADS, PageReader
from tensorrepo.formats.dataset.reading.range_read import ByteRange, fetch
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues
from tensorrepo.formats.dataset.streaming.options import StreamOptions
from tensorrepo.formats.dataset.streaming.order.items import Packing, RowLengths, RowSelection
from tensorrepo.formats.dataset.streaming.plan.grouped import plan_groups
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan, make_plan
from tensorrepo.formats.dataset.streaming.plan.sampling import choose
from tensorrepo.repo.errors import CorruptError, InvalidInputError

MOST_LENGTH = (1 << 32) - 1
_TABLES_AT_ONCE_BYTES = 16 << 20


def row_lengths(dataset: StoredDataset, name: str) -> RowLengths:
    """How many elements (or bytes) each live row of a column has; of whole numbers their values.

    Null rows have length 0.

    Raises:
        InvalidInputError: a column whose rows have neither lengths nor are whole numbers; or a
            number that is no length.
    """
    storage = dataset.schema.column(name).storage
    is_number = (
        storage.layout is ColumnLayout.FIXED and not storage.shape and storage.element.kind in "iu"
    )
    if not is_number and storage.layout not in (ColumnLayout.RAGGED, ColumnLayout.BINARY):
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


def page_elements(dataset: StoredDataset, name: str) -> Ints | None:
    """Elements of each page of a ragged column, as the entries say; None where they do not."""
    index = page_reader(dataset, name).index
    telling = np.isin(index.entries["codec"], (PAGE_PLAIN, PAGE_PLAIN + 1))
    telling &= index.entries["stored_bytes"] > 0
    if dataset.root.deleted or index.patches is not None or not telling.all():
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
    near, far = {}, {}
    for page in pages:
        if reader.link(page) is None or int(reader.index.entries["codec"][page]) != PAGE_PLAIN:
            continue
        chunk, start, stop = _place_of_table(reader, page)
        payload = reader.payload(chunk)
        if payload is None:
            far[page] = ByteRange(chunk, start, stop)
        else:
            near[page] = payload[start:stop]
    fetched = fetch(reader.objects, reader.index.chunks, list(far.values()))
    return near | dict(zip(far, fetched, strict=True))


def _place_of_table(reader: PageReader, page: int) -> tuple[int, int, int]:
    entry = reader.index.entries[page]
    sizes = expected_bytes(entry, reader.storage(page))
    start = int(entry["offset"]) + buffer_starts(sizes)[TABLE]
    return int(reader.index.chunk[page]), start, start + sizes[TABLE]


def _of_table(reader: PageReader, page: int, table: memoryview) -> Ints:
    entry = reader.index.entries[page]
    storage = reader.storage(page)
    try:
        offsets, _ = decode_table(table, int(entry["rows"]), storage, int(entry["min"]))
    except CorruptError:
        return _lengths(reader.unpatched(page))  # proves the page, and says what is wrong
    return np.diff(offsets) // max(1, storage.known_elements)


def _lengths(values: ColumnValues) -> Ints:
    assert not isinstance(values, FixedValues), "the column's storage says so"
    shape = getattr(values, "shape", ())
    elements = int(np.prod([dim for dim in shape if dim is not None], dtype=np.int64))
    return np.diff(values.offsets) // max(1, elements)


_MOST_ITEM_BYTES = 1 << 31
_MOST_BLOCK_ROWS = 1 << 24  # sorted at once: some hundred bytes each


def plan_stream(
    dataset: StoredDataset, names: tuple[str, ...], options: StreamOptions
) -> StreamPlan:
    """Plan to stream columns of a dataset.

    Raises:
        InvalidInputError: options that contradict each other or the columns.
        NotFoundError: no such row or column.
    """
    sampling, batch_size = options.sampling, options.batch_size
    if sampling.pack is not None:
        _check_packed(dataset, names, sampling.pack)
    if sampling.bucket is not None and batch_size * sampling.bucket_steps > _MOST_BLOCK_ROWS:
        raise InvalidInputError(
            f"{sampling.bucket_steps} steps of {batch_size:,} rows are sorted in memory at once: "
            f"at most {_MOST_BLOCK_ROWS:,} rows. Use fewer bucket_steps."
        )
    by_schema = tuple(each.name for each in dataset.schema.columns if each.name in names)
    eager = partial(_plan_whole, dataset, by_schema, options)
    if sampling.is_every_row and (options.shuffle is True or options.shuffle == "pages"):
        grouped = plan_groups(
            dataset, by_schema, eager, batch_size=batch_size, window_bytes=options.window_bytes
        )
        if grouped is not None:
            return grouped
    return eager()


def _plan_whole(
    dataset: StoredDataset, names: tuple[str, ...], options: StreamOptions
) -> StreamPlan:
    """Plan with all runs in view."""
    _read_indexes(dataset, names)
    sampling = options.sampling
    selection = choose(dataset, sampling)
    packing, lengths = _packing(dataset, names, sampling.pack, selection)
    if sampling.bucket is not None:
        lengths = row_lengths(dataset, sampling.bucket)
    return make_plan(
        [(name, column_index(dataset, name)) for name in names],
        far=any(page_reader(dataset, name).is_far for name in names),
        batch_size=options.batch_size,
        window_bytes=options.window_bytes,
        shuffle=options.shuffle,
        deleted=live_rows(dataset),
        selection=selection,
        packing=packing,
        lengths=lengths,
        bucket_steps=0 if sampling.bucket is None else sampling.bucket_steps,
    )


def _read_indexes(dataset: StoredDataset, names: Sequence[str]) -> None:
    """Read side by side what plans are made from, so that a store answers in one round trip."""
    groups: dict[str, str] = {}
    for name in names:
        column = dataset.schema.column(name)
        group = next(group[0] for group in dataset.root.groups if column.id in group)
        groups.setdefault(group, name)  # columns of a group share their page indexes
    if len(groups) + bool(dataset.root.deleted) < 2:
        return
    dataset_leaves(dataset)
    with ThreadPoolExecutor(READ_THREADS, "index") as threads:
        deleted = threads.submit(live_rows, dataset)
        list(threads.map(partial(column_index, dataset), groups.values()))
        deleted.result()


def _check_packed(dataset: StoredDataset, names: tuple[str, ...], size: int) -> None:
    ragged = [
        column.name
        for column in dataset.schema.columns
        if column.storage.layout is ColumnLayout.RAGGED and column.storage.shape == (None,)
    ]
    if len(names) != 1:
        raise InvalidInputError(
            f"pack= cuts one column into items, here are {list(names)}: an item may hold parts of "
            "several rows, so values of other columns cannot come along. Columns that can be "
            f"packed: {ragged}"
        )
    if names[0] not in ragged:
        raise InvalidInputError(
            f"column {names[0]!r} cannot be packed: its rows are not arrays of one dimension of "
            f"any length. Columns that can: {ragged}"
        )
    item_bytes = size * dataset.schema.column(names[0]).storage.element.itemsize
    if item_bytes > _MOST_ITEM_BYTES:
        raise InvalidInputError(
            f"pack={size:,} elements of column {names[0]!r} are {item_bytes:,} bytes an item: at "
            f"most {_MOST_ITEM_BYTES:,}. Pack fewer elements."
        )


def _packing(
    dataset: StoredDataset, names: tuple[str, ...], size: int | None, selection: RowSelection | None
) -> tuple[Packing | None, RowLengths | None]:
    if size is None:
        return None, None
    elements = page_elements(dataset, names[0]) if selection is None else None
    if elements is not None:
        return Packing(size, None, elements), None
    lengths = row_lengths(dataset, names[0])
    return Packing(size, lengths.values, np.zeros(0, np.int64)), lengths

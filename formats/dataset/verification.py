"""Verification of a stored dataset: every page decoded, and compared with what is said of it.

What is said of a page decides which rows a query looks at: its nulls, its bounds, its order, sums
of its rows. The bounds of a column bound those of its pages. Memory is bounded by the largest page,
and one fault does not hide another. Pages in foreign files are not looked at: others keep them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.index import preview_index
from tensorrepo.formats.dataset.pages.page import (
    HAS_NAN,
    HAS_RANGE,
    HAS_ROW_SUMS,
    IS_SORTED,
    MAX_INEXACT,
    MIN_INEXACT,
    PAGE_PREVIEW,
    check_rows,
    decode_page,
    expected_bytes,
    split_page,
    verify_page,
)
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, range_of
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.objects.envelope import ObjectLink

_SUMS = 2  # place of the row sums among the buffers of a page


def verify_dataset(
    dataset: StoredDataset, is_new: Callable[[tuple[object, ...]], bool] = lambda _: True
) -> Iterator[str]:
    """Decode all pages of a dataset: a sentence for each fault.

    Args:
        dataset: what is verified.
        is_new: whether a page was not verified before, by what names it: versions share pages.
    """
    for column, statistics in zip(dataset.schema.columns, dataset.root.statistics, strict=True):
        try:
            reader = page_reader(dataset, column.name)
        except (CorruptError, NotFoundError) as error:
            yield f"column {column.name!r}: {error}"
            continue
        for pages in (reader, reader.patches):
            if pages is not None:
                yield from _pages(column.name, pages, is_new)
                yield from _bounds(column.name, pages, statistics.min, statistics.max)


def _pages(
    name: str, reader: PageReader, is_new: Callable[[tuple[object, ...]], bool]
) -> Iterator[str]:
    entries = reader.index.entries
    for page in range(reader.index.pages):
        link = reader.link(page)
        if link is None or reader.is_foreign(page):
            continue
        place = link.digest if isinstance(link, ObjectLink) else None
        if place is not None and not is_new((place, entries[page].tobytes())):
            continue
        try:
            with reader.locating(page):
                _page(reader, page)
        except CorruptError as error:
            yield str(error)  # which says of which column and page
        except NotFoundError as error:
            yield f"column {name!r}: {error}"


def _page(reader: PageReader, page: int) -> None:
    entry, storage = reader.index.entries[page], reader.storage(page)
    if reader.is_tiled(page):
        for row in range(int(entry["rows"])):
            reader.tiled_rows(page, np.array([row]))
        return
    data = reader.bytes(page)
    values = decode_page(data, entry, storage)
    if entry["flags"] & HAS_ROW_SUMS:
        sums = split_page(data, expected_bytes(entry, storage))[_SUMS]
        check_rows(values, np.frombuffer(sums, "<u4"))
    for problem in page_problems(entry, values, storage):
        raise CorruptError(problem)
    for band in range(reader.index.previews[page : page + 1].size):
        _preview(reader, page, band, data)


def _preview(reader: PageReader, page: int, band: int, data: memoryview) -> None:
    """Whether the beginning of a page is what its index says of it up to a band."""
    index, here = reader.index, slice(page, page + 1)
    parts = index.entries[here], index.tags[here], index.previews[here]
    alone = replace(index, entries=parts[0], tags=parts[1], previews=parts[2])
    small = preview_index(alone, lambda sides: np.full(len(sides), band, np.int64))
    entry, storage = small.entries[0], reader.storage(page)
    if entry["codec"] != PAGE_PREVIEW:
        return
    beginning = data[: int(entry["stored_bytes"])]
    verify_page(beginning, entry)
    if content_tag(beginning) != small.tags[0].tobytes():
        raise CorruptError(f"its beginning up to band {band} is not what its tag says")
    for problem in page_problems(entry, decode_page(beginning, entry, storage), storage):
        raise CorruptError(f"up to band {band}: {problem}")


def page_problems(entry: NDArray[np.void], values: ColumnValues, storage: Storage) -> Iterator[str]:
    """What an index says of a page that its rows are not."""
    flags = int(entry["flags"])
    if not isinstance(values, FixedValues):
        largest = int(np.diff(values.offsets).max(initial=0)) * storage.element.itemsize
        if int(entry["max"]) != largest:
            yield f"its largest row is said to have {int(entry['max'])} bytes, it has {largest}"
        return
    if storage.layout is not ColumnLayout.FIXED or storage.shape:
        return
    found = range_of(values.values, values.valid)
    if found.has_nan and not flags & HAS_NAN:
        yield "it is said to have no NaN, and has one"
    if flags & IS_SORTED and not found.is_sorted:
        yield "its rows are said to ascend, and do not"
    if not flags & HAS_RANGE or found.smallest is None or found.largest is None:
        return
    low, high = int(entry["min"]), int(entry["max"])
    low_fits = low <= found.smallest if flags & MIN_INEXACT else low == found.smallest
    high_fits = high >= found.largest if flags & MAX_INEXACT else high == found.largest
    if not low_fits or not high_fits:
        actual = f"{found.smallest} to {found.largest}"
        yield f"its bounds are said to be {low} to {high}, they are {actual}"


def _bounds(name: str, reader: PageReader, low: int | None, high: int | None) -> Iterator[str]:
    """Whether the bounds of a column bound those of its pages, in the form of the column."""
    index = reader.index
    if low is None or high is None or index.storages != (index.storage,):
        return  # pages that were widened are bounded in another form
    ranged = index.entries[(index.entries["flags"] & HAS_RANGE > 0) & ~index.is_absent]
    if len(ranged) and (int(ranged["min"].min()) < low or int(ranged["max"].max()) > high):
        yield f"column {name!r}: its bounds do not bound those of its pages"

"""Any rows of a column, in any order, proved.

Rows of fixed pages that lie in memory are gathered at once, without Python per row. They are proved
by their page, or by their own sums while only a few rows of a page are asked for: the rest of it is
not even read. A few rows of a large page that lies in a store are read exactly, with their sums.
Everything else goes page by page. Rows count physically: deleted ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.pages.page import (
    ALIGNMENT,
    DIRECTORY,
    HAS_ROW_SUMS,
    PAGE_PLAIN,
    check_rows,
)
from tensorrepo.formats.dataset.pages.tile_io import read_region
from tensorrepo.formats.dataset.pages.tiles import resolve_region
from tensorrepo.formats.dataset.reading.exact_read import RowsOfPage, exact_pays, read_exact
from tensorrepo.formats.dataset.reading.overlay import RowPiece, collect, overlay
from tensorrepo.formats.dataset.reading.page_reader import READ_THREADS, PageReader
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    blank_values,
    concat,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.threads import ordered_map

GATHERED_ROW_BYTES = 32 << 10  # from here on one copy per row is faster
GATHER_BYTES = 128 << 10  # numpy gathers into a buffer of its own, which should stay in cache
FEW_ROWS = 8  # of a page: up to so many in one call are proved by their own sums
EXACT_PAGES = 2  # a slice of more pages, or of more rows, reads pages whole
EXACT_ROWS = 4096
COLUMN_THREADS = 8  # each has threads of its own for its requests


def read_chosen(reader: PageReader, rows: Ints) -> ColumnValues:
    """Rows in the order asked for, as a copy; each lies in ``[0, index.rows)``.

    Raises:
        CorruptError: names column, page and object.
    """
    if not len(rows):
        return blank_values(reader.index.storage, 0)
    pages = reader.index.page_of(rows)
    places, source = _patched(reader, rows)
    if _in_memory(reader, pages):
        found = FixedValues(_gather(reader, rows, pages))
        return overlay(found, places, _patches(reader, source)) if len(places) else found
    if not len(places):
        return collect(_pieces(reader, rows, pages, np.arange(len(rows))), len(rows))
    kept = np.ones(len(rows), np.bool_)
    kept[places] = False
    others = np.flatnonzero(kept)
    with ThreadPoolExecutor(1, "patches") as thread:
        patches = thread.submit(_patches, reader, source)
        pieces = _pieces(reader, rows[others], pages[others], others)
        laid = RowPiece(patches.result(), np.arange(len(places)), places)
    return collect([*pieces, laid], len(rows))


def read_range(reader: PageReader, start: int, stop: int) -> ColumnValues:
    """Rows ``[start, stop)`` as a copy: exactly when they are few, else with all of their pages.

    Raises:
        CorruptError: names column, page and object.
    """
    if start >= stop:
        return blank_values(reader.index.storage, 0)
    if reader.is_far and _few_pay(reader, start, stop):
        return read_chosen(reader, np.arange(start, stop))
    pieces = reader.range(start, stop)
    return concat(pieces) if len(pieces) > 1 else pieces[0].copy()


def _few_pay(reader: PageReader, start: int, stop: int) -> bool:
    """Whether rows ``[start, stop)`` lie in few pages, of which single rows are better read."""
    low, last = reader.index.page_of(np.array([start, stop - 1])).tolist()
    if last - low >= EXACT_PAGES or stop - start > EXACT_ROWS:
        return False
    pages = np.arange(low, last + 1)
    firsts = np.maximum(reader.index.first_row[pages] - start, 0)
    pays = exact_pays(reader, pages, np.arange(start, stop), firsts)
    return bool((pays & _far(reader, pages)).any())


def read_columns(readers: Sequence[PageReader], rows: range | Ints) -> list[ColumnValues]:
    """The same rows of several columns; of those in a store all at once, in the same rounds.

    `rows` are as for `read_chosen`, or a range of step 1, as for `read_range`.
    """

    def read(reader: PageReader) -> ColumnValues:
        if isinstance(rows, range):
            return read_range(reader, rows.start, rows.stop)
        return read_chosen(reader, rows)

    side_by_side = len(readers) > 1 and any(reader.is_far for reader in readers)
    threads = min(COLUMN_THREADS, len(readers)) if side_by_side else 0
    return list(ordered_map(readers, read, threads=threads, name="column"))


def region_of(reader: PageReader, row: int, region: Any) -> Any:
    """``array[region]`` of one row of a tensor column, a copy; None where the row is null.

    Of a tiled column exactly the tiles that it touches are read. A row of any other is read, and
    proved, as a whole.

    `row` is physical, `region` integers, slices of any step and an ellipsis, as numpy takes them.

    Raises:
        InvalidInputError: a region of another kind, or outside the row; or rows without shape.
        CorruptError: names column, page and object.
    """
    if reader.index.storage.layout is ColumnLayout.BINARY:
        raise InvalidInputError("regions are of tensors: this column holds bytes or text")
    places, source = _patched(reader, np.array([row]))
    if len(places):
        assert reader.patches is not None, "it has patches, so it reads them"
        return region_of(reader.patches, int(source[0]), region)
    page = int(reader.index.page_of(np.array([row]))[0])
    if reader.link(page) is None or not reader.is_tiled(page):
        return _region_of_row(read_chosen(reader, np.array([row])), region)
    within, table = row - int(reader.index.first_row[page]), reader.tile_table(page)
    with reader.locating(page):
        found = read_region(table, within, region, reader.storage(page), reader.tile_source(page))
    # A column that was widened: every value of the narrower type is one of the wider.
    return None if found is None else found.astype(reader.index.storage.element, copy=False)


def _region_of_row(values: ColumnValues, region: Any) -> Any:
    if values.valid is not None and not values.valid[0]:
        return None
    assert not isinstance(values, BinaryValues), "regions are of tensors"
    array = values.values[0] if isinstance(values, FixedValues) else values.row(0)
    resolve_region(region, array.shape)  # refuses what numpy would take otherwise
    return array[region].copy()


# ------------------------------------------------------------------------------ any pages


def _patched(reader: PageReader, rows: Ints) -> tuple[Ints, Ints]:
    """Which of `rows` are patched: their places, and their rows among the patches."""
    if reader.index.patches is None:
        none = np.zeros(0, np.int64)
        return none, none
    return reader.index.patches.among(rows)


def _patches(reader: PageReader, source: Ints) -> ColumnValues:
    assert reader.patches is not None, "it has patches, so it reads them"
    return read_chosen(reader.patches, source)


def _pieces(reader: PageReader, rows: Ints, pages: Ints, places: Ints) -> list[RowPiece]:
    """Rows without their patches: `rows` lie in `pages` and belong at `places` of a batch."""
    if not len(rows):
        return []
    order = np.argsort(rows, kind="stable")
    rows, pages, places = rows[order], pages[order], places[order]
    each, starts = np.unique(pages, return_index=True)
    far = _far(reader, each)
    exact = _exact(reader, rows, pages, each, far)
    first = reader.index.first_row
    groups = [
        _Group(page, rows[start:stop] - first[page], places[start:stop])
        for page, start, stop in zip(
            each.tolist(), starts.tolist(), [*starts[1:].tolist(), len(rows)], strict=True
        )
    ]
    alone = [group for group, single in zip(groups, exact.tolist(), strict=True) if single]
    whole = [group for group, single in zip(groups, exact.tolist(), strict=True) if not single]
    if not alone:
        return _whole_pieces(reader, whole)
    with ThreadPoolExecutor(1, "exact") as thread:
        pieces = thread.submit(_exact_pieces, reader, alone)
        return _whole_pieces(reader, whole) + pieces.result()


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Rows of one page, counted within it, and their places in the batch."""

    page: int
    rows: Ints
    places: Ints


def _whole_pieces(reader: PageReader, groups: Sequence[_Group]) -> list[RowPiece]:
    """Rows of pages that are read as a whole, of tiled ones, and of those that are nowhere."""
    pieces: list[RowPiece] = []
    stored: list[_Group] = []
    tiled: list[_Group] = []
    for group in groups:
        if reader.link(group.page) is None:
            rows = np.zeros_like(group.rows)
            pieces.append(RowPiece(reader.default(group.page), rows, group.places))
        else:
            (tiled if reader.is_tiled(group.page) else stored).append(group)
    values = reader.scan([group.page for group in stored], patched=False)
    pieces += [
        RowPiece(found, group.rows, group.places)
        for found, group in zip(values, stored, strict=True)
    ]
    return pieces + _tiled_pieces(reader, tiled)


def _tiled_pieces(reader: PageReader, groups: Sequence[_Group]) -> list[RowPiece]:
    def read(group: _Group) -> RowPiece:
        values = reader.tiled_rows(group.page, group.rows)
        return RowPiece(values, np.arange(len(group.rows)), group.places)

    threads = min(READ_THREADS, len(groups)) if len(groups) > 1 else 0
    return list(ordered_map(groups, read, threads=threads, name="tiles"))


def _exact_pieces(reader: PageReader, groups: Sequence[_Group]) -> list[RowPiece]:
    """Rows of pages of a store of which nothing else is read."""
    unique = [np.unique(group.rows, return_inverse=True) for group in groups]
    wanted = [
        RowsOfPage(group.page, alone) for group, (alone, _) in zip(groups, unique, strict=True)
    ]
    return [
        RowPiece(values, inverse, group.places)
        for values, (_, inverse), group in zip(
            read_exact(reader, wanted), unique, groups, strict=True
        )
    ]


def _far(reader: PageReader, pages: Ints) -> Bools:
    """Which of `pages` must be asked of a store, and are not remembered."""
    far = reader.far(pages)
    for at in np.flatnonzero(far).tolist():
        far[at] = reader.cache.pages.get(reader.key(int(pages[at]))) is None
    return far


def _exact(reader: PageReader, rows: Ints, pages: Ints, each: Ints, far: Bools) -> Bools:
    """Of which pages, ``each[far]``, single rows are read."""
    if not far.any():
        return far
    new = np.concatenate([[True], rows[1:] != rows[:-1]])
    distinct = rows[new]
    firsts = np.searchsorted(pages[new], each)
    return far & exact_pays(reader, each, distinct, firsts)


# ------------------------------------------------------------------------------ in memory


def _in_memory(reader: PageReader, pages: Ints) -> bool:
    """Whether all of `pages` are plain fixed ones without nulls that lie in memory."""
    index = reader.index
    if not 0 < index.storage.row_bytes < GATHERED_ROW_BYTES:
        return False
    entries = index.entries
    plain = (entries["codec"][pages] == PAGE_PLAIN) & (entries["nulls"][pages] == 0)
    as_wanted = np.array([storage == index.storage for storage in index.storages], np.bool_)
    plain &= as_wanted[index.stored_as[pages]]
    chunks = np.unique(index.chunk[pages]).tolist()
    return bool(plain.all()) and all(reader.payload(chunk) is not None for chunk in chunks)


def _gather(reader: PageReader, rows: Ints, pages: Ints) -> NDArray[Any]:
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
            for page in np.unique(pages[alone]).tolist():  # a sum knows only its place in the call
                reader.bytes(page)
            raise
    return out


def _verify_crowded(reader: PageReader, pages: Ints) -> Ints:
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
    alone: Ints = unproved[~crowded[inverse]]
    return alone


def _places(reader: PageReader, rows: Ints, pages: Ints) -> tuple[Ints, Ints]:
    """Where in their chunk's payload the rows of plain fixed pages begin, and their sums."""
    index, row_bytes = reader.index, reader.index.storage.row_bytes
    within = rows - index.first_row[pages]
    begin = index.entries["offset"][pages].astype(np.int64) + DIRECTORY.size
    page_bytes = index.entries["rows"][pages].astype(np.int64) * row_bytes
    sums: Ints = begin + -(-page_bytes // ALIGNMENT) * ALIGNMENT + within * 4
    return begin + within * row_bytes, sums


def _copy(
    reader: PageReader, chunk_of: NDArray[np.uint32], starts: Ints, out: NDArray[Any]
) -> None:
    """Fill each row of `out` from its place in its chunk's payload."""
    row_bytes = out.nbytes // len(out)
    void = np.dtype(f"V{row_bytes}")
    flat = out.reshape(-1).view(np.uint8).view(void)  # small floats are no buffers themselves
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

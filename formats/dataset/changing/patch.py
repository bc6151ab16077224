"""Patches: new values of rows, laid over their pages or written into new ones.

A caller gives a single value for all rows, one value for each, or a function of the rows. All are
coerced as appended rows are; what equals the value that a row has is not written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.buffer_codecs import AUTO, Codec, CodecChoice
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.span_write import PatchPart, leaf_patches
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.metadata.tree_read import read_leaf
from tensorrepo.formats.dataset.pages.page import PAGE_COMPRESSED
from tensorrepo.formats.dataset.pages.stripes import PageCuts, PageFiller
from tensorrepo.formats.dataset.read import StoredDataset, column_index, page_reader
from tensorrepo.formats.dataset.reading.overlay import overlay
from tensorrepo.formats.dataset.reading.page_reader import PageReader
from tensorrepo.formats.dataset.reading.row_read import read_chosen
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.equality import differing_alike
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout, ColumnType, Json, List, Map
from tensorrepo.formats.dataset.schema.values import ColumnValues, concat
from tensorrepo.formats.dataset.selecting.select_rows import Chosen, FragmentRows
from tensorrepo.formats.dataset.writing.column_write import (
    STEP_BYTES,
    ColumnPartWriter,
    Editing,
    page_filler,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

# The values of a column for rows of a dataset, given their physical numbers and which of the values
# given each takes; both int64 (n,).
ValueSource: TypeAlias = Callable[[Ints, Ints], ColumnValues]


@dataclass(frozen=True, slots=True, eq=False)
class LateValues:
    """Values of `count` rows, of which `make` gives those at some places when they are needed."""

    count: int
    make: Callable[[Ints], Sequence[Any]]


def is_single(column: Column, value: Any) -> bool:
    """Whether `value` is the value of one row, and not those of many."""
    if value is None or isinstance(value, pa.Scalar):
        return True
    if isinstance(value, pa.Array | pa.ChunkedArray | LateValues):
        return False
    if isinstance(column.type, List) and isinstance(value, list | tuple):
        return _lists_deep(value) == _lists_of(column.type)
    if isinstance(value, list | tuple) and (not value or any(each is None for each in value)):
        return False
    if column.storage.layout is ColumnLayout.BINARY:
        return not isinstance(value, list | tuple) and not getattr(value, "ndim", 0)
    return _rank(value) == len(column.storage.shape)


def _lists_deep(value: Any) -> int:
    if not isinstance(value, list | tuple):
        return 0
    return 1 + max(map(_lists_deep, value), default=0)


def _lists_of(kind: ColumnType) -> int:
    """How many lists stand one in the other in a type."""
    return 1 + _lists_of(kind.value) if isinstance(kind, List) else 0


def _rank(value: Any) -> int:
    """Dimensions of a value, as its first element has them."""
    if isinstance(value, list | tuple):
        return 1 + (_rank(value[0]) if value else 0)
    if isinstance(value, np.ndarray) and value.dtype == np.object_ and value.size:
        return value.ndim + _rank(value.flat[0])
    return int(np.ndim(value))


def single_source(column: Column, value: Any) -> ValueSource:
    """One value for all rows.

    Raises:
        InvalidInputError: it does not fit the column.
    """
    row = value.as_py() if isinstance(value, pa.Scalar) else value
    one = coerce_column(column, [row])
    return lambda rows, _: one.take(np.zeros(len(rows), np.int64))


def many_source(column: Column, values: Any, given: int) -> ValueSource:
    """A value for each row that was given.

    Raises:
        InvalidInputError: one does not fit the column, or there are more or fewer than `given`.
    """
    if isinstance(values, LateValues):
        _check_count(column, values.count, given)
        return lambda _, places: coerce_column(column, values.make(places))
    found = coerce_column(column, values)
    _check_count(column, found.rows, given)
    return lambda _, places: found.take(places)


def _check_count(column: Column, count: int, given: int) -> None:
    if count == given:
        return
    hint = ""
    if isinstance(column.type, Json | List | Map):
        hint = ". A list is taken as one value for each row: put it into a list for all rows"
    raise InvalidInputError(
        f"column {column.name!r}: {counted(count, 'value')} for {counted(given, 'row')}{hint}"
    )


def computed(column: Column, values: Any, rows: int, first_row: int = 0) -> ColumnValues:
    """What a function gave for some rows, coerced, in memory that it does not write to again.

    Raises:
        InvalidInputError: it does not fit, or is not `rows` values.
    """
    if is_single(column, values) and column.storage.layout is not ColumnLayout.BINARY:
        raise InvalidInputError(
            f"column {column.name!r}: the function gave one value for {counted(rows, 'row')}, "
            "expected one for each"
        )
    found = coerce_column(column, values, first_row)
    if found.rows != rows:
        raise InvalidInputError(
            f"column {column.name!r}: the function gave {counted(found.rows, 'value')} for "
            f"{counted(rows, 'row')}"
        )
    return found.copy()


UpdateProgress = Callable[[int, int], None]
# Values of a column from a row of the fragment on, with what is set among them.
LaidOver = Callable[[ColumnValues, int], ColumnValues]

PATCH_SHARE = 0.1  # of a column's bytes in a fragment: above it, pages are written anew
PATCH_LAYERS = 8
SMALL_COLUMN_BYTES = 4 << 10  # columns that take less in a fragment get no patches
PATCH_PAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PatchState:
    """What one column takes in one fragment, were a patch laid over it."""

    column_bytes: int
    patch_bytes: int  # of all patches, the new one too
    layers: int
    is_alike: bool = True  # patches there are were stored in the form that the column has now


def is_patched(state: PatchState) -> bool:
    """Whether a patch is laid over the pages; else these are written anew."""
    return (
        state.column_bytes >= SMALL_COLUMN_BYTES
        and state.patch_bytes <= PATCH_SHARE * state.column_bytes
        and state.layers <= PATCH_LAYERS
        and state.is_alike
    )


@dataclass(frozen=True, slots=True, eq=False)
class _NewRows:
    """What is set in one fragment of one column: `offsets` ascending, a value for each."""

    offsets: Ints
    values: ColumnValues

    def laid_over(self, values: ColumnValues, start: int) -> ColumnValues:
        """`values` of rows from `start` on, with what is set among them."""
        low, high = np.searchsorted(self.offsets, [start, start + values.rows]).tolist()
        if low == high:
            return values
        return overlay(values, self.offsets[low:high] - start, self.values.slice(low, high))


class _Window:
    """New values of some consecutive rows of a fragment, which moves on as they are asked for."""

    def __init__(self, read: Callable[[int, int], _NewRows | None]) -> None:
        self._read = read
        self._stop = 0
        self._new: _NewRows | None = None

    def reach(self, start: int, stop: int, at_once: int) -> _NewRows | None:
        """What is set in a window that holds rows ``[start, stop)``, of `at_once` rows or more."""
        if stop > self._stop:
            self._stop = max(stop, start + at_once)
            self._new = self._read(start, self._stop)
        return self._new


def _joined(pieces: Sequence[_NewRows]) -> _NewRows:
    offsets = np.concatenate([piece.offsets for piece in pieces])
    return _NewRows(offsets, concat([piece.values for piece in pieces]))


@dataclass(slots=True, eq=False)
class ValueChanger:
    """Makes the edits of one `set_values`."""

    _dataset: StoredDataset
    _chosen: Chosen
    _sources: Mapping[str, ValueSource]
    _reads: frozenset[str]
    _edit: Editing
    _progress: UpdateProgress | None
    _rows: int = 0
    _bytes: int = 0

    def edits(
        self, number: int, fragments: Sequence[FragmentRows]
    ) -> Iterator[tuple[int, FragmentEdit]]:
        """The edits of one leaf."""
        dataset = self._dataset
        leaf, links = read_leaf(dataset.objects, dataset.links, dataset.root.leaves[number])
        columns = [dataset.schema.column(name) for name in self._sources]
        live = frozenset(column.id for column in columns)
        known = leaf_patches(dataset.objects, leaf, links, live)
        for each in fragments:
            pages: dict[str, ColumnPart] = {}
            patches: dict[str, PatchPart] = {}
            for column in columns:
                before = known.get(column.id, {}).get(each.fragment, ())
                part = self._change(column, each, before)
                if isinstance(part, PatchPart):
                    patches[column.id] = part
                elif part is not None:
                    pages[column.id] = part
            if pages or patches:
                yield each.fragment, FragmentEdit(pages=pages, patches=patches)
            self._rows += each.stop - each.start
            if self._progress is not None:
                self._progress(self._rows, self._bytes)

    def _change(
        self, column: Column, fragment: FragmentRows, before: Sequence[PatchPart]
    ) -> PatchPart | ColumnPart | None:
        """A patch, all pages, or None where no value differs."""
        state = self._state(column, fragment, before)
        if state.patch_bytes - sum(map(_part_bytes, before)) > self._edit.quarter_bytes:
            return self._change_in_pieces(column, fragment, state)
        pieces = list(self._differences(column, fragment, fragment.start, fragment.stop))
        if not pieces:
            return None
        new = _joined(pieces)
        exact = replace(state, patch_bytes=new.values.nbytes + sum(map(_part_bytes, before)))
        if is_patched(exact):
            return self._patch(column, fragment, [new])
        row_bytes = max(1.0, new.values.nbytes / new.values.rows)
        return self._replacement(column, fragment, new.laid_over, row_bytes)

    def _change_in_pieces(
        self, column: Column, fragment: FragmentRows, state: PatchState
    ) -> PatchPart | ColumnPart | None:
        """The same where all new values at once would not fit into memory."""
        pieces = self._differences(column, fragment, fragment.start, fragment.stop)
        first = next(pieces, None)
        if first is None:
            return None
        if is_patched(state):
            return self._patch(column, fragment, chain([first], pieces))
        pieces.close()
        row_bytes = max(1.0, first.values.nbytes / first.values.rows)
        window = _Window(partial(self._between, column, fragment))
        at_once = int(self._edit.quarter_bytes / row_bytes)

        def laid_over(values: ColumnValues, start: int) -> ColumnValues:
            new = window.reach(start, start + values.rows, at_once)
            return values if new is None else new.laid_over(values, start)

        return self._replacement(column, fragment, laid_over, row_bytes)

    def _between(
        self, column: Column, fragment: FragmentRows, start: int, stop: int
    ) -> _NewRows | None:
        """What is set among rows ``[start, stop)`` of the fragment."""
        bounds = [fragment.first_row + start, fragment.first_row + stop]
        low, high = np.searchsorted(self._chosen.rows, bounds).tolist()
        low, high = max(low, fragment.start), min(high, fragment.stop)
        pieces = list(self._differences(column, fragment, low, high))
        return _joined(pieces) if pieces else None

    # -------------------------------------------------------------------------- new values

    def _differences(
        self, column: Column, fragment: FragmentRows, first: int, last: int
    ) -> Generator[_NewRows]:
        """Of the chosen rows ``[first, last)`` those whose value differs from what is there."""
        reader = page_reader(self._dataset, column.name)
        step = self._step(column)
        for start in range(first, last, step):
            stop = min(start + step, last)
            rows = self._chosen.rows[start:stop]
            new = self._sources[column.name](rows, self._chosen.places[start:stop])
            hits = np.flatnonzero(differing_alike(read_chosen(reader, rows), new))
            if len(hits):
                changed = new if len(hits) == new.rows else new.take(hits)
                self._bytes += changed.nbytes
                yield _NewRows(rows[hits] - fragment.first_row, changed)

    def _step(self, column: Column) -> int:
        """How many rows are compared at a time."""
        indexes = [column_index(self._dataset, name) for name in {column.name} | self._reads]
        row_bytes = sum(index.mean_row_bytes for index in indexes)
        return max(1, int(STEP_BYTES / max(1.0, row_bytes)))

    def _state(
        self, column: Column, fragment: FragmentRows, before: Sequence[PatchPart]
    ) -> PatchState:
        """How it stands if all chosen rows of the fragment get values as large as theirs."""
        reader = page_reader(self._dataset, column.name)
        pages = _pages_of(reader, fragment)
        column_bytes = int(reader.index.entries["raw_bytes"][pages.start : pages.stop].sum())
        if reader.link(pages.start) is None:
            column_bytes = fragment.rows * max(1, reader.default(pages.start).nbytes)
        share = (fragment.stop - fragment.start) / fragment.rows
        patch_bytes = int(share * column_bytes) + sum(map(_part_bytes, before))
        is_alike = all(part.column.storage == column.storage for part in before)
        return PatchState(column_bytes, patch_bytes, len(before) + 1, is_alike)

    # -------------------------------------------------------------------------- pages

    def _patch(
        self, column: Column, fragment: FragmentRows, pieces: Iterable[_NewRows]
    ) -> PatchPart:
        writer = self._writer(column, fragment)
        offsets = []
        for new in pieces:
            offsets.append(new.offsets)
            end = np.array([new.values.rows], np.int64)
            writer.filler = PageFiller(PageCuts(end, None), PATCH_PAGE_BYTES)
            writer.add(new.values)
        return PatchPart(writer.finish(), np.concatenate(offsets).astype(np.uint32))

    def _replacement(
        self, column: Column, fragment: FragmentRows, laid_over: LaidOver, row_bytes: float
    ) -> ColumnPart:
        writer = self._writer(column, fragment)
        reader = page_reader(self._dataset, column.name)
        pages = _pages_of(reader, fragment)
        if reader.link(pages.start) is None:
            self._forget_default(column, reader.default(pages.start), fragment.rows)
        if column.storage.layout is ColumnLayout.TILED:
            for row in range(fragment.rows):
                at = fragment.first_row + row
                writer.add(laid_over(reader.range(at, at + 1)[0], row))
        elif reader.link(pages.start) is None:
            self._fill(writer, reader, fragment, laid_over, row_bytes)
        else:
            for page in pages:
                start = int(reader.index.first_row[page]) - fragment.first_row
                writer.add(laid_over(reader.values(page), start))
        return writer.finish()

    def _fill(
        self,
        writer: ColumnPartWriter,
        reader: PageReader,
        fragment: FragmentRows,
        laid_over: LaidOver,
        row_bytes: float,
    ) -> None:
        """Write pages where there were none: all rows had the default."""
        others = [
            ends
            for each in self._dataset.schema.columns
            if len(ends := _page_ends(page_reader(self._dataset, each.name), fragment))
        ]
        writer.filler = page_filler(writer.column, others, fragment.rows, row_bytes)
        step = max(1, int(STEP_BYTES / row_bytes))
        for start in range(0, fragment.rows, step):
            first = fragment.first_row + start
            stop = min(first + step, fragment.first_row + fragment.rows)
            writer.add(laid_over(concat(reader.range(first, stop)), start))

    def _forget_default(self, column: Column, default: ColumnValues, rows: int) -> None:
        """Rows that were null for want of a page are counted by their pages from now on."""
        if default.valid is not None:
            tally = self._edit.tree.tallies[column.id]
            tally.nulls = max(0, tally.nulls - rows)

    def _writer(self, column: Column, fragment: FragmentRows) -> ColumnPartWriter:
        reader = page_reader(self._dataset, column.name)
        codec = _codec_of(reader, _pages_of(reader, fragment))
        return self._edit.writer(column, fragment.fragment, fragment.uid, codec)


def _pages_of(reader: PageReader, fragment: FragmentRows) -> range:
    bounds = [fragment.first_row, fragment.first_row + fragment.rows]
    low, high = np.searchsorted(reader.index.first_row, bounds).tolist()
    return range(low, high)


def _page_ends(reader: PageReader, fragment: FragmentRows) -> Ints:
    """Where the pages of a column end in a fragment; nothing where it has none."""
    pages = _pages_of(reader, fragment)
    if reader.link(pages.start) is None:
        return np.zeros(0, np.int64)
    return reader.index.first_row[pages.start + 1 : pages.stop + 1] - fragment.first_row


def _codec_of(reader: PageReader, pages: range) -> CodecChoice:
    """What a column was stored with in a fragment, to go on with."""
    if reader.link(pages.start) is None:
        return Codec.NONE
    if reader.is_tiled(pages.start):
        return AUTO if reader.tile_table(pages.start).tiles["codec"].any() else Codec.NONE
    codecs = reader.index.entries["codec"][pages.start : pages.stop]
    return AUTO if (codecs == PAGE_COMPRESSED).any() else Codec.NONE


def _part_bytes(patch: PatchPart) -> int:
    pages = patch.column.pages
    if isinstance(pages, ColumnPages):
        return int(pages.entries["raw_bytes"].sum())
    return sum(page.raw_bytes for page in pages)

"""Some rows are deleted or get other values: what did not change is linked, not written again.

A new value is a patch, laid over the pages of its fragment. Where patches would take more than a
tenth of what the column takes in the fragment, or lie too many over one another, the pages of that
column in that fragment are written anew, with the boundaries they had. Deletions are marks beside
the pages; compaction takes the rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.codecs.choice import AUTO
from tensorrepo.formats.dataset.arrow import to_arrow_array
from tensorrepo.formats.dataset.columnwrite import ColumnPartWriter
from tensorrepo.formats.dataset.deletions import pack_deletions, unpack_deletions
from tensorrepo.formats.dataset.derived import derived_values
from tensorrepo.formats.dataset.fragments import leaf_patches
from tensorrepo.formats.dataset.index import ColumnPages
from tensorrepo.formats.dataset.newvalues import (
    Source,
    computed,
    differing,
    is_single,
    many_source,
    single_source,
)
from tensorrepo.formats.dataset.overlay import overlay
from tensorrepo.formats.dataset.page import PAGE_COMPRESSED
from tensorrepo.formats.dataset.pagecuts import PageCuts, PageFiller, page_cuts
from tensorrepo.formats.dataset.read import Dataset, column_index, page_reader
from tensorrepo.formats.dataset.rowread import read_chosen, read_columns
from tensorrepo.formats.dataset.schema import Schema
from tensorrepo.formats.dataset.spanwrite import PatchPart
from tensorrepo.formats.dataset.stripes import page_limit
from tensorrepo.formats.dataset.treeedit import FragmentEdit, TreeEditor
from tensorrepo.formats.dataset.treeread import read_deletions, read_leaf
from tensorrepo.formats.dataset.types import Layout
from tensorrepo.formats.dataset.values import ColumnValues, concat
from tensorrepo.formats.dataset.where import Chosen, FragmentRows, Where, by_leaf, choose_rows
from tensorrepo.formats.dataset.write import BUDGET_BYTES, ENCODE_THREADS
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.codecs.choice import CodecChoice
    from tensorrepo.formats.dataset.pageread import PageReader
    from tensorrepo.formats.dataset.schema import Column
    from tensorrepo.formats.dataset.spans import ColumnPart
    from tensorrepo.repo.objects import Link, ObjectSink

Progress = Callable[[int, int], None]

PATCH_SHARE = 0.1  # of a column's bytes in a fragment: above it, pages are written anew
PATCH_LAYERS = 8
SMALL_COLUMN_BYTES = 4 << 10  # columns that take less in a fragment get no patches
STEP_BYTES = 4 << 20  # of values that are compared at a time
PATCH_PAGE_BYTES = 1 << 20
MIN_QUARTER_BYTES = 4 << 10  # below this, chunks would be all footer


def delete_rows(
    objects: ObjectSink, dataset: Dataset, where: Where, *, budget_bytes: int = BUDGET_BYTES
) -> Link:
    """Delete rows; those that are not there, or no more, are passed over.

    Args:
        objects: where to store.
        dataset: what to change.
        where: which rows, see `where`.
        budget_bytes: bound of the memory used, beside 8 bytes a chosen row.

    Returns:
        Link of the new root; of the old one when no row was deleted.
    """
    rows = choose_rows(dataset, where, strict=False).rows
    with _editing(objects, dataset, budget_bytes) as edit:
        reached = 0
        for number, fragments in by_leaf(dataset, rows):
            _keep(edit.tree, number - reached)
            edit.tree.edit(_deletions(dataset, number, fragments, rows))
            reached = number + 1
        return edit.tree.finish()


def _deletions(
    dataset: Dataset, number: int, fragments: Sequence[FragmentRows], rows: NDArray[np.int64]
) -> Iterator[tuple[int, FragmentEdit]]:
    """The edits of one leaf."""
    leaf, links = read_leaf(dataset.objects, dataset.links, dataset.root.leaves[number])
    known = read_deletions(dataset.objects, leaf, links)
    for each in fragments:
        offsets = rows[each.start : each.stop] - each.first_row
        if each.fragment in known:
            before = unpack_deletions(known[each.fragment], each.rows)
            offsets = np.union1d(before, offsets)
        yield each.fragment, FragmentEdit(deletions=pack_deletions(offsets, each.rows))


def update_rows(
    objects: ObjectSink,
    dataset: Dataset,
    where: Where,
    values: Mapping[str, Any],
    *,
    columns: Iterable[str] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    progress: Progress | None = None,
) -> Link:
    """Give rows other values. Values that a row has already are not written.

    Args:
        objects: where to store.
        dataset: what to change.
        where: which rows, see `where`.
        values: by column: a value for all rows (None: null); values for each row, in the order in
            which `where` names them (of a predicate: in the order of the dataset); or a function
            that is given some of the rows as a `pyarrow.RecordBatch` and gives a value for each.
        columns: what functions are given; None: all columns that are not hidden.
        budget_bytes: bound of the memory used, beside the values given and one row.
        progress: called now and then with rows looked at and bytes of new values so far.

    Returns:
        Link of the new root; of the old one when no value differs.

    Raises:
        InvalidInputError: a value does not fit; names row, column, expected and found.
        NotFoundError: no such column, or no row of that id, number or key.
    """
    targets = [_target(dataset.schema, name) for name in values]
    chosen = choose_rows(dataset, where)
    sources: dict[str, Source] = {}
    read: set[str] = set()
    for column in targets:
        value = values[column.name]
        if callable(value):
            names = dataset.schema.select(columns).names
            sources[column.name] = _function_source(dataset, column, value, names)
            read |= set(names)
        elif is_single(column, value):
            sources[column.name] = single_source(column, value)
        else:
            sources[column.name] = many_source(column, value, chosen.given)
    return set_values(
        objects, dataset, chosen, sources, reads=read, budget_bytes=budget_bytes, progress=progress
    )


def _target(schema: Schema, name: str) -> Column:
    column = schema.column(name)
    if column.derived is not None:
        raise InvalidInputError(f"column {name!r} follows another one and cannot be set")
    return column


def _function_source(
    dataset: Dataset,
    column: Column,
    function: Callable[[pa.RecordBatch], Any],
    names: Sequence[str],
) -> Source:
    chosen = dataset.schema.select(names)
    schema = chosen.to_arrow()

    def source(rows: NDArray[np.int64], _: NDArray[np.int64]) -> ColumnValues:
        found = read_columns([page_reader(dataset, name) for name in names], rows)
        arrays = [
            to_arrow_array(each.type, values)
            for each, values in zip(chosen.columns, found, strict=True)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return computed(column, function(batch), len(rows))

    return source


def set_values(
    objects: ObjectSink,
    dataset: Dataset,
    chosen: Chosen,
    sources: Mapping[str, Source],
    *,
    reads: Iterable[str] = (),
    budget_bytes: int = BUDGET_BYTES,
    progress: Progress | None = None,
) -> Link:
    """The change that `update_rows` makes, given where the values come from.

    Args:
        objects: where to store.
        dataset: what to change.
        chosen: which rows.
        sources: by column.
        reads: columns that sources read.
        budget_bytes: bound of the memory used.
        progress: see `update_rows`.
    """
    every = dict(sources) | _derived_sources(dataset.schema, sources)
    with _editing(objects, dataset, budget_bytes) as edit:
        changer = _Changer(dataset, chosen, every, frozenset(reads), edit, progress)
        reached = 0
        for number, fragments in by_leaf(dataset, chosen.rows):
            _keep(edit.tree, number - reached)
            edit.tree.edit(changer.edits(number, fragments))
            reached = number + 1
        return edit.tree.finish()


def _derived_sources(schema: Schema, sources: Mapping[str, Source]) -> dict[str, Source]:
    """Hidden columns follow what they are computed from."""
    names = {column.id: column.name for column in schema.columns}
    return {
        column.name: _derived_source(schema, column, names[column.derived[0]], sources)
        for column in schema.columns
        if column.derived is not None and names.get(column.derived[0]) in sources
    }


def _derived_source(
    schema: Schema, column: Column, name: str, sources: Mapping[str, Source]
) -> Source:
    both = Schema((schema.column(name), column))
    origin = sources[name]
    return lambda rows, places: derived_values(both, {name: origin(rows, places)})[column.name]


# ------------------------------------------------------------------------------ editing


@dataclass(frozen=True, slots=True)
class Editing:
    """What a change is made with."""

    tree: TreeEditor
    encoders: ThreadPoolExecutor
    quarter_bytes: int


@contextmanager
def _editing(objects: ObjectSink, dataset: Dataset, budget_bytes: int) -> Iterator[Editing]:
    with editing(objects, dataset, dataset.schema, dataset.root.groups, budget_bytes) as edit:
        yield edit


@contextmanager
def editing(
    objects: ObjectSink,
    dataset: Dataset,
    schema: Schema,
    groups: tuple[tuple[str, ...], ...],
    budget_bytes: int,
) -> Iterator[Editing]:
    """Threads, and an editor of `dataset`; what was begun is given up on an error."""
    quarter_bytes = max(MIN_QUARTER_BYTES, budget_bytes // 4)
    with (
        ThreadPoolExecutor(ENCODE_THREADS, "encode") as encoders,
        ThreadPoolExecutor(1, "store") as storers,
    ):
        tree = TreeEditor(objects, dataset, schema, groups, storers, quarter_bytes)
        try:
            yield Editing(tree, encoders, quarter_bytes)
        except BaseException:
            encoders.shutdown(wait=True, cancel_futures=True)
            storers.shutdown(wait=True, cancel_futures=True)
            raise


def _keep(tree: TreeEditor, leaves: int) -> None:
    for _ in range(leaves):
        tree.keep()


# ------------------------------------------------------------------------------ patch or pages


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

    offsets: NDArray[np.int64]
    values: ColumnValues

    def laid_over(self, values: ColumnValues, start: int) -> ColumnValues:
        """`values` of rows from `start` on, with what is set among them."""
        low, high = np.searchsorted(self.offsets, [start, start + values.rows]).tolist()
        if low == high:
            return values
        return overlay(values, self.offsets[low:high] - start, self.values.slice(low, high))


class _Changer:
    """Makes the edits of one `set_values`."""

    def __init__(
        self,
        dataset: Dataset,
        chosen: Chosen,
        sources: Mapping[str, Source],
        reads: frozenset[str],
        edit: Editing,
        progress: Progress | None,
    ) -> None:
        self._dataset = dataset
        self._chosen = chosen
        self._sources = sources
        self._reads = reads
        self._edit = edit
        self._progress = progress
        self._rows = self._bytes = 0

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
                new = self._new_rows(column, each)
                if new is None:
                    continue
                before = known.get(column.id, {}).get(each.fragment, ())
                if is_patched(self._state(column, each, new, before)):
                    patches[column.id] = self._patch(column, each, new)
                else:
                    pages[column.id] = self._replacement(column, each, new)
            if pages or patches:
                yield each.fragment, FragmentEdit(pages=pages, patches=patches)
            self._tell(each)

    def _tell(self, fragment: FragmentRows) -> None:
        self._rows += fragment.stop - fragment.start
        if self._progress is not None:
            self._progress(self._rows, self._bytes)

    # -------------------------------------------------------------------------- new values

    def _new_rows(self, column: Column, fragment: FragmentRows) -> _NewRows | None:
        """The rows whose value differs from what is there; None: no row's does."""
        reader = page_reader(self._dataset, column.name)
        step = self._step(column)
        offsets: list[NDArray[np.int64]] = []
        pieces: list[ColumnValues] = []
        for start in range(fragment.start, fragment.stop, step):
            stop = min(start + step, fragment.stop)
            rows = self._chosen.rows[start:stop]
            new = self._sources[column.name](rows, self._chosen.places[start:stop])
            hits = differing(read_chosen(reader, rows), new)
            if len(hits):
                offsets.append(rows[hits] - fragment.first_row)
                pieces.append(new.take(hits))
        if not offsets:
            return None
        found = _NewRows(np.concatenate(offsets), concat(pieces))
        self._bytes += found.values.nbytes
        return found

    def _step(self, column: Column) -> int:
        """How many rows are compared at a time."""
        indexes = [column_index(self._dataset, name) for name in {column.name} | self._reads]
        row_bytes = sum(index.raw_bytes / max(1, index.rows) for index in indexes)
        return max(1, int(STEP_BYTES / max(1.0, row_bytes)))

    def _state(
        self,
        column: Column,
        fragment: FragmentRows,
        new: _NewRows,
        before: Sequence[PatchPart],
    ) -> PatchState:
        reader = page_reader(self._dataset, column.name)
        pages = _pages_of(reader, fragment)
        column_bytes = int(reader.index.entries["raw_bytes"][pages.start : pages.stop].sum())
        if reader.link(pages.start) is None:
            column_bytes = fragment.rows * max(1, reader.default(pages.start).nbytes)
        patch_bytes = new.values.nbytes + sum(map(_part_bytes, before))
        is_alike = all(part.column.storage == column.storage for part in before)
        return PatchState(column_bytes, patch_bytes, len(before) + 1, is_alike)

    # -------------------------------------------------------------------------- pages

    def _patch(self, column: Column, fragment: FragmentRows, new: _NewRows) -> PatchPart:
        writer = self._writer(column, fragment)
        if column.storage.layout is Layout.TILED:
            writer.add(new.values)
        else:
            end = np.array([new.values.rows], np.int64)
            filler = PageFiller(PageCuts(end, None), PATCH_PAGE_BYTES)
            for pieces in filler.add(new.values):
                writer.add(concat(pieces))
        return PatchPart(writer.finish(), new.offsets.astype(np.uint32))

    def _replacement(self, column: Column, fragment: FragmentRows, new: _NewRows) -> ColumnPart:
        writer = self._writer(column, fragment)
        reader = page_reader(self._dataset, column.name)
        pages = _pages_of(reader, fragment)
        if reader.link(pages.start) is None:
            self._forget_default(column, reader.default(pages.start), fragment.rows)
        if column.storage.layout is Layout.TILED:
            for row in range(fragment.rows):
                at = fragment.first_row + row
                writer.add(new.laid_over(reader.range(at, at + 1)[0], row))
        elif reader.link(pages.start) is None:
            self._fill(writer, reader, column, fragment, new)
        else:
            for page in pages:
                start = int(reader.index.first_row[page]) - fragment.first_row
                writer.add(new.laid_over(reader.values(page), start))
        return writer.finish()

    def _fill(
        self,
        writer: ColumnPartWriter,
        reader: PageReader,
        column: Column,
        fragment: FragmentRows,
        new: _NewRows,
    ) -> None:
        """Write pages where there were none: all rows had the default."""
        others = [
            ends
            for each in self._dataset.schema.columns
            if len(ends := _page_ends(page_reader(self._dataset, each.name), fragment))
        ]
        row_bytes = max(1.0, new.values.nbytes / new.values.rows)
        limit = page_limit(column.storage, row_bytes, None)
        filler = PageFiller(page_cuts(others, fragment.rows, limit / row_bytes), limit)
        step = max(1, int(STEP_BYTES / row_bytes))
        for start in range(0, fragment.rows, step):
            first = fragment.first_row + start
            stop = min(first + step, fragment.first_row + fragment.rows)
            values = concat(reader.range(first, stop))
            for pieces in filler.add(new.laid_over(values, start)):
                writer.add(concat(pieces))

    def _forget_default(self, column: Column, default: ColumnValues, rows: int) -> None:
        """Rows that were null for want of a page are counted by their pages from now on."""
        if default.valid is not None:
            tally = self._edit.tree.tallies[column.id]
            tally.nulls = max(0, tally.nulls - rows)

    def _writer(self, column: Column, fragment: FragmentRows) -> ColumnPartWriter:
        reader = page_reader(self._dataset, column.name)
        return ColumnPartWriter(
            self._edit.tree.spans,
            column,
            fragment.fragment,
            fragment.uid,
            encoders=self._edit.encoders,
            codec=_codec_of(reader, _pages_of(reader, fragment)),
            waiting_bytes=self._edit.quarter_bytes,
        )


def _pages_of(reader: PageReader, fragment: FragmentRows) -> range:
    bounds = [fragment.first_row, fragment.first_row + fragment.rows]
    low, high = np.searchsorted(reader.index.first_row, bounds).tolist()
    return range(low, high)


def _page_ends(reader: PageReader, fragment: FragmentRows) -> NDArray[np.int64]:
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

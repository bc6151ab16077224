"""Schema evolution: columns are added, dropped, renamed and widened; properties are set.

All of this is metadata, a new root, but for the values of a new column: these are written as a
column group of their own, and no other column is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.provenance import ProvenanceEdge, with_edges
from tensorrepo.formats.dataset.changing.patch import STEP_BYTES, Editing, computed, editing
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, ColumnTally
from tensorrepo.formats.dataset.metadata.deletions import unpack_deletions
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.manifest import LeafEntry
from tensorrepo.formats.dataset.metadata.span_write import Fragment, leaf_fragments
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.metadata.tree_write import Groups, put_root, tallies
from tensorrepo.formats.dataset.pages.stripes import NO_LIMIT, PageFiller, page_cuts, page_limit
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.reading.overlay import RowPiece, collect
from tensorrepo.formats.dataset.schema.coerce import (
    check_default,
    coerce_column,
    default_row,
    default_values,
    null_values,
)
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.derived import derived_values
from tensorrepo.formats.dataset.schema.schema import Column, Schema, TypeLike, as_type
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, concat, range_of
from tensorrepo.formats.dataset.schema.widen import can_widen, widen_range
from tensorrepo.formats.dataset.write import BUDGET_BYTES, column_id
from tensorrepo.formats.dataset.writing.fragment_write import ColumnPartWriter
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink

# One value for each row: an array or a sequence, an iterable of such parts, or a function that is
# given some of the rows and gives a value for each.
NewValues = Sequence[Any] | Iterable[Any] | Callable[[pa.RecordBatch], Any]


def add_column(
    objects: ObjectSink,
    dataset: StoredDataset,
    column: Column,
    values: NewValues | None = None,
    *,
    columns: Iterable[str] | None = None,
    codec: CodecChoice = Codec.NONE,
    page_bytes: int | None = None,
    budget_bytes: int = BUDGET_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ObjectLink:
    """Put a column behind those there are.

    Args:
        objects: where to store.
        dataset: what to change.
        column: its name, type, and default.
        values: see `NewValues`; None: rows have the default, or null, and nothing is written but
            the root.
        columns: what a function is given; None: all columns that are not hidden.
        codec: tried on every page of the column.
        page_bytes: size of a full page; None: as when a dataset is written.
        budget_bytes: bound of the memory used, beside one batch and one row.
        progress: called with rows and bytes of new values so far.

    Returns:
        Link of the new root.

    Raises:
        ConflictError: there is a column of that name.
        InvalidInputError: a value does not fit, or there are more or fewer values than rows.
    """
    new = _new_columns(dataset, column)
    schema = Schema((*dataset.schema.columns, *new))
    groups = dataset.root.groups + _new_groups(new)
    if values is None or not dataset.root.rows:
        if values is not None:
            _Feed(_given(dataset, column, values, columns)).end(0)
        return _put(objects, dataset, schema, groups, _default_tallies(dataset, schema, new))
    feed = _Feed(_given(dataset, column, values, columns))
    with editing(objects, dataset, schema, groups, budget_bytes) as edit:
        adding = _Adding(dataset, new, feed, edit, codec, page_bytes, progress)
        for entry in dataset.root.leaves:
            edit.tree.edit(adding.edits(entry))
        feed.end(dataset.rows)
        return edit.tree.finish()


def drop_column(objects: ObjectSink, dataset: StoredDataset, name: str) -> ObjectLink:
    """Leave a column out. Its bytes stay with the versions that have it, and until compaction.

    Raises:
        NotFoundError: there is no such column.
        InvalidInputError: it is the last one.
    """
    column = _visible(dataset, name)
    followers = {each.id for each in _followers(dataset.schema, column)}
    kept = tuple(each for each in dataset.schema.columns if each.id not in {column.id, *followers})
    if not any(each.derived is None for each in kept):
        raise InvalidInputError(f"column {name!r} is the last one: a dataset has one at least")
    ids = {each.id for each in kept}
    groups = tuple(group for group in dataset.root.groups if ids & set(group))
    return _put(objects, dataset, Schema(kept), groups)


def rename_column(
    objects: ObjectSink, dataset: StoredDataset, name: str, new_name: str
) -> ObjectLink:
    """Call a column something else. It stays the same column for diff, merge and blame.

    Raises:
        NotFoundError: there is no such column.
        ConflictError: the new name is taken.
    """
    column = _visible(dataset, name)
    if name == new_name:
        return objects.describe(dataset.digest)
    _check_free(dataset.schema, new_name)
    changed = {column.id: replace(column, name=new_name)}
    for each in _followers(dataset.schema, column):
        fact = each.name.removeprefix(f"{name}.")
        if fact != each.name and f"{new_name}.{fact}" not in dataset.schema:
            changed[each.id] = replace(each, name=f"{new_name}.{fact}")
    return _put(objects, dataset, _with(dataset.schema, changed), dataset.root.groups)


def widen_column(
    objects: ObjectSink,
    dataset: StoredDataset,
    name: str,
    type: TypeLike | None = None,  # noqa: A002 - what users call it
    *,
    nullable: bool | None = None,
) -> ObjectLink:
    """Let a column hold more: a wider element type, open dimensions, more classes, nulls.

    Pages stay as they are and are converted when they are read.

    Raises:
        NotFoundError: there is no such column.
        InvalidInputError: the new type does not hold every value of the old one; says why.
    """
    column = _visible(dataset, name)
    wanted = replace(
        column,
        type=column.type if type is None else as_type(type),
        nullable=column.nullable if nullable is None else nullable,
    )
    if reason := can_widen(column, wanted):
        raise InvalidInputError(f"column {name!r}: {reason}")
    wanted = check_default(wanted)
    if wanted == column:
        return objects.describe(dataset.digest)
    counted = tallies(dataset.schema, dataset)
    tally = counted[column.id]
    tally.min, tally.max = widen_range(
        tally.min, tally.max, column.storage.dtype, wanted.storage.dtype
    )
    schema = _with(dataset.schema, {column.id: wanted})
    return _put(objects, dataset, schema, dataset.root.groups, counted)


def set_properties(
    objects: ObjectSink, dataset: StoredDataset, properties: Mapping[str, Any]
) -> ObjectLink:
    """Set notes of the dataset, JSON values by name; None takes one away, others stay.

    Raises:
        InvalidInputError: not JSON values.
    """
    merged = {**dataset.root.properties, **properties}
    kept = {name: value for name, value in merged.items() if value is not None}
    try:
        msgspec.json.encode(kept)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"properties are JSON values: {error}") from error
    root = dataset.root
    counted = tallies(dataset.schema, dataset)
    return put_root(objects, dataset.schema, root.groups, counted, root.leaves, kept, root.lineage)


def add_lineage(
    objects: ObjectSink, dataset: StoredDataset, edges: Iterable[ProvenanceEdge]
) -> ObjectLink:
    """Say what rows of the dataset came from, beside what is said already."""
    root = dataset.root
    counted = tallies(dataset.schema, dataset)
    told = with_edges(root.lineage, edges)
    return put_root(
        objects, dataset.schema, root.groups, counted, root.leaves, root.properties, told
    )


# ------------------------------------------------------------------------------ schemas


def _put(
    objects: ObjectSink,
    dataset: StoredDataset,
    schema: Schema,
    groups: Groups,
    counted: Mapping[str, ColumnTally] | None = None,
) -> ObjectLink:
    """A root with other columns and the same leaves."""
    root = dataset.root
    counted = tallies(schema, dataset) if counted is None else counted
    return put_root(objects, schema, groups, counted, root.leaves, root.properties, root.lineage)


def _with(schema: Schema, changed: Mapping[str, Column]) -> Schema:
    return Schema(tuple(changed.get(column.id, column) for column in schema.columns))


def _visible(dataset: StoredDataset, name: str) -> Column:
    column = dataset.schema.column(name)
    if column.derived is not None:
        raise InvalidInputError(f"column {name!r} follows another one and cannot be changed")
    return column


def _followers(schema: Schema, column: Column) -> list[Column]:
    """The hidden columns that are computed from `column`."""
    return [
        each for each in schema.columns if each.derived is not None and each.derived[0] == column.id
    ]


def _check_free(schema: Schema, name: str) -> None:
    if name in schema:
        raise ConflictError(f"there is a column {name!r} already: drop or rename it first")


def _new_columns(dataset: StoredDataset, column: Column) -> tuple[Column, ...]:
    """The column with its id and default, and the hidden ones that follow it."""
    _check_free(dataset.schema, column.name)
    named = check_default(replace(column, id=column_id(dataset.digest, column), derived=None))
    every = Schema((*dataset.schema.columns, named)).with_derived().columns
    hidden = [each for each in every if each.derived and each.derived[0] == named.id]
    followers = [replace(each, id=column_id(dataset.digest, each)) for each in hidden]
    return (named, *(_with_default(named, each) for each in followers))


def _with_default(image: Column, follower: Column) -> Column:
    """A hidden column whose default is what it says of the default of its image."""
    if image.default is None:
        return follower
    facts = derived_values(Schema((image, follower)), {image.name: default_values(image)})
    fact = present_row(follower, facts[follower.name])
    return check_default(replace(follower, default=fact))


def _new_groups(new: Sequence[Column]) -> Groups:
    followers = tuple(column.id for column in new[1:])
    return ((new[0].id,), followers) if followers else ((new[0].id,),)


def _default_tallies(
    dataset: StoredDataset, schema: Schema, new: Sequence[Column]
) -> dict[str, ColumnTally]:
    """Statistics with those of new columns, all of whose rows have the default.

    Raises:
        InvalidInputError: there are rows, and no default.
    """
    counted = tallies(schema, dataset)
    for column in new if dataset.root.rows else ():
        row, tally = default_values(column), counted[column.id]
        tally.nulls = dataset.root.rows if default_row(column) is None else 0
        if isinstance(row, FixedValues) and not column.storage.shape:
            found = range_of(row.values, row.valid)
            tally.min, tally.max = found.smallest, found.largest
    return counted


# ------------------------------------------------------------------------------ values


def _given(
    dataset: StoredDataset, column: Column, values: NewValues, columns: Iterable[str] | None
) -> Iterator[ColumnValues]:
    """What the caller gave, piece by piece, coerced."""
    first = 0
    if callable(values):
        for batch in dataset.to_batches(columns, max_bytes=STEP_BYTES):
            yield computed(column, values(batch), batch.num_rows, first)
            first += batch.num_rows
    elif isinstance(values, Sequence | np.ndarray | pa.Array | pa.ChunkedArray):
        yield coerce_column(column, values)
    else:
        for part in values:
            piece = coerce_column(column, part, first)
            yield piece
            first += piece.rows


class _Feed:
    """Values of consecutive rows, in the portions that are asked for."""

    def __init__(self, pieces: Iterator[ColumnValues]) -> None:
        self._pieces = pieces
        self._left: ColumnValues | None = None
        self.rows = self.nbytes = 0

    def take(self, rows: int) -> list[ColumnValues]:
        """The next `rows` rows, or as many as there are."""
        found: list[ColumnValues] = []
        while rows:
            piece = self._next()
            if piece is None:
                break
            part, self._left = piece.slice(0, rows), None
            if piece.rows > rows:
                self._left = piece.slice(rows, piece.rows)
            found.append(part)
            rows -= part.rows
            self.rows += part.rows
            self.nbytes += part.nbytes
        return found

    def row_bytes(self) -> float:
        """What a row of the next piece takes."""
        self._left = self._next()
        if self._left is None:
            return 1.0
        return max(1.0, self._left.nbytes / self._left.rows)

    def end(self, rows: int) -> None:
        """Check that exactly so many rows were given.

        Raises:
            InvalidInputError: more or fewer.
        """
        found = self.rows
        while (piece := self._next()) is not None:
            found += piece.rows
            self._left = None
        if found != rows:
            raise InvalidInputError(f"the new column has {found} values for {rows} rows")

    def _next(self) -> ColumnValues | None:
        if self._left is not None:
            return self._left
        return next((piece for piece in self._pieces if piece.rows), None)


@dataclass(frozen=True, slots=True, eq=False)
class _NewPart:
    """One new column of one fragment."""

    column: Column
    writer: ColumnPartWriter
    filler: PageFiller

    def add(self, values: ColumnValues) -> None:
        if self.column.storage.layout is ColumnLayout.TILED:
            self.writer.add(values)
            return
        for pieces in self.filler.add(values):
            self.writer.add(concat(pieces))


class _Adding:
    """Makes the edits that bring new columns into every fragment."""

    def __init__(
        self,
        dataset: StoredDataset,
        new: Sequence[Column],
        feed: _Feed,
        edit: Editing,
        codec: CodecChoice,
        page_bytes: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._dataset = dataset
        self._new = new
        self._feed = feed
        self._edit = edit
        self._codec = codec
        self._page_bytes = page_bytes
        self._progress = progress

    def edits(self, entry: LeafEntry) -> Iterator[tuple[int, FragmentEdit]]:
        """The edits of one leaf."""
        for at, fragment in enumerate(leaf_fragments(self._dataset, entry)):
            yield at, FragmentEdit(pages=self._parts(fragment, at))

    def _parts(self, fragment: Fragment, at: int) -> dict[str, ColumnPart]:
        row_bytes = self._feed.row_bytes()
        parts = [self._part(column, fragment, at, row_bytes) for column in self._new]
        dead = np.zeros(0, np.int64)
        if fragment.deletions is not None:
            dead = unpack_deletions(fragment.deletions, fragment.rows)
        step = max(1, int(STEP_BYTES / row_bytes))
        for start in range(0, fragment.rows, step):
            stop = min(start + step, fragment.rows)
            low, high = np.searchsorted(dead, [start, stop]).tolist()
            values = self._next(stop - start, dead[low:high] - start)
            parts[0].add(values)
            if parts[1:]:
                facts = derived_values(Schema(tuple(self._new)), {self._new[0].name: values})
                for part in parts[1:]:
                    part.add(facts[part.column.name])
            if self._progress is not None:
                self._progress(self._feed.rows, self._feed.nbytes)
        return {part.column.id: part.writer.finish() for part in parts}

    def _part(self, column: Column, fragment: Fragment, at: int, row_bytes: float) -> _NewPart:
        if column is not self._new[0]:
            row_bytes = float(max(8, column.storage.row_bytes))
        limit = page_limit(column.storage, row_bytes, self._page_bytes)
        cuts = page_cuts(page_ends(fragment), fragment.rows, limit / row_bytes)
        writer = ColumnPartWriter(
            self._edit.tree.spans,
            column,
            at,
            fragment.uid,
            encoders=self._edit.encoders,
            codec=self._codec,
            waiting_bytes=self._edit.quarter_bytes,
        )
        return _NewPart(column, writer, PageFiller(cuts, min(limit, NO_LIMIT)))

    def _next(self, rows: int, dead: NDArray[np.int64]) -> ColumnValues:
        """Values of the next `rows` rows of a fragment, of which `dead` get none."""
        wanted = rows - len(dead)
        pieces = self._feed.take(wanted)
        if sum(piece.rows for piece in pieces) != wanted:
            self._feed.end(self._dataset.rows)
        if not len(dead):
            return concat(pieces)
        alive = np.setdiff1d(np.arange(rows), dead)
        nothing = RowPiece(_placeholder(self._new[0]), np.zeros(len(dead), np.int64), dead)
        if not len(alive):
            return collect([nothing], rows)
        return collect([RowPiece(concat(pieces), np.arange(len(alive)), alive), nothing], rows)


def _placeholder(column: Column) -> ColumnValues:
    """What a deleted row holds: nobody reads it."""
    row = null_values(column, 1)
    return row if column.nullable else replace(row, valid=None)


def page_ends(fragment: Fragment) -> list[NDArray[np.int64]]:
    """Per column of a fragment where its pages end, counted in rows of the fragment."""
    found = []
    for part in fragment.parts.values():
        for column in part.columns:
            pages = column.pages
            firsts = (
                pages.entries["first_row"].astype(np.int64)
                if isinstance(pages, ColumnPages)
                else np.array([page.first_row for page in pages], np.int64)
            )
            if column.storage.layout is not ColumnLayout.TILED:
                found.append(np.append(firsts[1:], fragment.rows))
    return found

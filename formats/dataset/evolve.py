"""Schema evolution: columns are added, dropped, renamed and widened; properties are set.

All of this is metadata, a new root, but for the values of a new column: these are written as a
column group of their own, and no other column is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.provenance import ProvenanceEdge, with_edges
from tensorrepo.formats.dataset.changing.patch import computed
from tensorrepo.formats.dataset.metadata.boundaries import ColumnTally
from tensorrepo.formats.dataset.metadata.span_write import leaf_fragments
from tensorrepo.formats.dataset.metadata.tree_write import put_root, tallies
from tensorrepo.formats.dataset.read import ABSENT_BYTES, StoredDataset
from tensorrepo.formats.dataset.schema.coerce import (
    check_default,
    coerce_column,
    default_range,
    default_row,
    default_values,
)
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.derived import derived_values
from tensorrepo.formats.dataset.schema.schema import (
    Column,
    Schema,
    TypeLike,
    as_type,
    settable_column,
)
from tensorrepo.formats.dataset.schema.types import check_zones
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.schema.widen import can_widen, widen_range
from tensorrepo.formats.dataset.unique_key import KEY_PROPERTY
from tensorrepo.formats.dataset.write import BUDGET_BYTES, column_id
from tensorrepo.formats.dataset.writing.column_write import (
    STEP_BYTES,
    NewColumns,
    ValueFeed,
    editing,
)
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

    Without `values` (see `NewValues`) rows have the default, or null, and nothing is written but
    the root. A function receives `columns`; None: all that are not hidden. `budget_bytes` bounds
    the memory used, beside one batch and one row; `progress` receives rows and bytes of new values
    so far.

    Returns:
        Link of the new root.

    Raises:
        ConflictError: there is a column of that name.
        InvalidInputError: a value does not fit, or there are more or fewer values than rows.
    """
    new = _new_columns(dataset, column)
    schema = Schema((*dataset.schema.columns, *new))
    groups = (*dataset.root.groups, (new[0].id,))
    if len(new) > 1:
        groups = (*groups, tuple(each.id for each in new[1:]))
    if values is None:
        counted = _default_tallies(dataset, schema, new)
        return _put(objects, dataset, counted, schema=schema, groups=groups)
    feed = ValueFeed(_given(dataset, column, values, columns))
    with editing(objects, dataset, budget_bytes, schema, groups) as edit:
        adding = NewColumns(new, feed, edit, dataset.rows, codec, page_bytes, progress)
        for entry in dataset.root.leaves:
            edit.tree.edit(adding.edits(leaf_fragments(dataset, entry)))
        feed.end(dataset.rows)
        return edit.tree.finish()


def drop_column(objects: ObjectSink, dataset: StoredDataset, name: str) -> ObjectLink:
    """Leave a column out. Its bytes stay with the versions that have it, and until compaction.

    Raises:
        NotFoundError: there is no such column.
        InvalidInputError: it is the last one.
    """
    column = settable_column(dataset.schema, name)
    followers = {each.id for each in _followers(dataset.schema, column)}
    kept = tuple(each for each in dataset.schema.columns if each.id not in {column.id, *followers})
    if not any(each.derived is None for each in kept):
        raise InvalidInputError(f"column {name!r} is the last one: a dataset has one at least")
    ids = {each.id for each in kept}
    groups = tuple(group for group in dataset.root.groups if ids & set(group))
    return _put(objects, dataset, schema=Schema(kept), groups=groups)


def rename_column(
    objects: ObjectSink, dataset: StoredDataset, name: str, new_name: str
) -> ObjectLink:
    """Call a column something else. It stays the same column for diff, merge and blame.

    Raises:
        NotFoundError: there is no such column.
        ConflictError: the new name is taken.
    """
    column = settable_column(dataset.schema, name)
    if name == new_name:
        return objects.describe(dataset.digest)
    _check_free(dataset.schema, new_name)
    changed = {column.id: replace(column, name=new_name)}
    for each in _followers(dataset.schema, column):
        fact = each.name.removeprefix(f"{name}.")
        if fact != each.name and f"{new_name}.{fact}" not in dataset.schema:
            changed[each.id] = replace(each, name=f"{new_name}.{fact}")
    properties = dict(dataset.root.properties)
    if KEY_PROPERTY in properties:
        properties[KEY_PROPERTY] = _renamed_key(properties[KEY_PROPERTY], name, new_name)
    schema = _with(dataset.schema, changed)
    return _put(objects, dataset, schema=schema, properties=properties)


def _renamed_key(named: Any, name: str, new_name: str) -> Any:
    """What the property "key" says when a column that it may name is called something else."""
    if isinstance(named, str):
        parts = [new_name if part.strip() == name else part for part in named.split(",")]
        return ",".join(parts)
    if isinstance(named, list):
        return [new_name if each == name else each for each in named]
    return named


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
    column = settable_column(dataset.schema, name)
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
    return _put(objects, dataset, counted, schema=_with(dataset.schema, {column.id: wanted}))


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
    return _put(objects, dataset, properties=kept)


def add_lineage(
    objects: ObjectSink, dataset: StoredDataset, edges: Iterable[ProvenanceEdge]
) -> ObjectLink:
    """Say what rows of the dataset came from, beside what is said already."""
    return _put(objects, dataset, lineage=with_edges(dataset.root.lineage, edges))


def without_lineage(objects: ObjectSink, dataset: StoredDataset) -> ObjectLink:
    """The same rows, of which nothing is said: what they came from is not linked by them."""
    return _put(objects, dataset, lineage=())


# ------------------------------------------------------------------------------ schemas


def _put(
    objects: ObjectSink,
    dataset: StoredDataset,
    counted: Mapping[str, ColumnTally] | None = None,
    **changes: Any,
) -> ObjectLink:
    """A root with the same leaves, and `changes` of its other fields."""
    root = replace(dataset.root, **changes)
    counted = tallies(root.schema, dataset) if counted is None else counted
    facts = root.leaves, root.properties, root.lineage
    return put_root(objects, root.schema, root.groups, counted, *facts)


def _with(schema: Schema, changed: Mapping[str, Column]) -> Schema:
    return Schema(tuple(changed.get(column.id, column) for column in schema.columns))


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
    check_zones(column.type, column.name)
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


def _default_tallies(
    dataset: StoredDataset, schema: Schema, new: Sequence[Column]
) -> dict[str, ColumnTally]:
    """Statistics with those of new columns, all of whose rows have the default.

    Raises:
        InvalidInputError: there are rows, and no default, or one that is too large to be read.
    """
    counted = tallies(schema, dataset)
    for column in new if dataset.root.rows else ():
        size = default_values(column).nbytes + 1
        if size > ABSENT_BYTES:
            raise InvalidInputError(
                f"column {column.name!r} stores no values for these {dataset.root.rows:,} rows: "
                f"the default or null of one takes {size:,} bytes, and {ABSENT_BYTES:,} are made "
                "at once. Give values, or leave dimensions unknown (None): then a null takes none."
            )
        tally = counted[column.id]
        tally.nulls = dataset.root.rows if default_row(column) is None else 0
        tally.min, tally.max = default_range(column)
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
            yield piece.copy()  # its owner may fill the memory again, for the next one
            first += piece.rows

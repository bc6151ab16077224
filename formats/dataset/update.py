"""Update and deletion of rows: what did not change is linked, not written again.

A new value is a patch, laid over the pages of its fragment. Where patches would take more than a
tenth of what the column takes in the fragment, or lie too many over one another, the pages of that
column in that fragment are written anew, with the boundaries they had. Deletions are marks beside
the pages; compaction takes the rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.changing.patch import (
    UpdateProgress,
    ValueChanger,
    ValueSource,
    computed,
    is_single,
    many_source,
    single_source,
)
from tensorrepo.formats.dataset.metadata.deletions import pack_deletions, unpack_deletions
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.metadata.tree_read import read_deletions, read_leaf
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.derived import derived_values
from tensorrepo.formats.dataset.schema.schema import Column, Schema, settable_column
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.select_rows import (
    Chosen,
    FragmentRows,
    Where,
    by_leaf,
    choose_rows,
)
from tensorrepo.formats.dataset.write import BUDGET_BYTES
from tensorrepo.formats.dataset.writing.column_write import editing
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink


def delete_rows(objects: ObjectSink, dataset: StoredDataset, where: Where) -> ObjectLink:
    """Delete rows; those that are not there, or no more, are passed over.

    Returns:
        Link of the new root; of the old one when no row was deleted.
    """
    return delete_physical(objects, dataset, choose_rows(dataset, where, strict=False).rows)


def delete_physical(objects: ObjectSink, dataset: StoredDataset, rows: Ints) -> ObjectLink:
    """Mark physical rows as deleted, ascending; those that are marked already stay so."""
    with editing(objects, dataset, BUDGET_BYTES) as edit:
        for number, fragments in by_leaf(dataset, rows):
            edit.tree.edit(_deletions(dataset, number, fragments, rows), number)
        return edit.tree.finish()


def _deletions(
    dataset: StoredDataset, number: int, fragments: Sequence[FragmentRows], rows: Ints
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
    dataset: StoredDataset,
    where: Where,
    values: Mapping[str, Any],
    *,
    columns: Iterable[str] | None = None,
    budget_bytes: int = BUDGET_BYTES,
    progress: UpdateProgress | None = None,
) -> ObjectLink:
    """Give rows other values. Values that a row has already are not written.

    Args:
        objects: store of the objects.
        dataset: dataset to change.
        where: rows to change, see `Where`.
        values: values by column: one for all rows (None: null); one for each row, in the order in
            which `where` names them (of a predicate: in the order of the dataset); or a function
            that is given some of the rows as a `pyarrow.RecordBatch` and gives a value for each.
        columns: columns that functions are given; None: all that are not hidden.
        budget_bytes: bound of the memory used, beside the values given and one row.
        progress: callback for rows looked at and bytes of new values so far.

    Returns:
        Link of the new root; of the old one when no value differs.

    Raises:
        InvalidInputError: a value does not fit; names row, column, expected and found.
        NotFoundError: no such column, or no row of that id, number or key.
    """
    targets = [settable_column(dataset.schema, name) for name in values]
    chosen = choose_rows(dataset, where)
    sources: dict[str, ValueSource] = {}
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


def _function_source(
    dataset: StoredDataset,
    column: Column,
    function: Callable[[pa.RecordBatch], Any],
    names: Sequence[str],
) -> ValueSource:
    chosen = dataset.schema.select(names)
    schema = chosen.to_arrow()

    def source(rows: Ints, _: Ints) -> ColumnValues:
        found = read_columns([page_reader(dataset, name) for name in names], rows)
        arrays = list(map(column_array, chosen.columns, found))
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return computed(column, function(batch), len(rows))

    return source


def set_values(
    objects: ObjectSink,
    dataset: StoredDataset,
    chosen: Chosen,
    sources: Mapping[str, ValueSource],
    *,
    reads: Iterable[str] = (),
    budget_bytes: int = BUDGET_BYTES,
    progress: UpdateProgress | None = None,
) -> ObjectLink:
    """The change that `update_rows` makes, given where the values come from.

    `reads` are the columns that `sources` read.
    """
    every = dict(sources) | _derived_sources(dataset.schema, sources)
    with editing(objects, dataset, budget_bytes) as edit:
        changer = ValueChanger(dataset, chosen, every, frozenset(reads), edit, progress)
        for number, fragments in by_leaf(dataset, chosen.rows):
            edit.tree.edit(changer.edits(number, fragments), number)
        return edit.tree.finish()


def _derived_sources(schema: Schema, sources: Mapping[str, ValueSource]) -> dict[str, ValueSource]:
    """Hidden columns follow what they are computed from."""
    names = {column.id: column.name for column in schema.columns}
    return {
        column.name: _derived_source(schema, column, names[column.derived[0]], sources)
        for column in schema.columns
        if column.derived is not None and names.get(column.derived[0]) in sources
    }


def _derived_source(
    schema: Schema, column: Column, name: str, sources: Mapping[str, ValueSource]
) -> ValueSource:
    both = Schema((schema.column(name), column))
    origin = sources[name]
    return lambda rows, places: derived_values(both, {name: origin(rows, places)})[column.name]

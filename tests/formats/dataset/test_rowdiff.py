"""Rows that differ are found, with the columns and the values that differ, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.rowdiff import RowChanges, count_changes, row_changes
from tensorrepo.formats.dataset.rowids import format_row_id
from tensorrepo.formats.dataset.schema import Column, Schema
from tensorrepo.formats.dtypes import is_small_float
from tests.support.changes import CHANGES, changed, ids_of, row_of, rows_by_id
from tests.support.columns import MappedObjects
from tests.support.columntypes import tiled
from tests.support.datasets import datasets, equal, stored, value
from tests.support.objects import MemoryObjects

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.read import Dataset

STEPS = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 2**32)), max_size=4)


def _after(objects: MemoryObjects, dataset: Dataset, steps: list[tuple[str, int]]) -> Dataset:
    for what, seed in steps:
        dataset = changed(objects, dataset, what, seed)
    return dataset


def _gathered(schema: Schema) -> bool:
    return not any(is_small_float(column.storage.element) for column in schema.columns)


def _shared(old: Dataset, new: Dataset) -> list[str]:
    theirs = {column.id for column in new.schema.visible.columns}
    return [column.id for column in old.schema.visible.columns if column.id in theirs]


def _apply(old: Dataset, new: Dataset, rows: dict[str, Any], changes: list[RowChanges]) -> None:
    """Make of the old rows what the changes say."""
    names = {column.name: column.id for column in new.schema.columns}
    shared = set(_shared(old, new))
    for batch in changes:
        values = batch.new()
        for at, row_id in enumerate(map(format_row_id, batch.ids)):
            if batch.change == "deleted":
                del rows[row_id]
                continue
            found = {names[name]: each for name, each in row_of(new, values, at).items()}
            if batch.change == "added":
                assert row_id not in rows
                rows[row_id] = {column: found[column] for column in shared}
                continue
            cells = [
                names[name] for name, on in zip(batch.columns, batch.changed[at], strict=True) if on
            ]
            assert cells
            assert not any(equal(rows[row_id][column], found[column]) for column in cells)
            rows[row_id] |= {column: found[column] for column in cells}


def _same(one: dict[str, dict[str, Any]], two: dict[str, dict[str, Any]]) -> bool:
    return one.keys() == two.keys() and all(
        equal(one[row][column], two[row][column]) for row in one for column in one[row]
    )


def _check(objects: MemoryObjects, base: Dataset, first: Any, second: Any) -> None:
    old, new = _after(objects, base, first), _after(objects, base, second)
    changes = list(row_changes(old, new, max_bytes=700))
    rows = rows_by_id(old, _shared(old, new))
    _apply(old, new, rows, changes)
    assert _same(rows, rows_by_id(new, _shared(old, new)))
    numbers = {name: ids_of(each) for name, each in (("old", old), ("new", new))}
    for batch in changes:
        batch.to_arrow().validate(full=True)
        ids = list(map(format_row_id, batch.ids))
        if batch.old_rows is not None:
            assert [numbers["old"][row] for row in batch.old_rows] == ids
        if batch.new_rows is not None:
            assert [numbers["new"][row] for row in batch.new_rows] == ids


@pytest.mark.parametrize("kind", [MemoryObjects, MappedObjects])
@given(datasets(max_rows=30), STEPS, STEPS)
@settings(max_examples=60)
def test_changes_make_of_one_version_the_other(
    kind: type[MemoryObjects], made: Any, first: Any, second: Any
) -> None:
    objects = kind()
    schema, rows = made
    assume(_gathered(schema))
    base = stored(objects, schema, [rows], page_bytes=256)
    _check(objects, base, first, second)


@given(tiled(), st.booleans(), STEPS, STEPS, st.integers(0, 2**32))
@settings(max_examples=25)
def test_so_they_do_with_tiles(
    kind: Any, nullable: bool, first: Any, second: Any, seed: int
) -> None:
    objects = MemoryObjects()
    rng = np.random.default_rng(seed)
    column = Column("t", kind, nullable)
    base = stored(objects, Schema((column,)), [[{"t": value(column, rng)} for _ in range(8)]])
    _check(objects, base, first, second)


@given(datasets(max_rows=20), STEPS, STEPS)
@settings(max_examples=30)
def test_the_other_way_round_mirrors_it(made: Any, first: Any, second: Any) -> None:
    objects = MemoryObjects()
    schema, rows = made
    assume(_gathered(schema))
    base = stored(objects, schema, [rows], page_bytes=256)
    old, new = _after(objects, base, first), _after(objects, base, second)
    there, back = count_changes(old, new), count_changes(new, old)
    assert (there.added, there.deleted, there.updated) == (back.deleted, back.added, back.updated)
    assert sorted(there.columns.values()) == sorted(back.columns.values())
    assert list(row_changes(old, old)) == []

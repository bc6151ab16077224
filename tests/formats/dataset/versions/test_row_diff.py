"""Rows that differ are found, with the columns and the values that differ, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import add_column
from tensorrepo.formats.dataset.metadata.manifest import encode_root
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Text
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.versions.row_diff import (
    RowChanges,
    changes_schema,
    count_changes,
    row_changes,
)
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.changes import CHANGES, changed, ids_of, row_of, rows_by_id
from tests.support.builders.column_types import tiled
from tests.support.builders.columns import MappedObjects
from tests.support.builders.datasets import datasets, equal, stored, value
from tests.support.builders.objects import MemoryObjects

STEPS = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 2**32)), max_size=4)


def _after(
    objects: MemoryObjects, dataset: StoredDataset, steps: list[tuple[str, int]]
) -> StoredDataset:
    for what, seed in steps:
        dataset = changed(objects, dataset, what, seed)
    return dataset


def _shared(old: StoredDataset, new: StoredDataset) -> list[str]:
    theirs = {column.id for column in new.schema.visible.columns}
    return [column.id for column in old.schema.visible.columns if column.id in theirs]


def _apply(
    old: StoredDataset, new: StoredDataset, rows: dict[str, Any], changes: list[RowChanges]
) -> None:
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


def _check(objects: MemoryObjects, base: StoredDataset, first: Any, second: Any) -> None:
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
def test_changes_make_of_one_version_the_other(
    kind: type[MemoryObjects], made: Any, first: Any, second: Any
) -> None:
    objects = kind()
    schema, rows = made
    base = stored(objects, schema, [rows], page_bytes=256)
    _check(objects, base, first, second)


@given(tiled(), st.booleans(), STEPS, STEPS, st.integers(0, 2**32))
def test_so_they_do_with_tiles(
    kind: Any, nullable: bool, first: Any, second: Any, seed: int
) -> None:
    objects = MemoryObjects()
    rng = np.random.default_rng(seed)
    column = Column("t", kind, nullable)
    base = stored(objects, Schema((column,)), [[{"t": value(column, rng)} for _ in range(8)]])
    _check(objects, base, first, second)


@given(datasets(max_rows=20), STEPS, STEPS)
def test_the_other_way_round_mirrors_it(made: Any, first: Any, second: Any) -> None:
    objects = MemoryObjects()
    schema, rows = made
    base = stored(objects, schema, [rows], page_bytes=256)
    old, new = _after(objects, base, first), _after(objects, base, second)
    there, back = count_changes(old, new), count_changes(new, old)
    assert (there.added, there.deleted, there.updated) == (back.deleted, back.added, back.updated)
    assert sorted(there.columns.values()) == sorted(back.columns.values())
    assert list(row_changes(old, old)) == []


# ------------------------------------------------------------------------------ one by one


def _table(objects: MemoryObjects, seed: int = 0, **columns: Any) -> StoredDataset:
    schema = Schema.of({"n": "int64", "t": Text()})
    return stored(objects, schema, [columns], seed, page_bytes=256)


def test_a_batch_shows_what_was_and_what_is() -> None:
    objects = MemoryObjects()
    old = _table(objects, n=[1, 2, 3], t=["a", "b", "c"])
    new = open_dataset(objects, update_rows(objects, old, [1], {"t": "B"}).digest)
    new = open_dataset(objects, delete_rows(objects, new, [0]).digest)
    new = stored(objects, new.schema, [{"n": [4], "t": ["d"]}], 1, base=new)
    ids = ids_of(old) + ids_of(new)[-1:]
    batches = [batch.to_arrow() for batch in row_changes(old, new)]
    assert pa.Table.from_batches(batches, changes_schema(old, new)).to_pylist() == [
        {
            "change": "updated",
            "row_id": ids[1],
            "old_row": 1,
            "new_row": 0,
            "changed": ["t"],
            "old": {"n": 2, "t": "b"},
            "new": {"n": 2, "t": "B"},
        },
        {
            "change": "deleted",
            "row_id": ids[0],
            "old_row": 0,
            "new_row": None,
            "changed": [],
            "old": {"n": 1, "t": "a"},
            "new": None,
        },
        {
            "change": "added",
            "row_id": ids[3],
            "old_row": None,
            "new_row": 2,
            "changed": [],
            "old": None,
            "new": {"n": 4, "t": "d"},
        },
    ]


def test_only_columns_asked_for_are_compared_and_shown() -> None:
    objects = MemoryObjects()
    old = _table(objects, n=[1, 2, 3], t=["a", "b", "c"])
    new = open_dataset(objects, update_rows(objects, old, [1], {"t": "B"}).digest)
    assert list(row_changes(old, new, columns=["n"])) == []
    (batch,) = row_changes(old, new, columns=["t"])
    assert batch.to_arrow().schema == changes_schema(old, new, ["t"])
    assert list(batch.new()) == ["t"]


def test_a_column_of_one_version_is_compared_when_it_is_named() -> None:
    objects = MemoryObjects()
    old = _table(objects, n=[1, 2, 3], t=["a", "b", "c"])
    column = Column("m", Scalar("int8"), nullable=True)
    new = open_dataset(objects, add_column(objects, old, column, [None, 4, 5]).digest)
    assert list(row_changes(old, new)) == []
    (batch,) = row_changes(old, new, columns=["m"])
    assert batch.new_rows is not None
    assert batch.new_rows.tolist() == [1, 2]
    assert count_changes(new, old, columns=["m"]).columns == {"m": 2}


def test_a_column_that_no_version_has_is_refused() -> None:
    objects = MemoryObjects()
    old = _table(objects, n=[1], t=["a"])
    with pytest.raises(NotFoundError, match="there are 'n', 't'"):
        list(row_changes(old, old, columns=["m"]))


def test_a_default_that_changed_changes_rows_without_values() -> None:
    objects = MemoryObjects()
    base = _table(objects, n=[1, 2], t=["a", "b"])
    column = Column("d", Scalar("int64"), default=5)
    old = open_dataset(objects, add_column(objects, base, column).digest)
    columns = tuple(replace(each, default=each.default and 6) for each in old.schema.columns)
    root = replace(old.root, schema=Schema(columns))
    new = open_dataset(objects, objects.put(Kind.DATASET, encode_root(root), root.links).digest)
    assert count_changes(old, new).columns == {"d": 2}


@pytest.mark.parametrize("max_bytes", [1, 64, 1 << 20])
def test_batches_are_as_large_as_asked(max_bytes: int) -> None:
    objects = MemoryObjects()
    old = _table(objects, n=[], t=[])
    new = _table(objects, 1, n=np.arange(100), t=["abcd"] * 100)
    batches = list(row_changes(old, new, max_bytes=max_bytes))
    assert sum(batch.rows for batch in batches) == 100
    assert all(batch.to_arrow().nbytes < max(max_bytes * 16, 2000) for batch in batches)


def test_a_batch_reads_no_values_until_they_are_asked_for() -> None:
    objects = MemoryObjects()
    old = _table(objects, n=[], t=[])
    new = _table(objects, 1, n=np.arange(9000), t=["some text"] * 9000)
    objects.reads.clear()
    assert sum(batch.rows for batch in row_changes(old, new)) == 9000
    chunks = [link.digest for link in objects.links.values() if link.kind is Kind.CHUNK]
    assert chunks
    assert not {digest for digest, _, _ in objects.reads} & set(chunks)


def test_damage_is_named() -> None:
    objects = MemoryObjects()
    old = _table(objects, n=np.arange(9000), t=[""] * 9000)
    new = open_dataset(objects, update_rows(objects, old, slice(0, 9000), {"n": 0}).digest)
    for digest, link in objects.links.items():
        if link.kind is Kind.CHUNK:
            damaged = bytearray(objects.stored[digest])
            damaged[len(damaged) // 4] ^= 1
            objects.stored[digest] = bytes(damaged)
    with pytest.raises(CorruptError, match="column 'n'"):
        list(row_changes(old, new))

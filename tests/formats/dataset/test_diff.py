"""Versions are compared by columns, fragments, rows and bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.diff import ColumnChange, ColumnUpdates, diff_datasets
from tensorrepo.formats.dataset.evolve import (
    add_column,
    drop_column,
    rename_column,
    widen_column,
)
from tensorrepo.formats.dataset.metadata.manifest import encode_root
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    Scalar,
    Schema,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of({"n": "int64", "c": ClassLabel(("a", "b"))})


def _rows(count: int) -> dict[str, Any]:
    return {"n": list(range(count)), "c": [0] * count}


def test_an_append_adds_fragments_and_rows() -> None:
    objects = MemoryObjects()
    old = stored(objects, SCHEMA, [_rows(5)])
    new = stored(objects, SCHEMA, [_rows(3)], 1, base=old)
    found = diff_datasets(objects, old.digest, new.digest)
    assert (found.rows_added, found.rows_removed, found.fragments_added) == (3, 0, 1)
    assert found.summary == "+3 rows"
    assert [column.name for column in found.columns] == ["n", "c"]
    assert "rows: 5 -> 8" in list(found.lines())


def test_going_back_removes_them() -> None:
    objects = MemoryObjects()
    old = stored(objects, SCHEMA, [_rows(5)])
    new = stored(objects, SCHEMA, [_rows(3)], 1, base=old)
    found = diff_datasets(objects, new.digest, old.digest)
    assert (found.rows_added, found.rows_removed, found.summary) == (0, 3, "-3 rows")


def test_equal_versions_differ_in_nothing() -> None:
    objects = MemoryObjects()
    only = stored(objects, SCHEMA, [_rows(5)])
    found = diff_datasets(objects, only.digest, only.digest)
    assert (found.rows_added, found.rows_removed, found.schema, found.columns) == (0, 0, (), ())


def test_columns_are_compared_by_type() -> None:
    objects = MemoryObjects()
    old = stored(objects, Schema.of({"n": "int64", "gone": "int8"}), [])
    new = stored(objects, Schema.of({"n": "int32", "come": ClassLabel(("a",))}), [])
    found = diff_datasets(objects, old.digest, new.digest)
    assert found.schema == (
        ColumnChange("n", "int64", "int32", ("replaced",)),
        ColumnChange("gone", "int8", None, ("dropped",)),
        ColumnChange("come", None, "label of 1 class (a)", ("added",)),
    )


def test_of_many_classes_the_first_that_differs_is_told() -> None:
    objects = MemoryObjects()
    names = tuple(f"class{at}" for at in range(9))
    old, new = (
        stored(objects, Schema.of({"c": ClassLabel((*names, last))}), []) for last in ("dog", "cat")
    )
    (change,) = diff_datasets(objects, old.digest, new.digest).schema
    shown = ", ".join(names[:8])
    assert [change.old, change.new] == [
        f"label of 10 classes ({shown}, ...), 9 is {last!r}" for last in ("dog", "cat")
    ]


def test_a_dataset_against_none_is_all_added() -> None:
    objects = MemoryObjects()
    new = stored(objects, SCHEMA, [_rows(4)])
    found = diff_datasets(objects, None, new.digest)
    assert (found.old_rows, found.new_rows, found.rows_added) == (0, 4, 4)
    assert found.to_json()["fragments_added"] == 1


def _open(objects: MemoryObjects, link: ObjectLink) -> StoredDataset:
    return open_dataset(objects, link.digest)


def test_the_summary_says_what_became_of_rows() -> None:
    objects = MemoryObjects()
    old = stored(objects, SCHEMA, [_rows(5)])
    new = _open(objects, update_rows(objects, old, [1, 2], {"c": "b"}))
    new = _open(objects, delete_rows(objects, new, [4]))
    new = stored(objects, SCHEMA, [_rows(3)], 1, base=new)
    found = diff_datasets(objects, old.digest, new.digest)
    assert found.summary == "+3 rows, -1 row, 2 rows updated"
    assert (found.fragments_added, found.fragments_removed) == (1, 0)
    assert found.updated == (ColumnUpdates("c", 2),)
    assert "column c: 2 rows updated" in list(found.lines())


def test_what_is_not_in_the_metadata_is_bounded_and_counted_when_asked() -> None:
    objects = MemoryObjects()
    rows = {"n": list(range(60_000)), "c": [0] * 60_000}
    old = stored(objects, SCHEMA, [rows])
    new = _open(objects, update_rows(objects, old, slice(0, 30_000), {"n": -1}))
    objects.reads.clear()
    found = diff_datasets(objects, old.digest, new.digest)
    chunks = {digest for digest, link in objects.links.items() if link.kind is Kind.CHUNK}
    assert not chunks & {digest for digest, _, _ in objects.reads}
    assert not found.exact
    assert 30_000 <= found.rows_updated <= 60_000
    assert found.summary == f"up to {found.rows_updated:,} rows updated"
    exact = diff_datasets(objects, old.digest, new.digest, exact=True)
    assert (exact.exact, exact.rows_updated) == (True, 30_000)


def test_rows_that_came_back_are_added() -> None:
    objects = MemoryObjects()
    old = stored(objects, SCHEMA, [_rows(5)])
    less = _open(objects, delete_rows(objects, old, [0, 1]))
    found = diff_datasets(objects, less.digest, old.digest)
    assert (found.rows_added, found.rows_removed, found.fragments_added) == (2, 0, 0)


def test_a_compaction_changes_no_row() -> None:
    objects = MemoryObjects()
    old = _open(objects, delete_rows(objects, stored(objects, SCHEMA, [_rows(5)]), [0]))
    new = _open(objects, compact_dataset(objects, old, everything=True))
    found = diff_datasets(objects, old.digest, new.digest)
    assert (found.summary, found.fragments_added, found.fragments_removed) == ("same rows", 1, 1)


def test_changes_of_columns_are_told_by_their_ids() -> None:
    objects = MemoryObjects()
    schema = Schema.of({"a": "int32", "b": "int64", "c": "int64", "d": "int64"})
    old = stored(objects, schema, [{name: [1] for name in "abcd"}])
    new = _open(objects, widen_column(objects, old, "a", "int64", nullable=True))
    new = _open(objects, rename_column(objects, new, "b", "beta"))
    new = _open(objects, drop_column(objects, new, "c"))
    new = _open(objects, drop_column(objects, new, "d"))
    new = _open(objects, add_column(objects, new, Column("d", Scalar("int64"), default=7)))
    found = diff_datasets(objects, old.digest, new.digest)
    wide, plain = "int64 or null", "int64"
    assert found.schema == (
        ColumnChange("a", "int32", wide, ("retyped", "nullability")),
        ColumnChange("beta", plain, plain, ("renamed",), "b"),
        ColumnChange("c", plain, None, ("dropped",)),
        ColumnChange("d", plain, f"{plain}, default 7", ("replaced",)),
    )
    assert found.rows_updated == 0
    assert list(found.lines())[:4] == [
        f"column a: int32 -> {wide}",
        "column beta (was b): renamed",
        f"column c removed: {plain}",
        f"column d: {plain} -> {plain}, default 7, another column",
    ]


def test_another_order_of_columns_is_told() -> None:
    objects = MemoryObjects()
    old = stored(objects, SCHEMA, [_rows(1)])
    root = replace(
        old.root,
        schema=Schema(old.schema.columns[::-1]),
        statistics=old.root.statistics[::-1],
    )
    new = _open(objects, objects.put(Kind.DATASET, encode_root(root), root.links))
    found = diff_datasets(objects, old.digest, new.digest)
    assert (found.summary, found.reordered) == ("columns reordered", True)


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [
        (Scalar("int16"), [-3, 7], -3, 7),
        (Scalar("float32"), [-1.5, np.inf], -1.5, "inf"),
        (Scalar("bool"), [False, True], False, True),
        (Timestamp("s"), [0, 60], "1970-01-01T00:00:00", "1970-01-01T00:01:00"),
        (Text(), ["a", "b"], None, None),
    ],
)
def test_statistics_are_values_before_and_after(
    kind: Any, values: list[Any], low: Any, high: Any
) -> None:
    objects = MemoryObjects()
    schema = Schema((Column("v", kind, nullable=True),))
    old = stored(objects, schema, [])
    new = stored(objects, schema, [{"v": [*values, None]}])
    (facts,) = diff_datasets(objects, old.digest, new.digest).statistics
    assert facts.new is not None
    assert (facts.name, facts.new.nulls, facts.new.min, facts.new.max) == ("v", 1, low, high)
    json.dumps(diff_datasets(objects, old.digest, new.digest).to_json(), allow_nan=False)

"""Versions are compared by columns, fragments, rows and bytes."""

from __future__ import annotations

from typing import Any

from tensorrepo.formats.dataset.diff import ColumnChange, diff_datasets
from tensorrepo.formats.dataset.schema import ClassLabel, Schema
from tests.support.datasets import stored
from tests.support.objects import MemoryObjects

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
        ColumnChange("n", "scalar(dtype=int64)", "scalar(dtype=int32)", ("replaced",)),
        ColumnChange("gone", "scalar(dtype=int8)", None, ("dropped",)),
        ColumnChange("come", None, "class_label(names=('a',))", ("added",)),
    )


def test_a_dataset_against_none_is_all_added() -> None:
    objects = MemoryObjects()
    new = stored(objects, SCHEMA, [_rows(4)])
    found = diff_datasets(objects, None, new.digest)
    assert (found.old_rows, found.new_rows, found.rows_added) == (0, 4, 4)
    assert found.to_json()["fragments_added"] == 1

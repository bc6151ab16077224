"""A dataset is made what a source is, and rows stay who they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import ClassLabel, Scalar, Tensor, Text, Timestamp
from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows
from tensorrepo.formats.dataset.sync import SyncReport, sync_dataset
from tensorrepo.formats.dataset.update import delete_rows
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.datasets import Rows, schemas, stored, value
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of({"id": "int64", "name": Text(), "x": "float32"})


def _rows(*names: str) -> Rows:
    return [{"id": at, "name": name, "x": at / 2} for at, name in enumerate(names)]


def _dataset(objects: MemoryObjects, rows: Rows, schema: Schema = SCHEMA) -> StoredDataset:
    return stored(objects, schema, [rows] if rows else [], page_bytes=200)


def _sync(
    objects: MemoryObjects,
    dataset: StoredDataset,
    rows: Rows,
    schema: Schema = SCHEMA,
    **options: Any,
) -> tuple[StoredDataset, SyncReport]:
    batches = [rows[at : at + 3] for at in range(0, len(rows), 3)]
    report = sync_dataset(objects, dataset, schema, batches, **options)
    return open_dataset(objects, report.link.digest), report


def _ids(dataset: StoredDataset) -> list[str]:
    return ids_of_rows(dataset, slice(None))


def _same(dataset: StoredDataset, rows: Rows) -> bool:
    return list(map(repr, dataset)) == list(
        map(repr, _dataset(MemoryObjects(), rows, dataset.schema.without_ids()))
    )


def _counts(report: SyncReport) -> tuple[int, int, int]:
    return report.inserted, report.updated, report.deleted


@pytest.mark.parametrize("key", [[], ["id"]])
def test_what_is_the_same_stores_nothing(key: list[str]) -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abcdefg"))
    before = len(objects.stored)
    _, report = _sync(objects, dataset, _rows(*"abcdefg"), key=key)
    assert report.link.digest == dataset.digest
    assert _counts(report) == (0, 0, 0)
    assert len(objects.stored) == before


@pytest.mark.parametrize("key", [[], ["id"]])
def test_rows_keep_their_ids(key: list[str]) -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abcdefg"))
    rows = _rows(*"abcdefgh")
    rows[2]["name"] = "C"
    del rows[5]
    synced, report = _sync(objects, dataset, rows, key=key)
    assert _same(synced, rows)
    assert _counts(report) == (1, 1, 1)
    old, new = _ids(dataset), _ids(synced)
    assert new[:6] == [*old[:5], old[6]]


def test_a_key_matches_rows_wherever_they_are() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abcd"))
    rows = _rows(*"abcd")[::-1]
    rows[0]["name"] = "D"
    synced, report = _sync(objects, dataset, rows, key=["id"])
    assert _counts(report) == (0, 1, 0)
    assert [row["name"] for row in synced] == ["a", "b", "c", "D"]
    assert _ids(synced) == _ids(dataset)


def test_a_source_in_another_order_changes_nothing_and_is_told() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abcd"))
    synced, report = _sync(objects, dataset, _rows(*"abcd")[::-1])
    assert synced.digest == dataset.digest
    assert report.moved == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1, "name": "a", "x": 0}, {"id": 1, "name": "b", "x": 0}], "rows 0 and 1 .*id=1"),
    ],
)
def test_a_source_whose_keys_do_not_tell_rows_apart_is_refused(rows: Rows, message: str) -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"ab"))
    with pytest.raises(InvalidInputError, match=message):
        _sync(objects, dataset, rows, key=["id"])


def test_a_key_that_one_side_lacks_is_refused() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"ab"))
    with pytest.raises(NotFoundError, match="id"):
        _sync(objects, dataset, [{"name": "a"}], Schema.of({"name": Text()}), key=["id"])


def test_a_dataset_whose_keys_are_not_unique_is_refused() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, [*_rows("a"), *_rows("b")])
    with pytest.raises(InvalidInputError, match="no key of the dataset"):
        _sync(objects, dataset, _rows("a"), key=["id"])


def test_deleted_rows_are_not_matched() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abc"))
    without = open_dataset(objects, delete_rows(objects, dataset, [1]).digest)
    synced, report = _sync(objects, without, _rows(*"abc"))
    assert _counts(report) == (1, 0, 0)
    assert sorted(row["name"] for row in synced) == ["a", "b", "c"]


# ------------------------------------------------------------------------------ columns


def _column(kind: Any, *, nullable: bool = False) -> Schema:
    return Schema((Column("c", kind, nullable=nullable),))


def _values(dataset: StoredDataset) -> list[Any]:
    return [row["c"] for row in dataset]


def test_equal_values_of_a_wider_type_are_no_change() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, [{"c": 1}, {"c": 2}], _column("int32"))
    synced, report = _sync(objects, dataset, [{"c": 1}, {"c": 2}], _column("int64"))
    assert synced.digest == dataset.digest
    assert not report.widened_columns


def test_a_column_is_widened_when_a_row_needs_it() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, [{"c": 1}, {"c": 2}], _column("int32"))
    rows = [{"c": 1}, {"c": 7}, {"c": 3}]
    synced, report = _sync(objects, dataset, rows, _column("int64"))
    assert _values(synced) == [1, 7, 3]
    assert not report.widened_columns
    assert synced.schema.column("c").type == Scalar("int32")
    synced, report = _sync(objects, dataset, [{"c": 1}, {"c": 1 << 40}], _column("int64"))
    assert _values(synced) == [1, 1 << 40]
    assert report.widened_columns == ("c",)
    assert _ids(synced) == _ids(dataset)


def test_a_value_that_no_wider_column_holds_is_refused() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, [{"c": "1"}], _column(Text()))
    with pytest.raises(InvalidInputError, match="'c'"):
        _sync(objects, dataset, [{"c": 1}], _column("int64"))


def test_a_null_makes_a_column_nullable() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, [{"c": 1}, {"c": 2}], _column("int32"))
    wanted = _column("int32", nullable=True)
    synced, report = _sync(objects, dataset, [{"c": 1}, {"c": 2}], wanted)
    assert synced.digest == dataset.digest
    synced, report = _sync(objects, dataset, [{"c": 1}, {"c": None}], wanted)
    assert _values(synced) == [1, None]
    assert report.widened_columns == ("c",)


def test_another_unit_of_time_is_no_change() -> None:
    objects = MemoryObjects()
    moments = [{"c": np.datetime64("2024-01-01T00:00:05", "ms")}]
    dataset = _dataset(objects, moments, _column(Timestamp("s")))
    synced, _ = _sync(objects, dataset, moments, _column(Timestamp("ms")))
    assert synced.digest == dataset.digest


def test_classes_are_matched_by_name() -> None:
    objects = MemoryObjects()
    cats = _column(ClassLabel(("cat", "dog")))
    dataset = _dataset(objects, [{"c": "cat"}, {"c": "dog"}], cats)
    more = _column(ClassLabel(("bird", "cat", "dog")))
    synced, report = _sync(objects, dataset, [{"c": "cat"}, {"c": "dog"}], more)
    assert synced.digest == dataset.digest
    synced, report = _sync(objects, dataset, [{"c": "cat"}, {"c": "dog"}, {"c": "bird"}], more)
    assert synced.schema.column("c").type == ClassLabel(("cat", "dog", "bird"))
    assert _values(synced) == [0, 1, 2]
    assert _counts(report) == (1, 0, 0)


def test_a_column_that_the_source_lacks_stays_or_is_dropped() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abc"))
    rows = [{"id": at, "x": at / 2} for at in range(3)]
    fewer = Schema.of({"id": "int64", "x": "float32"})
    synced, report = _sync(objects, dataset, rows, fewer)
    assert synced.digest == dataset.digest
    assert report.kept_columns == ("name",)
    synced, report = _sync(objects, dataset, rows, fewer, drop_columns=True)
    assert synced.schema.names == ("id", "x")
    assert _ids(synced) == _ids(dataset)


def test_a_column_that_is_new_is_added_for_all_rows() -> None:
    objects = MemoryObjects()
    dataset = _dataset(objects, _rows(*"abcd"))
    wider = Schema((*SCHEMA.columns, Column("v", Tensor("int8", (2,)))))
    rows = [{**row, "v": [at, -at]} for at, row in enumerate(_rows(*"abXde"))]
    del rows[1]
    synced, report = _sync(objects, dataset, rows, wider, key=["id"])
    assert _same(synced, rows)
    assert report.added_columns == ("v",)
    assert _counts(report) == (1, 1, 1)


# ------------------------------------------------------------------------------ any rows


@st.composite
def _two_versions(draw: st.DrawFn) -> tuple[Schema, Rows, Rows]:
    schema = draw(schemas())
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    pool = [{column.name: value(column, rng) for column in schema.columns} for _ in range(8)]
    choice = st.lists(st.integers(0, 7), max_size=12)
    old, new = draw(choice), draw(choice)
    return schema, [pool[at] for at in old], [pool[at] for at in new]


@given(_two_versions())
def test_a_sync_gives_the_rows_of_the_source(versions: tuple[Schema, Rows, Rows]) -> None:
    schema, old, new = versions
    objects = MemoryObjects()
    dataset = _dataset(objects, old, schema)
    synced, report = _sync(objects, dataset, new, schema)
    assert sorted(map(repr, synced)) == sorted(map(repr, _dataset(objects, new, schema)))
    assert report.inserted - report.deleted == len(new) - len(old)
    again, report = _sync(objects, synced, new, schema)
    assert again.digest == synced.digest
    assert _counts(report) == (0, 0, 0)

"""Rows are updated by key, or appended."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.formats.dataset.update import delete_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema(
    (
        Column("id", Text()),
        Column("part", Scalar("int8")),
        Column("value", Scalar("float32")),
        Column("note", Text(), nullable=True),
    )
)
COUNT = 500


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def dataset(objects: MemoryObjects) -> StoredDataset:
    batch = {
        "id": [f"r{at // 2}" for at in range(COUNT)],
        "part": np.arange(COUNT) % 2,
        "value": np.arange(COUNT, dtype="f4"),
        "note": [None] * COUNT,
    }
    whole = stored(objects, SCHEMA, [batch], page_bytes=1000, budget_bytes=30_000)
    return open_dataset(objects, delete_rows(objects, whole, [0]).digest)


def _rows(*rows: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


KEY = ["id", "part"]


def test_known_keys_are_updated_and_new_ones_appended(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    rows = _rows(("r9", 1, -1, "a"), ("new", 0, -2, None), ("r0", 1, -3, "c"), ("r0", 0, -4, "d"))
    found = open_dataset(objects, upsert(objects, dataset, KEY, [rows]).digest)
    assert found.rows == COUNT - 1 + 2
    assert found["value"][[0, 18, -2, -1]].tolist() == [-3, -1, -2, -4]
    assert found["note"][[0, 1, 18, -1]] == ["c", None, "a", "d"]


def test_what_is_there_already_changes_nothing(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    rows = dataset[10:20]
    assert upsert(objects, dataset, KEY, [rows]).digest == dataset.digest
    assert upsert(objects, dataset, KEY, []).digest == dataset.digest


def test_columns_that_are_not_given_stay(objects: MemoryObjects, dataset: StoredDataset) -> None:
    batch = {"id": ["r9", "r10"], "part": [1, 0], "note": ["x", "y"]}
    found = open_dataset(objects, upsert(objects, dataset, KEY, [batch]).digest)
    assert found["note"][[18, 19]] == ["x", "y"]
    assert found["value"][[18, 19]].tolist() == [19, 20]


def test_batches_come_one_after_the_other(objects: MemoryObjects, dataset: StoredDataset) -> None:
    batches = (
        pa.table({"id": [f"r{at}"], "part": pa.array([0], "int8"), "value": [-1.0], "note": ["n"]})
        for at in range(300)
    )
    found = open_dataset(objects, upsert(objects, dataset, KEY, batches).digest)
    assert found.rows == COUNT - 1 + 51
    assert (np.asarray(found["value"][:]) == -1).sum() == 300


def test_only_what_differs_is_written(objects: MemoryObjects, dataset: StoredDataset) -> None:
    rows = dataset[:]
    before = set(objects.stored)
    changed = dict(rows) | {"value": np.where(np.arange(COUNT - 1) == 7, 0, rows["value"])}
    upsert(objects, dataset, KEY, [changed])
    assert sum(len(objects.stored[each]) for each in set(objects.stored) - before) < 15_000


@pytest.mark.together
@pytest.mark.parametrize(
    ("key", "rows", "message"),
    [
        (KEY, _rows(("r1", 0, 1, ""), ("r2", 0, 1, ""), ("r1", 0, 2, "")), "rows 0 and 2.*'r1'"),
        ("id", _rows(("r5", 0, 1, "")), "key id='r5' names 2 rows"),
        (KEY, [{"id": "new", "part": 0}], "row 0 .*is new, and needs.*'value'"),
        (KEY, [{"id": "r1", "part": 0, "value": "x"}], "column 'value'"),
        (KEY, [{"id": "r1", "value": 1}], "no column 'part'"),
        (["value"], _rows(("r5", 0, 1, "")), "cannot be a key"),
        ([], _rows(("r5", 0, 1, "")), "a key is"),
    ],
)
def test_what_cannot_be_decided_is_refused(
    objects: MemoryObjects, dataset: StoredDataset, key: Any, rows: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        upsert(objects, dataset, key, [rows])


@pytest.mark.parametrize(
    "batches",
    [
        [{"id": ["a"], "part": [1], "value": [1]}, {"id": ["b"], "part": [1]}],
        [[{"id": "a", "part": 1, "value": 1}, {"id": "b", "part": 1}]],
    ],
)
def test_rows_have_the_same_columns(
    objects: MemoryObjects, dataset: StoredDataset, batches: Any
) -> None:
    with pytest.raises(InvalidInputError, match="row 1 has columns id, part"):
        upsert(objects, dataset, KEY, batches)


@pytest.mark.parametrize("name", ["nothing", "ID"])
def test_a_column_that_is_not_there_is_refused(
    objects: MemoryObjects, dataset: StoredDataset, name: str
) -> None:
    with pytest.raises(NotFoundError, match=name):
        upsert(objects, dataset, name, [_rows(("a", 0, 0, ""))])
    with pytest.raises(NotFoundError, match=name):
        upsert(objects, dataset, "id", [[{"id": "a", name: 3}]])


def test_a_null_key_is_refused(objects: MemoryObjects) -> None:
    schema = Schema((Column("id", Text(), nullable=True), Column("x", Tensor("int8", (None,)))))
    dataset = stored(objects, schema, [{"id": [None, "a"], "x": [[1], [2]]}])
    with pytest.raises(InvalidInputError, match="row 1, column 'id': a key cannot be null"):
        upsert(objects, dataset, "id", [{"id": ["a", None], "x": [[1], [2]]}])
    found = open_dataset(
        objects, upsert(objects, dataset, "id", [{"id": ["a"], "x": [[7]]}]).digest
    )
    assert [row.tolist() for row in found["x"][:]] == [[1], [7]]

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import tensorrepo as tr
from tensorrepo.formats.dataset.schema.schema import Column, Schema, as_type
from tensorrepo.formats.exchange.objects.columns import is_row

TYPES: dict[str, Any] = {
    "tiled": tr.Tensor("float32", (8, 8), tile=(4, 4)),
    "ragged": tr.Tensor("int64", (None,)),
    "text": tr.Text(),
    "bytes": tr.Bytes(),
    "json": tr.Json(),
}
ROW: dict[str, Any] = {
    "tiled": np.zeros((8, 8), "f4"),
    "ragged": np.arange(3),
    "text": "x",
    "bytes": b"\0",
    "json": [1, 2],
}
BATCH: dict[str, Any] = {
    "tiled": np.zeros((2, 8, 8), "f4"),
    "ragged": np.array([np.arange(2), np.arange(3)], np.object_),
    "text": np.array(["x", "é"]),
    "bytes": np.array([b"\1", b"\2"], np.object_),
    "json": np.array([{"a": 1}, [2]], np.object_),
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    return tr.init(tmp_path_factory.mktemp("repo") / "store", author="Ada <ada@example.org>")


@pytest.mark.parametrize("names", [*permutations(TYPES, 2)])
def test_rows_and_batches_are_told_apart_whatever_column_comes_first(
    repo: tr.Repository, names: tuple[str, ...]
) -> None:
    with repo.transaction() as tx:
        draft = tx.create_dataset("d", columns={name: TYPES[name] for name in names})
        draft.append({name: BATCH[name] for name in names})
        draft.append({name: ROW[name] for name in names})
        draft.append([{name: ROW[name] for name in names}])
        assert draft.rows == 4
        tx.abort()


@pytest.mark.parametrize("name", TYPES)
def test_an_array_for_the_only_column_is_a_batch(repo: tr.Repository, name: str) -> None:
    with repo.transaction() as tx:
        draft = tx.create_dataset("d", columns={name: TYPES[name]}).append({name: BATCH[name]})
        assert draft.rows == 2
        tx.abort()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (tr.Image(), np.zeros((4, 4, 3), "u1"), True),
        (tr.Image(), np.zeros((9, 28, 28), "u1"), False),
        (tr.Image(), np.zeros((2, 4, 4, 3), "u1"), False),
        (tr.Image(), Path("a.png"), True),
        (tr.Image(), [b"", b""], False),
        ("int64", torch.tensor(3), True),
        ("int64", torch.arange(3), False),
        ("int64", pa.array([1, 2]), False),
        (tr.Tensor("int64", (None,)), pa.array([[1], [2]]), False),
        (tr.Tensor("int64", (None,)), [[1], [2, 3]], False),
        (tr.Tensor("int64", (None,)), [], False),
        (tr.ClassLabel(("a",)), "a", True),
        (tr.ClassLabel(("a",)), ["a"], False),
        (tr.Bytes(), np.zeros(4, "u1"), True),
        (tr.Bytes(), np.zeros((2, 4), "u1"), False),
        (tr.Json(), [1], False),
        (tr.Json(), {"a": 1}, True),
    ],
)
def test_a_value_alone_tells(kind: Any, value: Any, expected: bool) -> None:
    schema = Schema((Column("x", as_type(kind), nullable=True),))
    assert is_row(schema, {"x": value}) is expected

"""Rows of datasets that were written anew are matched by the values of a key."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Text
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.versions.row_diff import count_changes, row_changes
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of({"id": "int64", "name": Text(), "x": "float32"})
KEYS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from("ab")), unique=True, max_size=16)


def _made(
    objects: MemoryObjects, keys: list[tuple[int, str]], values: list[float]
) -> StoredDataset:
    rows = [
        {"id": number, "name": name, "x": np.float32(value)}
        for (number, name), value in zip(keys, values, strict=False)
    ]
    uid = random.Random(len(objects.stored)).getrandbits(32)
    return stored(objects, SCHEMA, [rows], uid, page_bytes=64)


def _told(old: StoredDataset, new: StoredDataset, **how: Any) -> set[tuple[str, Any, Any]]:
    """What became of which keys: values of x on both sides."""
    found = set()
    for batch in row_changes(old, new, **how):
        for row in batch.to_arrow().to_pylist():
            side = row["new"] or row["old"]
            values = tuple(row[name] and row[name]["x"] for name in ("old", "new"))
            found.add((row["change"], (side["id"], side["name"]), values))
    return found


@given(KEYS, KEYS, st.randoms(use_true_random=False))
def test_rows_are_matched_by_their_keys(first: Any, second: Any, rng: random.Random) -> None:
    objects = MemoryObjects()
    values = [[float(rng.randrange(3)) for _ in keys] for keys in (first, second)]
    old, new = _made(objects, first, values[0]), _made(objects, second, values[1])
    before = dict(zip(first, values[0], strict=True))
    after = dict(zip(second, values[1], strict=True))
    expected = {("deleted", key, (before[key], None)) for key in before.keys() - after.keys()}
    expected |= {("added", key, (None, after[key])) for key in after.keys() - before.keys()}
    expected |= {
        ("updated", key, (before[key], after[key]))
        for key in before.keys() & after.keys()
        if before[key] != after[key]
    }
    assert _told(old, new, key=["id", "name"]) == expected


def test_a_row_that_got_another_key_went_and_came() -> None:
    objects = MemoryObjects()
    old = _made(objects, [(1, "a"), (2, "a")], [0.0, 0.5])
    link = update_rows(objects, old, [1], {"id": 3})
    new = open_dataset(objects, link.digest)
    assert _told(old, new, key=["id"]) == {
        ("deleted", (2, "a"), (0.5, None)),
        ("added", (3, "a"), (None, 0.5)),
    }
    assert count_changes(old, new, key=["id"], columns=["x"]).columns == {}


def test_rows_that_swapped_their_keys_swapped_their_values() -> None:
    objects = MemoryObjects()
    old = _made(objects, [(1, "a"), (2, "a")], [0.0, 0.5])
    new = open_dataset(objects, update_rows(objects, old, [0, 1], {"id": [2, 1]}).digest)
    assert _told(old, new, key=["id"]) == {
        ("updated", (1, "a"), (0.0, 0.5)),
        ("updated", (2, "a"), (0.5, 0.0)),
    }


@pytest.mark.parametrize("side", ["old", "new"])
def test_a_key_that_two_rows_share_is_named(side: str) -> None:
    objects = MemoryObjects()
    once = _made(objects, [(1, "a"), (2, "a")], [0.0, 0.5])
    twice = _made(objects, [(7, "a"), (5, "b"), (7, "b")], [0.0, 0.5, 0.5])
    sides = (twice, once) if side == "old" else (once, twice)
    with pytest.raises(InvalidInputError, match=rf"rows 0 and 2 of the {side} .* id=7"):
        list(row_changes(*sides, key=["id"]))


def test_a_key_that_is_null_is_refused() -> None:
    objects = MemoryObjects()
    schema = Schema((Column("id", Scalar("int64"), nullable=True),))
    old = stored(objects, schema, [[{"id": 1}]])
    new = stored(objects, schema, [[{"id": 2}, {"id": None}]], 1)
    with pytest.raises(InvalidInputError, match="row 1 of the new version has no 'id'"):
        list(row_changes(old, new, key=["id"]))


@pytest.mark.parametrize(
    ("key", "error"), [("x", InvalidInputError), ("none", NotFoundError)], ids=["float", "missing"]
)
def test_what_cannot_be_a_key_is_refused(key: str, error: type[Exception]) -> None:
    objects = MemoryObjects()
    old = _made(objects, [(1, "a")], [0.0])
    with pytest.raises(error):
        list(row_changes(old, old, key=[key]))


def test_columns_made_anew_are_compared_by_name_and_widened() -> None:
    objects = MemoryObjects()
    narrow = Schema.of({"id": "int32", "x": "float32"})
    wide = Schema.of({"x": "float64", "id": "int64"})
    old = stored(objects, narrow, [{"id": [1, 2, 3], "x": [0.5, 1.5, 2.5]}])
    new = stored(objects, wide, [{"id": [3, 1, 2], "x": [2.5, 0.5, 9.0]}], 1)
    counts = count_changes(old, new, key=["id"])
    assert (counts.added, counts.deleted, counts.columns) == (0, 0, {"x": 1})

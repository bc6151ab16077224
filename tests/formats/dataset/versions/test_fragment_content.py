"""Fragments of one name hold the same rows, and versions give them that name as long as they do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.changing import patch
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import drop_column
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, row_id_table, undeleted
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor, Text
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.versions.fragment_content import (
    FragmentNames,
    SeenFragments,
    within,
)
from tensorrepo.formats.dataset.write import write_dataset
from tests.support.builders.changed import without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

SCHEMA = Schema.of(
    {"number": "int32", "name": Text(), "volume": Tensor("uint8", (None, None), tile=(4, 4))}
)


@pytest.fixture(autouse=True)
def _patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates are patches, however small the fragments are."""
    monkeypatch.setattr(patch, "SMALL_COLUMN_BYTES", 0)
    monkeypatch.setattr(patch, "PATCH_SHARE", 100.0)


def rows(first: int, count: int) -> dict[str, Any]:
    numbers = range(first, first + count)
    return {
        "number": list(numbers),
        "name": [f"row {at}" for at in numbers],
        "volume": [np.full((1 + at % 9, 6), at % 251, np.uint8) for at in numbers],
    }


def history(objects: MemoryObjects, seed: int) -> list[StoredDataset]:
    chance = random.Random(seed)
    versions = [stored(objects, SCHEMA, [rows(0, 20)])]
    for step in range(1, 10):
        last = versions[-1]
        some = sorted(chance.sample(range(len(last)), 2))
        match chance.choice(["append", "append", "name", "volume", "delete", "compact"]):
            case "append":
                link = write_dataset(objects, SCHEMA, [rows(20 * step, 5)], base=last)
            case "name":
                values = {"name": [f"new {step} {at}" for at in some]}
                link = update_rows(objects, last, some, values)
            case "volume":
                volumes = [np.full((3, 5), 100 + step, np.uint8) for _ in some]
                link = update_rows(objects, last, some, {"volume": volumes})
            case "delete":
                versions.append(without(objects, last, some))
                continue
            case _:
                link = compact_dataset(objects, last, codec=Codec.NONE)
        versions.append(open_dataset(objects, link.digest))
    return versions


def contents(version: StoredDataset) -> dict[bytes, list[Any]]:
    """What the fragments of a version hold, by name: ids and values, of deleted rows too."""
    whole, first, found = undeleted(version), 0, {}
    ids = row_id_table(version).of(np.arange(version.root.rows))
    columns = [[repr(value) for value in whole[name][:]] for name in version.schema.names]
    every = list(zip(ids.tolist(), *columns, strict=True))
    for number, leaf in enumerate(version.root.leaves):
        for each in FragmentNames().of(version, number, first):
            found[each.name] = every[each.first_row : each.first_row + each.rows]
        first += leaf.rows
    return found


@pytest.mark.parametrize("seed", range(examples(2)))
def test_fragments_of_one_name_hold_the_same_rows(seed: int) -> None:
    versions = history(MemoryObjects(), seed)
    held: dict[bytes, list[Any]] = {}
    for version in versions:
        for name, content in contents(version).items():
            assert held.setdefault(name, content) == content
    assert len(held) < sum(len(contents(version)) for version in versions)


@pytest.mark.parametrize("seed", range(examples(1)))
def test_rows_that_came_or_changed_are_fresh(seed: int) -> None:
    seen, held = SeenFragments(), set[Any]()
    for version in history(MemoryObjects(), seed):
        rows_of = [row for content in contents(version).values() for row in content]
        fresh = set(within(np.arange(version.root.rows), seen.fresh(version)).tolist())
        new = {at for at, row in enumerate(rows_of) if repr(row) not in held}
        assert new <= fresh
        held |= {repr(row) for row in rows_of}


@pytest.mark.parametrize("share", [0.0, 100.0], ids=["pages", "patches"])
def test_what_is_set_and_where_make_the_name(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "PATCH_SHARE", share)
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [rows(0, 20)])
    versions = [base]
    for at, name in ((1, "row x"), (2, "row x"), (1, "row y")):
        link = update_rows(objects, base, [at], {"name": [name]})
        versions.append(open_dataset(objects, link.digest))
    assert len({name for version in versions for name in contents(version)}) == 4


def test_an_append_makes_its_own_rows_fresh_and_no_others() -> None:
    objects, seen = MemoryObjects(), SeenFragments()
    version = stored(objects, SCHEMA, [rows(0, 20)])
    assert seen.fresh(version).tolist() == [[0, 20]]
    assert seen.fresh(version).tolist() == []
    for step in range(1, 40):  # until pages that stood inline lie in chunks
        link = write_dataset(objects, SCHEMA, [rows(20 * step, 20)], base=version)
        version = open_dataset(objects, link.digest)
        assert seen.fresh(version).tolist() == [[20 * step, 20 * step + 20]]
    assert seen.fresh(without(objects, version, [3])).tolist() == []
    dropped = open_dataset(objects, drop_column(objects, version, "name").digest)
    assert seen.fresh(dropped).tolist() == [[0, 800]]


def test_rows_within_ranges() -> None:
    ranges = np.array([[2, 4], [7, 8]])
    assert within(np.arange(10), ranges).tolist() == [2, 3, 7]
    assert within(np.array([1, 3, 9]), ranges[:0]).tolist() == []

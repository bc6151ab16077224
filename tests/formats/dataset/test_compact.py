"""Compaction: the same rows, ids and order, in fewer and whole fragments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.compact import compact_dataset, plan_compaction
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    fragment_records,
    live_rows,
    open_dataset,
    row_id_table,
)
from tensorrepo.formats.dataset.schema.schema import Bytes, Schema, Tensor, Text
from tensorrepo.formats.dataset.write import write_dataset
from tests.support.builders.changed import edited, patched, without
from tests.support.builders.datasets import same_rows, stored
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of(
    {
        "x": Tensor("float32", (16,)),
        "ragged": Tensor("int16", (None,)),
        "volume": Tensor("uint8", (None, None), tile=(4, 4)),
        "label": "int32",
        "text": Text(),
        "raw": Bytes(),
    }
)


def _rows(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {
        "x": np.repeat(numbers[:, None], 16, axis=1).astype(np.float32),
        "ragged": [np.arange(at % 5, dtype=np.int16) for at in numbers],
        "volume": [np.full((1 + at % 9, 6), at % 251, np.uint8) for at in numbers],
        "label": numbers.astype(np.int32),
        "text": [f"row {at}" for at in numbers],
        "raw": [bytes([at % 256]) * (at % 7) for at in numbers],
    }


def _ids(dataset: StoredDataset) -> Any:
    rows = np.arange(dataset.rows)
    return row_id_table(dataset).of(live_rows(dataset).physical(rows))


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture(scope="module")
def appended() -> StoredDataset:
    """Twenty appends of 40 rows."""
    objects = MemoryObjects()
    dataset = stored(objects, SCHEMA, [_rows(0, 40)])
    for at in range(1, 20):
        link = write_dataset(objects, SCHEMA, [_rows(40 * at, 40)], base=dataset)
        dataset = open_dataset(objects, link.digest)
    return dataset


@pytest.fixture
def grown(objects: MemoryObjects, appended: StoredDataset) -> StoredDataset:
    """The same, in objects of a test's own."""
    assert isinstance(appended.objects, MemoryObjects)
    objects.stored |= appended.objects.stored
    objects.links |= appended.objects.links
    return open_dataset(objects, appended.digest)


def _same(one: StoredDataset, two: StoredDataset) -> bool:
    return same_rows(list(one), list(two)) and np.array_equal(_ids(one), _ids(two))


@pytest.mark.parametrize("everything", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_small_fragments_become_one(
    objects: MemoryObjects, grown: StoredDataset, everything: bool
) -> None:
    assert len(fragment_records(grown)) == 20
    link = compact_dataset(objects, grown, everything=everything)
    compacted = open_dataset(objects, link.digest)
    assert len(fragment_records(compacted)) == 1
    assert _same(compacted, grown)


def test_deleted_rows_are_left_out_and_patches_laid_in(
    objects: MemoryObjects, grown: StoredDataset
) -> None:
    label = grown.schema.column("label")
    edits = {3: FragmentEdit(patches={label.id: patched(label, [1, 2], [-1, -2])})}
    changed = without(objects, edited(objects, grown, edits), [0, 41, 42, *range(200, 240)])
    compacted = open_dataset(objects, compact_dataset(objects, changed).digest)
    assert compacted.root.deleted == 0
    assert compacted.root.rows == changed.rows
    assert _same(compacted, changed)


@pytest.mark.soak
def test_ids_survive_a_second_compaction(objects: MemoryObjects, grown: StoredDataset) -> None:
    once = open_dataset(objects, compact_dataset(objects, grown).digest)
    fewer = without(objects, once, list(range(0, 800, 3)))
    twice = open_dataset(objects, compact_dataset(objects, fewer).digest)
    assert _same(twice, fewer)


def test_what_is_whole_is_linked_and_not_rewritten(objects: MemoryObjects) -> None:
    schema = Schema.of({"x": Tensor("uint8", (1024,))})
    rows = {"x": np.zeros((4000, 1024), np.uint8)}
    whole = stored(objects, schema, [rows], budget_bytes=4 << 20)
    fragments = len(fragment_records(whole))
    assert fragments > 3
    worn = without(objects, whole, range(200))
    before = set(objects.stored)
    compacted = open_dataset(objects, compact_dataset(objects, worn, target_bytes=1 << 20).digest)
    written = sum(len(objects.stored[each]) for each in set(objects.stored) - before)
    assert compacted.rows == 3800
    assert written < 2 * 1024 * 1024
    assert _same(compacted, worn)


def test_nothing_worn_gives_the_same_dataset(objects: MemoryObjects) -> None:
    dataset = stored(objects, SCHEMA, [_rows(0, 100)])
    assert not plan_compaction(dataset).fragments
    assert compact_dataset(objects, dataset).digest == dataset.digest


def test_all_rows_deleted_leaves_an_empty_dataset(objects: MemoryObjects) -> None:
    dataset = without(objects, stored(objects, SCHEMA, [_rows(0, 30)]), range(30))
    compacted = open_dataset(objects, compact_dataset(objects, dataset).digest)
    assert (compacted.rows, compacted.root.rows, compacted.root.leaves) == (0, 0, ())


def test_statistics_count_what_is_there(objects: MemoryObjects, grown: StoredDataset) -> None:
    fewer = without(objects, grown, list(range(0, 800, 2)))
    compacted = open_dataset(objects, compact_dataset(objects, fewer).digest)
    fresh = stored(MemoryObjects(), SCHEMA, [compacted.to_arrow()])
    found = {each.id: (each.nulls, each.raw_bytes) for each in compacted.root.statistics}
    assert found == {each.id: (each.nulls, each.raw_bytes) for each in fresh.root.statistics}

"""Fragments are passed on whole: put behind one another again they make the same dataset."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import drop_column
from tensorrepo.formats.dataset.metadata.span_write import leaf_fragments, read_fragments
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.read import StoredDataset, fragment_records, open_dataset
from tests.support.builders.datasets import same_rows
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.dataset import CASES, SIGNALS, Making, small_cuts
from tests.support.second_readers.comparison import agrees, ids_of

CHANGED = ["tiled", "deleted", "patched", "columns", "compacted", "leaves"]


def _put_together(dataset: StoredDataset, objects: MemoryObjects) -> StoredDataset:
    """A dataset made of all fragments of another one, one by one."""
    with small_cuts(), ThreadPoolExecutor(1) as storers:
        tree = TreeWriter(
            objects, dataset.schema, dataset.root.groups, None, storers, 1 << 20, behind=False
        )
        for fragment in read_fragments(dataset):
            tree.add_known(fragment, counted=False)
        return open_dataset(objects, tree.finish({}).digest)


@pytest.mark.parametrize("case", CHANGED)
def test_fragments_put_behind_one_another_are_the_same_rows(case: str) -> None:
    dataset = CASES[case]().dataset
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects)
    again = _put_together(dataset, objects)
    assert same_rows(list(again), list(dataset))
    assert ids_of(again) == ids_of(dataset)
    names = ["uid", "rows", "deleted", "stored_bytes"]
    assert fragment_records(again)[names].tolist() == fragment_records(dataset)[names].tolist()
    assert agrees(objects, again)


def test_the_same_fragments_make_the_same_objects() -> None:
    dataset = CASES["leaves"]().dataset
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects)
    once = _put_together(dataset, objects)
    assert _put_together(once, objects).digest == once.digest


@given(st.integers(0, 50))
def test_fragments_are_read_from_any_number_on(first: int) -> None:
    dataset = _leaves()
    every = [fragment.uid for fragment in read_fragments(dataset)]
    assert [fragment.uid for fragment in read_fragments(dataset, first)] == every[first:]


@cache
def _leaves() -> StoredDataset:
    return CASES["leaves"]().dataset


def test_dropped_columns_are_left_behind() -> None:
    made = Making(SIGNALS, [{"x": None, "n": at} for at in range(9)])
    made.change(drop_column, "n")
    (entry,) = made.dataset.root.leaves
    (fragment,) = leaf_fragments(made.dataset, entry)
    columns = [column.id for part in fragment.parts.values() for column in part.columns]
    assert columns == [made.dataset.schema.column("x").id]

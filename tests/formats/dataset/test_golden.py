"""Golden datasets are written and read alike, by this reader and by one made from the spec."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from tensorrepo.formats.dataset.read import Dataset, open_dataset
from tensorrepo.repo.ids import Digest, object_digest
from tensorrepo.repo.objects import decode_object
from tests.support import reference_dataset
from tests.support.datasets import datasets, same_rows, stored
from tests.support.golden_dataset import (
    CASES,
    COMPRESSED,
    NUMBERS,
    golden_files,
    golden_objects,
)
from tests.support.objects import MemoryObjects


def _opened(case: str) -> Dataset:
    objects = MemoryObjects()
    files = golden_files(case)
    for whole in files.values():
        digest = object_digest((whole,))
        objects.stored[digest] = whole
        objects.links[digest] = decode_object(whole).link(digest)
    return open_dataset(objects, object_digest((files[f"{case}.dataset.bin"],)))


def _by_the_spec(objects: MemoryObjects, digest: Digest) -> list[reference_dataset.Row]:
    named = {reference_dataset.object_name(whole): whole for whole in objects.stored.values()}
    return reference_dataset.read(named, bytes.fromhex(digest))[1]


@pytest.mark.parametrize("case", sorted(set(CASES) - set(COMPRESSED)))
def test_golden_datasets_are_written_alike_today(case: str) -> None:
    assert golden_files(case) == golden_objects(case)


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden_datasets_hold_what_went_in(case: str) -> None:
    schema, batches, _ = CASES[case]
    dataset = _opened(case)
    assert dataset.schema.without_ids() == schema
    rows = [row for batch in batches for row in batch]
    # Through a store of today, so that values have the types that reading gives them.
    assert same_rows(list(dataset), list(stored(MemoryObjects(), schema, [rows])))
    assert len(dataset) == len(rows)


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden_datasets_are_read_by_the_spec_alone(case: str) -> None:
    dataset = _opened(case)
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects)
    assert same_rows(_by_the_spec(objects, dataset.digest), list(dataset))


def test_the_large_golden_dataset_has_an_index_and_a_chunk_of_its_own() -> None:
    assert sorted(golden_files("large")) == [
        "large.chunk.bin",
        "large.dataset.bin",
        "large.page_index.bin",
    ]
    found = _opened("large")["number"][:]
    assert np.array_equal(np.asarray(found), NUMBERS)


@given(datasets(max_rows=15))
@settings(max_examples=40)
def test_any_dataset_is_read_by_the_spec_alone(drawn: object) -> None:
    schema, rows = drawn  # type: ignore[misc]  # what the strategy draws
    objects = MemoryObjects()
    dataset = stored(objects, schema, [rows], page_bytes=200)  # type: ignore[has-type]
    assert same_rows(_by_the_spec(objects, dataset.digest), rows)  # type: ignore[has-type]

"""Whatever two people do to one dataset, the merge holds both, or names what contradicts."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.metadata import boundaries
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, read_rows
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import FixedValues, range_of
from tensorrepo.formats.dataset.versions.conflicts import SHOWN_CLASHES
from tensorrepo.repo.errors import Error
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples, sampled
from tests.support.reference.merge import Version, merge_versions, version_of
from tests.support.reference.merge_steps import STEPS, base_dataset, step

CUT_BYTES = {"MIN_BYTES": 64, "MEAN_BYTES": 160, "MAX_BYTES": 320}
OBJECTS = MemoryObjects()
NAMES = sorted(STEPS)
PAIRS = list(combinations_with_replacement(NAMES, 2))


@cache
def _base() -> StoredDataset:
    return base_dataset(OBJECTS)


@cache
def _version(name: str, seed: int) -> StoredDataset:
    return step(OBJECTS, _base(), name, seed)


def _merge(
    base: StoredDataset,
    ours: StoredDataset,
    theirs: StoredDataset,
    generations: tuple[int, int] = (3, 3),
    **asked: Any,
) -> Entry | Conflict:
    context = MergeContext(
        asked.get("automatic", False), asked.get("strategy", "fail"), generations
    )
    entries = [Entry(Kind.DATASET, each.digest) for each in (base, ours, theirs)]
    return DatasetMergeDriver().merge(OBJECTS, "datasets/x", *entries, context)


def _named(conflict: Conflict) -> set[tuple[str, str]]:
    """What a conflict names, as the model does."""
    return {_named_one(each) for each in conflict.details}


def _named_one(details: Any) -> tuple[str, str]:
    match details["what"]:
        case "cell":
            return "cell", f"{details['row_id']} {details['column']}"
        case "row":
            return "row", details["row_id"]
        case "property":
            return "property", details["property"]
        case "more":
            return "more", str(details["count"])
        case what:
            return what, details["column"]


def _check(base: StoredDataset, ours: StoredDataset, theirs: StoredDataset) -> Entry | None:
    """Merge both ways, and compare with the model."""
    expected = merge_versions(*map(version_of, (base, ours, theirs)))
    found, mirrored = _merge(base, ours, theirs), _merge(base, theirs, ours)
    if not isinstance(expected, Version):
        assert isinstance(found, Conflict), expected
        assert isinstance(mirrored, Conflict)
        assert _named(found) == _named(mirrored)
        columns = {each for each in expected if each[0] == "column"}
        if columns:  # what a row has in a column that cannot be joined need not be named
            assert columns <= _named(found) <= expected
        else:
            assert _named(found) == expected or len(expected) > SHOWN_CLASHES
        return None
    assert isinstance(found, Entry), found
    assert found == mirrored
    merged = open_dataset(OBJECTS, found.digest)
    held = version_of(merged)
    assert held.properties == expected.properties
    assert held.columns == expected.columns
    assert held.rows == expected.rows
    _check_statistics(merged)
    return found


def _check_statistics(dataset: StoredDataset) -> None:
    """Bounds hold for all values, and bytes are counted as often as they are there."""
    known = {each.id: each for each in dataset.root.statistics}
    assert 0 <= dataset.root.stored_bytes < 1 << 30
    for column in dataset.schema.columns:
        counted = known[column.id]
        assert counted.stored_bytes >= 0
        if (
            column.storage.layout is ColumnLayout.FIXED
            and not column.storage.shape
            and dataset.rows
        ):
            values = read_rows(dataset, column.name, slice(None))
            assert isinstance(values, FixedValues)
            found = range_of(values.values, values.valid)
            assert found.smallest is None or counted.min <= found.smallest
            assert found.largest is None or counted.max >= found.largest


@pytest.mark.parametrize(("ours", "theirs"), sampled(PAIRS, 10))
def test_what_both_did_is_there_whoever_merges_or_the_conflict_names_it(
    ours: str, theirs: str
) -> None:
    _check(_base(), _version(ours, 1), _version(theirs, 2))


SOME_STEPS = st.lists(st.sampled_from(NAMES), max_size=4)


@pytest.mark.soak
@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(SOME_STEPS, SOME_STEPS, st.lists(st.sampled_from(NAMES), max_size=2))
def test_so_do_versions_that_several_steps_led_to(
    ours: list[str], theirs: list[str], before: list[str]
) -> None:
    base = _after(_base(), before, 0)
    _check(base, _after(base, ours, 10), _after(base, theirs, 20))


@pytest.mark.soak
@pytest.mark.parametrize("seed", sampled(range(8), 2))
def test_so_do_versions_of_many_leaves(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for name, size in CUT_BYTES.items():
        monkeypatch.setattr(boundaries, name, size)
    rng = random.Random(seed)
    base = base_dataset(OBJECTS, fragments=12, count=5)
    assert len(base.root.leaves) > 2
    ours, theirs = (rng.choices(NAMES, k=3) for _ in range(2))
    _check(base, _after(base, ours, 10), _after(base, theirs, 20))


def _after(dataset: StoredDataset, names: list[str], seed: int) -> StoredDataset:
    """The dataset after those of the steps that can be taken."""
    for at, name in enumerate(names):
        try:
            dataset = step(OBJECTS, dataset, name, seed + at)
        except (Error, StopIteration):
            continue
    return dataset

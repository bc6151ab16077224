from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.model.merge import ModelMergeDriver
from tensorrepo.formats.model.write import write_model
from tensorrepo.repo.merge import Conflict, MergeContext, merge_trees
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import EMPTY_TREE, Entry, lookup, update
from tests.support.objects import MemoryObjects

PATH = "models/classifier"


def context(*, automatic: bool = True, strategy: str = "fail") -> MergeContext:
    return MergeContext(automatic, strategy, (2, 2))


def versions(objects: MemoryObjects) -> tuple[Entry, Entry, Entry]:
    base, ours, theirs = (write_model(objects, {"w": np.full(100, value)}) for value in range(3))
    return base, ours, theirs


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize("strategy", ["fail", "average"])
def test_weights_of_both_sides_are_never_combined(strategy: str, *, automatic: bool) -> None:
    objects = MemoryObjects()
    base, ours, theirs = versions(objects)
    found = ModelMergeDriver().merge(
        objects, PATH, base, ours, theirs, context(automatic=automatic, strategy=strategy)
    )
    assert isinstance(found, Conflict)
    assert (found.base, found.ours, found.theirs) == (base.digest, ours.digest, theirs.digest)
    assert "ours" in found.reason


def test_a_model_saved_anew_on_both_sides_is_a_conflict() -> None:
    objects = MemoryObjects()
    _, ours, theirs = versions(objects)
    found = ModelMergeDriver().merge(objects, PATH, None, ours, theirs, context())
    assert isinstance(found, Conflict)


def test_the_same_content_stored_in_two_ways_is_no_conflict() -> None:
    objects = MemoryObjects()
    base, ours, theirs = versions(objects)
    repacked = Entry(Kind.MODEL, ours.digest, theirs.storage)
    found = ModelMergeDriver().merge(objects, PATH, base, ours, repacked, context())
    assert found == ours


def test_a_side_that_changed_nothing_gives_way() -> None:
    objects = MemoryObjects()
    base, ours, theirs = versions(objects)
    driver = ModelMergeDriver()
    assert driver.merge(objects, PATH, base, base, theirs, context()) == theirs
    assert driver.merge(objects, PATH, base, ours, base, context()) == ours


@pytest.mark.parametrize(("strategy", "chosen"), [("ours", 1), ("theirs", 2)])
def test_a_merge_of_trees_takes_the_side_that_it_is_told_to(strategy: str, chosen: int) -> None:
    objects = MemoryObjects()
    entries = versions(objects)
    base, ours, theirs = (update(objects, EMPTY_TREE, {PATH: entry}) for entry in entries)
    merged = merge_trees(
        objects,
        base,
        ours,
        theirs,
        drivers={Kind.MODEL: ModelMergeDriver()},
        context=context(automatic=False, strategy=strategy),
    )
    assert merged.conflicts == ()
    assert lookup(objects, merged.root, PATH) == entries[chosen]

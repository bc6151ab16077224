from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.model.merging.three_way import ModelMergeDriver
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.errors import ConflictError
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext, merge_trees
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, lookup, update
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.sdk import init
from tests.support.builders.objects import MemoryObjects

PATH = "models/classifier"


def context(*, automatic: bool = True, strategy: str = "fail") -> MergeContext:
    return MergeContext(automatic, strategy, (2, 2))


def versions(objects: MemoryObjects) -> tuple[Entry, Entry, Entry]:
    base, ours, theirs = (write_model(objects, {"w": np.full(100, value)}) for value in range(3))
    return base, ours, theirs


@pytest.mark.parametrize("strategy", ["fail", "average"])
def test_a_rebase_never_combines_weights_not_even_of_different_tensors(strategy: str) -> None:
    objects = MemoryObjects()
    base, ours, theirs = (
        write_model(objects, {"a": np.full(100, one), "b": np.full(100, two)})
        for one, two in ((0, 0), (1, 0), (0, 1))
    )
    found = ModelMergeDriver().merge(
        objects, PATH, base, ours, theirs, context(automatic=True, strategy=strategy)
    )
    assert isinstance(found, Conflict)
    assert (found.base, found.ours, found.theirs) == (base.digest, ours.digest, theirs.digest)
    assert "never combined by themselves" in found.reason


def test_a_transaction_whose_branch_moved_does_not_combine_models(tmp_path: Path) -> None:
    repository = init(tmp_path / "r", author="Ada <ada@example.org>")
    with repository.transaction("main") as tx:
        tx.save_model("m", {"a": np.zeros(100), "b": np.zeros(100)})
    late = repository.transaction("main")
    late.save_model("m", {"a": np.ones(100), "b": np.zeros(100)})
    with repository.transaction("main") as tx:
        tx.save_model("m", {"a": np.zeros(100), "b": np.ones(100)})
    with pytest.raises(ConflictError, match="moved"), late:
        pass
    assert (repository.model("m")["a"] == 0).all()


def test_a_merge_that_somebody_asks_for_tells_how_far_each_side_went() -> None:
    objects = MemoryObjects()
    base, ours, theirs = versions(objects)
    found = ModelMergeDriver().merge(
        objects, PATH, base, ours, theirs, context(automatic=False, strategy="fail")
    )
    assert isinstance(found, Conflict)
    (told,) = found.details
    assert (told["tensor"], told["ours"]["l2"], told["theirs"]["l2"]) == ("w", 10, 20)
    assert "moved 100.00% by L2 10" in told["line"]
    assert "--strategy" in found.reason


def test_a_merge_joins_tensors_that_one_side_changed() -> None:
    objects = MemoryObjects()
    base, ours, theirs = (
        write_model(objects, {"a": np.full(100, one), "b": np.full(100, two)})
        for one, two in ((0, 0), (1, 0), (0, 1))
    )
    found = ModelMergeDriver().merge(
        objects, PATH, base, ours, theirs, context(automatic=False, strategy="fail")
    )
    assert isinstance(found, Entry)
    joined = open_model(objects, found)
    assert (joined["a"] == 1).all()
    assert (joined["b"] == 1).all()
    assert [edge.digest for edge in joined.lineage] == [ours.digest, theirs.digest]


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

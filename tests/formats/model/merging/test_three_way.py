from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.merging.three_way import MergedModel, Versions, join_models
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_writer import write_model
from tests.support.builders.models import stored
from tests.support.builders.objects import MemoryObjects

SAME = {"w": 0.0}


def tensors(values: dict[str, float]) -> dict[str, Any]:
    return {name: np.full(20, float(value)) for name, value in values.items()}


def joined(
    base: Any, ours: Any, theirs: Any, strategy: str = "fail", **given: Any
) -> tuple[MergedModel, StoredModel | None]:
    """Join models of tensors that are full of one value each; `given`: options of each version."""
    objects = MemoryObjects()
    sides = [
        None if values is None else stored(
            tensors(values), objects, **{key: each[at] for key, each in given.items()}
        )
        for at, values in enumerate((base, ours, theirs))
    ]  # fmt: skip
    assert sides[1] is not None
    assert sides[2] is not None
    found = join_models("models/m", Versions(sides[0], sides[1], sides[2]), strategy)
    if found.source is None:
        return found, None
    made = write_model(objects, found.source, metrics=found.metrics, lineage=found.lineage)
    return found, open_model(objects, made)


def values(model: StoredModel | None) -> dict[str, float]:
    assert model is not None
    return {name: float(model[name][0]) for name in model}


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "expected"),
    [
        ({"a": 0, "b": 0}, {"a": 1, "b": 0}, {"a": 0, "b": 2}, {"a": 1, "b": 2}),
        ({"a": 0}, {"a": 0, "x": 1}, {"a": 0, "y": 2}, {"a": 0, "x": 1, "y": 2}),
        ({"a": 0, "b": 0}, {"a": 0}, {"a": 1, "b": 0}, {"a": 1}),
        ({"a": 0, "b": 0, "c": 0}, {"a": 5, "b": 1, "c": 0}, {"a": 5, "b": 0, "c": 1},
         {"a": 5, "b": 1, "c": 1}),
    ],
)  # fmt: skip
def test_what_one_side_changed_or_both_alike_is_taken(
    base: Any, ours: Any, theirs: Any, expected: Any
) -> None:
    found, model = joined(base, ours, theirs)
    assert found.contests == []
    assert values(model) == expected
    assert model is not None
    assert model.metrics == {}


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "told"),
    [
        ({"a": 0}, {"a": 1}, {"a": 2}, "ours moved 100.00% by L2 4.47; theirs moved 100.00%"),
        ({"a": 0}, {}, {"a": 2}, "ours removed; theirs moved"),
        (None, {"a": 1}, {"a": 2}, "tensor 'a' changed on both sides"),
        ({}, {"a": 1}, {"a": 2}, "ours added; theirs added"),
    ],
)
def test_what_both_changed_is_contested_and_says_how_far(
    base: Any, ours: Any, theirs: Any, told: str
) -> None:
    found, _ = joined(base, ours, theirs)
    (contest,) = found.contests
    assert contest.details["tensor"] == "a"
    assert told in contest.details["line"]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("ours", {"a": 1, "b": 7, "c": 8}),
        ("theirs", {"a": 3, "b": 7, "c": 8}),
        ("average", {"a": 2, "b": 7, "c": 8}),
        ("slerp", {"a": 2, "b": 7, "c": 8}),
        ("task-arithmetic", {"a": 4, "b": 7, "c": 8}),
        ("ties", {"a": 2, "b": 7, "c": 8}),
    ],
)
def test_a_strategy_settles_what_is_contested_and_no_more(strategy: str, expected: Any) -> None:
    found, model = joined(
        {"a": 0, "b": 0, "c": 0}, {"a": 1, "b": 7, "c": 0}, {"a": 3, "b": 0, "c": 8}, strategy
    )
    assert values(model) == expected
    assert [edge.details["strategy"] for edge in found.lineage] == [strategy, strategy]


@pytest.mark.parametrize(
    ("strategy", "base", "ours", "theirs"),
    [
        ("ties", None, {"a": 1}, {"a": 2}),
        ("average", {"a": 0}, {}, {"a": 2}),
        ("unheard", {"a": 0}, {"a": 1}, {"a": 2}),
    ],
)
def test_what_a_strategy_cannot_settle_stays_contested(
    strategy: str, base: Any, ours: Any, theirs: Any
) -> None:
    found, model = joined(base, ours, theirs, strategy)
    assert len(found.contests) == 1
    assert model is None


def test_a_tensor_of_another_shape_is_not_blended() -> None:
    objects = MemoryObjects()
    base, ours, theirs = (
        stored({"a": np.ones(shape)}, objects) for shape in ((9, 4), (4, 9), (3, 12))
    )
    found = join_models("models/m", Versions(base, ours, theirs), "average")
    assert "its shape or type changed" in found.contests[0].details["line"]
    assert found.contests[0].details["ours"] == {"retyped": ["F64", [4, 9]]}


@pytest.mark.parametrize(("strategy", "side"), [("ours", "ours"), ("theirs", "theirs")])
def test_a_side_of_which_everything_is_taken_is_taken_as_it_is(strategy: str, side: str) -> None:
    found, model = joined({"a": 0}, {"a": 1}, {"a": 2}, strategy)
    assert (found.side, model) == (side, None)


def test_files_and_settings_are_joined_by_name() -> None:
    files = [{"c": b"0", "d": b"0"}, {"c": b"1", "d": b"0"}, {"c": b"0", "d": b"2"}]
    metadata = [{"k": 0, "recipe": {"method": "x"}}, {"k": 0, "n": 1}, {"k": 5}]
    _, model = joined(SAME, SAME, SAME, files=files, metadata=metadata)
    assert model is not None
    assert {name: b"".join(model.file_chunks(name)) for name in model.files} == {
        "c": b"1", "d": b"2",
    }  # fmt: skip
    assert model.metadata == {"k": 5, "n": 1}


@pytest.mark.parametrize(
    ("strategy", "expected"), [("ours", b"1"), ("theirs", b"2"), ("average", b"1")]
)
def test_a_file_that_both_changed_is_contested(strategy: str, expected: bytes) -> None:
    files = [{"c": b"0", "d": b"0"}, {"c": b"1", "d": b"0"}, {"c": b"2", "d": b"0"}]
    found, _ = joined(SAME, SAME, SAME, files=files)
    assert found.contests[0].details == {"file": "c", "line": "file 'c' changed on both sides"}
    ours, theirs = {"a": 1, "b": 0}, {"a": 0, "b": 1}
    _, model = joined({"a": 0, "b": 0}, ours, theirs, strategy, files=files)
    assert model is not None
    assert b"".join(model.file_chunks("c")) == expected


def test_metrics_stay_with_tensors_that_they_were_measured_of() -> None:
    files = [{"c": b"0"}, {"c": b"0"}, {"c": b"1"}]
    _, model = joined({"a": 0}, {"a": 1}, {"a": 0}, files=files, metrics=[{}, {"x": 1}, {"x": 2}])
    assert model is not None
    assert model.metrics == {"x": 1}
    assert [edge.relation for edge in model.lineage] == ["merged-from", "merged-from"]


def test_ties_that_both_sides_have_stay() -> None:
    objects = MemoryObjects()

    def tied(value: float, other: float) -> StoredModel:
        weight = np.full(100, value)
        return stored({"a": weight, "b": weight, "c": np.full(9, other)}, objects)

    found = join_models("m", Versions(tied(0, 0), tied(1, 0), tied(0, 1)), "fail")
    assert found.source is not None
    assert found.source.aliases == {"b": "a"}
    assert set(found.source.tensors) == {"a", "c"}


@pytest.mark.parametrize("swapped", [False, True])
def test_a_tie_that_one_side_made_stays(swapped: bool) -> None:
    objects = MemoryObjects()
    weight = np.zeros(100)
    base = stored({"a": weight, "b": weight.copy(), "c": np.ones(9)}, objects)
    tied = stored({"a": weight, "b": weight, "c": np.ones(9)}, objects)
    moved = stored({"a": weight, "b": weight.copy(), "c": np.zeros(9)}, objects)
    sides = (moved, tied) if swapped else (tied, moved)
    found = join_models("m", Versions(base, *sides), "fail")
    assert found.source is not None
    assert found.source.aliases == {"b": "a"}


def test_a_tie_goes_where_the_other_side_moved_its_tensor() -> None:
    objects = MemoryObjects()
    weight = np.zeros(100)
    base = stored({"a": weight, "b": weight.copy()}, objects)
    tied = stored({"a": weight, "b": weight}, objects)
    moved = stored({"a": np.ones(100), "b": weight.copy()}, objects)
    assert join_models("m", Versions(base, tied, moved), "fail").side == "theirs"


def test_a_tie_is_a_change_by_itself() -> None:
    objects = MemoryObjects()
    weight = np.zeros(100)
    apart = stored({"a": weight, "b": weight.copy()}, objects)
    tied = stored({"a": weight, "b": weight}, objects)
    assert join_models("m", Versions(apart, apart, tied), "fail").side == "theirs"
    assert join_models("m", Versions(tied, tied, apart), "fail").side == "theirs"


def test_only_some_contested_tensors_are_measured() -> None:
    names = [f"t{at:02}" for at in range(25)]
    found, _ = joined(*(dict.fromkeys(names, value) for value in (0, 1, 2)))
    assert len(found.contests) == 25
    assert sum("ours" in contest.details for contest in found.contests) == 20


def test_a_counter_that_both_sides_changed_is_ours_where_weights_are_blended() -> None:
    objects = MemoryObjects()
    sides = [
        stored({"w": np.full(20, value), "step": np.array([at])}, objects)
        for at, value in enumerate((0.0, 1.0, 3.0))
    ]
    versions = Versions(sides[0], sides[1], sides[2])
    assert len(join_models("models/m", versions, "fail").contests) == 2
    found = join_models("models/m", versions, "average")
    assert found.source is not None
    model = open_model(objects, write_model(objects, found.source))
    assert (model["w"][0], model["step"][0]) == (2, 1)

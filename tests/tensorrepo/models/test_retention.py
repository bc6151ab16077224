"""Keep says which checkpoints go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.models.checkpointer import RetentionPolicy
from tensorrepo.repo.errors import InvalidInputError

LOSSES = {step: {"loss": loss} for step, loss in ((10, 0.5), (20, 0.1), (30, 0.9), (40, 0.4))}


def test_the_newest_are_kept() -> None:
    assert RetentionPolicy(last=2).expired(LOSSES) == [10, 20]


def test_multiples_are_kept_for_good() -> None:
    assert RetentionPolicy(last=1, every=20).expired(LOSSES) == [10, 30]


@pytest.mark.parametrize(("mode", "kept"), [("min", 20), ("max", 30)])
def test_the_best_is_kept(mode: str, kept: int) -> None:
    expired = RetentionPolicy(last=1, best="loss", mode=mode).expired(LOSSES)  # type: ignore[arg-type]  # a parameter
    assert {10, 20, 30, 40} - set(expired) == {kept, 40}


def test_nothing_goes_without_a_limit() -> None:
    assert RetentionPolicy(last=None).expired(LOSSES) == []


def test_nan_and_missing_metrics_are_never_best() -> None:
    metrics = {1: {"loss": float("nan")}, 2: {}, 3: {"loss": 7.0}, 4: {"loss": 8.0}}
    assert RetentionPolicy(last=1, best="loss").expired(metrics) == [1, 2]


def test_of_equal_ones_the_newest_is_best() -> None:
    metrics = {1: {"loss": 1.0}, 2: {"loss": 1.0}, 3: {"loss": 2.0}}
    assert RetentionPolicy(last=1, best="loss").expired(metrics) == [1]


@given(st.dictionaries(st.integers(0, 99), st.fixed_dictionaries({"m": st.floats()})), st.data())
def test_the_newest_always_stays(metrics: dict[int, dict[str, float]], data: st.DataObject) -> None:
    keep = RetentionPolicy(
        last=data.draw(st.integers(1, 5)),
        every=data.draw(st.none() | st.integers(1, 50)),
        best=data.draw(st.sampled_from([None, "m"])),
        best_count=data.draw(st.integers(1, 3)),
    )
    assert max(metrics, default=None) not in keep.expired(metrics)


@pytest.mark.parametrize("wrong", [{"last": 0}, {"every": 0}, {"best_count": 0}, {"mode": "less"}])
def test_nonsense_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(wrong))):
        RetentionPolicy(**wrong)  # type: ignore[arg-type]  # nonsense


def test_steps_above_the_one_saved_are_of_another_past() -> None:
    keep = RetentionPolicy(last=2, every=40, best="loss", mode="max")
    assert keep.expired({**LOSSES, 25: {"loss": 0.2}}, 25) == [30, 40]  # 10 is the best


@given(st.sets(st.integers(0, 99), min_size=1), st.integers(1, 5), st.data())
def test_the_one_saved_always_stays(steps: set[int], last: int, data: st.DataObject) -> None:
    saved = data.draw(st.sampled_from(sorted(steps)))
    kept = steps - set(RetentionPolicy(last=last).expired({step: {} for step in steps}, saved))
    assert max(kept) == saved


def test_all_are_kept_where_all_are_wanted_also_those_of_another_past() -> None:
    assert RetentionPolicy(last=None).expired(LOSSES, 20) == []

"""Progressive evaluations: the same best as of whole weights, by fewer bytes."""

from __future__ import annotations

from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo.intervals import accuracy, cross_entropy
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.verbs.progressive import _Contender, undecided
from tests.support.effort import sampled, sampled_product

RNG = np.random.default_rng(2)
X = RNG.normal(size=(200, 64)).astype("f4")
TRUE = RNG.normal(size=(64, 10))
Y = (X @ TRUE).argmax(1)
NAMES = [f"m{at}" for at in range(10)]
SPLIT = np.concatenate([np.eye(64), -np.eye(64)], 1)


def weights(noise: float, seed: int) -> dict[str, Any]:
    """An MLP that computes the truth, more or less: relu(x) and relu(-x), then the scores."""
    rng = np.random.default_rng(seed)
    tuned = TRUE + rng.normal(size=TRUE.shape) * noise
    first = SPLIT + rng.normal(size=SPLIT.shape) * 0.001
    return {"a": first.astype("f4"), "b": np.concatenate([tuned, -tuned]).astype("f4")}


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction() as tx:
        tx.create_dataset("test", {"x": list(X), "y": Y})
    for at, name in enumerate(NAMES):
        with made.transaction() as tx:
            tx.save_model(name, weights(0.2 + 0.25 * at, at))
    return made


def scores_of(model: Any, data: Any) -> tuple[Any, Any]:
    rows = data.to_numpy()
    return np.maximum(np.stack(rows["x"]) @ model["a"], 0) @ model["b"], rows["y"]


def right(model: Any, data: Any) -> Any:
    return accuracy(*scores_of(model, data))


def loss(model: Any, data: Any) -> Any:
    return cross_entropy(*scores_of(model, data))


def names(scores: Any) -> list[str]:
    return [score.candidate.model.name for score in scores]


@sampled_product("asked,keep", [(right, "max"), (loss, "min")], [1, 3, 10], dev=1)
def test_bounds_find_the_best_and_their_order(
    repo: tr.Repository, asked: tuple[Any, str], keep: int
) -> None:
    metric, mode = asked
    whole = repo.evaluate(NAMES, data="test", metric=metric, mode=mode, keep=keep, name="whole")
    found = repo.evaluate(
        NAMES, data="test", metric=metric, mode=mode, keep=keep, progressive="bounds"
    )
    assert names(found.kept) == names(whole.kept)
    exact = {score.candidate.model.name: score.metrics[metric.__name__] for score in whole}
    for score in found:
        low, high = score.bounds
        # Whole scores are of float32; those of the bounds are of float64.
        assert low - 1e-4 <= exact[score.candidate.model.name] <= high + 1e-4


def test_fewer_bytes_are_read_where_models_lie_apart(repo: tr.Repository) -> None:
    found = repo.evaluate(NAMES, data="test", metric=right, keep=1, progressive="bounds")
    assert found.read_bytes < 0.6 * found.whole_bytes
    assert found.read_bytes == sum(score.read_bytes for score in found)
    assert "of weights read>" in repr(found)
    assert found.scores[-1].outcome == "bounded"


@pytest.mark.soak
def test_models_that_are_near_are_read_whole(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        near = weights(0.2, 0)
        near["b"][0, 0] += np.float32(1e-4)
        tx.save_model("twin", near)
    found = repo.evaluate(
        ["m0", "twin"], data="test", metric=loss, mode="min", progressive="bounds"
    )
    assert {score.outcome for score in found} == {"scored"}
    assert {score.bounds[0] == score.bounds[1] for score in found} == {True}
    exact = {
        name: float(cross_entropy(*scores_of(_Double(repo.model(name)), repo.dataset("test"))))
        for name in ("m0", "twin")
    }
    assert names(found)[0] == min(exact, key=exact.__getitem__)


class _Double:
    def __init__(self, model: Any) -> None:
        self._model = model

    def __getitem__(self, name: str) -> Any:
        return self._model[name].astype("f8")


@pytest.mark.soak
def test_what_is_known_is_not_read_again(repo: tr.Repository) -> None:
    options: dict[str, Any] = {"data": "test", "metric": right, "progressive": "bounds"}
    first = repo.evaluate(NAMES, keep=1, **options)
    again = repo.evaluate(NAMES, keep=1, **options)
    assert again.read_bytes == 0
    assert names(again.kept) == names(first.kept)
    # More may be undecided of the same bounds; only those are read.
    more = repo.evaluate(NAMES, keep=9, **options)
    assert more.read_bytes < more.whole_bytes
    run = repo.runs()[first.scores[-1].run]
    assert run.metrics["bounds/low"] <= run.metrics["bounds/high"]
    assert {edge.relation for edge in run.inputs} == {"used", "evaluated-on"}


@pytest.mark.soak
def test_little_memory_reads_again_and_finds_the_same(repo: tr.Repository) -> None:
    options: dict[str, Any] = {"data": "test", "metric": loss, "mode": "min", "keep": 10}
    wide = repo.evaluate(NAMES, **options, progressive="bounds", name="wide")
    tight = repo.evaluate(NAMES, **options, progressive="bounds", memory=1, name="tight")
    assert names(tight.kept) == names(wide.kept)
    assert wide.read_bytes <= wide.whole_bytes
    assert tight.read_bytes >= wide.read_bytes


@pytest.mark.soak
def test_estimates_of_any_metric_keep_what_was_scored_whole(repo: tr.Repository) -> None:
    def plain(model: Any, data: Any) -> float:
        scores, labels = scores_of(model, data)
        return float((np.asarray(scores).argmax(1) == labels).mean())

    whole = repo.evaluate(NAMES, data="test", metric=plain, keep=2, name="whole")
    found = repo.evaluate(
        NAMES, data="test", metric=plain, keep=2, progressive="estimates", confidence=0.75
    )
    assert names(found.kept) == names(whole.kept)
    assert [score.metrics for score in found.kept] == [score.metrics for score in whole.kept]
    assert sum(bool(score.metrics) for score in found) >= 3
    assert any(score.outcome == "bounded" for score in found)
    few = repo.evaluate(NAMES[:4], data="test", metric=plain, progressive="estimates", name="few")
    assert {score.outcome for score in few} == {"scored"}


def test_a_metric_that_loses_the_bounds_is_told(repo: tr.Repository) -> None:
    def middle(model: Any, _data: Any) -> float:
        return float(model["a"].low.sum()) if hasattr(model["a"], "low") else 0.0

    def compared(model: Any, _data: Any) -> Any:
        return (model["a"] > 0).mean()

    found = repo.evaluate(NAMES[:2], data="test", metric=middle, progressive="bounds")
    assert "what it lost cannot be bounded" in str(found.failed[0].error)
    found = repo.evaluate(NAMES[:2], data="test", metric=compared, progressive="bounds")
    assert "have no greater" in str(found.failed[0].error)
    assert len(found.failed) == 2


def test_a_condition_needs_every_score(repo: tr.Repository) -> None:
    with pytest.raises(InvalidInputError, match="leave out progressive="):
        repo.evaluate(
            NAMES, data="test", metric=right, keep='m["right"] > 0.5', progressive="bounds"
        )


@pytest.mark.soak
@pytest.mark.parametrize("progressive", sampled(["bounds", "estimates"], 1))
def test_of_several_metrics_one_orders(repo: tr.Repository, progressive: str) -> None:
    def several(model: Any, data: Any) -> dict[str, Any]:
        return {"right": right(model, data), "loss": loss(model, data)}

    options: dict[str, Any] = {"data": "test", "metric": several, "progressive": progressive}
    with pytest.raises(InvalidInputError, match="say which orders them, as by='loss'"):
        repo.evaluate(NAMES, confidence=0.5, **options)
    found = repo.evaluate(NAMES, by="loss", mode="min", confidence=0.5, **options)
    assert names(found.kept) == ["m0"]


@pytest.mark.soak
def test_one_model_alone_has_bounds(repo: tr.Repository) -> None:
    (score,) = repo.evaluate(["m0"], data="test", metric=right, progressive="bounds")
    assert 0 <= score.bounds[0] <= score.bounds[1] <= 1


def test_nan_is_never_kept(repo: tr.Repository) -> None:
    def nothing(_model: Any, _data: Any) -> float:
        return nan

    with repo.transaction() as tx:
        tx.save_model("tiny", {"a": np.float32([1])})
    found = repo.evaluate(["tiny"], data="test", metric=nothing, progressive="bounds")
    assert found.kept == ()


ENDS = st.tuples(st.integers(0, 12), st.integers(0, 4), st.booleans())


def contender(low: int, width: int, exact: bool) -> _Contender:
    made = _Contender(None, None, 1)  # type: ignore[arg-type]
    made.low, made.high, made.is_exact = low, low if exact else low + width, exact
    return made


@given(st.lists(ENDS, max_size=8), st.integers(1, 4), st.data())
def test_where_nothing_is_undecided_any_numbers_give_the_same_best(
    ends: list[tuple[int, int, bool]], count: int, data: st.DataObject
) -> None:
    made = [contender(*each) for each in ends]
    waiting = undecided(made, count)
    assert not any(one.is_exact for one in waiting)
    if waiting:
        return
    drawn = [data.draw(st.integers(int(one.low), int(one.high))) for one in made]
    order = sorted(range(len(made)), key=lambda at: -drawn[at])
    by_low = sorted(range(len(made)), key=lambda at: -made[at].low)
    assert [drawn[at] for at in order[:count]] == [drawn[at] for at in by_low[:count]]


def test_bounds_that_are_unknown_leave_all_undecided() -> None:
    made = [_Contender(None, None, -1) for _ in range(3)]  # type: ignore[arg-type]
    assert len(undecided(made, 1)) == 3
    made[0].learn(1.0, 2.0, exact=False)
    assert (made[0].low, made[0].high) == (-2.0, -1.0)
    made[1].learn(nan, nan, exact=True)
    assert (made[1].low, made[1].high) == (-inf, -inf)

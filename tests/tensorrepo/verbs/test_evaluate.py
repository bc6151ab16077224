"""Evaluations: scores by runs, what is known, failures, and models that are kept."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

NAMES = ["m0", "m1", "m2", "m3"]
X = np.random.default_rng(0).normal(size=(60, 4)).astype("f4")
CALLS: list[str] = []


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction() as tx:
        tx.create_dataset("test", {"x": list(X), "y": (X[:, 0] > 0).astype(int)})
        tx.create_dataset("train", {"x": list(X[::-1]), "y": (X[::-1, 0] > 0).astype(int)})
    for at, name in enumerate(NAMES):
        weights = np.random.default_rng(at).normal(size=(2, 4)).astype("f4") * 0.3
        weights[1, 0] += at
        with made.transaction() as tx:
            tx.save_model(name, {"fc.weight": weights})
    CALLS.clear()
    return made


def accuracy(model: Any, data: Any) -> float:
    rows = data.to_numpy()
    scores = np.stack(rows["x"]) @ np.asarray(model["fc.weight"]).T
    return float((scores.argmax(1) == rows["y"]).mean())


def noted(model: Any, data: Any) -> float:
    CALLS.append(model.name)
    return accuracy(model, data)


def train(model: Any, config: dict[str, Any], data: Any) -> dict[str, Any]:
    """Weights that are right by a setting's sign."""
    if config["rate"] == 0:
        raise FloatingPointError("the rate is nought")
    weights = np.zeros((2, 4), "f4") if model is None else np.array(model["fc.weight"])
    assert data is None or len(data) == 60
    weights[1] += np.float32([config["rate"], 0, 0, 0])
    return {"fc.weight": weights}


def values(found: Any) -> dict[str, float]:
    return {score.candidate.name: next(iter(score.metrics.values())) for score in found}


def test_the_best_are_those_that_sorting_all_scores_gives(repo: tr.Repository) -> None:
    found = repo.evaluate(NAMES, data="test", metric=accuracy, keep=2)
    data = repo.dataset("test")
    expected = {f"models/{name}": accuracy(repo.model(name), data) for name in NAMES}
    assert values(found) == expected
    order = sorted(expected, key=expected.__getitem__, reverse=True)
    assert [score.candidate.name for score in found] == order
    assert [score.candidate.name for score in found.kept] == order[:2]
    assert repr(found) == "<evaluation by accuracy: 4 candidates, 2 kept>"
    least = repo.evaluate(NAMES, data="test", metric=accuracy, keep=1, mode="min").kept
    assert [score.candidate.name for score in least] == order[-1:]


def test_what_was_scored_is_not_scored_again(repo: tr.Repository) -> None:
    # The notes are a value that the function uses: without a version each call makes it another.
    options: dict[str, Any] = {"metric": noted, "version": "1"}
    repo.evaluate(NAMES[:2], data="test", **options)
    assert CALLS == ["m0", "m1"]
    found = repo.evaluate(NAMES[:3], data="test", **options)
    assert CALLS == ["m0", "m1", "m2"]
    assert [score.outcome for score in found].count("known") == 2
    with repo.transaction() as tx:
        tx.dataset("test").delete("y == 0")
    repo.evaluate(NAMES[:1], data="test", **options)
    repo.evaluate(NAMES[:1], data="train", **options)
    repo.evaluate(NAMES[:1], data=repo.dataset("train").filter("y == 1"), **options)
    assert CALLS[3:] == ["m0"] * 3
    repo.evaluate(NAMES[:1], data="train", metric=noted, version="2")
    repo.evaluate(NAMES[:1], data="train", metric=noted, version="2")
    assert CALLS[6:] == ["m0"]
    repo.evaluate(NAMES[:1], data="train", metric=noted)
    assert CALLS[7:] == ["m0"]


def test_one_model_by_two_names_is_scored_once(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.save_model("copy", {"fc.weight": repo.model("m0")["fc.weight"]})
    assert len(repo.evaluate(["m0", "copy"], data="test", metric=noted)) == 1


def test_scores_are_runs_that_say_what_they_are_of(repo: tr.Repository) -> None:
    found = repo.evaluate(["m3"], data="test", metric=accuracy, name="nightly")
    (score,) = found
    run = repo.runs()[score.run]
    assert run.name.startswith("nightly-")
    assert run.metrics == dict(score.metrics)
    assert run.status == "finished"
    edges = {(edge.relation, edge.path, edge.digest) for edge in run.inputs}
    assert ("evaluated-on", "datasets/test", repo.dataset("test").digest) in edges
    assert ("used", "models/m3", repo.model("m3").digest) in edges


def test_a_view_is_told_by_lineage_too(repo: tr.Repository) -> None:
    repo.view("half", sql="SELECT row_id FROM test WHERE y = 1")
    found = repo.evaluate(["m3"], data=repo.view("half"), metric=accuracy)
    (edge,) = [each for each in repo.runs()[found.scores[0].run].inputs if each.relation[0] == "e"]
    assert edge.path == "datasets/test"
    assert edge.details["view"] == "views/half"


def failing(model: Any, data: Any) -> Any:
    if model.name == "m1":
        raise ValueError("no such thing")
    return {"m2": float("nan"), "m3": "text"}.get(model.name, accuracy(model, data))


def test_what_fails_is_told_and_tried_again(repo: tr.Repository) -> None:
    found = repo.evaluate(NAMES, data="test", metric=failing, keep=4)
    assert [score.candidate.name for score in found.kept] == ["models/m0"]
    assert {score.candidate.name: score.error for score in found.failed} == {
        "models/m1": "ValueError: no such thing",
        "models/m3": "InvalidInputError: metric 'failing' is 'text': expected a number, or numbers "
        "by name",
    }
    assert "2 failed" in repr(found)
    assert "no such thing" in str(found)
    run = repo.runs()[found.failed[0].run]
    assert (run.status, run.document.error) == ("failed", "ValueError: no such thing")
    again = repo.evaluate(NAMES, data="test", metric=failing, keep=4)
    assert len(again.failed) == 2
    assert len(repo.runs()[found.failed[0].run].document.attempts) == 2


def several(model: Any, data: Any) -> dict[str, Any]:
    right = accuracy(model, data)
    return {"accuracy": np.float32(right), "loss": np.array(1 - right)}


def test_of_several_metrics_one_orders_or_a_condition_keeps(repo: tr.Repository) -> None:
    with pytest.raises(InvalidInputError, match="say which orders them, as by='loss'"):
        repo.evaluate(NAMES, data="test", metric=several)
    found = repo.evaluate(NAMES, data="test", metric=several, by="loss", mode="min")
    assert found.metric == "loss"
    assert found.kept[0].metrics["accuracy"] == max(each.metrics["accuracy"] for each in found)
    kept = repo.evaluate(
        NAMES, data="test", metric=several, by="loss", keep='m["accuracy"] > 0.8 or m["loss"] > 1'
    ).kept
    assert {one.candidate.name for one in kept} == {
        each.candidate.name for each in found if each.metrics["accuracy"] > 0.8
    }
    assert kept
    with pytest.raises(InvalidInputError, match="DQL, line 1, column 6"):
        repo.evaluate(NAMES, data="test", metric=several, keep="loss < 1")
    with pytest.raises(InvalidInputError, match="gave no 'f1'"):
        repo.evaluate(NAMES, data="test", metric=several, by="f1")


@pytest.mark.soak
def test_trainings_keep_the_best_models(repo: tr.Repository) -> None:
    found = repo.evaluate(
        data="test", metric=accuracy, train=train, train_data="train",
        grid={"rate": [-1, 0, 1, 0.5]}, keep=1, name="grid",
    )  # fmt: skip
    assert [score.candidate.config for score in found.kept] == [{"rate": 1}]
    assert found.failed[0].error == "FloatingPointError: the rate is nought"
    assert [path for path, _ in repo.entries(prefix="models/grid").items()] == [found.kept[0].model]
    kept = repo.model(found.kept[0].model.removeprefix("models/"))
    assert kept.metrics == {"accuracy": 1.0}
    steps = repo.lineage(found.kept[0].model).ancestors().steps
    assert ("made-by", f"runs/{found.kept[0].run}") in {(s.relation, s.origin.path) for s in steps}


@pytest.mark.soak
def test_a_larger_keep_trains_again_what_was_let_go(repo: tr.Repository) -> None:
    options: dict[str, Any] = {
        "data": "test", "metric": accuracy, "train": train, "grid": {"rate": [-1, 1]},
    }  # fmt: skip
    repo.evaluate(**options, keep=1)
    found = repo.evaluate(**options, keep=2)
    assert len(repo.entries(prefix="models/evaluation")) == 2
    assert {score.model for score in found.kept} == set(repo.entries(prefix="models/evaluation"))
    fewer = repo.evaluate(**options, keep=1)
    assert fewer.removed == (found.kept[1].model,)
    assert list(repo.entries(prefix="models/evaluation")) == [fewer.kept[0].model]


@pytest.mark.soak
def test_stored_models_are_tuned_by_each_setting(repo: tr.Repository) -> None:
    found = repo.evaluate(
        ["m0", "m1"], data="test", metric=accuracy, train=train, grid={"rate": [1, 2]}, keep=2
    )
    assert len(found) == 4
    assert found.scores[0].candidate.name.split()[1].startswith("rate=")
    edges = repo.model(found.kept[0].model.removeprefix("models/")).lineage()
    assert "fine-tuned-from" in {edge.relation for edge in edges}


@pytest.mark.parametrize(
    "options",
    [{"workers": 3}, pytest.param({"workers": 2, "executor": "process"}, marks=pytest.mark.soak)],
)
def test_workers_find_the_same(repo: tr.Repository, options: dict[str, Any]) -> None:
    seen: list[tuple[int, int]] = []
    alone = repo.evaluate(NAMES, data="test", metric=accuracy, name="alone")
    found = repo.evaluate(
        NAMES, data="test", metric=accuracy, name="many", progress=lambda *at: seen.append(at),
        **options,
    )  # fmt: skip
    assert values(found) == values(alone)
    assert not multiprocessing.active_children()
    assert seen == [(at, 4) for at in range(5)]
    assert {repo.runs()[score.run].status for score in found} == {"finished"}


@pytest.mark.soak
def test_a_function_that_cannot_be_sent_fails_by_candidate(repo: tr.Repository) -> None:
    def inner(model: Any, data: Any) -> float:
        return accuracy(model, data)

    found = repo.evaluate(NAMES[:2], data="test", metric=inner, executor="process", workers=2)
    assert len(found.failed) == 2
    assert not found.kept


HALTS: set[str] = set()


def interrupted(model: Any, data: Any) -> float:
    if model.name in HALTS:
        raise KeyboardInterrupt
    return noted(model, data)


def test_what_was_cut_off_goes_on(repo: tr.Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.HALTS", {"m1"})
    with pytest.raises(KeyboardInterrupt):
        repo.evaluate(NAMES, data="test", metric=interrupted, version="1")
    assert {run.status for run in repo.runs().values()} == {"finished", "interrupted"}
    monkeypatch.setattr(f"{__name__}.HALTS", set())
    repo.evaluate(NAMES, data="test", metric=interrupted, version="1")
    assert sorted(CALLS) == NAMES


@pytest.mark.together
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"models": []}, InvalidInputError, "nothing to evaluate"),
        ({"models": ["none"]}, NotFoundError, "models/none"),
        ({"data": "none"}, NotFoundError, "datasets/none"),
        ({"data": 3}, InvalidInputError, "data"),
        ({"metric": 3}, InvalidInputError, "metric"),
        ({"keep": 0}, InvalidInputError, "keep"),
        ({"keep": 0.5}, InvalidInputError, "keep"),
        ({"mode": "best"}, InvalidInputError, "mode"),
        ({"workers": 0}, InvalidInputError, "workers"),
        ({"name": "a b"}, InvalidInputError, "run 'a b'"),
        ({"grid": {"x": [1]}}, InvalidInputError, "give train="),
        ({"train": train, "grid": {"x": "ab"}}, InvalidInputError, "a list of values"),
        ({"train": train, "grid": {"x": [object()]}}, InvalidInputError, "object"),
        ({"train": train, "executor": "process"}, InvalidInputError, "trainings run in threads"),
        ({"train": train, "progressive": "bounds"}, InvalidInputError, "progressive"),
        ({"progressive": "x"}, InvalidInputError, "progressive"),
    ],
)
def test_what_cannot_be_evaluated_is_refused(
    repo: tr.Repository, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = {"models": ["m0"], "data": "test", "metric": accuracy} | options
    with pytest.raises(error, match=words):
        repo.evaluate(**given)

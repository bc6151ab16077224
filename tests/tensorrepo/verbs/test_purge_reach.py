"""A purge names what learned from erased data, was made of it, or read it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.shell import ADA

WHERE = "name = 'zebra-quixote'"


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


def tensors(seed: int) -> dict[str, np.ndarray]:
    return {"w": np.random.default_rng(seed).standard_normal(8).astype("f4")}


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    """A dataset whose second version has the row that goes, and what was made of both."""
    repo = tr.init(tmp_path / "store", author=ADA)
    with repo.transaction("main", "people") as tx:
        tx.create_dataset("people", [{"name": f"person {at}", "age": at} for at in range(5)])
        tx.create_dataset("others", [{"age": 1}])
    first = repo.dataset("people")
    with repo.transaction("main", "more") as tx:
        tx.dataset("people").append([{"name": "zebra-quixote", "age": 7}])
    with repo.transaction("main", "made") as tx:
        tx.save_model("before", tensors(1), derived_from=[first])
        tx.save_model("stranger", tensors(2), derived_from=[repo.dataset("others")])
        tx.save_model("learned", tensors(3), derived_from=[repo.dataset("people")])
        tx.create_dataset("ages", [{"age": 7}], derived_from=[repo.dataset("people")])
    with repo.transaction("main", "made of these") as tx:
        tx.save_model("tuned", tensors(4), base=repo.model("learned"))
        tx.save_model("of-ages", tensors(5), derived_from=[repo.dataset("ages")])
        tx.save_model("said", tensors(6), metadata={"notes": ["knows zebra-quixote"]})
    with repo.run("training", params={"who": "zebra-quixote"}):
        batches = repo.dataset("people").stream(batch_size=4, columns=["age"])
        assert sum(len(batch["age"]) for batch in batches) == 6
        with repo.transaction("main", "of a run") as tx:
            tx.save_model("by-run", tensors(7))
    return repo


def test_all_that_learned_from_erased_rows_is_named_and_nothing_else(repo: tr.Repository) -> None:
    beyond = repo.purge_plan("people", where=WHERE).beyond
    told = "\n".join(beyond)
    for name, why in [
        ("learned", "trained-on datasets/people"),
        ("tuned", "fine-tuned-from models/learned"),
        ("of-ages", "trained-on datasets/ages"),
    ]:
        assert f"models/{name} of " in told
        assert f"a model that is {why}" in told
    assert "models/by-run of " in told
    assert "datasets/ages, made of datasets/people: name it too" in told
    assert "runs/training" in told
    assert "a run that read datasets/people" in told
    for name in ("before", "stranger"):
        assert f"models/{name}" not in told
    assert len(set(beyond)) == len(beyond)


def test_words_of_models_and_runs_that_repeat_an_erased_text_are_named(
    repo: tr.Repository,
) -> None:
    told = "\n".join(repo.purge_plan("people", where=WHERE).beyond)
    assert "models/said of " in told
    assert "a model whose metadata or lineage repeats an erased text" in told
    assert "a run whose metadata or lineage repeats an erased text" in told


def test_a_second_purge_names_who_learned_before_the_first(repo: tr.Repository) -> None:
    repo.purge("people", where=WHERE, reason="request 17")
    told = "\n".join(repo.purge_plan("people", where="age = 2").beyond)
    for name in ("before", "learned", "tuned", "by-run"):
        assert f"models/{name} of " in told


def test_models_of_a_model_that_loses_a_tensor_are_named_down_to_the_last(
    repo: tr.Repository,
) -> None:
    with repo.transaction("main", "last") as tx:
        tx.save_model("last", tensors(8), base=repo.model("tuned"))
    told = "\n".join(repo.purge_plan("learned", tensors=["w"]).beyond)
    assert "models/tuned of " in told
    assert "models/last of " in told
    assert "a model that is fine-tuned-from models/tuned" in told
    assert "models/of-ages" not in told

"""F27: lineage says which rows were chosen, and counts as seen no others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell


@pytest.fixture
def repo(shell: Shell) -> tr.Repository:
    repository = shell.repository()
    numbers = np.arange(100)
    with repository.transaction(message="Rows") as tx:
        tx.create_dataset("d", columns={"n": "int64", "y": "int64"}).append(
            {"n": numbers, "y": numbers % 2}
        )
    return repository


def train(repo: tr.Repository, name: str, batches: Any) -> None:
    with repo.run(name) as run:
        for _ in batches:
            pass
        run.save_model(name, {"w": np.zeros(3, "f4")})


def gone(repo: tr.Repository) -> dict[str, int | None]:
    """Models that saw rows which are deleted, and how many."""
    with repo.transaction(message="Consent withdrawn") as tx:
        tx.dataset("d").delete("y == 0 and n < 10")
    return {each.model.path: each.deleted for each in repo.lineage("d").saw_deleted()}


def test_a_condition_is_kept_as_text_and_models_that_saw_none_are_not_named(
    repo: tr.Repository,
) -> None:
    ds = repo.dataset("d")
    train(repo, "odd", ds.stream(batch_size=10, sampling=tr.Sampling(where="y == 1")))
    train(repo, "even", ds.filter(tr.col("y") == 0).stream(batch_size=10))
    train(repo, "all", ds.stream(batch_size=10))
    assert "where y == 0" in "\n".join(repo.lineage("models/even").ancestors().lines())
    assert gone(repo) == {"models/all": 5, "models/even": 5}


def test_splits_views_and_torch_are_counted_by_their_own_rows(repo: tr.Repository) -> None:
    ds = repo.dataset("d")
    part = ds.split({"a": 0.5, "b": 0.5})["a"]
    with repo.transaction() as tx:
        tx.create_view("odd", ds.filter("y == 1"))
    train(repo, "split", part.stream(batch_size=10))
    train(repo, "view", repo.view("odd").stream(batch_size=10))
    train(repo, "torch", ds.filter("y == 1").torch())
    deleted = len(part.filter("y == 0 and n < 10"))
    # Ids of rows are drawn, so that once in 32 times none of the five is on this side.
    assert Counter(gone(repo)) == Counter({"models/split": deleted})


def test_what_a_model_was_trained_on_may_be_a_selection(repo: tr.Repository) -> None:
    chosen = repo.dataset("d").filter("y == 0 and n < 4")
    with repo.transaction() as tx:
        tx.save_model("net", {"w": np.ones(3, "f4")}, derived_from=chosen)
    assert gone(repo) == {"models/net": 2}


def test_rows_that_no_text_says_count_as_any(repo: tr.Repository) -> None:
    odd = np.arange(100) % 2 == 1
    train(repo, "odd", repo.dataset("d").stream(batch_size=10, sampling=tr.Sampling(rows=odd)))
    assert gone(repo) == {"models/odd": 5}


@pytest.mark.soak
def test_a_condition_by_chance_is_not_believed(repo: tr.Repository) -> None:
    train(
        repo,
        "net",
        repo.dataset("d").stream(batch_size=10, sampling=tr.Sampling(where="random() < 0.5")),
    )
    assert gone(repo) == {"models/net": 5}


def test_a_dataset_made_of_a_selection_says_of_which(repo: tr.Repository) -> None:
    chosen = repo.dataset("d").filter("y == 1")[["n"]]
    with repo.transaction() as tx:
        tx.create_dataset("odd", columns={"n": "int64"}, derived_from=chosen).append(
            chosen.to_arrow()
        )
    (step,) = repo.lineage("datasets/odd").ancestors(depth=1)
    assert (step.origin.path, step.details["where"]) == ("datasets/d", "y == 1")


def test_the_head_of_a_filter_is_told_in_text(repo: tr.Repository) -> None:
    odd = repo.dataset("d").filter("y == 1")
    train(repo, "head", odd.head(5).stream(batch_size=10))
    train(repo, "few", odd.select(rows=slice(2, 4)).stream(batch_size=10))
    (few,) = repo.lineage("runs/few").ancestors(depth=1)
    assert few.details["where"] == "(y == 1) and (row_number >= 5 and row_number <= 7)"
    told = "\n".join(repo.lineage("models/head").ancestors().lines())
    assert "where (y == 1) and (row_number <= 9)" in told
    with repo.transaction() as tx:
        tx.dataset("d").delete("n == 5 or n == 8")
    assert {each.model.path: each.deleted for each in repo.lineage("d").saw_deleted()} == {
        "models/few": 1,
        "models/head": 1,
    }

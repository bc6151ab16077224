"""A job of any number of ranks, killed and resumed as another one, reads what one rank reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.effort import soaking
from tests.support.processes.ranks import notes, run_job

ROWS = 500  # steps of 24, and a last one of 20
STEPS = 21
# Ranks of each job, its steps, and which rank is killed after them; None: all end well.
JOBS: list[tuple[int, int, int | None]] = [(3, 4, 1), (2, 3 * STEPS - 4, None)]
if soaking():
    JOBS = [
        (3, 4, 1),
        (5, 11, 4),
        (1, 8, 0),  # over the end of the first epoch
        (2, 13, 0),
        (4, 3 * STEPS - 36, None),  # to the end of the third
    ]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    repo = tr.init(tmp_path_factory.mktemp("store") / "r", author="Ada <ada@example.org>")
    columns = {"x": tr.Tensor("float32", (16,)), "y": "int64"}
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns=columns).append(
            {"x": np.zeros((ROWS, 16), "f4"), "y": np.arange(ROWS)}, page_bytes=1024
        )
    return repo


def alone(repo: tr.Repository) -> list[tuple[int, list[int]]]:
    """Epoch and rows of each step of three epochs, read by one rank without a stop."""
    stream = repo.dataset("points").stream(
        batch_size=24, sampling=tr.Sampling(window="4kB"), seed=5
    )
    found = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        found += [(epoch, sorted(batch["y"].tolist())) for batch in stream]
    return found


def together(step: dict[str, Any]) -> tuple[int, list[int]]:
    return step["epoch"], sorted(row for rank in step["ranks"] for row in rank)


@pytest.fixture(scope="module")
def steps(repo: tr.Repository, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What ranks read that were killed and resumed as others."""
    folder = tmp_path_factory.mktemp("job")
    for ranks, count, killed in JOBS:
        run_job(folder, repo.url, ranks, steps=count, killed=killed)
    return notes(folder)


def test_ranks_that_are_killed_and_resumed_as_others_read_the_same_steps(
    repo: tr.Repository, steps: list[dict[str, Any]]
) -> None:
    assert [together(step) for step in steps] == alone(repo)
    expected = [ranks for ranks, count, _ in JOBS for _ in range(count)]
    assert [len(step["ranks"]) for step in steps] == expected
    for epoch in range(3):
        rows = Counter(row for each in steps if each["epoch"] == epoch for row in together(each)[1])
        assert rows == Counter(range(ROWS))


def test_shares_of_a_step_differ_by_at_most_one_row(steps: list[dict[str, Any]]) -> None:
    sizes = [[len(rank) for rank in step["ranks"]] for step in steps]
    assert sizes[0] == [8, 8, 8]
    assert all(max(of_step) - min(of_step) <= 1 for of_step in sizes)


# ------------------------------------------------------------------------------ refused


@pytest.fixture
def grown(tmp_path: Path) -> tr.Repository:
    repo = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns={"x": "float32", "y": "int64"}).append(
            {"x": np.zeros(10), "y": np.arange(10)}
        )
    with repo.transaction("main") as tx:
        tx.dataset("points").append({"x": np.zeros(3), "y": np.arange(3)})
    with repo.transaction("main") as tx:
        tx.save_file("notes.txt", b"nothing of the data changes")
    return repo


def test_a_state_of_other_data_is_refused_and_both_commits_are_named(grown: tr.Repository) -> None:
    old, new = grown.dataset("points", "main~2"), grown.dataset("points")
    state = old.stream(batch_size=4).state_dict()
    with pytest.raises(tr.InvalidInputError) as raised:
        new.stream(batch_size=4).load_state_dict(state)
    assert old.commit[:12] in str(raised.value)
    assert new.commit[:12] in str(raised.value)


def test_equal_data_of_another_commit_resumes(grown: tr.Repository) -> None:
    state = grown.dataset("points", "main~1").stream(batch_size=4).state_dict(position=8)
    stream = grown.dataset("points").stream(batch_size=4)
    stream.load_state_dict(state)
    assert [batch.position for batch in stream] == [12, 13]


def test_a_state_of_other_columns_is_refused(grown: tr.Repository) -> None:
    ds = grown.dataset("points")
    state = ds.stream(batch_size=4, columns=["y"]).state_dict()
    with pytest.raises(tr.InvalidInputError, match=r"\['y'\], these are \['x', 'y'\]"):
        ds.stream(batch_size=4).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"epoch": 3}, {"format": "something else"}, "text"], ids=str)
def test_what_is_no_state_is_refused(grown: tr.Repository, state: Any) -> None:
    with pytest.raises(tr.InvalidInputError, match="not a 'tensorrepo stream state"):
        grown.dataset("points").stream(batch_size=4).load_state_dict(state)

"""A transaction that is aborted ends well; what came from a dataset is asked by its name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "store", author="Ada <ada@example.org>")


def test_an_aborted_transaction_commits_nothing_and_raises_nothing(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.create_dataset("d", {"a": [1]})
        tx.abort()
        tx.abort()
    assert (tx.commit, repo.branches()) == (None, {})


def test_a_model_of_an_older_version_came_from_the_dataset(full: Shell) -> None:
    repo = full.repository()
    with repo.transaction(message="train") as tx:
        tx.save_model("of-v1", {"w": np.ones(1, np.float32)}, derived_from=repo.dataset("points"))
    old = repo.dataset("points").digest
    with repo.transaction(message="more") as tx:
        tx.dataset("points").append(repo.dataset("points")[:1])
    assert repo.lineage("points").descendants().paths == ["models/of-v1"]
    assert repo.lineage("points", "main").descendants().paths == []
    assert repo.lineage("points", "v1").descendants().paths == ["models/of-v1"]
    told = full("lineage", "datasets/points", "--down")
    assert "models/of-v1 " in told
    assert f"version {old:.12}" in told


def test_a_file_that_was_checked_out_and_added_is_known_to_be_what_is_stored(full: Shell) -> None:
    full("checkout", "HEAD", "files/notes.txt")
    path = full.folder / "files/notes.txt"
    path.write_text("line two\n")
    assert "files/notes.txt" in full("status").partition("Changed on disk")[2]
    full("add", "files/notes.txt")
    assert "Changed on disk" not in full("status")
    full("commit", "-m", "Two")
    assert "Changed on disk" not in full("status")
    full("checkout", "v1", "files/notes.txt")
    assert path.read_text() == "line one\n"

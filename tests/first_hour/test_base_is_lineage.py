"""F7: a base that was declared is lineage, one that was found is a hint."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensorrepo as tr
from tests.support.processes.shell import Shell


@pytest.fixture
def tuned(shell: Shell) -> Shell:
    """A committed model, and a file of one that was tuned from it."""
    weights = np.random.default_rng(0).normal(size=(256, 256)).astype("f4")
    save_file({"w": weights}, shell.folder / "net.safetensors")
    save_file({"w": weights * np.float32(1.0001)}, shell.folder / "tuned.safetensors")
    shell("add", "net.safetensors", "--model", "net")
    shell("commit", "-m", "A model")
    return shell


def test_a_declared_base_is_where_a_model_came_from(tuned: Shell) -> None:
    tuned("add", "tuned.safetensors", "--model", "tuned", "--base", "net")
    tuned("commit", "-m", "Tuned")
    assert "fine-tuned-from models/net" in tuned("lineage", "models/tuned")
    assert "models/tuned" in tuned("lineage", "models/net", "--down")


def test_a_staged_model_may_be_the_base(tuned: Shell) -> None:
    tuned("add", "net.safetensors", "--model", "other")
    tuned("add", "tuned.safetensors", "--model", "tuned", "--base", "other")
    tuned("commit", "-m", "Both")
    assert "fine-tuned-from models/other" in tuned("lineage", "models/tuned")


def test_a_base_that_was_found_is_a_hint_that_names_it(tuned: Shell) -> None:
    done = tuned.run("add", "tuned.safetensors", "--model", "tuned")
    assert "--base models/net" in done.stderr
    tuned("commit", "-m", "Tuned")
    assert "fine-tuned-from" not in tuned("lineage", "models/tuned")


def test_python_says_so_too(tuned: Shell) -> None:
    repository = tuned.repository()
    weights = dict(repository.model("net").load(output="numpy"))
    with repository.transaction(message="Tuned") as tx:
        tx.save_model("tuned", weights, base="main:models/net")
    (edge,) = repository.model("tuned").stored.lineage
    assert isinstance(repository, tr.Repository)
    assert (edge.relation, edge.path) == ("fine-tuned-from", "models/net")

"""`add --model` against another model: what is said, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.support.processes.shell import Shell

WEIGHT = np.random.default_rng(1).normal(0, 0.02, (300, 400)).astype("f4")
NEAR = WEIGHT + np.random.default_rng(9).normal(0, 1e-6, WEIGHT.shape).astype("f4")


@pytest.fixture
def tuned(full: Shell) -> Shell:
    """A workspace with models/base committed, and tuned.safetensors beside it."""
    save_file({"w": WEIGHT}, full.folder / "base.safetensors")
    save_file({"w": NEAR}, full.folder / "tuned.safetensors")
    full("add", "base.safetensors", "--model", "base")
    full("commit", "-m", "Base")
    return full


def test_a_tuned_model_is_stored_as_a_difference_and_comes_back(tuned: Shell) -> None:
    done = tuned.run("add", "tuned.safetensors", "--model", "tuned", "--base", "base")
    assert "delta" in done.stderr
    assert "stored as differences from models/" in done.stderr
    tuned("commit", "-m", "Tuned")
    tuned("checkout", "main", "models/tuned", "--to", "out")
    (written,) = (tuned.folder / "out").rglob("*.safetensors")
    assert np.array_equal(load_file(written)["w"], NEAR)


def test_a_similar_model_is_found_without_being_named(tuned: Shell) -> None:
    done = tuned.run("add", "tuned.safetensors", "--model", "tuned")
    assert "the most similar model" in done.stderr


def test_a_staged_model_can_be_the_base(tuned: Shell) -> None:
    tuned("add", "tuned.safetensors", "--model", "staged")
    save_file({"w": NEAR + np.float32(1e-6)}, tuned.folder / "more.safetensors")
    done = tuned.run("add", "more.safetensors", "--model", "more", "--base", "staged")
    assert "stored as differences from models/" in done.stderr


@pytest.mark.parametrize(
    ("base", "exit_code", "why"),
    [("nothing", 3, "nothing"), ("points", 2, "not a model"), ("main:models/no", 3, "models/no")],
)
def test_what_is_no_model_is_no_base(tuned: Shell, base: str, exit_code: int, why: str) -> None:
    words = ("add", "tuned.safetensors", "--model", "tuned", "--base", base)
    assert why in tuned.fails(exit_code, *words)


def test_a_dataset_has_no_base(tuned: Shell) -> None:
    told = tuned.fails(2, "add", "points.npz", "--dataset", "p2", "--base", "base")
    assert "--base is for models" in told

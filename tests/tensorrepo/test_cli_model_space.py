"""`du --codecs` and `model similar`, as somebody types them, and the same in Python."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.exchange.checkpoints.safetensors import write_safetensors
from tests.support.builders.models import stored
from tests.support.processes.shell import Shell


def weights(moved: float) -> dict[str, Any]:
    drawn = np.random.default_rng(1).normal(0, 0.02, (300, 400)) + moved
    return {"w": drawn.astype("f4"), "steps": np.array([int(moved * 1e7)])}


@pytest.fixture
def models(shell: Shell) -> Shell:
    """A workspace with models a, b and c, tuned from one another, in commits of their own."""
    for name, moved in {"a": 0, "b": 1e-6, "c": 2e-6}.items():
        write_safetensors(stored(weights(moved)), shell.folder / f"{name}.safetensors")
        shell("model", "add", f"{name}.safetensors", name)
        shell("commit", "-m", name)
    return shell


def test_du_tells_bytes_by_model_by_codec_and_in_all(models: Shell) -> None:
    found = json.loads(models("du", "--codecs", "--json"))
    assert [one["names"] for one in found["models"]] == [
        ["HEAD:models/a"], ["HEAD:models/b"], ["HEAD:models/c"],
    ]  # fmt: skip
    assert found["total"]["logical_bytes"] == 3 * (480_000 + 8)
    assert (
        found["total"]["unique_bytes"] + found["total"]["shared_bytes"]
        == (found["total"]["stored_bytes"])
    )
    assert "inline" in found["codecs"]
    assert {"delta", "low-rank"} & found["codecs"].keys()
    shown = models("du", "--codecs")
    assert "models/a" in shown
    assert "HEAD:" not in shown


def test_du_shows_only_what_was_asked_for(models: Shell) -> None:
    found = json.loads(models("du", "b", "--codecs", "--all", "--json"))
    assert [one["names"] for one in found["models"]] == [["main:models/b"]]
    assert found["total"]["shared_bytes"] > 0
    assert "no entry 'x' in HEAD" in models.fails(3, "du", "x", "--codecs")


def test_similar_ranks_models_and_tells_the_bases(models: Shell) -> None:
    found = json.loads(models("model", "similar", "c", "--json"))
    assert {one["names"][0] for one in found["ranking"]} == {"HEAD:models/a", "HEAD:models/b"}
    assert all(one["alike"] and one["same_architecture"] for one in found["ranking"])
    assert [base["why"] for base in found["bases"]] == ["similar"]
    assert "encoded against" in models("model", "similar", "c", "--all")
    assert "no tensor was encoded" in models("model", "similar", "main:a")


def test_python_tells_the_same(models: Shell) -> None:
    repo = models.repository()
    found = repo.model_usage()
    told = json.loads(models("du", "--codecs", "--json"))
    assert found.total.to_json() == told["total"]
    assert repo.model_usage(every_ref=True).total == found.total
    assert len(repo.model("c").similar().ranking) == 2
    assert len(repo.model("c").similar(every_ref=True).ranking) == 2

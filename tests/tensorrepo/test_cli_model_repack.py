"""`model repack`, as somebody types it, and the same in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.processes.shell import Shell


def weights(step: int) -> dict[str, Any]:
    drawn = np.random.default_rng(1).normal(0, 0.02, (300, 400))
    moved = np.random.default_rng(9 + step).normal(0, 1e-6 * step, drawn.shape)
    return {"w": (drawn + moved).astype("f4")}


@pytest.fixture
def whole(shell: Shell) -> Shell:
    """Three branches, each with a model that was stored whole: it saw none of the others."""
    repo = shell.repository()
    for step in range(3):
        with repo.transaction(f"step{step}", f"step {step}") as change:
            change.save_model("net", weights(step))
    repo.close()
    return shell


def bits(shell: Shell) -> list[bytes]:
    repo = shell.repository()
    return [repo.model("net", f"step{step}")["w"].tobytes() for step in range(3)]


def test_a_dry_run_tells_and_changes_nothing(whole: Shell) -> None:
    before = whole.snapshot()
    told = whole.json("model", "repack", "--dry-run", "--depth", "0")
    assert (told["models"], told["superseded"]) == (3, {})
    assert "could be about" in whole("model", "repack", "net", "--dry-run")
    assert whole.snapshot() == before


def test_where_nothing_can_be_saved_it_exits_with_1(whole: Shell) -> None:
    whole("model", "repack", "--alpha", "50")
    assert whole.run("model", "repack", "--alpha", "50").exit_code == 1
    assert whole.run("model", "repack", "nowhere").exit_code == 1


def test_impossible_wishes_are_refused(whole: Shell) -> None:
    assert "alpha 0.5" in whole.fails(2, "model", "repack", "--alpha", "0.5")
    assert "depth 99" in whole.fails(2, "model", "repack", "--depth", "99")


def test_models_that_were_stored_whole_become_deltas(whole: Shell) -> None:
    told = whole.json("model", "repack", "--alpha", "50")
    assert told["stored_bytes"] < 0.8 * told["present_bytes"]
    assert told["reclaimable_bytes"] == told["present_bytes"]
    assert len(told["superseded"]) == 3
    assert bits(whole) == [weights(step)["w"].tobytes() for step in range(3)]
    assert "repack" in whole("model", "similar", "step2:net", "--all") + whole(
        "model", "similar", "step0:net", "--all"
    )


def test_people_are_told_what_is_reclaimable(whole: Shell) -> None:
    assert "reached by nothing any more" in whole("model", "repack", "--alpha", "50")
    again = str(whole.run("model", "repack", "--alpha", "50").stdout)
    assert "nothing to save; new packs would take no less than" in again


def test_python_does_the_same(whole: Shell) -> None:
    repo = whole.repository()
    assert not repo.repack_models(["net"], alpha=50, dry_run=True).changed
    assert repo.repack_models(["net"], alpha=50).changed
    assert bits(whole) == [weights(step)["w"].tobytes() for step in range(3)]

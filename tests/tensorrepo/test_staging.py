"""What is staged is there when it is committed, whatever a collector did meanwhile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.workspace.add import _note as note_unfinished
from tensorrepo.workspace.staging import stage
from tests.support.processes.shell import Shell
from tests.support.reference.collector import condemn, delete

WEIGHTS = np.random.default_rng(1).normal(0, 0.02, (300, 400)).astype("f4")
TUNED = WEIGHTS + np.float32(1e-6)


@pytest.fixture
def models(shell: Shell) -> Shell:
    save_file({"w": WEIGHTS, "kept": WEIGHTS[:200] * 2}, shell.folder / "one.safetensors")
    save_file({"w": TUNED, "kept": WEIGHTS[:200] * 2}, shell.folder / "two.safetensors")
    return shell


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that were condemned after an `add` had stored its objects, and before its lease."""
    keys: list[str] = []

    def staged(session: Any, *words: Any) -> None:
        keys.extend(condemn(session.repository))
        stage(session, *words)

    monkeypatch.setattr("tensorrepo.workspace.staging.stage", staged)
    return keys


def lose_lease(shell: Shell) -> None:
    """Somebody closes every lease, as when it has expired."""
    core = shell.repository().context.core
    leases = core.log.refresh().state.leases
    closed = [LogEntry("0" * 32, "lease-close", "x", 0, data={"id": one}) for one in leases]
    append(core.log, lambda _: tuple(closed))


def depths(shell: Shell, name: str) -> set[int]:
    """Through how many bases the members that a model needs are read."""
    members = shell.repository().model(name).stored.packs.members.entries.values()
    return {one.depth for one in members}


def test_a_collection_before_the_lease_does_not_take_what_is_committed(
    models: Shell, collected: list[str]
) -> None:
    models("add", "one.safetensors", "--model", "one")
    models("commit", "-m", "One")
    assert collected
    delete(models.repository().context.core, collected)
    assert np.array_equal(models.repository().model("one")["w"], WEIGHTS)


def test_nor_one_before_the_checkpoint_of_a_long_add_that_went_on(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    def cut_off(session: Any, request: Any, unfinished: Any) -> None:
        keys.extend(condemn(session.repository))
        note_unfinished(session, request, unfinished)
        raise KeyboardInterrupt

    np.save(shell.folder / "rows.npy", np.arange(40_000.0))
    monkeypatch.setattr("tensorrepo.workspace.add.CHECKPOINT_BYTES", 64 << 10)
    monkeypatch.setattr("tensorrepo.workspace.add._note", cut_off)
    shell.run("add", "rows.npy", "--dataset", "rows")
    monkeypatch.setattr("tensorrepo.workspace.add._note", note_unfinished)
    assert "went on behind" in shell.run("add", "rows.npy", "--dataset", "rows").output
    shell("commit", "-m", "Rows")
    delete(shell.repository().context.core, keys)
    assert len(shell.repository().dataset("rows")[:]["rows"]) == 40_000


def test_an_add_that_dies_behind_its_lease_takes_nothing_from_what_is_staged(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: Any) -> None:
        raise KeyboardInterrupt

    notes = shell.folder / "notes.txt"
    notes.write_text("first")
    shell("add", "notes.txt", "--file", "notes.txt", "--replace")
    notes.write_text("second")
    with monkeypatch.context() as patch:
        patch.setattr("tensorrepo.workspace.state.Workspace.write_staging", cut_off)
        assert shell.run("add", "notes.txt", "--file", "notes.txt", "--replace").exit_code == 130
    core = shell.repository().context.core
    delete(core, condemn(core))
    shell("commit", "-m", "What was staged")
    assert shell("cat", "files/notes.txt") == "first"


def test_a_lease_lets_go_of_what_was_staged_before_with_the_next_change(shell: Shell) -> None:
    def kept() -> int:
        (lease,) = shell.repository().context.core.log.refresh().state.leases.values()
        return len(lease.keep)

    for text in ("first", "second", "third"):
        (shell.folder / "notes.txt").write_text(text)
        shell("add", "notes.txt", "--file", "notes.txt", "--replace")
        assert kept() == (1 if text == "first" else 2)


def test_models_that_are_added_before_a_commit_share_what_they_can(models: Shell) -> None:
    models("add", "one.safetensors", "--model", "one")
    assert (
        "stored as differences from"
        in models.run("add", "two.safetensors", "--model", "two").output
    )
    models("commit", "-m", "Both")
    assert depths(models, "two") == {0, 1}
    assert np.array_equal(models.repository().model("two")["w"], TUNED)


def test_a_model_keeps_what_it_is_the_difference_from_when_that_is_unstaged(models: Shell) -> None:
    models("add", "one.safetensors", "--model", "one")
    models("add", "two.safetensors", "--model", "two")
    models("restore", "--staged", "models/one")
    core = models.repository().context.core
    delete(core, condemn(core))
    models("commit", "-m", "Two")
    delete(core, condemn(core))
    assert np.array_equal(models.repository().model("two")["w"], TUNED)


def test_a_collection_between_two_adds_takes_the_base_of_neither(
    models: Shell, collected: list[str]
) -> None:
    models("add", "one.safetensors", "--model", "one")
    models("add", "two.safetensors", "--model", "two")
    models("restore", "--staged", "models/one")
    models("commit", "-m", "Two")
    delete(models.repository().context.core, collected)
    assert np.array_equal(models.repository().model("two")["w"], TUNED)


def test_what_is_staged_without_a_lease_is_no_base(models: Shell) -> None:
    models("add", "one.safetensors", "--model", "one")
    lose_lease(models)
    core = models.repository().context.core
    delete(core, condemn(core))
    assert (
        "stored as differences from"
        not in models.run("add", "two.safetensors", "--model", "two").output
    )

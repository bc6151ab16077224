"""Paths of Lightning name checkpoints of a run: saved, removed, saved again, loaded elsewhere."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.integrations.lightning_checkpoints import RunCheckpoints, read_checkpoint_file
from tensorrepo.models.checkpointer import Checkpointer


@pytest.fixture
def repository(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "repo", author="Ada <ada@example.org>")


@pytest.fixture
def checkpoints(repository: tr.Repository) -> RunCheckpoints:
    return RunCheckpoints(repository, "exp1")


def state_of(step: int, **more: Any) -> dict[str, Any]:
    """As Lightning makes it; the keys of its callbacks are texts such as this one."""
    watched = {"monitor": "loss", "current_score": 1 / (step + 1), "best_model_path": "a.ckpt"}
    return {
        "epoch": 0,
        "global_step": step,
        "state_dict": {"weight": np.full((4, 3), step, np.float32)},
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
        "callbacks": {"ModelCheckpoint{'monitor': 'loss', 'mode': 'min'}": watched},
        "optimizer_states": [{"state": {0: {"step": 1.0}}, "param_groups": [{"lr": 0.1}]}],
        **more,
    }


def weights_of(step: int) -> dict[str, Any]:
    return {name: value for name, value in state_of(step).items() if name != "optimizer_states"}


def steps(repository: tr.Repository, run: str = "exp1") -> list[int]:
    return repository.checkpointer(run).steps()


def loaded_step(checkpoints: RunCheckpoints, path: Path | str) -> int:
    state = checkpoints.load_checkpoint(path)
    assert (np.asarray(state["state_dict"]["weight"]) == state["global_step"]).all()
    return int(state["global_step"])


def test_what_was_saved_to_a_path_is_loaded_from_it(
    checkpoints: RunCheckpoints, tmp_path: Path
) -> None:
    place = tmp_path / "ckpt" / "step=10.ckpt"
    checkpoints.save_checkpoint(state_of(10), place)
    found = checkpoints.load_checkpoint(place)
    assert found.keys() == state_of(10).keys()
    assert found["optimizer_states"] == state_of(10)["optimizer_states"]
    assert found["callbacks"] == state_of(10)["callbacks"]
    named = read_checkpoint_file(place)
    assert named is not None
    assert (named.run, named.step) == ("exp1", 10)


def test_what_callbacks_watch_are_the_checkpoints_metrics(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    checkpoints.save_checkpoint(state_of(4), tmp_path / "a.ckpt")
    checkpoints.wait()
    assert repository.checkpointer("exp1").metrics() == {4: {"loss": 0.2}}


def test_a_removed_path_takes_its_checkpoint_along(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    for step in (10, 20):
        checkpoints.save_checkpoint(state_of(step), tmp_path / f"{step}.ckpt")
    checkpoints.remove_checkpoint(tmp_path / "10.ckpt")
    checkpoints.wait()
    assert steps(repository) == [20]
    assert not (tmp_path / "10.ckpt").exists()
    assert loaded_step(checkpoints, tmp_path / "20.ckpt") == 20


def test_a_checkpoint_stays_while_another_path_names_it(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    for name in ("best.ckpt", "last.ckpt"):
        checkpoints.save_checkpoint(state_of(10), tmp_path / name)
    checkpoints.wait()
    later = RunCheckpoints(repository, "exp1")  # which knows of no path but by its file
    later.remove_checkpoint(tmp_path / "best.ckpt")
    assert loaded_step(later, tmp_path / "last.ckpt") == 10
    later.remove_checkpoint(tmp_path / "last.ckpt")
    assert steps(repository) == []


def test_weights_alone_do_not_take_the_place_of_all(
    checkpoints: RunCheckpoints, tmp_path: Path
) -> None:
    checkpoints.save_checkpoint(state_of(10), tmp_path / "all.ckpt")
    checkpoints.save_checkpoint(weights_of(10), tmp_path / "weights.ckpt")
    assert "optimizer_states" in checkpoints.load_checkpoint(tmp_path / "all.ckpt")
    assert loaded_step(checkpoints, tmp_path / "weights.ckpt") == 10


def test_a_run_goes_on_without_any_file(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    assert checkpoints.latest() is None
    checkpoints.save_checkpoint(state_of(10), tmp_path / "a.ckpt")
    assert checkpoints.latest() == "runs/exp1/10"
    elsewhere = RunCheckpoints(repository, "exp2")
    assert loaded_step(elsewhere, "runs/exp1/10") == 10
    assert loaded_step(elsewhere, "runs/exp1") == 10


def test_a_step_that_a_later_training_saved_again_is_not_passed_off_as_the_earlier(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    checkpoints.save_checkpoint(state_of(10), tmp_path / "first.ckpt")
    checkpoints.wait()
    later = RunCheckpoints(repository, "exp1")
    later.save_checkpoint(state_of(10, epoch=7), tmp_path / "second.ckpt")
    later.wait()
    with pytest.raises(tr.NotFoundError, match="a later training saved step 10 of run 'exp1'"):
        later.load_checkpoint(tmp_path / "first.ckpt")
    assert later.load_checkpoint(tmp_path / "second.ckpt")["epoch"] == 7
    later.remove_checkpoint(tmp_path / "first.ckpt")
    assert steps(repository) == [10]


def test_a_file_whose_checkpoint_is_gone_keeps_none(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    checkpoints.save_checkpoint(state_of(10), tmp_path / "first.ckpt")
    checkpoints.wait()
    later = RunCheckpoints(repository, "exp1")
    later.save_checkpoint(state_of(10), tmp_path / "second.ckpt")
    later.remove_checkpoint(tmp_path / "second.ckpt")
    later.wait()
    assert steps(repository) == []


def test_what_a_kill_left_without_a_file_gets_it_and_goes_with_it(
    repository: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(RunCheckpoints, "_name", lambda *_: None)
        first = RunCheckpoints(repository, "exp1")
        first.save_checkpoint(state_of(10), tmp_path / "10.ckpt")
        first.wait()
    assert not (tmp_path / "10.ckpt").exists()
    later = RunCheckpoints(repository, "exp1")
    later.save_checkpoint(state_of(20), tmp_path / "20.ckpt")
    assert loaded_step(later, tmp_path / "10.ckpt") == 10
    later.remove_checkpoint(tmp_path / "10.ckpt")
    later.wait()
    assert steps(repository) == [20]
    assert [path.name for path in tmp_path.glob("*.*")] == ["20.ckpt"]


def test_what_a_kill_kept_from_being_stored_gets_no_file(
    repository: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(Checkpointer, "save", _killed)
        with pytest.raises(KeyboardInterrupt):
            RunCheckpoints(repository, "exp1").save_checkpoint(state_of(10), tmp_path / "10.ckpt")
    later = RunCheckpoints(repository, "exp1")
    later.save_checkpoint(state_of(20), tmp_path / "20.ckpt")
    later.wait()
    assert [path.name for path in tmp_path.glob("*.*")] == ["20.ckpt"]


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_what_cannot_be_stored_is_refused_with_advice(
    checkpoints: RunCheckpoints, repository: tr.Repository, tmp_path: Path
) -> None:
    with pytest.raises(tr.InvalidInputError, match=r"hyper_parameters\.loss is of type") as refused:
        checkpoints.save_checkpoint(
            state_of(10, hyper_parameters={"loss": object()}), tmp_path / "a"
        )
    assert "save_hyperparameters(ignore=[...])" in refused.value.__notes__[0]
    assert steps(repository) == []
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"PK\x03\x04torch", "One that Lightning wrote itself"),
        (b"{}", "is no checkpoint of this plug-in"),
        (b'{"tensorrepo_checkpoint":2,"repository":"","run":"r","step":1,"training":""}', "is no"),
        (b'{"tensorrepo_checkpoint":1,"repository":"00","run":"exp1","step":1,"training":""}',
         "is a checkpoint of repository 00"),
    ],
)  # fmt: skip
def test_another_file_is_refused_and_never_removed(
    checkpoints: RunCheckpoints, tmp_path: Path, text: bytes, words: str
) -> None:
    place = tmp_path / "other.ckpt"
    place.write_bytes(text)
    with pytest.raises(tr.InvalidInputError, match=words):
        checkpoints.load_checkpoint(place)


def test_a_checkpoint_of_lightning_itself_is_not_removed(
    checkpoints: RunCheckpoints, tmp_path: Path
) -> None:
    place = tmp_path / "other.ckpt"
    place.write_bytes(b"PK\x03\x04torch")
    checkpoints.remove_checkpoint(place)
    assert place.exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("nowhere.ckpt", "there is no checkpoint nowhere.ckpt"),
        ("runs/exp1/ten", "there is no checkpoint runs/exp1/ten"),
        ("runs/exp1/10", "run 'exp1' has no checkpoint of step 10"),
        ("runs/exp1", "run 'exp1' has no checkpoint"),
    ],
)
def test_a_path_that_names_nothing_says_so(
    checkpoints: RunCheckpoints, path: str, words: str
) -> None:
    with pytest.raises(tr.NotFoundError, match=words):
        checkpoints.load_checkpoint(path)


def test_a_bucket_is_no_place_for_the_files(checkpoints: RunCheckpoints) -> None:
    with pytest.raises(tr.InvalidInputError, match="give a folder of this machine"):
        checkpoints.save_checkpoint(state_of(10), "s3://bucket/ckpt/a.ckpt")


def test_a_plug_in_goes_to_another_process_before_it_saves(
    checkpoints: RunCheckpoints, tmp_path: Path
) -> None:
    sent = pickle.loads(pickle.dumps(checkpoints))
    sent.save_checkpoint(state_of(10), tmp_path / "a.ckpt")
    sent.teardown()
    assert loaded_step(checkpoints, tmp_path / "a.ckpt") == 10
    with pytest.raises(tr.InvalidInputError, match="make another plug-in there"):
        pickle.dumps(sent)

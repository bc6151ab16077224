"""A training by Hugging Face's Trainer whose checkpoints and metrics are ours.

The plug-in is imported where it is used: it brings Transformers, which workers that run other tests
need not load to see what there is to run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.architecture.sources import ROOT
from tests.support.processes.killed import trained
from tests.tensorrepo.integrations.conftest import prepared

pytestmark = pytest.mark.long

TRAINING = "tests.tensorrepo.integrations.trainer_training"


def test_a_killed_training_goes_on_to_the_weights_of_one_that_was_not(tmp_path: Path) -> None:
    whole, killed = prepared(tmp_path / "whole"), prepared(tmp_path / "killed")
    first = [f"{tmp_path}/whole:20", f"{tmp_path}/killed:20:11"]
    assert trained(TRAINING, *first, f"{tmp_path}/killed:20") == [0, -9, 0]

    one, other = (each.checkpointer("exp1").load(output="numpy") for each in (whole, killed))
    tensors, more = (each["weights"]["model.safetensors"]["tensors"] for each in (one, other))
    assert set(tensors) == {f"layers.{at}.{kind}" for at in (0, 3) for kind in ("weight", "bias")}
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, more[name])
    moments, others = (each["optimizer"]["state"] for each in (one, other))
    np.testing.assert_array_equal(moments[0]["exp_avg"], others[0]["exp_avg"])
    assert {"scheduler.pt", "rng_state.pth", "trainer_state.json"} <= one["files"].keys()

    checkpointer = killed.checkpointer("exp1")
    assert checkpointer.steps() == [18, 20]  # Trainer saves the last step, too
    run = killed.runs()["exp1"]
    assert run.status == "finished"
    assert run.params["learning_rate"] == 1e-2
    assert set(run.points("loss").steps.tolist()) == set(range(1, 21))
    assert checkpointer.metrics()[18]["loss"] == run.points("loss").values[-3]
    made_of = killed.model("state", "runs/exp1/20").lineage()
    assert [edge.relation for edge in made_of] == ["checkpoint-of", "trained-on"]
    assert made_of[1].path == "datasets/points"

    (saved,) = tmp_path.glob("whole/output-*/checkpoint-20")
    assert_restored(whole, saved, tmp_path / "again")


@pytest.mark.soak  # processes that meet in gloo
def test_of_two_ranks_one_commits_and_both_go_on(tmp_path: Path) -> None:
    repository = prepared(tmp_path / "job")
    assert train_ranks(tmp_path / "job", steps=4) == [0, 0]
    assert train_ranks(tmp_path / "job", steps=6) == [0, 0]
    checkpointer = repository.checkpointer("exp1")
    assert checkpointer.steps() == [2, 4, 6]
    # The first one read the folder when the other one had written its part.
    for step in (2, 4, 6):
        files = checkpointer.load(step)["files"]
        assert {"rng_state_0.pth", "rng_state_1.pth"} <= files.keys()
    run = repository.runs()["exp1"]
    assert run.status == "finished"
    assert run.points("loss").steps.tolist() == [1, 2, 3, 4, 5, 6]
    assert not (tmp_path / "job/output-6/checkpoint-2").exists()


def train_ranks(folder: Path, steps: int) -> list[int]:
    """How a training of two ranks ended."""
    module = "tests.tensorrepo.integrations.trainer_ranks"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, folder, str(rank), "2", str(steps)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"},
        )
        for rank in range(2)
    ]
    return [rank.wait(240) for rank in ranks]


def assert_restored(repository: tr.Repository, saved: Path, target: Path) -> None:
    """Whether the newest checkpoint comes back as the folder that it was.

    Only torch's own file may differ, which is written anew: not in what it says.
    """
    from tensorrepo.integrations.transformers import RepositoryCallback

    restored = Path(RepositoryCallback(repository, "exp1").restore(target) or "")
    assert restored.name == saved.name
    names = sorted(each.name for each in saved.iterdir())
    assert sorted(each.name for each in restored.iterdir()) == names
    exact = [name for name in names if name != "optimizer.pt"]
    assert [(restored / name).read_bytes() for name in exact] == [
        (saved / name).read_bytes() for name in exact
    ]


def test_what_another_wrote_is_no_checkpoint_of_trainer(tmp_path: Path) -> None:
    from tensorrepo.integrations.transformers import RepositoryCallback

    repository = prepared(tmp_path / "one")
    with repository.checkpointer("exp1") as checkpointer:
        checkpointer.save(1, {"step": 1})
    with repository.checkpointer("exp2") as checkpointer:
        checkpointer.save(1, {"weights": {}, "files": {"../a": np.zeros(1, np.uint8)}})
    with pytest.raises(tr.InvalidInputError, match="was not saved by this callback"):
        RepositoryCallback(repository, "exp1").restore(tmp_path)
    with pytest.raises(tr.CorruptError, match="leads out of its folder"):
        RepositoryCallback(repository, "exp2").restore(tmp_path)
    assert not (tmp_path / "a").exists()
    assert RepositoryCallback(repository, "exp3").restore(tmp_path) is None


def test_a_folder_of_shards_of_other_libraries_is_refused(tmp_path: Path) -> None:
    from tensorrepo.integrations.transformers import _read

    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / "pytorch_model.bin").write_bytes(b"weights")
    with pytest.raises(tr.InvalidInputError, match="through tensorrepo"):
        _read(tmp_path / "checkpoint-1", None)

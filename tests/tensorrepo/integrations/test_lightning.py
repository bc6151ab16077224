"""A training by Lightning whose checkpoints and metrics are ours; killed and gone on with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.processes.killed import trained
from tests.tensorrepo.integrations.conftest import prepared

pytestmark = pytest.mark.long

TRAINING = "tests.tensorrepo.integrations.lightning_training"
PACKAGES = ["lightning", pytest.param("pytorch_lightning", marks=pytest.mark.soak)]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_killed_training_goes_on_to_the_weights_of_one_that_was_not(
    tmp_path: Path, package: str
) -> None:
    whole, killed = prepared(tmp_path / "whole"), prepared(tmp_path / "killed")
    first = [f"{tmp_path}/whole:20", f"{tmp_path}/killed:20:11"]
    assert trained(TRAINING, package, *first, f"{tmp_path}/killed:20") == [0, -9, 0]
    one, other = (each.checkpointer("exp1").load(output="numpy") for each in (whole, killed))
    assert one["global_step"] == other["global_step"] == 18
    assert one["state_dict"].keys() == other["state_dict"].keys()
    for name, weight in one["state_dict"].items():
        np.testing.assert_array_equal(weight, other["state_dict"][name])
    np.testing.assert_array_equal(one["random"], other["random"])

    # The best two and the last, as Lightning says; each has a file, and each file a checkpoint.
    files = sorted((tmp_path / "killed" / "ckpt").glob("*.ckpt"))
    steps = killed.checkpointer("exp1").steps()
    assert 18 in steps
    assert {int(file.stem.partition("step=")[2] or 18) for file in files} == set(steps)

    run = killed.runs()["exp1"]
    assert run.status == "finished"
    assert run.params == {"width": 8}
    assert len(run.document.attempts) == 2
    assert set(run.points("loss").steps.tolist()) == set(range(20))
    assert ("trained-on", "datasets/points") in {(e.relation, e.path) for e in run.inputs}
    made_of = killed.model("state", "runs/exp1/18").lineage()
    assert [edge.relation for edge in made_of] == ["checkpoint-of", "trained-on"]
    assert made_of[1].path == "datasets/points"

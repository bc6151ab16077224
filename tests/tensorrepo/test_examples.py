"""The examples of training, which the guides show, run and say what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architecture.sources import ROOT
from tests.support.processes.prepared import run_program

SAID = {
    "train_pytorch": ["resumed at row 640 of epoch 0"],
    "train_jax": ["loss of the last batch"],
    "train_ddp": ["1 rank goes on at row 384 of epoch 1"],
    "train_lightning": ["step=30.ckpt; each row once an epoch: True"],
    "train_huggingface": ["from step 30 to 96; each row once an epoch: True"],
}


def test_every_example_is_tested() -> None:
    found = {path.stem for path in (ROOT / "examples").glob("train_*.py")}
    assert found == set(SAID)


@pytest.mark.soak  # the demo trains and resumes, too
@pytest.mark.parametrize("name", SAID)
def test_an_example_says_what_it_promises(tmp_path: Path, name: str) -> None:
    example = ROOT / f"examples/{name}.py"
    ended, said = run_program(
        example, str(tmp_path), environment={"PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    )
    assert ended == 0, said
    for words in [*SAID[name], "accuracy on pictures it never saw"]:
        assert words in said

"""The examples of training, which the guides show, run and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.architecture.sources import ROOT

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


@pytest.mark.parametrize(
    "name",
    ["train_pytorch", *(pytest.param(name, marks=pytest.mark.soak) for name in [*SAID][1:])],
)
def test_an_example_says_what_it_promises(tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / f"examples/{name}.py"), str(tmp_path)],
        # One thread: two of them would wait for each other wherever the machine has other work.
        env={**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in [*SAID[name], "accuracy on pictures it never saw"]:
        assert words in done.stdout, done.stdout

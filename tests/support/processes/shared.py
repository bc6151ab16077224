"""Folders shared by the workers of one run: one worker makes what is dear, the others wait."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of this run of pytest, the same for all of its workers."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` of this run of pytest, filled by `make` in the first worker that asks.

    A folder that could not be filled is emptied, and the next worker tries again. What it holds
    is everybody's: a test that changes files takes a copy.
    """
    folder = run_folder(factory) / name
    whole = folder.with_name(f"{name}.whole")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not whole.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            whole.touch()
    return folder

"""Workspaces to type commands in."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrepo.runs.run_context import CURRENT
from tests.support.processes.shell import Shell, write_points


@pytest.fixture(autouse=True)
def _no_run_around_tests() -> Iterator[None]:
    """What one test leaves going on is told nothing of the next."""
    token = CURRENT.set(None)
    yield
    CURRENT.reset(token)


def workplace(place: Path) -> Shell:
    """A folder that is no workspace, in `place`."""
    folder, home = place / "work", place / "home"
    folder.mkdir()
    home.mkdir()
    return Shell(folder, home)


@pytest.fixture
def empty(tmp_path: Path) -> Shell:
    """A folder that is no workspace."""
    return workplace(tmp_path)


@pytest.fixture
def shell(empty: Shell) -> Shell:
    """A workspace without commits, and points.npz in it."""
    empty("init")
    write_points(empty.folder / "points.npz")
    return empty


@pytest.fixture(scope="session")
def _committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `full` is copied from: no file in it knows where it lies."""
    import numpy as np
    from safetensors.numpy import save_file

    made = workplace(tmp_path_factory.mktemp("committed"))
    made("init")
    write_points(made.folder / "points.npz")
    (made.folder / "notes.txt").write_text("line one\n")
    save_file({"w": np.arange(6, dtype="f4")}, made.folder / "net.safetensors")
    made("add", "points.npz", "--dataset", "points")
    made("add", "notes.txt", "--file", "notes.txt")
    made("add", "net.safetensors", "--model", "net")
    made("commit", "-m", "First")
    made("tag", "v1")
    return made.folder


@pytest.fixture
def full(_committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A workspace with one commit: datasets/points, files/notes.txt and models/net; tag v1."""
    shutil.copytree(_committed, tmp_path / "work", symlinks=True)
    (tmp_path / "home").mkdir()
    # Copies are one repository to who remembers it by its id, and each of them an older state.
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return Shell(tmp_path / "work", tmp_path / "home")

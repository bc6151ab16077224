"""Workspaces to type commands in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.shell import Shell, write_points

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def empty(tmp_path: Path) -> Shell:
    """A folder that is no workspace."""
    folder = tmp_path / "work"
    home = tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    return Shell(folder, home)


@pytest.fixture
def shell(empty: Shell) -> Shell:
    """A workspace without commits, and points.npz in it."""
    empty("init")
    write_points(empty.folder / "points.npz")
    return empty


@pytest.fixture
def full(shell: Shell) -> Shell:
    """A workspace with one commit: datasets/points, files/notes.txt and models/net; tag v1."""
    import numpy as np
    from safetensors.numpy import save_file

    (shell.folder / "notes.txt").write_text("line one\n")
    save_file({"w": np.arange(6, dtype="f4")}, shell.folder / "net.safetensors")
    shell("add", "points.npz", "--dataset", "points")
    shell("add", "notes.txt", "--file", "notes.txt")
    shell("add", "net.safetensors", "--model", "net")
    shell("commit", "-m", "First")
    shell("tag", "v1")
    return shell

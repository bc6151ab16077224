"""Whoever is killed while stashing, or while taking a stash back, loses nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.effort import sampled
from tests.support.processes.shell import Shell
from tests.tensorrepo.conftest import _committed, full

__all__ = ["_committed", "full"]

EDITED = b"an edit that is in no commit"
KILLED = 9
# Ends the process before, or after, the n-th time that it puts a file in its place.
CODE = """
import os
left, replace = {at}, os.replace
def killed(source, target, **options):
    global left
    left -= 1
    if left == 0 and {before}:
        os._exit(9)
    replace(source, target, **options)
    if left == 0:
        os._exit(9)
os.replace = killed
"""
STEPS = [(at, before) for at in range(1, 16) for before in (True, False)]


@pytest.fixture(scope="module")
def changed(_committed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with a staged removal and two edited files."""
    place = tmp_path_factory.mktemp("changed")
    shutil.copytree(_committed, place / "work")
    (place / "home").mkdir()
    shell = Shell(place / "work", place / "home")
    shell("checkout", "HEAD", "notes.txt", "points")
    (shell.folder / "files/notes.txt").write_bytes(EDITED)
    (shell.folder / "datasets/points.parquet").write_bytes(EDITED)
    shell("rm", "net")
    return place


def copied(place: Path, tmp_path: Path) -> Shell:
    shutil.copytree(place, tmp_path / "copy")
    return Shell(tmp_path / "copy/work", tmp_path / "copy/home")


def check_all_is_back(shell: Shell) -> None:
    assert (shell.folder / "files/notes.txt").read_bytes() == EDITED
    assert (shell.folder / "datasets/points.parquet").read_bytes() == EDITED
    assert [each["path"] for each in shell.json("status")["staged"]] == ["models/net"]


def take_back(shell: Shell) -> None:
    """What a user does who finds a stash after a crash."""
    for _ in shell.records("stash", "list"):
        shell("stash", "pop")
    check_all_is_back(shell)


@pytest.mark.parametrize(("at", "before"), sampled(STEPS, 3))
def test_a_push_that_is_killed_loses_nothing(
    changed: Path, tmp_path: Path, at: int, before: bool
) -> None:
    shell = copied(changed, tmp_path)
    code, _, errors = shell.finish("stash", code=CODE.format(at=at, before=before))
    assert code in (0, KILLED), errors
    take_back(shell)


@pytest.mark.soak
@pytest.mark.parametrize(("at", "before"), sampled(STEPS, 3))
def test_a_pop_that_is_killed_loses_nothing(
    changed: Path, tmp_path: Path, at: int, before: bool
) -> None:
    shell = copied(changed, tmp_path)
    shell("stash")
    code, _, errors = shell.finish("stash", "pop", code=CODE.format(at=at, before=before))
    assert code in (0, KILLED), errors
    take_back(shell)

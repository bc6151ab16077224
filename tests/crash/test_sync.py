"""A sync that is killed leaves the dataset as it was; the next one ends as if it had not begun."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.effort import sampled
from tests.support.processes.shell import Shell

KILLED = 9
ROWS = 400
# Ends the process before, or after, the n-th time that it writes or syncs a file, or names one.
CODE = """
import os
left = {at}
def ending(name):
    given = getattr(os, name)
    def end(*places, **options):
        global left
        left -= 1
        if left == 0 and {before}:
            os._exit(9)
        done = given(*places, **options)
        if left == 0:
            os._exit(9)
        return done
    setattr(os, name, end)
for name in ("writev", "fsync", "rename", "replace"):
    ending(name)
"""
STEPS = [(at, before) for at in range(1, 21) for before in (True, False)]
SYNC = ("add", "people.csv", "--dataset", "people", "--sync", "--key", "id", "--codec", "none")


def write_people(path: Path, *, night: int) -> None:
    rows = range(night * 100, ROWS + night * 100)
    lines = [f"{at},{'new' if night and at % 7 == 0 else 'old'} {at:032d}" for at in rows]
    path.write_text("\n".join(["id,name", *lines, ""]))


def names(shell: Shell) -> list[Any]:
    # Not in this process, which would remember the log of another copy.
    return sorted(row["name"] for row in shell.records("cat", "people", "--limit", str(2 * ROWS)))


def stored_bytes(shell: Shell) -> int:
    objects = shell.folder / ".tensorrepo/store/objects"
    return sum(path.stat().st_size for path in objects.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose dataset is to be synced with a file that changed."""
    place = tmp_path_factory.mktemp("night")
    for name in ("work", "home"):
        (place / name).mkdir()
    shell = Shell(place / "work", place / "home")
    shell("init")
    write_people(shell.folder / "people.csv", night=0)
    shell("add", "people.csv", "--dataset", "people")
    shell("commit", "-m", "People")
    write_people(shell.folder / "people.csv", night=1)
    return place


def copied(place: Path, target: Path) -> Shell:
    shutil.copytree(place, target)
    return Shell(target / "work", target / "home")


@pytest.fixture(scope="module")
def whole(night: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], int]:
    """Names and stored bytes after a sync that nobody killed."""
    shell = copied(night, tmp_path_factory.mktemp("whole") / "copy")
    shell(*SYNC)
    shell("commit", "-m", "Tonight")
    return names(shell), stored_bytes(shell)


@pytest.mark.parametrize(("at", "before"), sampled(STEPS, 2))
def test_a_sync_that_is_killed_is_repeated(
    night: Path, whole: tuple[list[Any], int], tmp_path: Path, at: int, before: bool
) -> None:
    shell = copied(night, tmp_path / "copy")
    was, before_bytes = names(shell), stored_bytes(shell)
    code, _, errors = shell.finish(*SYNC, code=CODE.format(at=at, before=before))
    assert code == KILLED, errors
    assert names(shell) == was
    shell(*SYNC)
    shell("commit", "-m", "Tonight")
    assert names(shell) == whole[0]
    assert "error" not in shell("fsck", "--deep")
    # What it had stored is found again, or left to gc: never more than once over.
    assert stored_bytes(shell) <= whole[1] + (whole[1] - before_bytes)

"""What the system holds of a folder's files: filled, dropped, and measured."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tensorrepo.repo.backends.mounts import mount_of
from tensorrepo.workloads.system_cache import drop, held_share, warm
from tests.support.architecture.sources import ROOT


@pytest.fixture
def folder() -> Iterator[Path]:
    """Two files of 4 MiB each that are on the disk, one below the other; and a link to one.

    They lie where the code does: folders of tests may be in memory.
    """
    build = ROOT / "build"
    build.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=build) as name:
        folder = Path(name)
        (folder / "deep").mkdir()
        for each in ("a", "deep/b"):
            with (folder / each).open("wb") as file:
                file.write(os.urandom(4 << 20))
                file.flush()
                os.fsync(file.fileno())
        (folder / "link").symlink_to(folder / "a")
        yield folder


def is_memory(folder: Path) -> bool:
    """Whether files below a folder have no other place than memory."""
    return mount_of(folder).type in {"tmpfs", "ramfs"}


def test_what_was_read_is_held_and_what_was_dropped_is_not(folder: Path) -> None:
    warm(folder)
    if held_share(folder) is None:
        pytest.skip("the system does not tell what it holds")
    assert held_share(folder) == 1.0
    drop(folder)
    held = held_share(folder)
    if is_memory(folder):
        assert held == 1.0
    else:  # a page that a processor has just at hand stays
        assert held is not None
        assert held < 0.01
        assert held_share(folder) == held  # to look brings nothing back


def test_of_small_files_nothing_is_told(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    assert held_share(tmp_path) is None


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    drop(missing)
    warm(missing)
    assert held_share(missing) is None

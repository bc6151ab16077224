"""Small files below one root are read with folders that stay open, and only if they are files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.small_files import SmallFiles


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("objects/aa/1", "objects/ab/2", "objects/ac/3"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.fixture
def files(root: Path) -> Iterator[SmallFiles]:
    with LocalBackend(root).small_files() as opened:
        yield opened


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_files_are_read_whole(files: SmallFiles) -> None:
    keys = ["objects/ab/2", "objects/aa/1", "objects/ab/2", "objects/ac/3"]
    assert [files.read(key, len(key)) for key in keys] == [key.encode() for key in keys]


@pytest.mark.parametrize("size_bytes", [0, 11, 13])
def test_a_file_of_other_bytes_than_listed_is_none(files: SmallFiles, size_bytes: int) -> None:
    assert files.read("objects/aa/1", size_bytes) is None


@pytest.mark.parametrize("key", ["objects/aa/9", "objects/ad/1", "objects/aa", "objects/aa/1/2"])
def test_what_is_no_file_is_none(files: SmallFiles, key: str) -> None:
    assert files.read(key, 12) is None


def test_links_are_not_followed(root: Path, files: SmallFiles) -> None:
    (root / "objects/aa/link").symlink_to("1")
    (root / "objects/link").symlink_to("aa")
    assert [files.read(f"objects/{key}", 12) for key in ("aa/link", "link/1")] == [None, None]


def test_a_pipe_blocks_nobody(root: Path, files: SmallFiles) -> None:
    os.mkfifo(root / "objects/aa/pipe")
    assert files.read("objects/aa/pipe", 12) is None


def test_few_descriptors_are_taken_and_all_are_given_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    before = descriptors()
    with LocalBackend(root).small_files() as files:
        read = [files.read(key, 12) for key in ("objects/aa/1", "objects/ab/2", "objects/ac/3")]
        assert None not in read
        assert descriptors() == before + 2
    assert descriptors() == before

"""Small files below one root are read with folders that stay open, and only if they are files."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tensorrepo.repo.backends import small_files
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.small_files import NATIVE, PYTHON, SmallFiles


class _OneByOne(SmallFiles):
    def read_all(self, wanted: Iterable[tuple[str, int]]) -> Iterator[bytes | None]:
        return (self.read(*each) for each in wanted)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("objects/aa/1", "objects/ab/2", "objects/ac/3"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.fixture(params=["native", "python", "one by one"])
def files(
    root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SmallFiles]:
    if request.param == "native" and NATIVE is None:
        pytest.skip("nothing was compiled here")
    monkeypatch.setattr(small_files, "_BEST", NATIVE if request.param == "native" else PYTHON)
    with LocalBackend(root).small_files() as opened:
        if request.param == "one by one":
            opened.__class__ = _OneByOne
        yield opened


def read(files: SmallFiles, *wanted: tuple[str, int]) -> list[bytes | None]:
    return list(files.read_all(wanted))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_files_are_read_whole(files: SmallFiles) -> None:
    keys = ["objects/ab/2", "objects/aa/1", "objects/ab/2", "objects/ac/3"] * 100
    assert read(files, *((key, len(key)) for key in keys)) == [key.encode() for key in keys]


def test_an_empty_file_is_read(root: Path, files: SmallFiles) -> None:
    (root / "objects/aa/empty").touch()
    assert read(files, ("objects/aa/empty", 0)) == [b""]


def test_what_is_no_file_of_the_bytes_that_were_listed_is_none(
    root: Path, files: SmallFiles
) -> None:
    (root / "objects/aa/link").symlink_to("1")
    (root / "objects/link").symlink_to("aa")
    os.mkfifo(root / "objects/aa/pipe")  # which blocks nobody
    names = ("aa/9", "ad/1", "aa", "aa/1/2", "aa/link", "link/1", "aa/pipe")
    wanted = [(f"objects/{name}", 12) for name in names]
    others = [("objects/aa/1", size_bytes) for size_bytes in (0, 11, 13, 12)]
    assert read(files, *wanted, *others) == [None] * 10 + [b"objects/aa/1"]


def test_folders_are_listed_by_c_as_in_python(root: Path) -> None:
    (root / "objects/link").symlink_to("aa")
    (root / "objects/nowhere").symlink_to("away")
    os.mkfifo(root / "objects/pipe")
    (root / "objects/\udcff").write_bytes(b"not UTF-8")
    with LocalBackend(root)._disk.folder("objects") as at:
        found = sorted(small_files.list_folder(at))
        assert found == sorted(small_files.list_in_python(at))
    assert len(found) == 7


def test_few_descriptors_are_taken_and_all_are_given_back(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    before = descriptors()
    with LocalBackend(root).small_files() as files:
        keys = ["objects/aa/1", "objects/ab/2", "objects/ac/3", "objects/aa/1"]
        assert read(files, *((key, 12) for key in keys)) == [key.encode() for key in keys]
        assert descriptors() == before + 2
    assert descriptors() == before

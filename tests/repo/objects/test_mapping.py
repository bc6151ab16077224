"""Maps keep no descriptor, and leave room."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tensorrepo.repo.objects import mapping
from tensorrepo.repo.objects.mapping import map_file

FOLDER = Path("/proc/self/fd")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.write_bytes(b"0123456789")
    return made


@pytest.mark.skipif(not FOLDER.exists(), reason="descriptors are counted in /proc")
def test_a_map_keeps_no_descriptor_and_its_bytes_when_the_file_is_gone(path: Path) -> None:
    before = len(os.listdir(FOLDER))
    maps = [map_file(path) for _ in range(50)]
    assert len(os.listdir(FOLDER)) == before
    path.unlink()
    assert [bytes(each or b"") for each in maps] == [b"0123456789"] * 50


def test_what_is_written_to_a_map_is_nobody_elses(path: Path) -> None:
    mapped = map_file(path)
    assert mapped is not None
    mapped[0] = 0
    assert path.read_bytes() == b"0123456789"


def test_a_map_goes_with_its_last_view(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    library = mapping._library()
    unmap = library.munmap

    class Library:
        mmap = library.mmap

        @staticmethod
        def munmap(address: int, size: int) -> None:
            ended.append(size)
            unmap(address, size)

    monkeypatch.setattr(mapping, "_library", Library)
    mapped = map_file(path)
    assert mapped is not None
    part = mapped[3:5]
    del mapped
    gc.collect()
    assert not ended
    assert bytes(part) == b"34"
    del part
    gc.collect()
    assert ended == [10]


def test_an_empty_file_and_one_that_is_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="empty"):
        map_file(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        map_file(tmp_path / "absent")

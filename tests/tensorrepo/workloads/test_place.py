"""Where benchmarks keep their data: a folder of their own, which they leave as they found it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.repo.errors import InvalidInputError, StorageError, UnsupportedError
from tensorrepo.this_machine import machine
from tensorrepo.workloads.place import FOLDER, BenchPlace, bench_place
from tests.support.servers.object_stores import s3_on_ours


@pytest.fixture(params=["folder", "s3"])
def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BenchPlace]:
    """A place on this disk, and one in a bucket."""
    if request.param == "folder":
        yield bench_place(str(tmp_path / "store"), machine())
        return
    with s3_on_ours(tmp_path / "s3") as bucket:
        for key, value in bucket.environment.items():
            monkeypatch.setenv(key, value)
        yield bench_place(f"{bucket.url}/prefix", machine())


def test_what_is_made_is_there_until_it_is_removed_and_others_stay(anywhere: BenchPlace) -> None:
    for name in ("a-1", "b-2"):
        with tr.init(anywhere.url_of(name), author="Ann <ann@example.org>").transaction() as tx:
            tx.save_file("notes.txt", b"kept")
    there = anywhere.there()
    assert [(each.name, each.is_whole) for each in there] == [("a-1", True), ("b-2", True)]
    assert all(each.stored_bytes > 0 for each in there)
    anywhere.remove("a-1")
    assert [each.name for each in anywhere.there()] == ["b-2"]
    assert tr.open(anywhere.url_of("b-2")).file("notes.txt") == b"kept"
    anywhere.remove("b-2")
    assert anywhere.there() == []


def test_a_repository_without_a_commit_is_half_made(anywhere: BenchPlace) -> None:
    tr.init(anywhere.url_of("a-1"))
    assert [each.is_whole for each in anywhere.there()] == [False]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_was_interrupted_leaves_nothing(
    anywhere: BenchPlace, error: type[BaseException]
) -> None:
    with pytest.raises(error):
        _interrupted(anywhere, error)
    assert anywhere.there() == []


def _interrupted(place: BenchPlace, error: type[BaseException]) -> None:
    with place.new("a") as name:
        tr.init(place.url_of(name))
        assert [each.name for each in place.there()] == [name]
        raise error


def test_what_was_made_stays_for_who_asks(anywhere: BenchPlace) -> None:
    with anywhere.new("a") as name:
        tr.init(anywhere.url_of(name))
    with anywhere.lent(name, keep=True):
        pass
    assert [each.name for each in anywhere.there()] == [name]
    with pytest.raises(KeyboardInterrupt), anywhere.lent(name, keep=False):
        raise KeyboardInterrupt
    assert anywhere.there() == []


def test_a_folder_of_its_own_goes_with_the_last_of_its_data(place: BenchPlace) -> None:
    with place.new("a") as name:
        tr.init(place.url_of(name))
    root = place.folder_of(name)
    assert root is not None
    assert root.parent.name == FOLDER
    place.remove(name)
    assert not root.parent.exists()
    assert root.parent.parent.exists()


def test_a_repository_is_no_place_for_benchmarks(tmp_path: Path) -> None:
    tr.init(tmp_path / "team")
    with pytest.raises(InvalidInputError, match="is a repository, in which nothing else may lie"):
        bench_place(str(tmp_path / "team"), machine())


@pytest.mark.parametrize("url", ["memory://bench", "https://127.0.0.1:9/team"])
def test_what_other_processes_do_not_see_and_services_are_refused(url: str) -> None:
    with pytest.raises(UnsupportedError, match="benchmarks make repositories in a folder"):
        bench_place(url, machine())


def test_a_disk_without_room_is_told_before_anything_is_written(
    place: BenchPlace, tmp_path: Path
) -> None:
    free = place.check_room(1)
    assert free is not None
    assert 0 < free <= shutil.disk_usage(tmp_path).free * 2
    with pytest.raises(StorageError, match="free, and the benchmark writes"):
        place.check_room(free)
    assert not (tmp_path / "store").exists()

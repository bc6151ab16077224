"""Making and opening repositories, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend, Guarantee
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    Error,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.log.reader import Form, RepositoryLog
from tensorrepo.repo.log.segments import read_segment
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    files_at,
    new_repository,
    tip_of,
)
from tests.support.faults.backends import WrappedBackend
from tests.support.faults.damage import FLIPS, survivors
from tests.support.reference.collector import supersede


@pytest.fixture(params=["memory", "local"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return MemoryBackend() if request.param == "memory" else LocalBackend(tmp_path / "store")


def with_identity(data: bytes) -> MemoryBackend:
    backend = MemoryBackend()
    backend.create("repo.json", (data,))
    return backend


def test_a_new_repository_is_empty_and_opens_as_the_same(backend: Backend) -> None:
    made = new_repository(backend)
    opened = again(made)
    assert opened.id == made.id
    assert opened.url == backend.url
    assert opened.log.refresh().generation == 0
    assert dict(opened.log.refresh().state.refs) == {}
    assert [stored.key for stored in backend.list("")] == ["repo.json"]


def test_two_repositories_have_two_names() -> None:
    assert new_repository().id != new_repository().id


def test_a_repository_is_made_once(backend: Backend) -> None:
    made = new_repository(backend)
    with pytest.raises(ConflictError, match="Use it as it is"):
        new_repository(backend)
    assert again(made).id == made.id


def test_of_two_that_make_a_repository_at_once_one_wins(backend: Backend) -> None:
    def make(_: int) -> str | None:
        try:
            return new_repository(backend).id
        except ConflictError:
            return None

    with ThreadPoolExecutor(4) as pool:
        made = [name for name in pool.map(make, range(4)) if name is not None]
    assert made == [open_repository(backend, drivers={}).id]


def test_where_there_is_no_repository_the_error_says_how_to_make_one(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="tensorrepo init"):
        open_repository(backend, drivers={})


def test_a_folder_of_something_else_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,b")
    with pytest.raises(NotFoundError, match=r"no tensorrepo repository at .*repo\.json"):
        open_repository(LocalBackend(tmp_path), drivers={})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"format":1}',
        b'{"id":"x"}',
        b'{"format":"1","id":"x"}',
        b'{"format":1,"id":7}',
        b'{"format":1,"id":"x","more":1}',
        b'{"format":0,"id":"x"}',
        b'{"format":-1,"id":"x"}',
        b'{"name":"package","version":"1.0"}',
        b'{"deep":' + b"[" * 100_000,
    ],
    ids=lambda data: repr(data[:30]),
)
def test_a_repo_json_that_is_none_is_corrupt_and_says_where(data: bytes) -> None:
    with pytest.raises(CorruptError, match=r"memory://.*/repo\.json"):
        open_repository(with_identity(data), drivers={})


@pytest.mark.parametrize(
    "data", [b'{"format":3,"id":"x"}', b'{"format":99,"id":"x","hash":"other","id2":[1]}']
)
def test_a_newer_format_is_unsupported_whatever_else_it_says(data: bytes) -> None:
    with pytest.raises(UnsupportedError, match="Update tensorrepo"):
        open_repository(with_identity(data), drivers={})


def snapshot(backend: Backend) -> object:
    repository = open_repository(backend, drivers={})
    return files_at(repository, tip_of(repository))


@pytest.mark.parametrize("mask", FLIPS)
def test_no_flipped_byte_of_repo_json_goes_unnoticed_where_there_is_a_record(mask: int) -> None:
    """The first record chains to these bytes."""
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})

    def read(damaged: bytes) -> object:
        repository.backend.overwrite("repo.json", (damaged,))
        return snapshot(repository.backend)

    assert survivors(repository.backend.read("repo.json"), mask, read) == {}


class CutShort(WrappedBackend):
    """The first answer about repo.json lacks its last byte."""

    def read(self, key: str) -> bytes:
        data = super().read(key)
        asked = self.operations.count(("read", "repo.json"))
        return data[:-1] if key == "repo.json" and asked == 1 else data


def test_a_repo_json_that_was_cut_short_on_its_way_is_asked_for_again() -> None:
    """Without its last byte it is JSON, and the beginning of another log."""
    backend = new_repository().backend
    commit_files(open_repository(CutShort(backend), drivers={}), {"files/a": b"one"})
    assert snapshot(backend) == {"files/a": b"one"}


def test_a_store_that_can_only_be_read_gets_no_repository() -> None:
    backend = MemoryBackend()
    backend.guarantee = Guarantee.READ_ONLY
    with pytest.raises(UnsupportedError, match="can only be read"):
        create_repository(backend, drivers={}, local=LocalState())


class IgnoresTheCondition(WrappedBackend):
    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self.inner.overwrite(key, parts)
        return True


def test_a_store_where_two_writers_win_gets_no_repository() -> None:
    backend = IgnoresTheCondition(MemoryBackend())
    with pytest.raises(UnsupportedError, match="two writers"):
        create_repository(backend, drivers={}, local=LocalState())
    assert list(backend.list("")) == []


def test_a_store_for_one_writer_gets_a_repository() -> None:
    backend = MemoryBackend()
    backend.guarantee = Guarantee.SINGLE_WRITER
    commit_files(new_repository(backend), {"files/a": b"one"})
    assert snapshot(backend) == {"files/a": b"one"}


def test_an_older_copy_in_its_place_is_noticed_by_who_saw_the_newer(tmp_path: Path) -> None:
    backend = MemoryBackend()
    repository = new_repository(backend)
    commit_files(repository, {"files/a": b"one"})
    older = {stored.key: backend.read(stored.key) for stored in backend.list("")}
    commit_files(repository, {"files/a": b"two"})

    def reader() -> RepositoryCore:
        return open_repository(backend, drivers={}, local=LocalState(memory=tmp_path))

    reader().log.refresh()
    for stored in list(backend.list("")):
        backend.delete(stored.key)
    for key, data in older.items():
        backend.create(key, (data,))
    with pytest.raises(Error, match="older copy") as caught:
        reader().log.refresh()
    assert caught.value.kind == "rewound"


def test_a_record_that_completes_a_segment_writes_it_with_its_commits() -> None:
    repository = new_repository()
    identity = repository.backend.read("repo.json")
    short = RepositoryLog(
        repository.backend, identity, lambda _: (), form=Form(segment_lengths=(4,))
    )
    writing = replace(repository, log=short)
    made = [commit_files(writing, {f"files/{at}": b"x"}).digest for at in range(4)]
    segment = read_segment(short.slots, 4)
    assert segment is not None
    assert [commit.digest for commit in segment.commits] == made
    assert [commit.may_touch("files/2") for commit in segment.commits] == [
        False,
        False,
        True,
        False,
    ]


def test_entries_are_given_with_the_placement_that_holds_them_now() -> None:
    repository = new_repository()
    setup = begin(repository, "main")
    old = setup.objects.put(Kind.PLACEMENT, b"old").digest
    new = setup.objects.put(Kind.PLACEMENT, b"new").digest
    content = setup.objects.put(Kind.MODEL, b"manifest").digest
    setup.stage("models/m", Entry(Kind.MODEL, content, old))
    made = setup.commit("model", author=ADA)
    assert made is not None
    supersede(repository, old, new)
    repacked = Entry(Kind.MODEL, content, new)
    assert repository.entry(made.commit.tree, "models/m") == repacked
    assert dict(repository.entries(made.commit.tree, "models/")) == {"models/m": repacked}

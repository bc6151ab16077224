"""Collections, repacking and ends of history beside a transfer."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tensorrepo.repo.backends.base import Uploads
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitOutcomeUnknown, InvalidInputError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer import receive
from tensorrepo.repo.transfer.difference import missing_commits
from tensorrepo.repo.transfer.exchange import clone, fetch, push
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of
from tests.support.faults.backends import Crash, WrappedBackend
from tests.support.reference.collector import condemn, delete, supersede

FILES = {"files/a": b"one" * 1000, "files/b": b"two" * 1000}


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(ADA, tmp_path / "parts")


class Collected(WrappedBackend):
    """Collects and deletes all garbage right before the first record is created."""

    collects = True

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if self.collects and key.startswith("log/0"):
            self.collects = False
            keys = condemn(open_repository(self.inner, drivers={}))
            delete(open_repository(self.inner, drivers={}), keys)
        return super().create(key, parts)

    def uploads(self) -> Uploads:
        return self.inner.uploads()


def test_what_a_collection_takes_between_copy_and_record_is_stored_again(
    options: TransferOptions,
) -> None:
    here = new_repository()
    commit_files(here, FILES)
    target = open_repository(Collected(new_repository().backend), drivers={})
    push(here, target, ["main"], options)
    assert files_at(target, tip_of(target)) == FILES
    verify(target.backend)


def test_a_push_begins_anew_where_another_branch_was_dropped_and_collected_meanwhile(
    options: TransferOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other, target = new_repository(LocalBackend(tmp_path)), new_repository(), new_repository()
    commit_files(here, FILES)
    commit_files(other, {"files/c": b"of somebody else"})
    push(other, target, ["main:other"], options)
    looked: list[int] = []

    def drops_first(*words: Any) -> Any:
        looked.append(1)
        if len(looked) == 1:
            there = open_repository(target.backend, drivers={})
            dropped = refs.delete_ref(there, "heads/other", actor=ADA)
            delete(there, condemn(there, release=[dropped]))
        return missing_commits(*words)

    monkeypatch.setattr(receive, "missing_commits", drops_first)
    push(here, open_repository(target.backend, drivers={}), ["main"], options)
    assert len(looked) == 2
    verify(target.backend)


def test_garbage_of_an_earlier_transfer_is_adopted_and_not_taken_by_a_late_deletion(
    options: TransferOptions,
) -> None:
    here, target = new_repository(), new_repository()
    commit_files(here, FILES)
    push(here, target, ["main:gone"], options)
    dropped = refs.delete_ref(target, "heads/gone", actor=ADA)
    keys = condemn(target, release=[dropped])
    push(here, target, ["main"], options)  # stores all of it again, under other keys
    delete(target, keys)
    fresh = open_repository(target.backend, drivers={})
    assert files_at(fresh, tip_of(fresh)) == FILES
    verify(target.backend)


def test_a_long_transfer_leases_what_is_whole_and_ends_the_lease_with_its_record(
    tmp_path: Path,
) -> None:
    here, target = new_repository(), new_repository()
    made = commit_files(here, FILES)
    minutes = itertools.count()
    slow = TransferOptions(ADA, tmp_path / "parts", clock=lambda: 100.0 * next(minutes))
    push(here, target, ["main"], slow)
    view = target.log.refresh()
    entries = [
        one for record in target.log.records(1, view.generation + 1) for one in record.entries
    ]
    assert [one.kind for one in entries] == ["lease-open", "ref-create", "lease-close"]
    assert entries[0].data["keep"] == [made.digest]
    assert view.state.leases == {}


class DiesAtTheEnd(Collected):
    """As that, or without a collection; and no second record is ever made."""

    def __init__(self, *, collects: bool) -> None:
        super().__init__(new_repository().backend)
        self.collects = collects

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if key.startswith("log/0") and self.inner.size("log/00000000000000000001.json"):
            raise Crash("died before the record with the refs")
        return super().create(key, parts)


@pytest.mark.parametrize("depth", [None, 1])
@pytest.mark.parametrize("collects", [False, True])
def test_a_transfer_that_dies_with_its_lease_leaves_a_whole_repository(
    tmp_path: Path, depth: int | None, collects: bool
) -> None:
    """What a lease names went through the fence, and leads to nothing that is not there."""
    here, target = new_repository(), DiesAtTheEnd(collects=collects)
    for at in range(3):
        commit_files(here, {**FILES, "files/at": b"%d" % at})
    minutes = itertools.count()
    slow = TransferOptions(ADA, tmp_path / "parts", clock=lambda: 100.0 * next(minutes))
    there = open_repository(target, drivers={})
    with suppress(CommitOutcomeUnknown):  # it died
        clone(HistorySource.of(here), there, "origin", slow, depth=depth)
    verify(target.inner)


def test_an_object_that_is_there_is_not_adopted_as_what_it_is_not() -> None:
    repository = new_repository()
    writer = ObjectWriter(repository.objects, ())
    inner = writer.put(Kind.BLOB, b"inner")
    outer = writer.put(Kind.DATASET, b"outer", [inner.digest])
    writer.flush()
    lying = msgspec.structs.replace(outer, leaf=True)
    assert ObjectWriter(repository.objects, ()).adopt(outer)
    assert not ObjectWriter(repository.objects, ()).adopt(lying)


def commit_model(repository: RepositoryCore, content: bytes) -> tuple[Digest, Digest]:
    """A model of one pack; gives its placement and the commit."""
    with begin(repository, "main") as transaction:
        manifest = transaction.objects.put(Kind.MODEL, b"manifest")
        placement = put_placement(repository, content)
        transaction.stage("models/net", Entry(Kind.MODEL, manifest.digest, placement))
        landed = transaction.commit("model", author=ADA)
    assert landed is not None
    return placement, landed.digest


def put_placement(repository: RepositoryCore, content: bytes) -> Digest:
    with begin(repository, "main") as transaction:
        pack = transaction.objects.put(Kind.PACK, content)
        placement = transaction.objects.put(Kind.PLACEMENT, content[:4], [pack.digest])
        transaction.objects.flush()
    return placement.digest


def test_a_model_that_was_repacked_arrives_as_it_is_stored_now(options: TransferOptions) -> None:
    here, target = new_repository(), new_repository()
    old, _ = commit_model(here, b"old pack")
    new = put_placement(here, b"new pack")
    supersede(here, old, new)
    here = open_repository(here.backend, drivers={})
    delete(here, condemn(here))
    push(here, target, ["main"], options)
    assert target.log.refresh().state.resolve(old) == new
    assert bytes(target.objects.get(new).payload) == b"new "
    verify(target.backend)


def test_a_receiver_that_has_the_model_as_it_was_keeps_it_so(options: TransferOptions) -> None:
    here, target = new_repository(), new_repository()
    old, _ = commit_model(here, b"old pack")
    push(here, target, ["main"], options)
    supersede(here, old, put_placement(here, b"new pack"))
    commit_files(here, FILES)
    push(here, target, ["main"], options)
    assert target.log.refresh().state.resolve(old) == old
    verify(target.backend)


def test_a_shallow_clone_ends_where_it_was_asked_to_and_goes_on_from_there(
    options: TransferOptions,
) -> None:
    origin, here = new_repository(), new_repository()
    commit_files(origin, {"files/old": b"gone by now"})
    commit_files(origin, FILES | {"files/old": None})
    last = commit_files(origin, {"files/a": b"new"})
    clone(HistorySource.of(origin), here, "origin", options, depth=2)
    here = open_repository(here.backend, drivers={})
    here.log.refresh()
    assert len(list(walk(here.objects, [last.digest]))) == 2
    assert files_at(here, last.digest) == FILES | {"files/a": b"new"}
    verify(here.backend)
    mine = commit_files(here, {"files/mine": b"mine"})
    push(here, origin, ["main"], options)
    assert len(list(walk(origin.objects, [mine.digest]))) == 4
    assert origin.log.refresh().state.shallow == frozenset()
    theirs = commit_files(origin, {"files/theirs": b"theirs"})
    fetch(HistorySource.of(origin), here, "origin", options)
    assert here.log.refresh().state.refs["remotes/origin/main"] == theirs.digest
    verify(here.backend)


@pytest.fixture
def shallow(options: TransferOptions) -> tuple[RepositoryCore, RepositoryCore, list[Digest]]:
    """An origin with five commits and a tag of the second, a clone of the last, and the commits."""
    origin, here = new_repository(), new_repository()
    made = [commit_files(origin, {"files/n": b"%d" % number}).digest for number in range(5)]
    refs.create_tag(origin, "v1", made[1], actor=ADA)
    refs.create_branch(origin, "side", made[3], actor=ADA)
    clone(HistorySource.of(origin), here, "origin", options, depth=1)
    return origin, open_repository(here.backend, drivers={}), made


def test_the_end_of_a_history_is_taken_back_by_a_depth_and_for_good(
    shallow: tuple[RepositoryCore, RepositoryCore, list[Digest]], options: TransferOptions
) -> None:
    origin, here, made = shallow
    fetch(HistorySource.of(origin), here, "origin", options)
    state = here.log.refresh().state
    assert (state.shallow, "tags/v1" in state.refs) == ({made[3], made[4]}, False)
    report = fetch(HistorySource.of(origin), here, "origin", options, depth=3)
    state = here.log.refresh().state
    assert (state.shallow, state.refs["tags/v1"], report.totals.commits) == ({made[1]}, made[1], 2)
    assert [digest for digest, _ in walk(here.objects, [made[-1]])] == made[:0:-1]
    verify(here.backend)
    assert fetch(HistorySource.of(origin), here, "origin", options, depth=1).moves == ()
    assert here.log.refresh().state.shallow == {made[1]}
    fetch(HistorySource.of(origin), here, "origin", options, unshallow=True)
    assert here.log.refresh().state.shallow == frozenset()
    assert files_at(here, made[0]) == {"files/n": b"0"}
    verify(here.backend)
    with pytest.raises(InvalidInputError, match="is not shallow"):
        fetch(HistorySource.of(origin), here, "origin", options, unshallow=True)


def test_what_a_collection_takes_of_an_older_history_is_stored_again(
    shallow: tuple[RepositoryCore, RepositoryCore, list[Digest]], options: TransferOptions
) -> None:
    origin, here, made = shallow
    target = open_repository(Collected(here.backend), drivers={})
    fetch(HistorySource.of(origin), target, "origin", options, unshallow=True)
    assert files_at(target, made[0]) == {"files/n": b"0"}
    verify(target.backend)


def test_of_many_commits_at_which_history_ends_each_record_names_some(
    shallow: tuple[RepositoryCore, RepositoryCore, list[Digest]],
    options: TransferOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receive, "MOST_ENDED", 1)
    origin, deeper, made = shallow
    here, before = new_repository(), deeper.log.refresh().generation
    clone(HistorySource.of(origin), here, "origin", options, depth=1)
    assert (here.log.refresh().generation, here.log.refresh().state.shallow) == (2, {*made[3:]})
    here = open_repository(here.backend, drivers={})
    fetch(HistorySource.of(origin), here, "origin", options, depth=2)
    assert here.log.refresh().state.shallow == {made[2]}
    verify(here.backend)
    fetch(HistorySource.of(origin), deeper, "origin", options, unshallow=True)
    view = deeper.log.refresh()
    assert (view.state.shallow, view.generation) == (frozenset(), before + 2)
    verify(deeper.backend)


def test_a_shallow_history_stays_one_at_another_receiver(options: TransferOptions) -> None:
    origin, here, other = new_repository(), new_repository(), new_repository(MemoryBackend())
    commit_files(origin, FILES)
    tip = commit_files(origin, {"files/a": b"new"}).digest
    clone(HistorySource.of(origin), here, "origin", options, depth=1)
    push(here, other, ["main"], options)
    assert other.log.refresh().state.shallow == {tip}
    verify(other.backend)

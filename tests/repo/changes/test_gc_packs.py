"""Old history lies in packs, is read as before, and is lost at no moment of being packed."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_packs, refs
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import (
    CollectionReport,
    CollectionRules,
    PackingReport,
    collect_garbage,
    plan_collection,
)
from tensorrepo.repo.changes.gc_packs import pack_history
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.shallow import end_history
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitExpired, CommitOutcomeUnknown, CorruptError, Error
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.log.state import PACKS_FEATURE
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import decode_key_list, object_key
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    files_at,
    new_repository,
    stage_files,
    tip_of,
)
from tests.support.effort import sampled
from tests.support.faults.backends import (
    Crash,
    CrashBackend,
    Loss,
    LostReplyBackend,
    WrappedBackend,
)
from tests.support.faults.collected_writers import CollectedWriter, collect
from tests.support.reference.collection_replay import Interrupted

AT_ONCE = CollectionRules(grace_seconds=0, retention_seconds=0)
COMMITS = 12
MOST_OPERATIONS = 140


def history(backend: Backend) -> RepositoryCore:
    """A repository of some commits, each of a file of its own."""
    repository = new_repository(backend)
    for at in range(COMMITS):
        commit_files(repository, {f"files/{at}": b"%d" % at}, message=f"change {at}")
    return repository


@cache
def _made() -> MemoryBackend:
    backend = MemoryBackend()
    history(backend)
    return backend


def made() -> RepositoryCore:
    return open_repository(copied(_made()), drivers={})


def pack(repository: RepositoryCore, least: int = 1) -> PackingReport:
    return pack_history(repository, actor=ADA, rules=AT_ONCE, least=least)


def keys(repository: RepositoryCore) -> set[str]:
    return {stored.key for stored in repository.backend.list("objects/")}


def content(repository: RepositoryCore) -> list[tuple[str, dict[str, bytes]]]:
    """Every commit of main, and all of its files."""
    tip = tip_of(repository)
    assert tip is not None
    return [(digest, files_at(repository, digest)) for digest, _ in walk(repository.objects, [tip])]


def test_history_in_a_pack_is_read_as_before_and_takes_few_keys() -> None:
    repository = made()
    before, count = content(repository), len(keys(repository))
    report = pack(repository)
    commits = [object_key(digest) for digest, _ in before]
    assert (report.packs, report.history_packs) == (1, 1)
    assert report.objects == report.freed_keys >= COMMITS
    told = f"{report.objects} commits, pages of trees and small files into 1 pack: "
    assert str(CollectionReport(dry_run=False, packing=report)).startswith(f"packed {told}")
    assert not keys(repository) & set(commits)
    assert len(keys(repository)) <= count - report.objects + 4  # the pack, a list, two of graves
    fresh = again(repository)
    assert content(fresh) == before
    assert PACKS_FEATURE in fresh.log.refresh().state.config["features"]  # type: ignore[operator]
    assert list(fresh.objects.find(before[3][0][:9])) == [before[3][0]]
    assert fresh.objects.describe(before[3][0]).kind is Kind.COMMIT
    verify(repository.backend)


@pytest.mark.parametrize("deep", [False, True])
def test_a_check_finds_nothing_wrong_with_what_is_packed(*, deep: bool) -> None:
    repository = made()
    pack(repository)
    fresh = again(repository)
    assert [
        *check_objects(fresh.objects, fresh.log.refresh().state, ObjectTotals(), deep=deep)
    ] == []


def test_packing_again_finds_nothing_and_a_collection_leaves_packs_alone() -> None:
    repository = made()
    pack(repository)
    before = content(again(repository))
    generation = repository.log.refresh().generation
    assert pack(again(repository)).objects == 0
    assert repository.log.refresh().generation == generation
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    assert content(again(repository)) == before
    assert plan_collection(again(repository), rules=AT_ONCE).young_objects == 0


def test_what_is_young_or_little_stays_as_it_is() -> None:
    repository = made()
    before = keys(repository)
    rules = CollectionRules(grace_seconds=1e6)
    assert pack_history(repository, actor=ADA, rules=rules, least=1).objects == 0
    assert pack_history(repository, actor=ADA, rules=AT_ONCE).objects == 0
    assert keys(repository) == before


def test_a_pack_takes_in_small_ones_and_they_are_collected() -> None:
    repository = made()
    pack(repository)
    (first,) = repository.log.refresh().state.history_packs
    for at in range(COMMITS):
        commit_files(repository, {f"files/more-{at}": b"%d" % at})
    before = content(repository)
    report = pack(again(repository))
    assert report.history_packs == 1
    assert repository.log.refresh().state.history_packs != (first,)
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    assert object_key(first) not in keys(repository)
    assert content(again(repository)) == before
    reader = open_repository(repository.backend, drivers={})
    reader.log.refresh()
    assert content(reader) == before


def test_a_reader_that_knows_the_old_pack_alone_finds_the_new_one() -> None:
    repository = made()
    pack(repository)
    reader = again(repository)
    reader.log.refresh()
    for at in range(COMMITS):
        commit_files(repository, {f"files/more-{at}": b"%d" % at})
    pack(again(repository))
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    assert len(content(reader)) == 2 * COMMITS


def test_packed_commits_that_a_ref_gets_back_are_whole() -> None:
    repository = made()
    before = content(repository)
    pack(repository)
    end_history(repository, [before[2][0]], actor=ADA)
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    # Its files went with history; those of the first commit that is left did not.
    kept = open_repository(repository.backend, drivers={})
    refs.create_branch(kept, "back", before[2][0], actor=ADA)
    assert files_at(again(repository), before[2][0]) == before[2][1]
    verify(repository.backend)


def test_several_packs_are_made_where_there_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc_packs, "_AT_ONCE", 4)
    monkeypatch.setattr(gc_packs, "PACK_MEMBERS", 4)
    repository = made()
    before = content(repository)
    report = pack(repository)
    assert report.packs == report.history_packs > 2
    assert content(again(repository)) == before


def test_a_pack_that_is_damaged_condemns_nothing_and_is_told() -> None:
    repository = made()
    before = content(repository)
    pack(repository)
    (name,) = repository.log.refresh().state.history_packs
    key = object_key(name)
    whole = bytes(repository.backend.read(key))
    # A single bit may be one that no decoder looks at.
    repository.backend.overwrite(key, [whole[:-64] + bytes(each ^ 0xFF for each in whole[-64:])])
    for digest, _ in before[:2]:
        with suppress(Error):
            again(repository).objects.get(digest)
    with pytest.raises(CorruptError):
        content(again(repository))
    with pytest.raises(CorruptError):
        collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    repository.backend.overwrite(key, [whole])
    assert content(again(repository)) == before


@pytest.mark.parametrize("at", sampled(range(MOST_OPERATIONS), 3))
def test_packing_that_died_anywhere_lost_nothing_and_is_ended_by_the_next(at: int) -> None:
    backend = copied(_made())
    before = content(open_repository(backend, drivers={}))
    with suppress(Crash, CommitOutcomeUnknown):
        pack(open_repository(CrashBackend(backend, at), drivers={}))
    _check_next(backend, before)


LOSSES: tuple[Loss, ...] = ("before", "after", "later", "twice")


@pytest.mark.parametrize("mode", LOSSES)
@pytest.mark.parametrize("at", sampled(range(1, MOST_OPERATIONS), 3))
def test_an_answer_that_is_lost_while_packing_costs_a_repetition_at_most(
    at: int, mode: Loss
) -> None:
    backend = copied(_made())
    before = content(open_repository(backend, drivers={}))
    failing = LostReplyBackend(backend, at, mode)
    with suppress(Error):
        pack(open_repository(failing, drivers={}))
    failing.settle()
    _check_next(backend, before)


def _check_next(backend: Backend, before: list[tuple[str, dict[str, bytes]]]) -> None:
    verify(backend)
    dead = open_repository(backend, drivers={})
    assert content(dead) == before
    assert [*check_objects(dead.objects, dead.log.refresh().state, ObjectTotals())] == []
    collect_garbage(open_repository(backend, drivers={}), actor=ADA, rules=AT_ONCE)
    pack(open_repository(backend, drivers={}))
    verify(backend)
    repository = open_repository(backend, drivers={})
    assert content(repository) == before
    state = repository.log.refresh().state
    assert len(state.history_packs) == 1
    assert all(grave.ended for grave in state.graves)
    assert not {object_key(digest) for digest, _ in before} & keys(repository)


def test_the_operations_of_packing_are_all_tried() -> None:
    counted = WrappedBackend(copied(_made()))
    pack(open_repository(counted, drivers={}))
    assert len(counted.operations) <= MOST_OPERATIONS


def test_two_that_pack_at_once_and_a_writer_between_lose_nothing() -> None:
    late = Interrupted(copied(_made()))
    repository = open_repository(late, drivers={})

    def others() -> None:
        pack(open_repository(late.inner, drivers={}))
        commit_files(open_repository(late.inner, drivers={}), {"files/0": b"again"})
        collect(late.inner)

    late.before_record = others
    pack(repository)
    assert late.before_record is None
    verify(late.inner)
    assert len(content(open_repository(late.inner, drivers={}))) == COMMITS + 1


@pytest.mark.parametrize("seed", sampled(range(60), 1))
def test_writers_beside_collections_and_packing_lose_nothing(seed: int) -> None:
    backend, chance = MemoryBackend(), random.Random(seed)
    commit_files(new_repository(backend), {"files/first": b"first"})
    writers = [
        CollectedWriter(open_repository(backend, drivers={}), number, chance) for number in range(3)
    ]
    late: list[list[str]] = []
    for _ in range(40):
        chance.choice(writers).step()
        if chance.random() < 0.2:
            pack(open_repository(backend, drivers={}))
        if chance.random() < 0.2:
            collect(backend)
        # Deletions that were sent long ago are carried out late, and again.
        state = open_repository(backend, drivers={}).log.refresh().state
        late += [_listed(backend, grave.list) for grave in state.graves[len(late) :]]
        for key in chance.choice(late) if late and chance.random() < 0.3 else ():
            backend.delete(key)
        verify(backend)


def _listed(backend: Backend, name: str) -> list[str]:
    """Keys that a condemnation names, as long as its list is there."""
    with suppress(Error):
        payload = open_repository(backend, drivers={}).objects.fetch(name).payload  # type: ignore[arg-type]
        return [*decode_key_list(payload)]
    return []


def test_a_disk_is_packed_too(tmp_path: Path) -> None:
    repository = history(LocalBackend(tmp_path / "store"))
    before = content(repository)
    files = sum(1 for path in tmp_path.rglob("*") if path.is_file())
    pack(again(repository))
    assert sum(1 for path in tmp_path.rglob("*") if path.is_file()) < files
    assert content(again(repository)) == before
    verify(repository.backend)


def test_what_history_gave_up_leaves_packs_once_enough_of_one_is_dead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_packs, "WORN_SHARE", 0.8)
    repository = made()
    before = content(repository)
    pack(repository)
    (first,) = repository.log.refresh().state.history_packs
    end_history(repository, [before[2][0]], actor=ADA)
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    generation = repository.log.refresh().generation
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    assert repository.log.refresh().generation == generation, "what is buried is no garbage again"
    pack(again(repository), least=1000)
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    (second,) = repository.log.refresh().state.history_packs
    assert second != first
    assert object_key(first) not in keys(repository)
    fresh = open_repository(repository.backend, drivers={})
    fresh.log.refresh()
    assert [*content(fresh)] == before[:3]
    for digest, _ in before[3:]:
        with pytest.raises(CommitExpired):
            fresh.objects.get(digest)
    verify(repository.backend)


def test_content_that_was_buried_in_a_pack_is_stored_again_and_stays() -> None:
    repository = made()
    commit_files(repository, {"files/x": b"comes and goes"}, branch="side")
    writer = again(repository)
    pack(repository)
    refs.delete_ref(repository, "heads/side", actor=ADA)
    late = begin(writer, "main")
    stage_files(late, {"files/y": b"comes and goes"})
    late.objects.flush()
    collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    made_late = late.commit("late", author=ADA)
    assert made_late is not None
    for _ in range(2):
        pack(again(repository))
        collect_garbage(again(repository), actor=ADA, rules=AT_ONCE)
    assert files_at(again(repository), made_late.digest)["files/y"] == b"comes and goes"
    verify(repository.backend)

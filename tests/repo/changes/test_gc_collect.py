"""A collection deletes what nothing leads to, and nothing else, whatever happens beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import pytest

from tensorrepo.repo.backends.base import Backend, Uploads
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_collect, refs
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
from tensorrepo.repo.errors import (
    CollectedError,
    CommitExpired,
    CommitOutcomeUnknown,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import object_key
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
from tests.support.effort import check_each, sampled
from tests.support.faults.backends import (
    ActedOnBackend,
    Crash,
    CrashBackend,
    WrappedBackend,
    WrappedUploads,
)
from tests.support.reference.collection_replay import Interrupted

AT_ONCE = CollectionRules(grace_seconds=0, retention_seconds=0)
DAY = 86400
STORING = ("upload", "finish")  # of operations


class Clock:
    """A store's clock, which goes on by itself as little as a clock can."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        self.seconds += 1 / 64
        return self.seconds


def collect(repository: RepositoryCore, rules: CollectionRules = AT_ONCE) -> CollectionReport:
    return collect_garbage(repository, actor=ADA, rules=rules)


def keys(repository: RepositoryCore) -> set[str]:
    return {stored.key for stored in repository.backend.list("objects/")}


def dropped_branch(repository: RepositoryCore, content: bytes = b"dropped") -> str:
    """Make a branch with a file and delete it; gives its commit."""
    commit_files(repository, {"files/dropped": content}, branch="dead")
    return refs.delete_ref(repository, "heads/dead", actor=ADA)


def test_what_nothing_leads_to_is_gone_and_the_rest_is_whole() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"kept"})
    before = keys(repository)
    dropped = dropped_branch(repository)
    report = collect(repository)
    assert report.dead_objects == len(report.condemned) + 1 == report.deleted_keys
    fresh = again(repository)
    assert files_at(fresh, made.digest) == {"files/a": b"kept"}
    assert before <= keys(repository)
    with pytest.raises(CollectedError, match="was collected"):
        fresh.objects.get(dropped)
    verify(repository.backend)


def test_a_second_collection_finds_nothing_to_do() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    dropped_branch(repository)
    collect(repository)
    generation = repository.log.refresh().generation
    report = collect(repository)
    assert (report.dead_objects, report.condemned) == (0, ())
    assert repository.log.refresh().generation == generation


def test_times_of_the_store_say_how_long_garbage_and_dropped_refs_are_kept() -> None:
    clock = Clock()
    repository = new_repository(MemoryBackend(clock=clock))
    commit_files(repository, {"files/a": b"kept"})
    dropped = dropped_branch(repository)
    rules = CollectionRules(grace_seconds=3 * DAY, retention_seconds=14 * DAY)
    assert collect(repository, rules).retained == 1
    clock.seconds += 13 * DAY
    assert collect(repository, rules).dead_objects == 0
    assert files_at(repository, dropped), "the ref may come back"
    clock.seconds += 2 * DAY
    report = collect(repository, rules)
    assert (report.released, report.retained) == ((dropped,), 0)
    assert report.deleted_keys == 2  # the commit and its file


def test_garbage_within_the_grace_is_kept_and_told() -> None:
    clock = Clock()
    repository = new_repository(MemoryBackend(clock=clock))
    commit_files(repository, {"files/a": b"kept"})
    slow = begin(repository, "main")
    link = slow.objects.put(Kind.BLOB, b"not committed yet")
    slow.objects.flush()
    rules = CollectionRules(grace_seconds=DAY)
    report = collect(repository, rules)
    assert (report.dead_objects, report.young_objects, report.young_bytes) == (0, 1, link.bytes)
    clock.seconds += 2 * DAY
    assert collect(repository, rules).dead_objects == 1


def test_the_repository_says_how_long_dropped_refs_are_kept() -> None:
    clock = Clock()
    repository = new_repository(MemoryBackend(clock=clock))
    setting = LogEntry("c", "config", ADA, 0, data={"set": {"retention_seconds": 60}})
    append(repository.log, lambda _: (setting,))
    dropped_branch(repository)
    clock.seconds += 61
    assert len(collect(repository, CollectionRules(grace_seconds=0)).released) == 1


def test_what_a_run_dropped_by_its_policy_is_kept_for_the_grace_alone() -> None:
    clock = Clock()
    repository = new_repository(MemoryBackend(clock=clock))
    made = commit_files(repository, {"files/a": b"checkpoint"}, branch="main")
    refs._create(repository, "ref-create", "runs/r/1", made.digest, ADA)
    refs.delete_ref(repository, "runs/r/1", actor=ADA)
    dropped = dropped_branch(repository)
    clock.seconds += 4 * DAY
    report = collect(repository, CollectionRules())
    assert report.released == (made.digest,)
    assert files_at(repository, dropped) == {"files/dropped": b"dropped"}


def test_a_lease_keeps_what_it_names_until_somebody_closes_it() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    staged = begin(repository, "main")
    link = staged.objects.put(Kind.BLOB, b"staged")
    staged.objects.flush()
    data = {"id": "stage", "keep": [link.digest], "expires": 1}
    append(repository.log, lambda _: (LogEntry("l", "lease-open", ADA, 0, data=data),))
    assert collect(repository).dead_objects == 0
    closing = CollectionRules(grace_seconds=0, retention_seconds=0, close_leases=True)
    report = collect(repository, closing)
    assert (report.closed_leases, report.dead_objects) == (("stage",), 1)


def test_a_plan_changes_nothing_and_tells_what_goes_and_what_holds_most() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a" * 1000})
    commit_files(repository, {"files/b": b"b" * 3000}, branch="dev")
    refs.create_branch(repository, "same", tip_of(repository) or "", actor=ADA)
    dropped_branch(repository, b"d" * 500)
    before = {stored.key: stored.bytes for stored in repository.backend.list("")}
    kept = plan_collection(repository, rules=CollectionRules())
    report = plan_collection(repository, rules=AT_ONCE)
    assert {stored.key: stored.bytes for stored in repository.backend.list("")} == before
    assert set(report.kinds) == {"blob", "commit"}
    assert report.kinds["blob"] == 500 + 64
    assert sum(report.kinds.values()) == report.dead_bytes
    assert report.refs["heads/dev"] > 3000 > report.refs["heads/main"] == 0
    assert (kept.dead_objects, kept.retained) == (0, 1)
    assert kept.refs["dropped refs"] == report.dead_bytes


def test_files_that_are_not_ours_are_told_and_kept() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    repository.backend.create("objects/ab/notes.txt", (b"mine",))
    unknown = object_key(commit_files(repository, {"files/b": b"b"}).digest, 7)
    repository.backend.create(unknown, (b"of no condemnation",))
    report = collect(repository)
    assert report.foreign == ("objects/ab/notes.txt",)
    assert {"objects/ab/notes.txt", unknown} <= keys(repository)


def test_nothing_is_collected_while_anything_is_unknown_or_unreadable() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"kept"})
    dropped_branch(repository)
    before = keys(repository)
    repository.backend.delete(object_key(made.digest))
    with pytest.raises(NotFoundError):
        collect(again(repository))
    assert keys(repository) == before - {object_key(made.digest)}
    newer = LogEntry("n", "compact", ADA, 0)
    append(repository.log, lambda _: (newer,), allow_void=True)
    with pytest.raises(UnsupportedError, match="compact"):
        collect(again(repository))


def test_history_that_was_given_up_is_collected() -> None:
    repository = new_repository()
    old = commit_files(repository, {"files/a": b"old"})
    new = commit_files(repository, {"files/a": b"new"})
    end_history(repository, [new.digest], actor=ADA)
    collect(repository)
    assert files_at(again(repository), new.digest) == {"files/a": b"new"}
    with pytest.raises(CommitExpired):
        again(repository).objects.get(old.digest)


def test_what_became_reachable_after_the_marking_is_taken_back() -> None:
    late = Interrupted(MemoryBackend())
    repository = new_repository(late.inner)
    commit_files(repository, {"files/a": b"kept"})
    dropped = dropped_branch(repository)
    late.before_record = lambda: refs.create_branch(repository, "back", dropped, actor=ADA)
    report = collect(open_repository(late, drivers={}))
    assert late.before_record is None
    assert files_at(again(repository), dropped) == {"files/dropped": b"dropped"}
    assert report.deleted_keys == 0


def test_two_collections_at_once_share_the_work() -> None:
    late = Interrupted(MemoryBackend())
    repository = new_repository(late.inner)
    commit_files(repository, {"files/a": b"kept"})
    dropped_branch(repository)
    late.before_record = lambda: collect(repository)
    second = collect(open_repository(late, drivers={}))
    assert second.deleted_keys == 0
    verify(repository.backend)
    assert plan_collection(again(repository), rules=AT_ONCE).dead_objects == 0


def test_dropped_refs_that_are_too_many_for_a_record_go_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_collect, "MOST_RELEASED", 2)
    monkeypatch.setattr(gc_collect, "MOST_KEYS", 3)
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    for at in range(5):
        dropped_branch(repository, b"%d" % at)
    report = collect(repository)
    assert (len(report.released), report.retained) == (5, 0)
    assert repository.log.refresh().state.retained == {}
    verify(repository.backend)
    assert plan_collection(again(repository), rules=AT_ONCE).dead_objects == 0


def test_clocks_that_differ_by_a_day_keep_more_or_less_and_lose_nothing() -> None:
    clock = Clock()
    repository = new_repository(MemoryBackend(clock=clock))
    commit_files(repository, {"files/a": b"kept"})
    slow = begin(repository, "main")
    stage_files(slow, {"files/b": b"slow"})
    slow.objects.flush()
    clock.seconds += DAY  # the store's clock leaps, so the grace does not spare what is new
    assert collect(repository, CollectionRules(grace_seconds=DAY / 2)).dead_objects == 1
    made = slow.commit("slow", author=ADA)
    clock.seconds -= 2 * DAY
    collect(repository)
    assert made is not None
    assert files_at(again(repository), made.digest) == {"files/a": b"kept", "files/b": b"slow"}


def garbage() -> MemoryBackend:
    """A store with some of everything for a collector."""
    backend = MemoryBackend()
    repository = new_repository(backend)
    commit_files(repository, {"files/a": b"kept"})
    for at in range(3):
        dropped_branch(repository, b"%d" % at)
    return backend


@cache
def operations() -> int:
    counted = WrappedBackend(garbage())
    collect(open_repository(counted, drivers={}))
    return len(counted.operations)


@pytest.mark.parametrize("at", sampled(range(60), 5))
def test_a_collection_that_died_anywhere_is_ended_by_the_next(at: int) -> None:
    backend = garbage()
    dying = CrashBackend(backend, at)
    with suppress(Crash, CommitOutcomeUnknown):
        collect(open_repository(dying, drivers={}))
    assert operations() <= 60, "some of it would not be tried"
    verify(backend)
    repository = open_repository(backend, drivers={})
    collect(repository)
    verify(backend)
    state = repository.log.refresh().state
    assert all(grave.ended for grave in state.graves)
    assert plan_collection(repository, rules=AT_ONCE).dead_objects == 0
    tip = tip_of(repository)
    assert tip is not None
    assert files_at(repository, tip) == {"files/a": b"kept"}


def test_many_tables_of_graves_become_few_and_bury_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    monkeypatch.setattr(gc_collect, "MOST_TABLES", 1 << 30)
    dropped = []
    for at in range(20):
        dropped.append(dropped_branch(repository, b"%d" % at))
        collect(repository)
    slow = begin(again(repository), "main")
    state = repository.log.refresh().state
    labels = {digest: repository.objects.label(digest, state.graves) for digest in dropped}
    assert len(state.graves) == len(set(labels.values())) == 20
    monkeypatch.undo()
    dropped_branch(repository, b"another")
    collect(repository)
    merged = repository.log.refresh().state
    assert len(merged.graves) <= gc_collect.MOST_TABLES
    fresh = again(repository)
    assert {digest: fresh.objects.label(digest, merged.graves) for digest in dropped} == labels
    # The tables that were merged go; who knows only those stores under the newest label of all.
    dropped_branch(repository, b"one more")
    collect(repository)
    assert object_key(state.graves[-1].graves) not in keys(repository)
    stage_files(slow, {"files/slow": b"19"})
    made = slow.commit("slow", author=ADA)
    assert made is not None
    assert files_at(again(repository), made.digest)["files/slow"] == b"19"
    verify(repository.backend)


def test_a_key_whose_label_was_merged_away_is_collected_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    monkeypatch.setattr(gc_collect, "MOST_TABLES", 1)
    for at in range(6):
        dropped_branch(repository, b"again")
        dropped_branch(repository, b"%d" % at)
        collect(repository)
    assert len(repository.log.refresh().state.graves) <= 2
    monkeypatch.undo()
    collect(repository)  # tables that were merged, and lists that nobody needs
    assert plan_collection(again(repository), rules=AT_ONCE).dead_objects == 0
    labels = [key for key in keys(repository) if key.rpartition(".")[2].isdigit()]
    assert labels == [], "each was collected, whatever became of its label"


def others_collect(backend: Backend) -> None:
    """Others drop refs and collect, twice."""
    for number in range(2):
        other = open_repository(backend, drivers={})
        dropped_branch(other, b"other %d" % number)
        collect(other)


def pack(repository: RepositoryCore) -> PackingReport:
    return pack_history(repository, actor=ADA, rules=AT_ONCE, least=2)


@pytest.mark.parametrize(("work", "most"), [(collect, 100), (pack, 10)], ids=["collect", "pack"])
def test_a_collection_goes_on_whenever_others_merge_and_take_tables_and_lists(
    work: Callable[[RepositoryCore], object], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_collect, "MOST_TABLES", 3)
    monkeypatch.setattr(gc_collect, "LEAST_MERGED", 2)
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    for number in range(3):
        dropped_branch(repository, b"%d" % number)
        collect(repository)
    dropped_branch(repository, b"mine")

    def check(at: int) -> None:
        beside = ActedOnBackend(copied(repository.backend), at, others_collect)
        work(open_repository(beside, drivers={}))
        verify(beside.inner)

    counted = ActedOnBackend(copied(repository.backend), -1, others_collect)
    work(open_repository(counted, drivers={}))
    check_each(sampled(range(1, len(counted.operations) + 1), most), check)


class OpenUploads(WrappedBackend):
    """Counts uploads that took an object and were not aborted since; operation `at` is refused."""

    def __init__(self, inner: Backend, at: int) -> None:
        super().__init__(inner)
        self.at = at
        self.begun: list[Uploads] = []

    def step(self, verb: str, key: str, work: Callable[[], Any]) -> Any:
        self.operations.append((verb, key))
        if len(self.operations) == self.at:
            raise StorageError("no space is left")
        return work()

    def uploads(self) -> Uploads:
        begun = self.begun

        class Told(WrappedUploads):
            def create(self, key: str, parts: Sequence[Buffer]) -> None:
                begun.append(self)
                super().create(key, parts)

            def abort(self) -> None:
                super().abort()
                begun[:] = [each for each in begun if each is not self]

        return Told(self, self.inner.uploads())


@pytest.mark.parametrize("work", [collect, pack])
def test_a_collection_that_cannot_store_leaves_nothing_half_stored(
    work: Callable[[RepositoryCore], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gc_collect, "MOST_TABLES", 3)
    monkeypatch.setattr(gc_collect, "LEAST_MERGED", 2)
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    for number in range(3):
        dropped_branch(repository, b"%d" % number)
        collect(repository)
    dropped_branch(repository, b"mine")
    whole = OpenUploads(copied(repository.backend), 0)
    work(open_repository(whole, drivers={}))
    stored = [at for at, (verb, _) in enumerate(whole.operations, 1) if verb in STORING]
    assert len(stored) >= 3

    def check(at: int) -> None:
        refusing = OpenUploads(copied(repository.backend), at)
        with pytest.raises(StorageError, match="no space is left"):
            work(open_repository(refusing, drivers={}))
        assert refusing.begun == []

    check_each(stored, check)


def test_what_is_lost_stops_a_collection_and_is_no_work_of_others() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"kept"})
    repository.backend.delete(object_key(made.digest))
    before = repository.log.refresh().generation
    with pytest.raises(NotFoundError):
        collect(again(repository))
    assert repository.log.refresh().generation == before

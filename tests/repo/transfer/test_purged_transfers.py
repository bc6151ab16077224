"""Transfers of what was purged at the origin: cut off, and one after the other."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.purge import Twins, append_purge, purge_records
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import CommitOutcomeUnknown, PurgedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer import receive, source_purges
from tensorrepo.repo.transfer.exchange import clone, fetch, push
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of
from tests.support.effort import sampled
from tests.support.faults.backends import Crash, CrashBackend

SECRET = b"secret" * 100


def purge(
    repository: RepositoryCore,
    content: bytes,
    rows: bytes = b"",
    columns: Mapping[str, Mapping[str, str]] = {},
) -> Digest:
    old = encode_object(Kind.BLOB, content).link.digest

    def rewrite(_: LogView, writer: ObjectWriter) -> Twins:
        twins = {old: writer.put(Kind.BLOB, b"erased" + rows).digest}
        return Twins(twins, {}, frozenset(), rows, columns)

    append_purge(repository, rewrite, actor=ADA, reason="asked")
    collect_garbage(repository, actor=ADA, rules=CollectionRules(grace_seconds=0.0))
    return old


@pytest.fixture
def origin() -> RepositoryCore:
    """Two commits, the first of which brought what was purged."""
    made = new_repository()
    commit_files(made, {"files/a": SECRET})
    commit_files(made, {"files/b": b"two" * 1000})
    purge(made, SECRET)
    return made


def test_what_a_lease_of_a_long_transfer_keeps_has_its_twins(
    origin: RepositoryCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receive, "_LEASE_SECONDS", -1.0)
    monkeypatch.setattr(receive, "_BATCH_OBJECTS", 1)
    here = new_repository()

    def die(totals: TransferTotals) -> None:
        if here.log.refresh().state.leases:
            raise Crash(f"after {totals.commits}")

    with pytest.raises(Crash):
        clone(HistorySource.of(origin), here, "o", TransferOptions(ADA, tmp_path, progress=die))
    state = here.log.refresh().state
    assert state.leases
    assert [*check_objects(here.objects, state, ObjectTotals(), deep=True)] == []
    collect_garbage(here, actor=ADA, rules=CollectionRules(grace_seconds=0.0))
    clone(HistorySource.of(origin), here, "o", TransferOptions(ADA, tmp_path))
    assert files_at(here, tip_of(here)) == {"files/a": b"erased", "files/b": b"two" * 1000}
    assert not here.log.refresh().state.leases


@pytest.mark.parametrize("kept", [True, False])
def test_commits_that_lead_to_what_was_purged_find_the_twin_whole_or_are_refused(
    kept: bool, tmp_path: Path
) -> None:
    here = new_repository()
    commit_files(here, {"files/a": SECRET})
    home = new_repository()
    clone(HistorySource.of(here), home, "o", TransferOptions(ADA, tmp_path))
    commit_files(home, {"files/b": b"two"})
    if kept:
        refs.create_branch(here, "other", tip_of(here), actor=ADA)
    purge(here, SECRET)
    commit_files(here, {"files/c": b"three"}, branch="last")
    refs.delete_ref(here, "heads/main", actor=ADA)
    rules = CollectionRules(grace_seconds=0.0, retention_seconds=0.0)
    collect_garbage(here, actor=ADA, rules=rules)
    here = open_repository(here.backend, drivers={})  # one that remembers no twin
    before = dict(here.log.refresh().state.refs)
    if kept:
        push(home, here, ["main:new"], TransferOptions(ADA, tmp_path))
        tip = here.log.refresh().state.refs["heads/new"]
        assert files_at(here, tip) == {"files/a": b"erased", "files/b": b"two"}
    else:
        with pytest.raises(PurgedError, match="what stood for it there was collected"):
            push(home, here, ["main:new"], TransferOptions(ADA, tmp_path))
        assert here.log.refresh().state.refs == before
    state = here.log.refresh().state
    assert [*check_objects(here.objects, state, ObjectTotals(), deep=True)] == []


def test_two_objects_with_one_twin_of_which_the_receiver_has_one(tmp_path: Path) -> None:
    origin, home = new_repository(), new_repository()
    other = b"other secret"
    commit_files(origin, {"files/a": SECRET})
    clone(HistorySource.of(origin), home, "o", TransferOptions(ADA, tmp_path))
    purge(origin, SECRET)
    commit_files(origin, {"files/b": other})
    purge(origin, other)
    fetch(HistorySource.of(origin), home, "o", TransferOptions(ADA, tmp_path))
    state = home.log.refresh().state
    tip = state.refs["remotes/o/main"]
    assert files_at(home, tip) == {
        "files/a": SECRET,
        "files/b": b"erased",
    }  # an origin erases nothing
    assert [*check_objects(home.objects, state, ObjectTotals(), deep=True)] == []


def test_more_lists_of_erased_rows_than_a_record_names_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_purges, "MOST_LISTED", 2)
    origin, runs = new_repository(), [struct.pack("<QII", 9 - at, at, 1) for at in range(5)]
    for at, run in enumerate(runs):
        commit_files(origin, {"files/a": b"secret %d" % at})
        purge(origin, b"secret %d" % at, rows=run)
    here = new_repository()
    clone(HistorySource.of(origin), here, "origin", TransferOptions(ADA, tmp_path))
    known = here.log.refresh().state.purged_rows
    lists = [[*struct.iter_unpack("<QII", here.objects.get(each).payload)] for each in known]
    assert len(lists) == 2
    assert all(each == sorted(each) for each in lists)
    assert {run for each in lists for run in each} == {struct.unpack("<QII", run) for run in runs}
    onward = new_repository()
    clone(HistorySource.of(here), onward, "origin", TransferOptions(ADA, tmp_path))
    assert onward.log.refresh().state.purged_rows.keys() == known.keys()


NAMES = {
    f"{number:04}{'id' * 14}": f"{'a long name of a column ' * 3}{number}" for number in range(1200)
}


@cache
def much_erased() -> RepositoryCore:
    """A repository that erased columns three times, as many as a purge names: 140 KB of names."""
    made = new_repository()
    commit_files(made, {"files/a": SECRET})
    pairs, content = [*NAMES.items()], SECRET
    for first in range(0, len(pairs), 400):
        rows = struct.pack("<QII", first, 0, 1)
        purge(made, content, rows, {"datasets/people": dict(pairs[first:][:400])})
        content = b"erased" + rows
    commit_files(made, {"files/b": b"two"})
    return made


def check_much_erased(here: RepositoryCore, tip: Digest | None) -> None:
    state = here.log.refresh().state
    assert state.purged_columns == {"datasets/people": NAMES}
    assert set(state.purged_rows) == set(much_erased().log.refresh().state.purged_rows)
    content = b"erased" + struct.pack("<QII", 800, 0, 1)
    assert files_at(here, tip) == {"files/a": content, "files/b": b"two"}
    assert not here.objects.stored_bytes(encode_object(Kind.BLOB, SECRET).link.digest, 0)
    assert [*check_objects(here.objects, state, ObjectTotals(), deep=True)] == []


def test_more_erased_columns_than_a_record_names_are_said_ahead(tmp_path: Path) -> None:
    options, here, onward = TransferOptions(ADA, tmp_path), new_repository(), new_repository()
    clone(HistorySource.of(much_erased()), here, "o", options)
    check_much_erased(here, tip_of(here))
    fetch(HistorySource.of(here), onward, "o", options)
    check_much_erased(onward, onward.log.refresh().state.refs["remotes/o/main"])
    last = new_repository()
    push(onward, last, ["remotes/o/main:main"], options)
    check_much_erased(last, tip_of(last))
    assert len([*purge_records(last)]) > 3


@pytest.mark.parametrize("die_after", sampled(range(60), 6))
def test_a_clone_of_them_that_dies_goes_on(die_after: int, tmp_path: Path) -> None:
    backend, options = MemoryBackend(), TransferOptions(ADA, tmp_path)
    new_repository(backend)
    with suppress(Crash, CommitOutcomeUnknown):
        dying = open_repository(CrashBackend(backend, die_after), drivers={})
        clone(HistorySource.of(much_erased()), dying, "o", options)
    here = open_repository(backend, drivers={})
    state = here.log.refresh().state
    assert [*check_objects(here.objects, state, ObjectTotals(), deep=True)] == []
    collect_garbage(here, actor=ADA, rules=CollectionRules(grace_seconds=0.0))
    clone(HistorySource.of(much_erased()), here, "o", options)
    check_much_erased(here, tip_of(here))

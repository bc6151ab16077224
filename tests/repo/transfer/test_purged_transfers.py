"""Transfers of what was purged at the origin: cut off, and one after the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.purge import Twins, append_purge
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer import receive
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of
from tests.support.faults.backends import Crash

SECRET = b"secret" * 100


def purge(repository: RepositoryCore, content: bytes) -> Digest:
    old = encode_object(Kind.BLOB, content).link.digest

    def rewrite(_: LogView, writer: ObjectWriter) -> Twins:
        return Twins({old: writer.put(Kind.BLOB, b"erased").digest}, {}, frozenset())

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

"""A store with every kind of metadata in it, for tests that damage it."""

from __future__ import annotations

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import STATE_INTERVAL, LogEntry, Update, encode_ref_updates
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.repositories import ADA, commit_files, new_repository, tip_of
from tests.support.reference.collector import condemn, delete

HEAD = STATE_INTERVAL + 2


def noop(repository: RepositoryCore) -> None:
    txn = f"noop-{repository.log.refresh().generation}"
    append(repository.log, lambda _: (LogEntry(txn, "noop", ADA, 0),))


def name_many(repository: RepositoryCore) -> None:
    """Many refs at once, by way of a ref-updates object."""
    tip = tip_of(repository)
    updates = [Update(f"runs/r{at}/1", None, tip) for at in range(6)]
    writer = ObjectWriter(repository.objects, ())
    bulk = writer.put(Kind.REF_UPDATES, encode_ref_updates(updates)).digest
    writer.flush()
    append(repository.log, lambda _: (LogEntry("bulk", "ref-create", ADA, 0, bulk=bulk),))


def store_everything(backend: Backend) -> None:
    """Trees of several pages, a merge, many refs, a collection, a checkpoint, records after it."""
    repository = new_repository(backend)
    many = {f"files/{at:03}": b"content %d" % (at % 7) for at in range(500)}
    first = commit_files(repository, many)
    refs.create_branch(repository, "dev", first.digest, actor=ADA)
    commit_files(repository, {"files/dev": b"dev"}, branch="dev")
    commit_files(repository, {"files/000": b"changed", "models/m": b"model"})
    other = tip_of(repository, "dev")
    assert other is not None
    merge_branches.merge(repository, "main", other, author=ADA, message="merge")
    refs.create_tag(repository, "v1", first.digest, actor=ADA, note="the first")
    name_many(repository)
    commit_files(repository, {"files/dead": b"dead"}, branch="dead")
    dropped = refs.delete_ref(repository, "heads/dead", actor=ADA)
    delete(repository, condemn(repository, release=[dropped]))
    while repository.log.refresh().generation < HEAD - 1:
        noop(repository)
    commit_files(repository, {"files/dead": b"dead", "files/last": b"last"})

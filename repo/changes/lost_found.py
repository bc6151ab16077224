"""Lost and found: commits that no ref leads to, under names of their own.

A branch that was deleted long ago, a commit whose record was lost: until a collection takes them,
their objects are there. Commits that lost a race are there, too, and were never anybody's; so this
is done when somebody asks for it, and not by every repair.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator

from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.gc_marks import Marks, ObjectTable
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired, CorruptError, NotFoundError
from tensorrepo.repo.history.commits import MAX_COMMIT_BYTES, Commit, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter

LOST_FOUND = "lost-found/"
_NAME_DIGITS = 16


@dataclass(frozen=True, slots=True)
class FoundCommit:
    """A commit that nothing led to; `ref` names it now, "" where something of it is gone."""

    digest: Digest
    commit: Commit
    ref: str


def find_lost(
    repository: RepositoryCore,
    *,
    actor: str,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[FoundCommit]:
    """Name the newest of the commits that no ref leads to, each in a record of its own.

    Raises:
        CorruptError, NotFoundError: what refs lead to is damaged: repair that first.
    """
    lost = dict(_lost(repository, progress))
    behind = {parent for commit in lost.values() for parent in commit.parents}
    newest = sorted(lost.keys() - behind, key=lambda digest: (-lost[digest].generation, digest))
    return [
        FoundCommit(digest, lost[digest], _name(repository, digest, actor)) for digest in newest
    ]


def _lost(
    repository: RepositoryCore, progress: Callable[[int, int], None]
) -> Iterator[tuple[Digest, Commit]]:
    store, state = repository.objects, repository.log.refresh().state
    table = ObjectTable(repository.backend, packs=store.packs.tables())
    marks = Marks(store, table, state, progress)
    marks.mark(state.roots())
    for number in marks.unmarked():
        row = table[number]
        if row.bytes > MAX_COMMIT_BYTES:
            continue
        try:
            if store.describe(row.digest).kind is Kind.COMMIT:
                yield row.digest, read_commit(store, row.digest)
        except (CorruptError, NotFoundError):  # garbage may be anything
            continue


def _name(repository: RepositoryCore, digest: Digest, actor: str) -> str:
    """A ref to a commit, if all of it is there."""
    ref = f"{LOST_FOUND}{digest[:_NAME_DIGITS]}"

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        if ref in view.state.refs:
            return ()
        writer = ObjectWriter(repository.objects, view.state.graves)
        gc_fence.secure_commit(writer, view.state, digest)
        update = Update(ref, None, digest)
        txn = secrets.token_hex(16)
        return (LogEntry(txn, "ref-create", actor, time.time_ns(), "lost and found", (update,)),)

    try:
        repository.append(decide)
    except CommitExpired:
        return ""
    return ref

"""Promotion: one dataset or model brought from one repository to another, without its history.

The entry's objects are moved as they are, bases of deltas with them, and one commit at the receiver
names it. That commit says where it came from; the origin keeps a ref to the commit that was
promoted, so that both sides can be asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import LandedCommit, begin, entry_digests
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.names import check_path, check_ref
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, Receiving, TransferOptions
from tensorrepo.repo.transfer.ref_rules import RefChange, entries_of, judge

PROMOTED: Final = "promoted"  # key of a commit's metadata, and the space of refs at the origin


class Origin(msgspec.Struct, frozen=True):
    """Where something was promoted from: repository, commit and path there."""

    repository: str
    commit: str
    path: str


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a promotion did.

    Attributes:
        path: path of the entry at the receiver.
        origin: where it came from.
        landed: commit that names it; None where it was there already.
        totals: what was moved.
    """

    path: str
    origin: Origin
    landed: LandedCommit | None
    totals: TransferTotals


@dataclass(frozen=True, slots=True)
class PromotedTo:
    """A note at the origin: `source_path` of `commit` went to `path` of another repository."""

    repository: str
    source_path: str
    path: str
    commit: Digest


def promote(
    source: RepositoryCore,
    commit: Digest,
    path: str,
    entry: Entry,
    target: RepositoryCore,
    options: TransferOptions,
    *,
    named: str | None = None,
    branch: str = "main",
    message: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Promotion:
    """Bring the entry at `path` of a commit to a branch of `target`.

    Args:
        source: the origin.
        commit: commit that holds the entry there.
        path: path of the entry there.
        entry: the entry itself, as it is stored now.
        target: the receiver.
        options: how; the actor is the author of the commit.
        named: path at the receiver; None: the same.
        branch: branch that it is committed to.
        message: message of the commit; None: one that says what happened.
        clock: UTC in ns.
    """
    where = check_path(named or path)
    origin = Origin(source.id, commit, path)
    totals = TransferTotals()
    with begin(target, branch) as transaction:
        before = transaction.entry(where)
        receiving = Receiving(
            HistorySource.of(source), target, options, transaction.pin, totals, transaction.objects
        )
        receiving.copy_all(entry_digests(entry), entry_digests(before))
        target.append(receiving.superseded)
        transaction.stage(where, replace(entry, storage=_current(entry, target)))
        told = message or f"Promote {where} from repository {source.id:.12}"
        landed = transaction.commit(
            told, author=options.actor, metadata={PROMOTED: msgspec.to_builtins(origin)},
            clock=clock,
        )  # fmt: skip
    return Promotion(where, origin, landed, totals)


def note_at_origin(source: RepositoryCore, promotion: Promotion, target: str, actor: str) -> None:
    """Keep a ref of the commit that was promoted: ``promoted/<repository>/<path>``.

    Where its path there is another, that follows behind "=", with "+" for "/".

    Raises:
        PermissionDenied: the origin takes no changes from here.
    """
    path = promotion.origin.path
    renamed = "" if path == promotion.path else f"={promotion.path.replace('/', '+')}"
    ref = check_ref(f"{PROMOTED}/{target}/{path}{renamed}")
    change = RefChange(ref, Digest(promotion.origin.commit), force=True)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        writer = ObjectWriter(source.objects, view.state.graves)
        moves = judge([change], view, source.objects)
        return entries_of(moves, writer, actor=actor, note=f"promoted {promotion.origin.path}")

    source.append(decide)


def promoted_to(view: LogView, path: str) -> Iterator[PromotedTo]:
    """Where the entry at `path` went, by the notes of this repository."""
    for ref, commit in sorted(view.state.refs.items()):
        space, _, rest = ref.partition("/")
        repository, _, told = rest.partition("/")
        source_path, renamed, there = told.partition("=")
        if space == PROMOTED and source_path == path:
            where = there.replace("+", "/") if renamed else path
            yield PromotedTo(repository, source_path, where, commit)


def promoted_from(
    repository: RepositoryCore, path: str, branch: str = "main"
) -> tuple[Digest, Origin] | None:
    """The newest commit of a branch that brought `path` from elsewhere, and where that was."""
    tip = repository.log.refresh().state.refs.get(BRANCHES + branch)
    for digest, commit in walk(repository.objects, [] if tip is None else [tip]):
        if repository.touches(digest, commit, path):
            origin = origin_of(commit)
            return None if origin is None else (digest, origin)
    return None


def origin_of(commit: Commit) -> Origin | None:
    """Where the content of a commit was promoted from; None where it was not."""
    told: Any = commit.metadata.get(PROMOTED)
    try:
        return None if told is None else msgspec.convert(told, Origin)
    except msgspec.ValidationError:
        return None  # another program's words


def _current(entry: Entry, target: RepositoryCore) -> Digest | None:
    if entry.storage is None:
        return None
    return (target.log.latest or target.log.refresh()).state.resolve(entry.storage)

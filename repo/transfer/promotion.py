"""Promotion: one dataset or model brought from one repository to another, without its history.

The entry's objects are moved as they are, bases of deltas with them, and one commit at the receiver
names it. That commit says where it came from; the origin keeps a ref to the commit that was
promoted, so that both sides can be asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import LandedCommit, begin, entry_digests
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.names import check_path, check_ref
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.origins import PROMOTED, Origin
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, Receiving, TransferOptions
from tensorrepo.repo.transfer.ref_rules import RefChange, entries_of, judge


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
        current = msgspec.structs.replace(entry, storage=_current(entry, target))
        transaction.stage(where, current)
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
        moves = judge([change], view, source.objects)
        note = f"promoted {promotion.origin.path}"
        with ObjectWriter(source.objects, view.state.graves) as writer:
            return entries_of(moves, writer, actor=actor, note=note)

    source.append(decide)


def _current(entry: Entry, target: RepositoryCore) -> Digest | None:
    if entry.storage is None:
        return None
    return (target.log.latest or target.log.refresh()).state.resolve(entry.storage)

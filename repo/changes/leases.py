"""Leases: objects that no ref leads to, kept from garbage collection until somebody lets them go.

A lease names a few objects and keeps what they lead to. It ends when it is closed; one that ran out
may be closed by a collection that is told to. A collection may come between the objects and their
lease, so whoever opens one passes the fence, as a commit does: what is kept is there, and stays.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.writer import ObjectWriter

MOST_CLOSED: Final = 200  # by one record, which has 64 KiB


def open_lease(
    repository: RepositoryCore,
    lease: str,
    keep: Iterable[Digest],
    *,
    since: int,
    holder: str,
    note: str,
    seconds: float,
    clock: Callable[[], int] = time.time_ns,
) -> None:
    """Keep objects, which must be durable, and what they lead to.

    Args:
        repository: where they are.
        lease: name of the lease. One of that name that keeps the same stays as it is.
        keep: digests of the objects.
        since: where the log stood before they were put, or found.
        holder: who keeps them, as the log tells it.
        note: what for.
        seconds: time until the lease runs out.
        clock: UTC in ns.

    Raises:
        ConflictError: a lease of that name keeps something else.
        CommitExpired: something of them was collected, and no copy is left.
    """
    kept, txn, now_ns = tuple(sorted(set(keep))), secrets.token_hex(16), clock()
    expires = now_ns + int(seconds * 10**9)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        known = view.state.leases.get(lease)
        if known is not None and tuple(sorted(known.keep)) == kept:
            return ()
        secure_kept(repository, view, kept, since, f"lease {lease}")
        data = {"id": lease, "keep": kept, "expires": expires}
        return (LogEntry(txn, "lease-open", holder, now_ns, note, data=data),)

    repository.append(decide)


def secure_kept(
    repository: RepositoryCore, view: LogView, keep: Iterable[Digest], since: int, what: str
) -> None:
    """Store again what condemnations after `since` hit of `keep` and of what it leads to.

    Right before a lease is opened at `view`: rule W3 of the fence, see `gc_fence`.

    Raises:
        CommitExpired: `what` needs something that was collected, and no copy is left.
    """
    graves = gc_fence.graves_since(view.state, since)
    if not graves:
        return
    try:
        with ObjectWriter(repository.objects, view.state.graves) as writer:
            needed = gc_fence.closure(writer, keep, view.state.supersedes)
            hits = gc_fence.condemned(repository.objects, needed, graves)
            gc_fence.store_again(writer, hits, view.state.graves, what)
    except NotFoundError as error:
        raise gc_fence.expired(what, error) from error


def close_leases(
    repository: RepositoryCore,
    leases: Iterable[str],
    *,
    holder: str,
    clock: Callable[[], int] = time.time_ns,
) -> None:
    """Let leases keep nothing any more; those that are closed already are passed over."""
    names = iter(sorted(set(leases)))
    while some := tuple(islice(names, MOST_CLOSED)):
        _close(repository, some, holder, clock)


def _close(
    repository: RepositoryCore, leases: tuple[str, ...], holder: str, clock: Callable[[], int]
) -> None:
    txn, now_ns = secrets.token_hex(16), clock()

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        return tuple(
            LogEntry(txn, "lease-close", holder, now_ns, data={"id": lease})
            for lease in leases
            if lease in view.state.leases
        )

    repository.append(decide)

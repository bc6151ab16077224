"""A collector small enough to be right, for tests of the writers' side of collection.

It marks from every root at the head, condemns whatever else it lists, and deletes when told to,
as often as told to: the rules G1 to G5 without their performance.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator

from tensorrepo.repo.backends.base import Backend, StoredKey
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.gc_fence import closure
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.stored import encode_gc_list, encode_graves
from tests.support.faults.backends import WrappedBackend

COLLECTOR = "Collector <gc@example.org>"


def condemn(
    repository: RepositoryCore,
    *,
    release: Iterable[Digest] = (),
    among: Iterable[str] | None = None,
) -> list[str]:
    """One gc-condemn of everything that no root leads to; gives the keys that may be deleted.

    `release` lets go of values that refs had before they were deleted or reset. `among` are the
    keys that an earlier listing saw, or a part of them; None lists now.
    """
    let_go = set(release)
    seen = None if among is None else set(among)

    def dead_keys(view: LogView) -> list[str]:
        state = view.state
        roots = [root for root in state.roots() if root not in let_go]
        roots += list(state.refs.values())
        live = set(closure(repository.objects, roots, state.supersedes))
        return [
            stored.key
            for stored in repository.backend.list("objects/")
            if (parsed := parse_object_key(stored.key))
            and parsed[0] not in live
            and (seen is None or stored.key in seen)
        ]

    return _append(repository, dead_keys, let_go)


def condemn_keys(repository: RepositoryCore, keys: list[str]) -> None:
    """A gc-condemn of exactly these keys, right or wrong."""
    _append(repository, lambda _: keys, set())


def _append(
    repository: RepositoryCore, choose: Callable[[LogView], list[str]], let_go: set[Digest]
) -> list[str]:
    condemned: list[str] = []

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        state = view.state
        condemned[:] = choose(view)
        at = view.generation + 1
        dead = [parsed[0] for key in condemned if (parsed := parse_object_key(key))]
        writer = ObjectWriter(repository.objects, state.graves)
        listed = writer.put(Kind.GC_LIST, encode_gc_list(condemned))
        graves = writer.put(Kind.GRAVES, encode_graves((digest, at) for digest in dead))
        writer.flush()
        data = {
            "at": at,
            "list": listed.digest,
            "graves": graves.digest,
            "release": sorted(let_go & set(state.retained)),
        }
        txn = secrets.token_hex(16)
        return (LogEntry(txn, "gc-condemn", COLLECTOR, 0, data=data),)

    append(repository.log, decide)
    return condemned


class LateDeletions(WrappedBackend):
    """Lists what an earlier listing saw of objects, and deletes nothing yet."""

    def __init__(self, inner: Backend, listed: Iterable[str]) -> None:
        super().__init__(inner)
        self.listed = set(listed)
        self.deleted: list[str] = []

    def list(self, prefix: str) -> Iterator[StoredKey]:
        found = super().list(prefix)
        if prefix != "objects/":
            return found
        return (stored for stored in found if stored.key in self.listed)

    def delete(self, key: str) -> None:
        self.deleted.append(key)


def collect_late(
    backend: Backend,
    listed: Iterable[str] | None = None,
    *,
    release: bool = True,
    close_leases: bool = False,
) -> list[str]:
    """A whole collection by the real code, after a listing of before; gives what it may delete."""
    seen = (stored.key for stored in backend.list("objects/")) if listed is None else listed
    late = LateDeletions(backend, seen)
    retained = 0.0 if release else 1e9
    rules = CollectionRules(0, retained, close_leases)
    collect_garbage(open_repository(late, drivers={}), actor=COLLECTOR, rules=rules)
    return late.deleted


def delete(repository: RepositoryCore, keys: Iterable[str]) -> None:
    """A deletion that lands now: at any time after its condemnation, any number of times."""
    for key in keys:
        repository.backend.delete(key)


def supersede(repository: RepositoryCore, old: Digest, new: Digest) -> None:
    """Append the entry that lets `new` take the place of placement `old`."""
    txn = secrets.token_hex(16)
    entry = LogEntry(txn, "supersede", COLLECTOR, 0, data={"placements": {old: new}})
    append(repository.log, lambda _: (entry,))

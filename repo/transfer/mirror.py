"""Mirrors: verbatim copies of a repository, its log included, that follow it.

A clone has a log of its own, so it can repair the objects of its origin and not the log; a mirror
can. It has the origin's name and takes no commits. Objects come first, then records in their order,
then what is kept beside them: whoever reads a mirror at any moment finds a whole repository.

The leases of the origin are in the log, too; what they hold is nobody's but their holders', and is
not copied. Nothing is deleted in a mirror but what the origin purged: what it collects stays there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.sql_log import is_near
from tensorrepo.repo.changes.repository import (
    RepositoryCore,
    mark_copy,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError, RepositoryRewound
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.checkpoints import decode_hint
from tensorrepo.repo.log.log_slots import (
    COPY_KEY,
    HINT_KEY,
    IDENTITY_KEY,
    segment_key,
    slot_key,
)
from tensorrepo.repo.log.repair import restore_segment
from tensorrepo.repo.log.segments import short_ends
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.threads import ordered_map
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, Receiving, TransferOptions

_BESIDE: Final = ("log/refs/", "log/void/", "log/checkpoint/", "log/segment/")
_BATCH_SLOTS: Final = 256
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a mirror took over: records of the log, and objects."""

    url: str
    records: int
    generation: int
    totals: TransferTotals


def begin_mirror(origin: RepositoryCore, backend: Backend) -> None:
    """Make an empty mirror of `origin` at `backend`; one that is there is taken up again.

    Raises:
        ConflictError: there is something else.
    """
    identity = origin.log.identity
    try:
        there = backend.read(IDENTITY_KEY)
    except NotFoundError:
        mark_copy(backend, "mirror", origin.id)  # first: it is never seen without
        backend.create(IDENTITY_KEY, (identity,))
        there = backend.read(IDENTITY_KEY)
    if there != identity or backend.size(COPY_KEY) is None:
        raise ConflictError(
            f"there is another repository at {backend.url}, which is no mirror of {origin.url}. "
            "Name another place."
        )


def follow(
    origin: RepositoryCore, mirror: RepositoryCore, options: TransferOptions
) -> MirrorReport:
    """Bring a mirror to where its origin is.

    Raises:
        ConflictError: `mirror` is none of `origin`.
        RepositoryRewound: the origin's past is not what the mirror has.
    """
    if mirror.copy is None or mirror.copy.kind != "mirror" or mirror.id != origin.id:
        raise ConflictError(
            f"{mirror.url} is no mirror of {origin.url}: `tensorrepo clone --mirror`"
        )
    head, here = origin.log.refresh(), mirror.log.refresh()
    _check_past(origin, mirror, head.generation, here.generation)
    totals = TransferTotals()
    receiving = Receiving(HistorySource.of(origin, head), mirror, options, here, totals)
    receiving.copy_all(_table_roots(head.state))
    receiving.copy([*head.state.refs.values(), *head.state.retained])
    receiving.copy_all(_replacements(origin, head.state, here.state))
    _copy_keys(origin.backend, mirror.backend, _listed(origin.backend, ("log/void/",)))
    _erase(mirror, set(head.state.purges) - set(here.state.purges))  # or, if killed, anew
    _copy_slots(origin, mirror, here.generation + 1, head.generation + 1)
    _copy_keys(origin.backend, mirror.backend, _listed(origin.backend, _BESIDE))
    _copy_hint(origin.backend, mirror.backend, head.generation)
    mirror.log.refresh()
    _add_short_segments(origin, mirror, head.generation)
    count = head.generation - here.generation
    return MirrorReport(origin.url, count, head.generation, totals)


def _erase(mirror: RepositoryCore, purged: Collection[Digest]) -> None:
    """Delete what the origin purged: the one thing that a mirror gives up."""
    for prefix in sorted({digest[:2] for digest in purged}):
        for stored in list(mirror.backend.list(f"objects/{prefix}/")):
            parsed = parse_object_key(stored.key)
            if parsed is not None and parsed[0] in purged:
                mirror.backend.delete(stored.key)


def _check_past(origin: RepositoryCore, mirror: RepositoryCore, head: int, here: int) -> None:
    if here <= head and origin.log.digest_of(here) == mirror.log.digest_of(here):
        return
    raise RepositoryRewound(
        f"{origin.url}: its log ends at record {head}, or differs from what {mirror.url} copied of "
        f"it up to record {here}. An older copy was put in its place: the mirror has the newer "
        "past, and was not changed."
    )


def _table_roots(state: State) -> list[Digest]:
    """What the log itself needs."""
    graves = [digest for grave in state.graves for digest in (grave.graves, grave.list)]
    ended = {grave.list for grave in state.graves if grave.ended}
    return [
        *state.bulks,
        *state.history_packs,
        *state.purged_rows,
        *(digest for digest in graves if digest not in ended),
    ]


def _replacements(origin: RepositoryCore, head: State, here: State) -> list[Digest]:
    """What took the place of objects of commits that the mirror has: purges, packs stored anew."""
    changed = {
        head.resolve(old)
        for old, new in head.supersedes.items()
        if here.supersedes.get(old) != new and head.resolve(old) not in head.purges
    }
    return [digest for digest in sorted(changed) if _is_there(origin, digest)]


def _is_there(origin: RepositoryCore, digest: Digest) -> bool:
    """Whether the origin has a small object still: collections take what nothing leads to."""
    try:
        origin.objects.get(digest)
    except (NotFoundError, CommitExpired):
        return False
    return True


def _copy_slots(origin: RepositoryCore, mirror: RepositoryCore, start: int, stop: int) -> None:
    """Copy records one after the other: a reader that finds a gap takes it for damage."""
    slots = origin.log.slots_between(start, stop) if start < stop else iter(())
    if mirror.backend.local_root is None:
        for slot in slots:
            mirror.backend.create(slot_key(slot.record.gen), (slot.data,))
        return
    while batch := list(islice(slots, _BATCH_SLOTS)):  # a disk links them in their order
        with mirror.backend.uploads() as uploads:
            for slot in batch:
                uploads.create(slot_key(slot.record.gen), (slot.data,))
            uploads.finish()


def _listed(origin: Backend, prefixes: Iterable[str]) -> Iterator[str]:
    for prefix in prefixes:
        for stored in origin.list(prefix):
            yield stored.key


def _copy_keys(origin: Backend, mirror: Backend, keys: Iterable[str]) -> None:
    """Copy what never changes; readers verify it."""

    def copy(key: str) -> None:
        if mirror.size(key) is None:
            mirror.create(key, (origin.read(key),))

    for _ in ordered_map(keys, copy, threads=_THREADS, name="mirror"):
        pass


def _add_short_segments(origin: RepositoryCore, mirror: RepositoryCore, head: int) -> None:
    """Write what spares readers of a far mirror requests, and an origin on a disk does without."""
    if is_near(mirror.backend) or not is_near(origin.backend):
        return
    for last in short_ends(head, mirror.log.form.segment_lengths):
        if mirror.backend.size(segment_key(last)) is None:
            restore_segment(mirror.log, last, origin.introduced)


def _copy_hint(origin: Backend, mirror: Backend, head: int) -> None:
    """A hint may name no record that the mirror has not."""
    try:
        data = origin.read(HINT_KEY)
    except NotFoundError:
        return
    hint = decode_hint(data)
    if hint is not None and hint.generation <= head:
        mirror.overwrite(HINT_KEY, (data,))

"""Lazy clones: all history and metadata, while data stays at the origin until it is read.

Only what leads to nothing is left there: chunks, packs and blobs. So history, schemas and
statistics are here, and collection and checks never open what is not. `copy.json` says that data
is promised; where the origin is, the user's settings say.

What the origin purged is gone there, and what it stored anew lies elsewhere there: so its data can
be read here only when the clone knows what stands for it now, which `follow_origin` brings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Final

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.changes.gc_marks import Marks, ObjectTable
from tensorrepo.repo.changes.repository import RepositoryCore, mark_copy
from tensorrepo.repo.errors import ConflictError, NotFoundError, PurgedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_slots import COPY_KEY
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import MOST_SUPERSEDED, LogEntry
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.transfer.difference import NewObject
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, Receiving, TransferOptions

PROMISED = frozenset({Kind.BLOB, Kind.CHUNK, Kind.PACK})
_TRIES: Final = 8


def is_promised(item: NewObject) -> bool:
    """Whether a lazy clone leaves an object at the origin."""
    return item.link.leaf and item.link.kind in PROMISED


def promise(backend: Backend, origin: str) -> None:
    """Note that the data of a repository is at the one of id `origin`."""
    mark_copy(backend, "lazy", origin)


def lazily(options: TransferOptions) -> TransferOptions:
    """Options that leave data where it is."""
    return replace(options, omit=is_promised)


def follow_origin(
    source: HistorySource, clone: RepositoryCore, options: TransferOptions
) -> TransferTotals:
    """Take over what stands at the origin for what it purged, or stored anew.

    What the origin purged is purged here, too, but for what own commits lead to: the data of these
    is gone with the origin's.

    Args:
        source: the origin of `clone`.
        clone: a lazy clone.
        options: how.

    Raises:
        ConflictError: others changed the clone, again and again. Nothing was changed.
    """
    totals, tries = TransferTotals(), 0
    while tries < _TRIES:
        view = clone.log.refresh()
        moved = _moved(source, clone, view.state)
        if not moved:
            return totals
        purges = any(old in source.purging.purges for old in moved)  # which is said at once
        is_last = len(moved) <= MOST_SUPERSEDED or purges
        if not is_last:
            moved = dict(islice(moved.items(), MOST_SUPERSEDED))
        receiving = Receiving(source, clone, lazily(options), view, totals)
        if purges and receiving.name_ahead(lambda _: True):
            continue
        receiving.copy_all(moved.values())
        entries = _entries(receiving, source, clone, view, moved)
        if clone.append(partial(_if_same, view, entries)).record is None:
            tries += 1
        elif is_last:
            return totals
    raise ConflictError(f"{clone.url} changed {_TRIES} times meanwhile: fetch again")


def _if_same(
    planned: LogView, entries: tuple[LogEntry, ...], view: LogView
) -> tuple[LogEntry, ...]:
    same = replace(view.state, generation=planned.generation) == planned.state
    return entries if same else ()


def _moved(source: HistorySource, clone: RepositoryCore, state: State) -> dict[Digest, Digest]:
    """What is here and was purged or stored anew at the origin since, and what stands for it."""
    found = {}
    for old in source.supersedes:
        mine = state.resolve(old)
        if mine in source.supersedes and mine not in found:
            try:
                clone.objects.stored(mine)
            except (NotFoundError, PurgedError):
                continue  # it comes with the commits that need it
            found[mine] = source.resolve(mine)
    return dict(sorted(found.items()))


def _entries(
    receiving: Receiving,
    source: HistorySource,
    clone: RepositoryCore,
    view: LogView,
    moved: Mapping[Digest, Digest],
) -> tuple[LogEntry, ...]:
    state = view.state
    twins = {old: new for old, new in moved.items() if old in source.purging.purges}
    others = {old: new for old, new in moved.items() if old not in twins}
    superseded = tuple(receiving.supersede_entries(others))
    if not twins:
        return superseded
    after = replace(state, supersedes={**state.supersedes, **moved})
    table = ObjectTable(clone.backend)
    marks = Marks(clone.objects, table, after, lambda _done, _total: None)
    marks.mark(dict.fromkeys(after.roots()))
    living = set(twins.values())
    return (receiving.purge_entry(state, twins, living, marks.holds), *superseded)


def complete(clone: RepositoryCore, options: TransferOptions) -> TransferTotals:
    """Fetch all data that a lazy clone lacks; afterwards it is a clone like others.

    Raises:
        ConflictError: it is no lazy clone.
        NotFoundError, CorruptError: the origin lacks something, or it is damaged there.
    """
    if clone.copy is None or clone.copy.kind != "lazy":
        raise ConflictError(f"{clone.url} is no lazy clone: all of its data is there")
    totals, view = TransferTotals(), clone.log.refresh()
    # It is its own source: what is not here comes from where it is promised.
    source = HistorySource.of(clone, view)
    if clone.objects.promised is not None:
        source = replace(source, url=clone.objects.promised().backend.url)
    receiving = Receiving(
        source,
        clone,
        replace(options, omit=lambda item: not is_promised(item)),
        view,
        totals,
    )
    roots = [*view.state.refs.values(), *view.state.retained]
    receiving.copy(roots, whole=False)
    receiving.append(roots, lambda _: ())  # ends the lease of a long one
    clone.backend.delete(COPY_KEY)
    clone.objects.promised = None
    return totals

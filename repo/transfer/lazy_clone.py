"""Lazy clones: all history and metadata, while data stays at the origin until it is read.

Only what leads to nothing is left there: chunks, packs and blobs. So history, schemas and
statistics are here, and collection and checks never open what is not. `copy.json` says that data
is promised; where the origin is, the user's settings say.
"""

from __future__ import annotations

from dataclasses import replace

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.changes.repository import RepositoryCore, mark_copy
from tensorrepo.repo.errors import ConflictError
from tensorrepo.repo.log.log_slots import COPY_KEY
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.transfer.difference import NewObject
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import HistorySource, Receiving, TransferOptions

PROMISED = frozenset({Kind.BLOB, Kind.CHUNK, Kind.PACK})


def is_promised(item: NewObject) -> bool:
    """Whether a lazy clone leaves an object at the origin."""
    return item.link.leaf and item.link.kind in PROMISED


def promise(backend: Backend, origin: str) -> None:
    """Note that the data of a repository is at the one of id `origin`."""
    mark_copy(backend, "lazy", origin)


def lazily(options: TransferOptions) -> TransferOptions:
    """Options that leave data where it is."""
    return replace(options, omit=is_promised)


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

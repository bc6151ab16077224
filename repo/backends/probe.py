"""Probe of the create-only promise of a store.

The log stands on one operation: of several creates exactly one wins. A store, a proxy or a mount
option that breaks it would lose commits silently, so it is tried before a repository is made.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress

from tensorrepo.repo.backends.base import Backend, Guarantee
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import Error, NotFoundError, UnsupportedError
from tensorrepo.repo.threads import ordered_map

_ROUNDS = 3
_WRITERS = 8


def probe(backend: Backend, *, races_ours: bool = True) -> Guarantee:
    """What the store really guarantees: what it declares, or less.

    A race that is won once proves nothing, so a store that declares `SINGLE_WRITER` keeps it; a
    race that two writers won proves that it must not be called more than that. The store holds no
    other keys afterwards than before.

    Args:
        backend: the store.
        races_ours: whether writers race even where nothing but this machine's kernel or this
            process decides who wins; without, such a store is written to by one.

    Raises:
        UnsupportedError: what was written cannot be read back at once.
        PermissionDenied, StorageError: the store refuses or fails.
    """
    if backend.guarantee is Guarantee.READ_ONLY:
        return Guarantee.READ_ONLY
    rounds, writers = (_ROUNDS, _WRITERS) if races_ours or not _is_ours(backend) else (1, 1)
    kept = all(_race(backend, f"probe-{secrets.token_hex(8)}", writers) for _ in range(rounds))
    return backend.guarantee if kept else Guarantee.SINGLE_WRITER


def _is_ours(backend: Backend) -> bool:
    """Whether no server, and no file system that we do not know, is between here and the store."""
    if isinstance(backend, LocalBackend):
        return backend.is_mount_known and backend.guarantee is Guarantee.ATOMIC
    return isinstance(backend, MemoryBackend)


def _race(backend: Backend, key: str, writers: int) -> bool:
    """Whether exactly one of several creates won, and its value stays."""
    barrier = threading.Barrier(writers)

    def create(writer: int) -> bool:
        barrier.wait()
        return backend.create(key, (_value(writer),))

    try:
        threads = writers if writers > 1 else 0
        won = list(ordered_map(range(writers), create, threads=threads, name="probe"))
        return _judge(backend, key, won)
    finally:
        with suppress(Error):
            backend.delete(key)


def _judge(backend: Backend, key: str, won: list[bool]) -> bool:
    try:
        found = backend.read(key)
    except NotFoundError:
        raise UnsupportedError(
            f"{backend.url} does not show what was just written to it. A repository needs a store "
            "whose reads see every finished write: turn off caches between here and there."
        ) from None
    again = backend.create(key, (_value(_WRITERS),))
    winners = [_value(writer) for writer, each in enumerate(won) if each]
    return winners == [found] and not again


def _value(writer: int) -> bytes:
    return b"probe %d\n" % writer

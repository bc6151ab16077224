"""Backend of a URL, and the probe of its create-only promise.

The log stands on one operation: of several creates exactly one wins. A store, a proxy or a mount
option that breaks it would lose commits silently, so it is tried before a repository is made.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tensorrepo.repo.backends.base import Backend, Guarantee
from tensorrepo.repo.backends.cloud import CloudBackend
from tensorrepo.repo.backends.fsspec import FsspecBackend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.remote import SCHEMES, HttpBackend, find_place
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.threads import ordered_map

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
_SLIP = re.compile(rf"(file|memory|{'|'.join(SCHEMES)}):(?!//|:)")  # s3:/bucket is no folder
_FORCE = "force"


def open_backend(
    url: str, options: Mapping[str, str] | None = None, *, environment: Mapping[str, str]
) -> Backend:
    """The store at `url`. Nothing is read yet, so it need not exist.

    Args:
        url: a path, ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://``, ``abfs://``,
            ``http(s)://``, or whatever fsspec knows.
        options: what the store needs beyond its URL, by obstore's or fsspec's names.
            ``force=true`` trusts a network or unknown file system with several writers.
        environment: where credentials and endpoints are looked up.

    Raises:
        InvalidInputError: no usable URL, or options that this store does not know.
        UnsupportedError: nothing here knows the scheme, or what it needs is not installed.
    """
    if not url.strip() or "\0" in url:
        raise InvalidInputError(
            f"{url!r} is no URL: expected a folder, or such as s3://bucket/name"
        )
    if slip := _SLIP.match(url):
        raise InvalidInputError(f"{url!r}: a URL needs two slashes, as in {slip[1]}://name")
    given = dict(options or {})
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme == "file" and "::" not in url:
        return _open_local(url, url if match is None else _file_path(url), given)
    if scheme == "memory":
        _refuse_options(url, given)
        return MemoryBackend(url)
    if scheme in SCHEMES:
        place = find_place(url, given, environment)
        return HttpBackend(place) if place.kind == "http" else CloudBackend(place)
    guarantee = Guarantee.ATOMIC if _forced(given) else Guarantee.SINGLE_WRITER
    return FsspecBackend(url, given, guarantee=guarantee)


def _open_local(url: str, path: str, options: dict[str, str]) -> LocalBackend:
    guarantee = Guarantee.ATOMIC if _forced(options) else None
    _refuse_options(url, options)
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidInputError(f"{url} is a file; a repository is a folder. Name a folder.")
    return LocalBackend(Path(path), guarantee=guarantee)


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise InvalidInputError(
            f"{url}: a file URL has three slashes and names a folder of this machine: "
            f"file:///{parts.netloc}{parts.path}"
        )
    return unquote(parts.path)


def _forced(options: dict[str, str]) -> bool:
    return str(options.pop(_FORCE, "false")).lower() in {"true", "1", "yes"}


def _refuse_options(url: str, options: Mapping[str, str]) -> None:
    if options:
        raise InvalidInputError(f"{url}: unknown storage options {', '.join(sorted(options))}")


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

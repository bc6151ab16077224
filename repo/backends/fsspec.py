"""Storage backend for every other URL that fsspec knows.

fsspec offers no exclusive create that could be trusted everywhere: its implementations look and
then write. So one process may write at a time, unless whoever knows the store says otherwise.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Any

from tensorrepo.repo.backends.base import (
    CommonBackend,
    FlyingUploads,
    Guarantee,
    StoredKey,
    byte_views,
    check_key,
    check_length,
    check_prefix,
)
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.threads import ThreadFlights

_TEMPORARY = "tmp"
_THREADS = 8
_IN_FLIGHT_BYTES = 128 << 20
_PASSWORD = re.compile(r"//[^/@]*:[^/@]*@")
_SHORTEST_SECRET = 6


class FsspecBackend(CommonBackend):
    """A folder of any file system that fsspec can open.

    Args:
        url: what fsspec understands, without a password.
        options: what fsspec calls storage options.
        guarantee: what its creates promise.
    """

    def __init__(
        self,
        url: str,
        options: Mapping[str, str] | None = None,
        *,
        guarantee: Guarantee = Guarantee.SINGLE_WRITER,
    ) -> None:
        if _PASSWORD.search(url):
            raise InvalidInputError(
                f"{_PASSWORD.sub('//', url)}: a password does not belong into a URL, which is "
                "shown and stored. Pass username and password as storage options."
            )
        self.url = url.rstrip("/")
        self.guarantee = guarantee
        self.local_root = None
        self._options = dict(options or {})
        self._files, self._root = _open(url, self._options)
        self._made: set[str] = set()
        # What is no event loop inside is rarely safe to share: sessions of ssh, ftp, smb.
        self._lock: Any = nullcontext() if self._files.async_impl else threading.RLock()
        self._renames = _overrides(self._files, "mv") or _overrides(self._files, "mv_file")

    def __reduce__(self) -> tuple[object, ...]:
        return partial(FsspecBackend, guarantee=self.guarantee), (self.url, self._options)

    def read(self, key: str) -> bytes:
        with self._asking("read", key):
            return bytes(self._files.cat_file(self._path(key)))

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        size = self.size(key)
        if size is None:
            raise self.no_key(key)
        check_length(f"{self.url}/{key}", start, stop, max(0, min(stop, size) - start))
        if start == stop:
            return b""
        with self._asking("read", key):
            data: bytes = self._files.cat_file(self._path(key), start=start, end=stop)
        check_length(f"{self.url}/{key}", start, stop, len(data))
        return data

    def size(self, key: str) -> int | None:
        try:
            with self._asking("look up", key):
                self._files.invalidate_cache()
                found = self._files.info(self._path(key))
        except NotFoundError:
            return None
        return None if found["type"] == "directory" else int(found["size"])

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        with self._lock:
            if self.size(key) is not None:
                return False
            self.overwrite(key, parts)
            return True

    def uploads(self) -> FsspecUploads:
        return FsspecUploads(self, _THREADS if self._files.async_impl else 1)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        path = self._path(key)
        partial = f"{self._root}/{_TEMPORARY}/{os.getpid()}-{secrets.token_hex(8)}"
        with self._asking("write", key):
            self._make_parent(path)
            if not self._renames:
                self._write(path, parts)
                return
            self._make_parent(partial)
            try:
                self._write(partial, parts)
                self._files.mv(partial, path)
            except BaseException:
                with suppress(Exception):
                    self._files.rm_file(partial)
                raise

    def delete(self, key: str) -> None:
        with suppress(NotFoundError), self._asking("delete", key):
            self._files.rm_file(self._path(key))

    def list(self, prefix: str) -> Iterator[StoredKey]:
        folder = f"{self._root}/{check_prefix(prefix)}".rstrip("/")
        found: dict[str, dict[str, Any]] = {}
        with suppress(NotFoundError), self._asking("list", prefix):
            self._files.invalidate_cache()
            found = self._files.find(folder, detail=True)
        keys = sorted((self._key(path), entry) for path, entry in found.items())
        for key, entry in keys:
            if not key.startswith(f"{_TEMPORARY}/"):
                yield StoredKey(key, int(entry["size"]), _modified(entry))

    def remove_folders(self, prefix: str) -> None:
        """See `KeepsFolders`."""
        top = f"{self._root}/{check_prefix(prefix)}".rstrip("/")
        with self._lock, suppress(Exception):  # libraries raise what they like
            self._files.invalidate_cache()
            found = self._files.find(top, withdirs=True, detail=True)
            folders = {path for path, entry in found.items() if entry["type"] == "directory"}
            files = found.keys() - folders
            for folder in sorted({top, *folders}, key=len, reverse=True):
                # Some file systems would remove what is in it, too.
                if not any(file.startswith(f"{folder}/") for file in files):
                    with suppress(Exception):
                        self._files.rmdir(folder)
        self._made.clear()

    def _path(self, key: str) -> str:
        if check_key(key).startswith(f"{_TEMPORARY}/"):
            raise InvalidInputError(f"{key!r}: {_TEMPORARY}/ holds files that have no key yet")
        return f"{self._root}/{key}"

    def _key(self, path: str) -> str:
        return path.strip("/").removeprefix(self._root.strip("/")).lstrip("/")

    def _make_parent(self, path: str) -> None:
        folder = path.rpartition("/")[0]
        if folder not in self._made:
            self._files.makedirs(folder, exist_ok=True)
            self._made.add(folder)

    def _write(self, path: str, parts: Sequence[Buffer]) -> None:
        with self._files.open(path, "wb") as file:
            for view in byte_views(parts):
                file.write(view)

    @contextmanager
    def _asking(self, doing: str, key: str) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except Error:
                raise
            except FileNotFoundError:
                raise self.no_key(key) from None
            except Exception as error:  # noqa: BLE001 - libraries raise what they like
                # The original may show a password: it is not chained.
                raise _explain(error, f"cannot {doing} {self.url}/{key}", self._options) from None


class FsspecUploads(FlyingUploads):
    """Creates on threads where the file system allows it, one after the other elsewhere."""

    _flights: ThreadFlights

    def __init__(self, backend: FsspecBackend, threads: int) -> None:
        super().__init__(ThreadFlights(threads, _IN_FLIGHT_BYTES, "tensorrepo-upload"))
        self._backend = backend

    def _send(self, key: str, views: list[memoryview]) -> None:
        def send() -> None:
            self._created[key] = self._backend.create(key, views)

        self._flights.submit(send, sum(view.nbytes for view in views))


def _open(url: str, options: Mapping[str, str]) -> tuple[Any, str]:
    import fsspec  # takes 25 ms, and most repositories never need it

    scheme = url.partition("://")[0]
    try:
        files, root = fsspec.url_to_fs(url, skip_instance_cache=True, **options)
    except ImportError as error:
        raise UnsupportedError(f"{url}: {error}") from None
    except ValueError as error:
        if "rotocol not known" in str(error):
            raise UnsupportedError(
                f"{url}: nothing here knows the scheme {scheme!r}. Built in are paths, file, "
                "memory, s3, gs, az, abfs, http and https; fsspec and its plugins know others."
            ) from None
        raise InvalidInputError(f"{url}: {_scrub(str(error), options)}") from None
    except Exception as error:  # noqa: BLE001 - libraries raise what they like
        raise _explain(error, f"cannot open {url}", options) from None
    return files, root.rstrip("/")


def _explain(error: Exception, what: str, options: Mapping[str, str]) -> Error:
    text = _scrub(str(error), options)
    message = f"{what}: {type(error).__name__}{': ' if text else ''}{text}"
    if isinstance(error, PermissionError):
        return PermissionDenied(f"{message}. Check the login and what it may do there.")
    if isinstance(error, NotImplementedError):
        return UnsupportedError(f"{message}. This file system lacks what a repository needs.")
    if isinstance(error, TypeError):
        return InvalidInputError(f"{message}. Check the storage options.")
    return StorageError(message, transient=isinstance(error, (ConnectionError, TimeoutError)))


def _scrub(text: str, options: Mapping[str, str]) -> str:
    for value in sorted(map(str, options.values()), key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    return text


def _modified(entry: Mapping[str, Any]) -> float | None:
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = entry.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None


def _overrides(files: Any, name: str) -> bool:
    """Whether `mv` is a rename of its own: the default copies and deletes."""
    from fsspec import AbstractFileSystem

    return getattr(type(files), name, None) is not getattr(AbstractFileSystem, name, None)

"""Reader of URLs outside the repository, under the prefixes that the user allows.

Files of this machine are read by `pread`, never mapped: a mapped file that another process
truncates kills ours. Every answer is compared with the version that was asked for.

The clients of web servers follow redirects, and cannot be told not to: allow only servers that you
trust.
"""

from __future__ import annotations

import io
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError

from tensorrepo.formats.dataset.external.outside import (
    Address,
    Outside,
    Stat,
    check_allowed,
    parse_address,
)
from tensorrepo.repo.backends.disk import explain as explain_disk
from tensorrepo.repo.backends.remote import (
    READING,
    check_process,
    explain,
    find_place,
    missing,
    open_store,
)
from tensorrepo.repo.backends.urls import SCHEMES
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.objects.cache import LimitedCache

_R = TypeVar("_R")
OPEN_FILES = 32  # kept open between reads
MOST_READ_BYTES = 4 << 30
# What clients of stores look for in an environment: nothing else of it is kept, or pickled.
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_", "IDENTITY_", "STORAGE_EMULATOR_HOST")
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY


class AllowedOutside:
    """An `Outside` that reads what lies under some prefixes.

    Args:
        prefixes: folders, buckets, hosts or single files, as absolute paths or URLs; as a mapping
            with the storage options that each needs.
        environment: variables that name credentials and endpoints.

    Raises:
        InvalidInputError: no usable prefix, or options that its store does not know.
    """

    def __init__(
        self,
        prefixes: Iterable[str | Path] | Mapping[str, Mapping[str, str]] = (),
        *,
        environment: Mapping[str, str],
    ) -> None:
        options = prefixes if isinstance(prefixes, Mapping) else {}
        self._given = {str(url): dict(options.get(str(url), {})) for url in prefixes}
        self._environment = {
            name: value
            for name, value in environment.items()
            if name.startswith(_VARIABLES) or name == "HOME"
        }
        self._clients: dict[Address, _Client] = {}
        for url, options in self._given.items():
            address = parse_address(url)
            self._clients[address] = _client(address, options, self._environment)

    def __repr__(self) -> str:
        return f"AllowedOutside({[prefix.url for prefix in self._clients]})"

    def __reduce__(self) -> tuple[object, ...]:
        return partial(AllowedOutside, environment=self._environment), (self._given,)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What may be read, without secrets."""
        return tuple(prefix.url for prefix in self._clients)

    def stat(self, url: str) -> Stat:
        address = parse_address(url)
        return self._client(address).stat(address)

    def read(self, url: str, start: int, stop: int, unchanged: Stat | None = None) -> memoryview:
        address = parse_address(url)
        if not 0 <= start <= stop:
            raise InvalidInputError(f"a range needs 0 <= start <= stop, got [{start}, {stop})")
        if unchanged is not None and stop > unchanged.size:
            raise CorruptError(
                f"{address.url}: bytes up to {stop} are asked for, it has {unchanged.size}"
            )
        data, found = self._client(address).read(address, start, stop)
        if unchanged is not None and found != unchanged:
            raise changed(address.url, unchanged, found)
        if data.nbytes != stop - start:
            raise CorruptError(
                f"{address.url}: bytes [{start}, {stop}) are asked for, found {data.nbytes} of "
                f"them. It has {found.size} bytes."
            )
        return data.toreadonly()

    def find(self, url: str) -> Iterator[tuple[Address, Stat]]:
        """What lies at `url` now: the file of that name, else all files below it, in any order.

        Raises:
            PermissionDenied, NotFoundError: as `stat`.
            UnsupportedError: this machine's folders, and servers that list nothing.
        """
        address = parse_address(url)
        client = self._client(address)
        if isinstance(client, LocalFiles):
            raise UnsupportedError(f"{address.url} is of this machine: nothing is listed here")
        if address.path and not url.endswith("/"):
            with suppress(NotFoundError):
                yield address, client.stat(address)
                return
        is_empty = True
        for found in client.below(address):
            is_empty = False
            yield found
        if is_empty:
            raise NotFoundError(f"{address.url}: there is no such file, and nothing below it")

    def _client(self, address: Address) -> _Client:
        return self._clients[check_allowed(address, tuple(self._clients))]


def changed(url: str, expected: Stat, found: Stat) -> CorruptError:
    """The error for a source that is another one than it was: expected against found."""
    if found.size != expected.size:
        what = f"expected {expected.size} bytes, found {found.size}"
    else:
        what = f"expected version {expected.etag}, found {found.etag}"
    return CorruptError(
        f"{url} has changed since the dataset was written: {what}. Put the old one back, or adopt "
        "or link the new one."
    )


def _client(address: Address, options: dict[str, str], environment: Mapping[str, str]) -> _Client:
    if address.scheme == "file":
        if options:
            raise InvalidInputError(f"{address.url}: unknown options {', '.join(sorted(options))}")
        return LocalFiles(address)
    if address.scheme in SCHEMES:
        return StoreFiles(address, options, environment)
    return FsspecFiles(address, options)


# ------------------------------------------------------------------------------ this machine


class LocalFiles:
    """Files of this machine below one folder. Links are followed as long as they stay in it."""

    def __init__(self, prefix: Address) -> None:
        self._prefix = prefix
        self._open = LimitedCache[_OpenFile](OPEN_FILES)

    def stat(self, address: Address) -> Stat:
        file = self._opened(address)
        self._open.drop(address.key)
        self._open.put(address.key, file, 1)
        return file.stat()

    def read(self, address: Address, start: int, stop: int) -> tuple[memoryview, Stat]:
        file = self._open.get(address.key)
        if file is None:
            self.stat(address)
            file = self._open.get(address.key) or self._opened(address)
        try:
            return file.read(start, stop)
        except OSError as error:
            raise explain_disk(error, "read", Path(address.key)) from error

    def _opened(self, address: Address) -> _OpenFile:
        """The file, opened so that no link leads out of the prefix, whoever changes links now."""
        root = os.path.realpath(self._prefix.key)
        real = os.path.realpath(address.key)
        if real != root and not real.startswith(f"{root.rstrip('/')}/"):
            raise PermissionDenied(
                f"{address.key} is a link that leads out of {self._prefix.key}, the prefix that is "
                "allowed. Allow where it leads, too."
            )
        try:
            return _OpenFile(_open_below(root, real))
        except FileNotFoundError:
            raise NotFoundError(f"{address.key}: there is no such file any more") from None
        except OSError as error:
            raise explain_disk(error, "read", Path(address.key)) from error


class _OpenFile:
    """A file, closed when nobody holds it any more."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(21, "not a file")

    def stat(self) -> Stat:
        status = os.fstat(self._descriptor)
        return Stat(status.st_size, f"mtime-{status.st_mtime_ns}")

    def read(self, start: int, stop: int) -> tuple[memoryview, Stat]:
        # Look before allocating: a lying range must not ask for all memory.
        buffer = memoryview(bytearray(max(0, min(stop, self.stat().size) - start)))
        filled = 0
        while filled < buffer.nbytes:
            got = os.preadv(self._descriptor, [buffer[filled:]], start + filled)
            if not got:
                break
            filled += got
        return buffer[:filled], self.stat()  # after reading: it must not have changed meanwhile


def _open_below(root: str, real: str) -> int:
    """A descriptor of the file `real`, no part of which below `root` may be a link by now."""
    parts = real[len(root) :].strip("/").split("/")
    if parts == [""]:
        return os.open(root, _READ)
    folder = os.open(root, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1], _READ, dir_fd=folder)
    finally:
        os.close(folder)


# ------------------------------------------------------------------------------ stores


class StoreFiles:
    """What lies in a bucket or on a web server."""

    def __init__(
        self, prefix: Address, options: Mapping[str, str], environment: Mapping[str, str]
    ) -> None:
        self._place = find_place(prefix.root, options, environment)

    @cached_property
    def _store(self) -> Any:
        return open_store(self._place, READING)

    def stat(self, address: Address) -> Stat:
        return _described(self._asked(address, lambda: obstore.head(self._store, address.key)))

    def read(self, address: Address, start: int, stop: int) -> tuple[memoryview, Stat]:
        if start == stop:
            return memoryview(b""), self.stat(address)
        options: Any = {"range": (start, stop)}

        def get() -> tuple[memoryview, Stat]:
            try:
                result = obstore.get(self._store, address.key, options=options)
            except BaseError as error:
                if "status code: 416" in str(error):  # it ends before the range begins
                    return memoryview(b""), self.stat(address)
                raise
            return memoryview(result.bytes()), _described(result.meta)

        return self._asked(address, get)

    def below(self, folder: Address) -> Iterator[tuple[Address, Stat]]:
        """All files below a folder; of a bucket, whose folders are names alone, some are empty."""
        if self._place.kind == "http":
            raise UnsupportedError(
                f"{folder.url}: a web server does not list its files. Name one of them."
            )
        pages = self._asked(folder, lambda: obstore.list(self._store, folder.key or None))
        while (page := self._asked(folder, lambda: next(pages, None))) is not None:
            for entry in page:
                yield parse_address(f"{folder.root}/{entry['path']}"), _described(entry)

    def _asked(self, address: Address, ask: Callable[[], _R]) -> _R:
        check_process()
        try:
            return ask()
        except FileNotFoundError as error:
            raise missing(str(error), self._place, address.key) from None
        except BaseError as error:
            # The original may show secrets and headers: it is not chained.
            raise explain(error, f"cannot read {address.url}", self._place) from None
        except ValueError as error:
            raise InvalidInputError(f"{address.url}: {error}") from None


def _described(meta: Any) -> Stat:
    return Stat(int(meta["size"]), meta["e_tag"])


class FsspecFiles:
    """What lies in a file system that only fsspec knows."""

    def __init__(self, prefix: Address, options: Mapping[str, str]) -> None:
        self._root = prefix.root
        self._options = dict(options)
        self._lock = Lock()  # sessions of ssh, ftp, smb are rarely safe to share

    @cached_property
    def _files(self) -> Any:
        import fsspec  # takes 25 ms, and most data lies elsewhere

        try:
            files, _ = fsspec.url_to_fs(self._root, **self._options)
        except (ImportError, ValueError) as error:
            raise UnsupportedError(f"{self._root}: {self._scrubbed(error)}") from None
        return files

    def stat(self, address: Address) -> Stat:
        with self._lock:
            return self._asked(address, self._stat)

    def read(self, address: Address, start: int, stop: int) -> tuple[memoryview, Stat]:
        def get(path: str) -> tuple[memoryview, Stat]:
            end = min(stop, self._stat(path).size)
            data = self._files.cat_file(path, start=start, end=end) if end > start else b""
            return memoryview(data), self._stat(path)

        with self._lock:
            return self._asked(address, get)

    def below(self, folder: Address) -> Iterator[tuple[Address, Stat]]:
        """All files below a folder."""
        with self._lock:
            found = self._asked(folder, lambda path: self._files.find(path, detail=True))
            root = self._asked(folder, str).rstrip("/")
        for path, each in found.items():
            inside = path.removeprefix(root).strip("/")
            if inside:
                yield parse_address(f"{folder.url.rstrip('/')}/{inside}"), _version(each)

    def _stat(self, path: str) -> Stat:
        self._files.invalidate_cache()
        found = self._files.info(path)
        if found["type"] == "directory":
            raise FileNotFoundError(path)
        return _version(found)

    def _asked(self, address: Address, ask: Callable[[str], _R]) -> _R:
        try:
            return ask(self._files._strip_protocol(address.url))  # noqa: SLF001  # fsspec's own way to a path
        except Error:
            raise
        except FileNotFoundError:
            raise NotFoundError(f"{address.url}: there is nothing any more") from None
        except Exception as error:  # noqa: BLE001  # libraries raise what they like
            # The original may show a password: it is not chained.
            what = f"cannot read {address.url}: {type(error).__name__}: {self._scrubbed(error)}"
            raise StorageError(what) from None

    def _scrubbed(self, error: Exception) -> str:
        text = str(error)
        for value in sorted(map(str, self._options.values()), key=len, reverse=True):
            text = text.replace(value, "***") if len(value) > 5 else text
        return text


def _version(found: Mapping[str, Any]) -> Stat:
    """What fsspec says of a file."""
    names = ("ETag", "etag", "mtime", "LastModified", "last_modified", "created")
    version = next((found[name] for name in names if found.get(name)), None)
    return Stat(int(found["size"]), None if version is None else str(version))


# Readers of what lies below one prefix. `read` gives the bytes, fewer where it ends before `stop`,
# and the version that they are of.
_Client = LocalFiles | StoreFiles | FsspecFiles


# ------------------------------------------------------------------------------ as a file


class OutsideFile(io.RawIOBase):
    """What lies at a URL, as Python's file objects go: for decoders that read where they like.

    Args:
        outside: who may read it.
        url: address of the data.
        version: version to read; None: that which is there now.
    """

    def __init__(self, outside: Outside, url: str, version: Stat | None = None) -> None:
        self.version = version or outside.stat(url)
        self._outside = outside
        self._url = url
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """Bytes of all of it."""
        return self.version.size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.version.size}[whence]
        if base + offset < 0:
            raise ValueError(f"there is no byte {base + offset}")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self.version.size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        if wanted > MOST_READ_BYTES:  # a decoder was told to by a lying header
            raise CorruptError(
                f"{parse_address(self._url).url}: {wanted} bytes are asked for at once, more than "
                f"{MOST_READ_BYTES}: a header in it lies"
            )
        data = self._outside.read(self._url, self._at, self._at + wanted, self.version)
        self._at += wanted
        return bytes(data)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(view.nbytes)
        view[: len(data)] = data
        return len(data)

"""Download of sources behind URLs: a file, or a folder of a bucket, spooled to this machine's disk.

Readers of foreign formats seek in files, and run in children that open them by name, so what lies
behind a URL is copied first: in parts of bounded size, a few at a time, each of the version that
the store named first. Nothing of a URL but its public part is shown or kept. Web servers need know
nothing of ranges: their files are read whole, as they come.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError

from tensorrepo.formats.common.provenance import public_place
from tensorrepo.formats.dataset.external.outside import Address, Stat, parse_address
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.repo.backends.local import explain as explain_disk
from tensorrepo.repo.backends.remote import (
    READING,
    StoreLocation,
    check_process,
    explain,
    find_place,
    open_store,
)
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.threads import ordered_map

PART_BYTES: Final = 8 << 20
THREADS: Final = 8
_CHUNK_BYTES: Final = 1 << 20
_LOCK: Final = ".lock"
_MOST_NAME_BYTES: Final = 255
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """What lay behind a URL, on this disk until the last reference to it goes.

    Attributes:
        url: URL without user, password, query and fragment: it may be shown and stored.
        path: the file or folder here.
        version: digest of the names, sizes and versions of its files.
    """

    url: str
    path: Path
    version: str
    spool: DownloadFolder

    def described(self, reading: OpenedSource) -> OpenedSource:
        """What was opened of `path`, as of the URL; it keeps the files while batches are walked."""
        return replace(
            reading,
            batches=_held(self, reading.batches),
            origin=replace(reading.origin, path=self.url),
            notes=tuple(self._shown(note) for note in reading.notes),
        )

    @contextmanager
    def named(self) -> Iterator[None]:
        """Errors raised within name the URL, not the place on this disk."""
        try:
            yield
        except Error as error:
            if error.args:
                error.args = (self._shown(str(error.args[0])), *error.args[1:])
            raise

    def _shown(self, text: str) -> str:
        return text.replace(str(self.path), self.url)


def _held(source: RemoteSource, batches: Iterator[Any]) -> Iterator[Any]:
    with source.named():
        yield from batches


def fetch(
    url: str,
    folder: Path,
    *,
    environment: Mapping[str, str],
    options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> RemoteSource:
    """Copy what lies behind a URL into a folder of its own below `folder`.

    Args:
        url: ``http(s)://`` of one file; ``s3://``, ``gs://``, ``az://``, or what fsspec knows, of a
            file or a folder. User, password and query of a web address are used, not kept.
        folder: where spools are, such as a cache of this user.
        environment: where credentials and endpoints are looked up.
        options: storage options of the URL.
        progress: told the bytes that have come so far, on the caller's thread.

    Raises:
        NotFoundError: nothing is there.
        PermissionDenied: the store refuses.
        StorageError: the network or the disk fails, or the disk is too small.
        CorruptError: what lies there changed while it was read.
    """
    check_process()
    spool = DownloadFolder(folder)
    transfer = _Transfer(spool, progress)
    try:
        if _WEB.match(url):
            return transfer.web(_WebFile.of(url, options or {}, environment))
        return transfer.store(url, options or {}, environment)
    except BaseException:
        spool.close()
        raise


class DownloadFolder:
    """A folder that goes with the last reference to it, or is swept after its process died."""

    def __init__(self, root: Path) -> None:
        self.path = root / secrets.token_hex(8)
        try:
            self.path.mkdir(parents=True)
            lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sweep(root)
        except OSError as error:
            raise explain_disk(error, "write", self.path) from error
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _sweep(root: Path) -> None:
    """Remove what processes left that were killed: nobody holds its lock."""
    for lock in root.glob(f"*/{_LOCK}"):
        with suppress(OSError):
            held = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(held)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes ``[start, stop)`` of a file, and where they go."""

    address: Address
    version: Stat
    target: Path
    start: int
    stop: int


class _Transfer:
    """One copy from a store to a spool."""

    def __init__(self, spool: DownloadFolder, progress: Callable[[int], None]) -> None:
        self._spool, self._progress = spool, progress
        self._done, self._lock = 0, Lock()

    def store(
        self, url: str, options: Mapping[str, str], environment: Mapping[str, str]
    ) -> RemoteSource:
        """A file or a folder of a store, in parts."""
        top = parse_address(url)
        outside = AllowedOutside({url: dict(options)}, environment=environment)
        files = _without_markers(top, list(outside.find(url)))
        place = self._spool.path / _file_name(top.path[-1] if top.path else top.host)
        targets = [place.joinpath(*each.path[len(top.path) :]) for each, _ in files]
        self._check_room(top.url, sum(version.size for _, version in files))
        self._make(top, place, targets, [version for _, version in files])
        named = zip(files, targets, strict=True)
        parts = (part for (each, version), at in named for part in _parts(each, version, at))

        def copy(part: _Part) -> int:
            return self._copy(outside, part)

        with closing(ordered_map(parts, copy, threads=THREADS, name="fetch")) as copied:
            for size in copied:
                self._tell(size)
        told = [f"{each.key}\0{version.size}\0{version.etag}" for each, version in files]
        return RemoteSource(top.url, place, _digest(told), self._spool)

    def web(self, file: _WebFile) -> RemoteSource:
        """One file of a web server, whole; on a thread, so that an interrupt is heard at once."""
        place = self._spool.path / _file_name(file.name)
        with closing(ordered_map(self._received(file, place), int, threads=1, name="fetch")) as got:
            for size in got:
                self._tell(size)
        status = place.stat()
        version = _digest([f"{file.shown}\0{status.st_size}\0{status.st_mtime_ns}"])
        return RemoteSource(file.shown, place, version, self._spool)

    def _received(self, file: _WebFile, place: Path) -> Iterator[int]:
        with file.asking():
            result = obstore.get(open_store(file.place, READING), "")
            meta: Any = result.meta
            self._check_room(file.shown, meta["size"])
            received = 0
            with _writing(place), place.open("wb") as target:
                for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                    received += target.write(chunk)
                    yield len(chunk)
        if received != meta["size"]:
            raise StorageError(
                f"{file.shown}: expected {meta['size']} bytes, received {received}. Repeat.",
                transient=True,
            )
        modified = meta["last_modified"].timestamp()
        os.utime(place, (modified, modified))  # as the server says, which repeats it

    def _copy(self, outside: AllowedOutside, part: _Part) -> int:
        try:
            data = outside.read(part.address.url, part.start, part.stop, part.version)
        except CorruptError as error:
            raise CorruptError(
                f"{part.address.url} changed while it was read. Repeat when it is whole."
            ) from error
        with _writing(part.target):
            descriptor = os.open(part.target, os.O_WRONLY | os.O_CLOEXEC)
            try:
                written = 0
                while written < data.nbytes:
                    written += os.pwrite(descriptor, data[written:], part.start + written)
            finally:
                os.close(descriptor)
        return data.nbytes

    def _make(self, top: Address, place: Path, targets: list[Path], versions: list[Stat]) -> None:
        """The empty files, so that parts may come in any order."""
        with _writing(place):
            for target, version in zip(targets, versions, strict=True):
                if any(len(os.fsencode(part)) > _MOST_NAME_BYTES for part in target.parts):
                    raise InvalidInputError(f"{top.url}: a name in it is too long for this disk")
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    file.truncate(version.size)

    def _check_room(self, url: str, size_bytes: int) -> None:
        free = shutil.disk_usage(self._spool.path).free
        if size_bytes > free:
            raise StorageError(
                f"{url} has {size_bytes:,} bytes, and {self._spool.path.parent}, where it is read "
                f"from, has room for {free:,}. XDG_CACHE_HOME names another disk; or adopt it."
            )

    def _tell(self, size_bytes: int) -> None:
        self._done += size_bytes
        self._progress(self._done)


def _parts(address: Address, version: Stat, target: Path) -> Iterator[_Part]:
    for start in range(0, version.size, PART_BYTES):
        stop = min(start + PART_BYTES, version.size)
        yield _Part(address, version, target, start, stop)


def _without_markers(top: Address, files: list[tuple[Address, Stat]]) -> list[tuple[Address, Stat]]:
    """The files but for empty ones that consoles make to show a folder.

    Raises:
        InvalidInputError: a file whose name is a folder's as well, which a bucket may have.
    """
    folders = {each.path[:end] for each, _ in files for end in range(len(each.path))}
    kept = [(each, version) for each, version in files if each.path not in folders]
    clash = next((e for e, version in files if e.path in folders and version.size), None)
    if clash is not None:
        raise InvalidInputError(
            f"{clash.url} is a file and a folder, which this machine cannot have. Name one of "
            f"them, or a part of {top.url}."
        )
    return kept


def _file_name(text: str) -> str:
    """The last part of a URL as the name of a file; its suffix tells formats apart."""
    name = re.sub(r"[\x00-\x1f/\\]", "_", unquote(text)).strip(". ") or "download"
    return os.fsdecode(os.fsencode(name)[-200:])


def _digest(told: list[str]) -> str:
    return hashlib.sha256("\n".join(sorted(told)).encode()).hexdigest()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise InvalidInputError(
            f"two names of the source are the same here: {path.name}"
        ) from error
    except OSError as error:
        raise explain_disk(error, "write", path) from error


@dataclass(frozen=True, slots=True)
class _WebFile:
    """A file of a web server: `shown` is its URL without secrets, `place` how to get it."""

    shown: str
    name: str
    place: StoreLocation

    @staticmethod
    def of(url: str, options: Mapping[str, str], environment: Mapping[str, str]) -> _WebFile:
        parts = urlsplit(url)
        shown = public_place(url)
        plain = find_place(shown, options, environment)
        login, _, host = parts.netloc.rpartition("@")
        client: dict[str, Any] = dict(plain.client)
        if login:
            word = base64.b64encode(unquote(login).encode()).decode()
            client["default_headers"] = {"Authorization": f"Basic {word}"}
        query = f"?{parts.query}" if parts.query else ""
        whole = f"{parts.scheme.lower()}://{host}{parts.path}{query}"
        name = parts.path.rstrip("/").rpartition("/")[2]
        return _WebFile(shown, name, replace(plain, url=whole, client=client))

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Failures of the server, without what the URL holds of secrets."""
        known = replace(self.place, url=self.shown)
        try:
            yield
        except FileNotFoundError:
            raise NotFoundError(f"{self.shown}: the server has no such file") from None
        except BaseError as error:
            if "Content-Length" in str(error):
                raise StorageError(
                    f"{self.shown}: the server does not say how long the file is, so nobody could "
                    "tell whether all of it came. Download it with a browser or curl, and add that."
                ) from None
            told = explain(error, f"cannot read {self.shown}", known)
            if isinstance(told, PermissionDenied):
                told = PermissionDenied(
                    f"cannot read {self.shown}: the server refuses. What a URL holds of a login "
                    "(https://user:password@host, or a token behind '?') is used, and kept nowhere."
                )
            raise told from None

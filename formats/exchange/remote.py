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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import BaseError

from tensorrepo.formats.common.provenance import public_place
from tensorrepo.formats.dataset.external.outside import Address, Stat, parse_address
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
from tensorrepo.formats.exchange.base import OpenedSource, SourceObject
from tensorrepo.repo.backends.disk import explain as explain_disk
from tensorrepo.repo.backends.remote import (
    READING,
    StoreLocation,
    check_process,
    explain,
    find_place,
    open_store,
)
from tensorrepo.repo.deferred_dataclass import dataclass
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
_SETTLED_SECONDS: Final = 2
_WEB: Final = re.compile(r"https?://", re.IGNORECASE)


# Given the objects behind a URL, gives contents of some that the caller has already.
Held = Callable[[Sequence[SourceObject]], Generator[tuple[str, memoryview], None, None]]


def _nothing(_: Sequence[SourceObject]) -> Generator[tuple[str, memoryview], None, None]:
    yield from ()


@dataclass(frozen=True, slots=True)
class RemoteSource:
    """What lay behind a URL, on this disk until the last reference to it goes.

    Attributes:
        url: URL without user, password, query and fragment: it may be shown and stored.
        path: the file or folder here.
        version: digest of the names, sizes and versions of its files.
        objects: these, if each has a version by which a change would be known.
    """

    url: str
    path: Path
    version: str
    objects: tuple[SourceObject, ...]
    spool: DownloadFolder

    def described(self, reading: OpenedSource, options: str = "") -> OpenedSource:
        """What was opened of `path`, as of the URL; it keeps the files while batches are walked.

        `options` is a digest of how it was opened.
        """
        origin = replace(reading.origin, path=self.url, objects=self.objects, options=options)
        return replace(
            reading,
            batches=_held(self, reading.batches),
            origin=origin,
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


class RemotePlace:
    """What a URL names, looked at when it is asked for.

    Args:
        url: ``http(s)://`` of one file; ``s3://``, ``gs://``, ``az://``, or what fsspec knows, of a
            file or a folder. User, password and query of a web address are used, not kept.
        environment: where credentials and endpoints are looked up.
        options: storage options of the URL.
    """

    def __init__(
        self,
        url: str,
        *,
        environment: Mapping[str, str],
        options: Mapping[str, str] | None = None,
    ) -> None:
        check_process()
        self._place: _WebFile | _StoreFiles
        if _WEB.match(url):
            self._place = _WebFile.of(url, options or {}, environment)
        else:
            self._place = _StoreFiles(url, dict(options or {}), environment)

    @property
    def shown(self) -> str:
        """The URL without user, password, query and fragment."""
        return self._place.shown

    @property
    def objects(self) -> tuple[SourceObject, ...]:
        """What lies there now; nothing where no versions are told, or a server tells only whole
        files.

        Raises:
            NotFoundError, PermissionDenied, StorageError: as `fetch`, of a store.
        """
        return self._place.objects

    def fetch(
        self,
        folder: Path,
        progress: Callable[[int], None] = lambda _: None,
        held: Held = _nothing,
    ) -> RemoteSource:
        """Copy it into a folder of its own below `folder`.

        Args:
            folder: where spools are, such as a cache of this user.
            progress: told the bytes that have come so far, on the caller's thread.
            held: gives the objects that need no transfer; those of another size are transferred.

        Raises:
            NotFoundError: nothing is there.
            PermissionDenied: the store refuses.
            StorageError: the network or the disk fails, or the disk is too small.
            CorruptError: what lies there changed while it was read.
        """
        spool = DownloadFolder(folder)
        try:
            return self._place.fetch(_Transfer(spool, progress), held)
        except BaseException:
            spool.close()
            raise


def fetch(
    url: str,
    folder: Path,
    *,
    environment: Mapping[str, str],
    options: Mapping[str, str] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> RemoteSource:
    """Copy what lies behind a URL; see `RemotePlace` and its `fetch`."""
    return RemotePlace(url, environment=environment, options=options).fetch(folder, progress)


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
        self._done = 0

    def store(self, place: _StoreFiles, held: Held) -> RemoteSource:
        """A file or a folder of a store, in parts."""
        top, files = place.top, place.files
        path = self._spool.path / _file_name(top.path[-1] if top.path else top.host)
        targets = [path.joinpath(*each.path[len(top.path) :]) for each, _ in files]
        self._check_room(top.url, sum(version.size for _, version in files))
        self._make(top, path, targets, [version for _, version in files])
        found = self._fill(dict(zip(map(place.name, files), targets, strict=True)), place, held)
        named = zip(files, targets, strict=True)
        parts = (
            part
            for (each, version), at in named
            if at not in found
            for part in _parts(each, version, at)
        )

        def copy(part: _Part) -> int:
            return self._copy(place.outside, part)

        with closing(ordered_map(parts, copy, threads=THREADS, name="fetch")) as copied:
            for size in copied:
                self._tell(size)
        told = [f"{each.key}\0{version.size}\0{version.etag}" for each, version in files]
        return RemoteSource(top.url, path, _digest(told), place.objects, self._spool)

    def _fill(self, targets: Mapping[str, Path], place: _StoreFiles, held: Held) -> set[Path]:
        """Write the files that the caller has, if they are as long as they should be."""
        sizes = {each.name: each.bytes for each in place.objects}
        found = set()
        with closing(held(place.objects)) as contents:
            for name, data in contents:
                if sizes.get(name) == data.nbytes:
                    with _writing(targets[name]):
                        targets[name].write_bytes(data)
                    found.add(targets[name])
                    self._tell(data.nbytes)
        return found

    def web(self, file: _WebFile) -> RemoteSource:
        """One file of a web server, whole; on a thread, so that an interrupt is heard at once."""
        path = self._spool.path / _file_name(file.name)
        objects: list[SourceObject] = []
        received = self._received(file, path, objects)
        with closing(ordered_map(received, int, threads=1, name="fetch")) as got:
            for size in got:
                self._tell(size)
        status = path.stat()
        version = _digest([f"{file.shown}\0{status.st_size}\0{status.st_mtime_ns}"])
        return RemoteSource(file.shown, path, version, tuple(objects), self._spool)

    def _received(self, file: _WebFile, path: Path, objects: list[SourceObject]) -> Iterator[int]:
        with file.asking():
            result = obstore.get(open_store(file.place, READING), "")
            meta: Any = result.meta
            self._check_room(file.shown, meta["size"])
            received = 0
            with _writing(path), path.open("wb") as target:
                begun = path.stat().st_mtime
                for chunk in result.stream(min_chunk_size=_CHUNK_BYTES):
                    received += target.write(chunk)
                    yield len(chunk)
        if received != meta["size"]:
            raise StorageError(
                f"{file.shown}: expected {meta['size']} bytes, received {received}. Repeat.",
                transient=True,
            )
        modified = meta["last_modified"].timestamp()
        os.utime(path, (modified, modified))  # as the server says, which repeats it
        # A file that was just written may change once more within the same second, unseen.
        if _strong_tag(meta) or begun - modified > _SETTLED_SECONDS:
            objects.extend(_web_object(meta))

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


class _StoreFiles:
    """A file or a folder of a store."""

    def __init__(self, url: str, options: dict[str, str], environment: Mapping[str, str]) -> None:
        self._url = url
        self.top = parse_address(url)
        self.outside = AllowedOutside({url: options}, environment=environment)

    @property
    def shown(self) -> str:
        return self.top.url

    @cached_property
    def files(self) -> list[tuple[Address, Stat]]:
        """What lies there, as it was when it was first asked for."""
        return _without_markers(self.top, list(self.outside.find(self._url)))

    @cached_property
    def objects(self) -> tuple[SourceObject, ...]:
        if not all(version.etag for _, version in self.files):
            return ()
        found = (SourceObject(self.name(f), f[1].size, f[1].etag or "") for f in self.files)
        return tuple(sorted(found, key=lambda each: each.name))

    def name(self, file: tuple[Address, Stat]) -> str:
        return "/".join(file[0].path[len(self.top.path) :])

    def fetch(self, transfer: _Transfer, held: Held) -> RemoteSource:
        return transfer.store(self, held)


def _strong_tag(meta: Any) -> str:
    """The tag that changes with every byte: a weak one may stay."""
    tag = meta["e_tag"] or ""
    return "" if tag.startswith("W/") else tag


def _web_object(meta: Any) -> Iterator[SourceObject]:
    """A file by its tag, else by when it was modified; nothing where the server tells neither."""
    modified = meta["last_modified"]
    version = _strong_tag(meta) or (modified.isoformat() if modified.timestamp() > 0 else "")
    if version:
        yield SourceObject("", meta["size"], version)


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

    @property
    def objects(self) -> tuple[SourceObject, ...]:
        """The file as a HEAD request tells; nothing of a server that refuses such, as one that
        signed the URL does.
        """
        try:
            return tuple(_web_object(obstore.head(open_store(self.place, READING), "")))
        except (BaseError, FileNotFoundError):
            return ()

    def fetch(self, transfer: _Transfer, _: Held) -> RemoteSource:
        return transfer.web(self)

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

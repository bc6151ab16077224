"""Files of index segments: cut into blobs when they are stored, put together in folders to be read.

A library opens files, and objects are none. So each segment that is asked has a folder on this
machine, made of the verified blobs. A folder appears by rename, whole; what is in it is proved
against the digests of the blobs once in each process. The folders are a cache: those that were not
used for longest go first.

    objects -> IndexFolders.folder(segment) -> <root>/<name of the segment>/...
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from threading import Lock
from typing import Final

from tensorrepo.formats.search_index.stored_index import (
    PART_BYTES,
    IndexFile,
    IndexSegment,
    StoredIndex,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, StorageError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import claim
from tensorrepo.repo.objects.envelope import Kind, ObjectSink, ObjectSource, encode_object
from tensorrepo.repo.threads import ordered_map

IN_USE_SECONDS: Final = 24 * 3600.0  # a folder that was opened since is not deleted
_TOUCH_SECONDS: Final = 600.0
_STALE_SECONDS: Final = 7 * 24 * 3600.0  # of a folder that somebody was writing
_THREADS: Final = 8
_PARTIAL: Final = "partial-"
_HEX_DIGITS: Final = 64


def store_files(objects: ObjectSink, folder: Path, names: list[str]) -> tuple[IndexFile, ...]:
    """Store files of a folder, each cut into blobs."""
    return tuple(_store(objects, folder, name) for name in sorted(names))


def _store(objects: ObjectSink, folder: Path, name: str) -> IndexFile:
    parts = []
    with (folder / name).open("rb") as file:
        while piece := file.read(PART_BYTES):
            parts.append(objects.put(Kind.BLOB, piece).digest)
        return IndexFile(name, file.tell(), tuple(parts))


def files_below(folder: Path) -> list[str]:
    """Paths of all files below a folder, relative to it, sorted."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def verify_files(objects: ObjectSource, index: StoredIndex) -> None:
    """Read every byte of an index.

    Raises:
        CorruptError, NotFoundError: a part is damaged, of another size, or not there.
    """
    for segment in index.segments:
        for file in segment.files:
            for _ in _pieces(objects, file):
                pass


def _pieces(objects: ObjectSource, file: IndexFile) -> Iterator[memoryview]:
    left = file.size_bytes
    for digest in file.parts:
        payload = objects.get(digest).payload
        if payload.nbytes != min(left, PART_BYTES):
            raise CorruptError(
                f"blob {digest:.12} has {payload.nbytes:,} bytes, expected "
                f"{min(left, PART_BYTES):,} of {file.name} of an index"
            )
        left -= payload.nbytes
        yield payload


@dataclass(eq=False)
class IndexFolders:
    """Folders of segments on this machine. Safe to share between threads and processes.

    Attributes:
        root: folder of this user alone; it is made.
        limit_bytes: bytes that all of them may take, but for those in use.
        clock: seconds since the epoch.
    """

    root: Path
    limit_bytes: int
    clock: Callable[[], float] = time.time
    _proved: set[str] = field(default_factory=set)
    _lock: Lock = field(default_factory=Lock)

    def folder(self, objects: ObjectSource, segment: IndexSegment) -> Path:
        """The folder of a segment, made where it is not there, its bytes proved.

        Raises:
            CorruptError, NotFoundError: a blob that is damaged, or is not there.
            StorageError: the disk does not take it.
        """
        path = self.root / segment.name
        with self._lock:
            if segment.name in self._proved and path.is_dir():
                self._touch(path)
                return path
            self._claim()
            if not (path.is_dir() and self._is_whole(path, segment)):
                with self.made(segment.name) as partial:
                    for file in segment.files:
                        self._write(objects, file, partial / file.name)
            self._touch(path)
            self._proved.add(segment.name)
        return path

    @contextmanager
    def made(self, name: str | None = None) -> Iterator[Path]:
        """A new folder, which gets its name when the block ends well, and else goes.

        Without a name it always goes, unless `keep` took it.
        """
        self._claim()
        partial = self.root / f"{_PARTIAL}{os.getpid()}-{secrets.token_hex(8)}"
        with self._telling():
            partial.mkdir(mode=0o700)
        try:
            yield partial
            if name is not None:
                self.keep(partial, name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def keep(self, folder: Path, name: str) -> None:
        """Take a whole folder, made in `made`, for the segment of this name."""
        target = self.root / name
        with self._telling():
            try:
                folder.rename(target)
            except OSError:
                if not target.is_dir():
                    raise
                # There is one already: made by another process, or one that was not whole.
                shutil.rmtree(target, ignore_errors=True)
                folder.rename(target)
        self.trim(kept=name)

    def trim(self, kept: str = "") -> None:
        """Delete folders that were not used for longest while there is too much."""
        now = self.clock()
        found = []
        with suppress(OSError):
            for path in self.root.iterdir():
                with suppress(OSError):
                    found.append((path.stat().st_mtime, path))
        sizes = {path: _bytes_below(path) for _, path in found}
        total = sum(sizes.values())
        for used, path in sorted(found):
            is_partial = path.name.startswith(_PARTIAL)
            if is_partial and now - used > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
                total -= sizes[path]
                continue
            is_idle = now - used > IN_USE_SECONDS and path.name != kept and _is_segment(path.name)
            if is_idle and total > self.limit_bytes:
                shutil.rmtree(path, ignore_errors=True)
                total -= sizes[path]

    def _is_whole(self, path: Path, segment: IndexSegment) -> bool:
        """Whether the files are those of the segment, byte for byte."""
        if files_below(path) != [file.name for file in segment.files]:
            return False
        digests = ordered_map(
            ((path / file.name, at) for file in segment.files for at in range(len(file.parts))),
            _part_digest,
            threads=_THREADS,
            name="prove",
        )
        expected = (digest for file in segment.files for digest in file.parts)
        return all(found == wanted for found, wanted in zip(digests, expected, strict=True)) and (
            [(path / file.name).stat().st_size for file in segment.files]
            == [file.size_bytes for file in segment.files]
        )

    def _write(self, objects: ObjectSource, file: IndexFile, target: Path) -> None:
        with self._telling():
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as output:
                for piece in _pieces(objects, file):
                    output.write(piece)

    def _touch(self, path: Path) -> None:
        now = self.clock()
        with suppress(OSError):
            if abs(now - path.stat().st_mtime) > _TOUCH_SECONDS:
                os.utime(path, (now, now))

    def _claim(self) -> None:
        if not claim(self.root, lambda _folder, _name: False):
            raise StorageError(
                f"search indexes cannot be kept in {str(self.root)!r}: it is not this user's, "
                "holds other files, or cannot be made. XDG_CACHE_HOME says where caches are"
            )

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"cannot keep a search index in {str(self.root)!r}: {error.strerror or error}. Is "
                "the disk full? XDG_CACHE_HOME says where caches are"
            ) from error


def _is_segment(name: str) -> bool:
    return len(name) == _HEX_DIGITS and set(name) <= set("0123456789abcdef")


def _part_digest(place: tuple[Path, int]) -> Digest:
    path, part = place
    with path.open("rb") as file:
        file.seek(part * PART_BYTES)
        return encode_object(Kind.BLOB, file.read(PART_BYTES)).link.digest


def _bytes_below(path: Path) -> int:
    total = 0
    with suppress(OSError):
        for each in path.rglob("*"):
            with suppress(OSError):
                total += each.stat().st_size
    return total

"""Files that are made of stored rows on the fly, kept on this machine's disk.

A rendering is a function of the rows' digest, the format and the version of its writer, and is
found by a key made of them: it is made once, has stable bytes, and every process finds it. Its name
has the sum of its bytes, which is compared when it is opened. Those not used for longest go when
there are more bytes than the limit; one that is open stays readable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Final

from xxhash import xxh3_128

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import MARKER, claim, is_partial, partial_name

WRITER_VERSION: Final = 1  # grows with every change of the bytes that renderers write
LIMIT_BYTES: Final = 20 << 30
PIECE_BYTES: Final = 1 << 20
_STALE_SECONDS: Final = 86400.0  # what a writer that was killed left


@dataclass(frozen=True, slots=True)
class OpenRendering:
    """A rendering, open for reading; closed with the last reference to it."""

    file: int
    size_bytes: int

    def pieces(self, start: int, stop: int) -> Iterator[Buffer]:
        """See `PresentedFile`."""
        for at in range(start, min(stop, self.size_bytes), PIECE_BYTES):
            size = min(at + PIECE_BYTES, stop, self.size_bytes) - at
            data = os.pread(self.file, size, at)
            if len(data) != size:
                raise StorageError("a rendered file was cut short while it was read. Read it again")
            yield data

    def piece_start(self, at: int) -> int:
        """See `PresentedFile`: anywhere."""
        return min(at, self.size_bytes)

    def __del__(self) -> None:
        os.close(self.file)


@dataclass(frozen=True, slots=True)
class Renderings:
    """A folder of renderings.

    Attributes:
        folder: where they are; only this user may write into it.
        limit_bytes: what they may take together.
    """

    folder: Path
    limit_bytes: int = LIMIT_BYTES
    _proved: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)

    def size_bytes(self, key: str) -> int | None:
        """Bytes of a rendering that is there; None: it is not."""
        found = self._find(key)
        return None if found is None else found.stat().st_size

    def open(self, key: str, write: Callable[[Path], object]) -> OpenRendering:
        """The rendering of `key`; `write` makes it at a path if it is not there.

        `key` is the digest of the rows, ``-``, and how they were written, without dots.

        Raises:
            StorageError: the folder cannot be used.
        """
        found = self._find(key)
        if found is not None:
            opened = self._opened(found)
            if opened is not None:
                return opened
        made = self._make(key, write)
        opened = self._opened(made)
        if opened is None:
            raise StorageError(
                f"{made} is not what was written a moment ago. Free space, or check the disk"
            )
        self._trim(keep=made.name)
        return opened

    def drop_objects(self, digests: Collection[Digest]) -> int:
        """Delete what was made of objects with these digests; gives how many files."""
        gone = 0
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.partition("-")[0] in digests:
                    os.unlink(entry.path)
                    gone += 1
        return gone

    def _find(self, key: str) -> Path | None:
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.startswith(f"{key}."):
                    return Path(entry.path)
        return None

    def _opened(self, path: Path) -> OpenRendering | None:
        """A rendering, if its bytes are those that its name tells; else it is deleted."""
        try:
            file = os.open(path, os.O_RDONLY)
        except OSError:
            return None
        status = os.fstat(file)
        opened = OpenRendering(file, status.st_size)
        known = (status.st_ino, status.st_size)
        if self._proved.get(path.name) != known:
            if path.name.rpartition(".")[2] != _sum(opened):
                path.unlink(missing_ok=True)
                return None
            self._proved[path.name] = known
        with suppress(OSError):
            os.utime(path)
        return opened

    def _make(self, key: str, write: Callable[[Path], object]) -> Path:
        if not claim(self.folder, _is_own):
            raise StorageError(
                f"{self.folder} cannot be used for rendered files: it cannot be written, or holds "
                "other data. Move it away, or set XDG_CACHE_HOME."
            )
        partial = self.folder / partial_name()
        try:
            write(partial)
            with partial.open("rb") as written:
                opened = OpenRendering(os.dup(written.fileno()), partial.stat().st_size)
            path = self.folder / f"{key}.{_sum(opened)}"
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return path

    def _trim(self, keep: str) -> None:
        """Delete what was not used for longest, down to the limit; and what killed writers left."""
        total, found = 0, []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name == MARKER:
                    continue
                with suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    is_stale = time.time() - status.st_mtime > _STALE_SECONDS
                    if is_partial(entry.name) and is_stale:
                        os.unlink(entry.path)
                        continue
                    total += status.st_size
                    if entry.name != keep and not is_partial(entry.name):
                        found.append((status.st_mtime, status.st_size, entry.path))
        for _, size, path in sorted(found):
            if total <= self.limit_bytes:
                return
            with suppress(OSError):
                os.unlink(path)
                total -= size


def _sum(file: OpenRendering) -> str:
    hasher = xxh3_128()
    for piece in file.pieces(0, file.size_bytes):
        hasher.update(piece)
    return hasher.hexdigest()


def _is_own(_folder: str, _name: str) -> bool:
    return False

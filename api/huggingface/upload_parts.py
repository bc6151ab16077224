"""Files that come in parts: kept while some are missing, made one file when all are there.

    <folder>/whole      the file, each part at its place
    <folder>/part-<n>   part n is there; holds the ETag that its sender was told

Parts come in any order, again, and to several processes at once. Whoever writes one holds a shared
lock on `whole`, whoever makes the file of them an exclusive one: nothing changes bytes that are
being proved, or were.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorrepo.api.huggingface.proved_files import ProofHasher, keep
from tensorrepo.repo.backends.disk import explain
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError

PART_BYTES: Final = 64 << 20
MAX_PARTS: Final = 10_000
MULTIPART_FROM_PARTS: Final = 8  # files of fewer parts come whole, which reads them once
_WAIT_SECONDS: Final = 20.0  # of who says that all came, for another one who said so before
_POLL_SECONDS: Final = 0.05
_READ_BYTES: Final = 1 << 20
_ETAG: Final = re.compile(r"[0-9a-f]{64}")


def part_size(size_bytes: int, part_bytes: int) -> int:
    """Bytes of each part but the last, so that no file has more than `MAX_PARTS`."""
    least = -(-size_bytes // MAX_PARTS)
    return max(part_bytes, least)


@dataclass(frozen=True, slots=True)
class UploadParts:
    """Parts of one file.

    Attributes:
        folder: where they lie.
        size_bytes: size of the file.
        part_bytes: size of each part but the last.
    """

    folder: Path
    size_bytes: int
    part_bytes: int

    @property
    def count(self) -> int:
        return -(-self.size_bytes // self.part_bytes)

    def span(self, number: int) -> tuple[int, int]:
        """Half-open range of the file that part `number`, counted from 1, is."""
        start = (number - 1) * self.part_bytes
        return start, min(start + self.part_bytes, self.size_bytes)

    @contextmanager
    def writing(self, number: int) -> Iterator[int]:
        """A descriptor of the file, at the place of a part, which is not there until `arrived`.

        Raises:
            ConflictError: the file is being made of its parts.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = ConflictError("the file is being made of its parts: ask for addresses again")
        try:
            descriptor = _open(self._whole, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:  # the folder went, for all parts are there
            raise taken from None
        try:
            if not _locks(descriptor, fcntl.LOCK_SH) or not self._is_here(descriptor):
                raise taken
            self._part(number).unlink(missing_ok=True)
            os.lseek(descriptor, self.span(number)[0], os.SEEK_SET)
            yield descriptor
        finally:
            os.close(descriptor)

    def arrived(self, number: int, etag: str) -> None:
        """Part `number` is there; called within `writing`."""
        self._part(number).write_text(etag)

    def complete(self, sha256: str, target: Path, told: Mapping[int, str]) -> None:
        """Make one file of all parts, which goes to `target`.

        Args:
            sha256: hex digits of the hash that it must have.
            target: where it goes. If it is there already, nothing is left to do.
            told: ETags of parts by their numbers, as their sender was told them.

        Raises:
            ConflictError: parts are missing, or are being written.
            InvalidInputError: parts are not those that are meant, or they are another file
                together: then all are forgotten.
        """
        try:
            descriptor = _open(self._whole, os.O_RDWR)
        except FileNotFoundError:
            if target.is_file():
                return
            raise self._missing(range(1, self.count + 1)) from None
        try:
            self._wait(descriptor)
            if target.is_file():  # by who asked the same before
                return
            self._check(told)
            checksum = self._prove(descriptor, sha256)
            keep(self._whole, target, checksum)
            shutil.rmtree(self.folder, ignore_errors=True)
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int) -> None:
        until = time.monotonic() + _WAIT_SECONDS
        while not _locks(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise ConflictError("parts of this file are being written: complete it after them")
            time.sleep(_POLL_SECONDS)

    def _check(self, told: Mapping[int, str]) -> None:
        """Raises unless exactly the parts that are there are meant."""
        etags = {number: self._etag(number) for number in range(1, self.count + 1)}
        missing = [number for number, etag in etags.items() if etag is None]
        if missing:
            raise self._missing(missing)
        others = sorted(number for number in etags if told.get(number) != etags[number])
        if others or len(told) != len(etags):
            raise InvalidInputError(
                f"the parts that are meant are not those that came: expected the ETags of "
                f"{self.count} parts, and those of {others[:10] or 'others'} differ"
            )

    def _prove(self, descriptor: int, sha256: str) -> bytes:
        """The checksum of what has that SHA-256. Raises InvalidInputError."""
        hasher = ProofHasher()
        with open(descriptor, "rb", closefd=False) as file:
            while piece := file.read(_READ_BYTES):
                hasher.update(piece)
        size = os.fstat(descriptor).st_size
        if (hasher.sha256, size) != (sha256, self.size_bytes):
            shutil.rmtree(self.folder, ignore_errors=True)
            raise InvalidInputError(
                f"together the parts have {size:,} bytes of SHA-256 {hasher.sha256:.12}, expected "
                f"{self.size_bytes:,} of {sha256:.12}: they are forgotten. Send them again"
            )
        return hasher.checksum

    def _missing(self, numbers: range | list[int]) -> ConflictError:
        shown = list(numbers[:10])
        return ConflictError(f"parts {shown} of {self.count} did not come yet: send them")

    def _etag(self, number: int) -> str | None:
        """What the sender of a part was told; None: it is not there."""
        with suppress(OSError):
            found = self._part(number).read_text()
            return found if _ETAG.fullmatch(found) else None
        return None

    def _is_here(self, descriptor: int) -> bool:
        """Whether a descriptor is of the file that lies there now."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), self._whole.stat())
        return False

    @property
    def _whole(self) -> Path:
        return self.folder / "whole"

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number}"


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise explain(error, "write", path) from error


def _locks(descriptor: int, kind: int) -> bool:
    """Take a lock unless somebody holds one that is in the way."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

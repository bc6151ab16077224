"""Uploads of git-lfs on their way: spooled to disk, proved by size and SHA-256, then committed.

A client asks for addresses, sends bytes there without its token, and names them by their SHA-256
in a commit. So an address carries a ticket: a keyed hash over the repository, the user, the file,
the part and an end. A file belongs to who sent it: that somebody knows a hash is no right to read,
and a commit finds only what its own caller brought.

    <folder>/<owner>/<sha256>           a file that is what it should be
    <folder>/<owner>/<sha256>.<random>  one that is being sent whole
    <folder>/<owner>/<sha256>.parts     one that is being sent in parts, and .part-<n> for each
                                        that is there

What is a day old goes with the next request for addresses.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final, Literal

import msgspec
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.huggingface.leftovers import remove_older
from tensorrepo.repo.backends.local import explain
from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    StorageError,
    TooLargeError,
    UnauthenticatedError,
)
from tensorrepo.repo.typed_decoding import from_json

ENCODED_AT_ONCE: Final = 2
KEY: Final = "huggingface-uploads"
PART_BYTES: Final = 64 << 20
MULTIPART_FROM_BYTES: Final = 512 << 20
MAX_FILE_BYTES: Final = 5 << 40
MAX_OWNED_BYTES: Final = 1 << 40  # of one user in one repository
_SPARE_BYTES: Final = 1 << 30  # of the disk, which uploads leave free
_EXPIRES_SECONDS: Final = 86400
_LEAST_SECONDS: Final = 900
_SLOWEST: Final = 1 << 20  # bytes a second, for which an address is good
_WRITE_BYTES: Final = 1 << 20
_DIGITS: Final = frozenset("0123456789abcdef")
TicketUse = Literal["whole", "part", "complete"]


class UploadTicket(msgspec.Struct, frozen=True):
    """What an address is good for, and until when (seconds since 1970)."""

    use: TicketUse
    repository: str
    owner: str
    user: str
    sha256: str
    size_bytes: int
    part: int
    until: int


@dataclass(frozen=True, slots=True)
class UploadSpool:
    """Files that were uploaded and belong to no commit yet. Thread-safe, for several processes.

    Attributes:
        folder: where they lie.
        key: gives the key of tickets.
        clock: seconds since 1970.
        encoding: held by whoever stores uploads in a repository, which takes memory and cores.
    """

    folder: Path
    key: Callable[[], bytes]
    clock: Callable[[], float] = time.time
    encoding: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(ENCODED_AT_ONCE))

    def find(self, access: RepositoryAccess, sha256: str) -> Path | None:
        """The file of that SHA-256 that this caller brought to this repository."""
        path = self._folder(_owner(access)) / check_sha256(sha256)
        return path if path.is_file() else None

    def forget(self, access: RepositoryAccess, sha256: str) -> None:
        """A commit has it now."""
        (self._folder(_owner(access)) / check_sha256(sha256)).unlink(missing_ok=True)

    def tickets(
        self, access: RepositoryAccess, sha256: str, size_bytes: int, *, parts: bool
    ) -> list[str]:
        """Tickets to send a file by: of the whole, or of each part and of the end.

        Raises:
            TooLargeError: there is no room for it.
        """
        check_sha256(sha256)
        self._refuse_large(access, size_bytes)
        seconds = max(_LEAST_SECONDS, size_bytes // _SLOWEST)
        until = int(self.clock()) + min(seconds, _EXPIRES_SECONDS)
        owner = _owner(access)

        def ticket(use: TicketUse, part: int = 0) -> str:
            return self._signed(
                UploadTicket(
                    use, access.name, owner, access.caller.name, sha256, size_bytes, part, until
                )
            )

        if not parts:
            return [ticket("whole")]
        count = -(-size_bytes // PART_BYTES)
        return [*(ticket("part", number) for number in range(1, count + 1)), ticket("complete")]

    def check(self, text: str, repository: str, *uses: TicketUse) -> UploadTicket:
        """The ticket in an address.

        Raises:
            UnauthenticatedError: it is none of ours, of another repository or use, or too old.
        """
        refused = UnauthenticatedError("this address for an upload is not good, or not any more")
        body, _, mark = text.partition(".")
        if not hmac.compare_digest(self._mark(body.encode()), mark.encode()):
            raise refused
        try:
            ticket = from_json(base64.urlsafe_b64decode(body), UploadTicket)
        except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
            raise refused from error
        if ticket.repository != repository or ticket.use not in uses:
            raise refused
        if ticket.until < self.clock():
            raise refused
        return ticket

    async def receive(self, ticket: UploadTicket, pieces: AsyncIterator[bytes]) -> str:
        """Take the whole of a file, or a part; gives an ETag of what came.

        Raises:
            InvalidInputError: the bytes are not that file. They are forgotten.
        """
        path = await run_in_threadpool(self._begin, ticket)
        is_whole = ticket.use == "whole"
        start = 0 if is_whole else (ticket.part - 1) * PART_BYTES
        expected = min(ticket.size_bytes, start + PART_BYTES) - start
        expected = ticket.size_bytes if is_whole else expected
        descriptor = await run_in_threadpool(_open, path, start)
        try:
            found, size = await _written(descriptor, pieces, expected)
            _check(found, ticket.sha256 if is_whole else found, size, expected)
            if is_whole:
                await run_in_threadpool(os.fsync, descriptor)
                path.rename(self._folder(ticket.owner) / ticket.sha256)
            else:
                self._part(ticket, ticket.part).touch()
        except BaseException:
            if is_whole:
                with suppress(OSError):
                    path.unlink()
            raise
        finally:
            os.close(descriptor)
        return found

    def complete(self, ticket: UploadTicket) -> None:
        """Make one file of its parts.

        Raises:
            ConflictError: parts are missing.
            InvalidInputError: together they are another file. All are forgotten.
        """
        final = self._folder(ticket.owner) / ticket.sha256
        if final.is_file():
            return
        whole = self._parts(ticket)
        count = -(-ticket.size_bytes // PART_BYTES)
        missing = [n for n in range(1, count + 1) if not self._part(ticket, n).exists()]
        if missing:
            raise ConflictError(f"parts {missing[:10]} of {count} did not come yet: send them")
        with whole.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        is_right = found == ticket.sha256 and whole.stat().st_size == ticket.size_bytes
        if is_right:
            whole.rename(final)
        for number in range(1, count + 1):
            self._part(ticket, number).unlink(missing_ok=True)
        if not is_right:
            whole.unlink(missing_ok=True)
            raise _wrong(ticket.sha256, found)

    def room(self) -> Path:
        """A folder for what is on its way and is no file yet."""
        folder = self.folder / "rooms"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def expire(self) -> None:
        """Delete what is too old."""
        remove_older(self.folder.glob("*/*"), self.clock() - _EXPIRES_SECONDS)

    def _begin(self, ticket: UploadTicket) -> Path:
        folder = self._folder(ticket.owner)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if ticket.use == "part":
            return self._parts(ticket)
        return folder / f"{ticket.sha256}.{secrets.token_hex(8)}"

    def _folder(self, owner: str) -> Path:
        return self.folder / owner

    def _parts(self, ticket: UploadTicket) -> Path:
        return self._folder(ticket.owner) / f"{ticket.sha256}.parts"

    def _part(self, ticket: UploadTicket, number: int) -> Path:
        return self._folder(ticket.owner) / f"{ticket.sha256}.part-{number}"

    def _refuse_large(self, access: RepositoryAccess, size_bytes: int) -> None:
        if not 0 <= size_bytes <= MAX_FILE_BYTES:
            raise TooLargeError(f"a file has at most {MAX_FILE_BYTES:,} bytes, not {size_bytes:,}")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = sum(path.stat().st_blocks * 512 for path in self._folder(_owner(access)).glob("*"))
        free = shutil.disk_usage(self.folder).free - _SPARE_BYTES
        if owned + size_bytes > MAX_OWNED_BYTES or size_bytes > free:
            raise TooLargeError(
                f"there is no room for {size_bytes:,} bytes of uploads: commit what was uploaded "
                "before, or ask whoever runs this service"
            )

    def _signed(self, ticket: UploadTicket) -> str:
        body = base64.urlsafe_b64encode(msgspec.json.encode(ticket))
        return f"{body.decode()}.{self._mark(body).decode()}"

    def _mark(self, body: bytes) -> bytes:
        return hmac.new(self.key(), body, hashlib.sha256).hexdigest().encode()


def check_sha256(text: str) -> str:
    """`text`, when it is 64 hex digits. Raises InvalidInputError."""
    if len(text) != 64 or not _DIGITS.issuperset(text):
        raise InvalidInputError(f"{text!r:.80} is no SHA-256: expected 64 hex digits")
    return text


def _owner(access: RepositoryAccess) -> str:
    told = f"{access.core.id} {access.caller.name}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def _check(found: str, sha256: str, size: int, size_bytes: int) -> None:
    if size != size_bytes:
        raise InvalidInputError(f"{size:,} bytes came, expected {size_bytes:,}: send them again")
    if found != sha256:
        raise _wrong(sha256, found)


def _wrong(expected: str, found: str) -> InvalidInputError:
    return InvalidInputError(
        f"the bytes that came have SHA-256 {found:.12}, expected {expected:.12}: send them again"
    )


def _open(path: Path, start: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        raise explain(error, "write", path) from error
    os.lseek(descriptor, start, os.SEEK_SET)
    return descriptor


async def _written(descriptor: int, pieces: AsyncIterator[bytes], most: int) -> tuple[str, int]:
    """Write what comes; its SHA-256 and its size. Raises TooLargeError behind `most` bytes."""
    hasher, size = hashlib.sha256(), 0
    batch: list[bytes] = []
    held = 0

    def write() -> None:
        data = b"".join(batch)
        hasher.update(data)
        left = memoryview(data)
        try:
            while left:
                left = left[os.write(descriptor, left) :]
        except OSError as error:
            raise StorageError(f"an upload could not be written: {error.strerror}") from error

    async for piece in pieces:
        size += len(piece)
        if size > most:
            raise TooLargeError(f"more than the {most:,} bytes came that were to come")
        batch.append(piece)
        held += len(piece)
        if held >= _WRITE_BYTES:
            await run_in_threadpool(write)
            batch.clear()
            held = 0
    if batch:
        await run_in_threadpool(write)
    return hasher.hexdigest(), size

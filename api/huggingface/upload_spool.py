"""Uploads of git-lfs on their way: spooled to disk, proved by size and SHA-256, then committed.

A client asks for addresses, sends bytes there without its token, and names them by their SHA-256
in a commit. So an address carries a ticket: a keyed hash over the repository, the user, the file,
the part and an end. A file belongs to who sent it: that somebody knows a hash is no right to read,
and a commit finds only what its own caller brought.

    <folder>/<owner>/<sha256>           a file that is what it should be, see `proved_files`
    <folder>/<owner>/<sha256>.<random>  one that is being sent whole
    <folder>/<owner>/<sha256>.parts     folder of one that is sent in parts, see `upload_parts`

What came stays for a day: an upload that broke off goes on with the parts that are missing, by
addresses that are asked for again. After that it goes, with the next request for addresses or the
next turn of the service's housekeeping.
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
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from threading import BoundedSemaphore
from typing import Final, Literal

import msgspec
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.huggingface.leftovers import remove_older
from tensorrepo.api.huggingface.proved_files import (
    ProofHasher,
    find_proved,
    forget,
    is_unchanged,
    keep,
)
from tensorrepo.api.huggingface.upload_parts import (
    MULTIPART_FROM_PARTS,
    PART_BYTES,
    UploadParts,
    part_size,
)
from tensorrepo.api.transfer.body_writer import write_pieces
from tensorrepo.repo.backends.disk import explain
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    InvalidInputError,
    TooLargeError,
    UnauthenticatedError,
)
from tensorrepo.repo.typed_decoding import from_json

ENCODED_AT_ONCE: Final = 2
KEY: Final = "huggingface-uploads"
MAX_FILE_BYTES: Final = 5 << 40
MAX_OWNED_BYTES: Final = 1 << 40  # of one user in one repository
_SPARE_BYTES: Final = 1 << 30  # of the disk, which uploads leave free
_EXPIRES_SECONDS: Final = 86400
_LEAST_SECONDS: Final = 900
_XET_SECONDS: Final = 3600
_SLOWEST: Final = 1 << 20  # bytes a second, for which an address is good
_DIGITS: Final = frozenset("0123456789abcdef")
TicketUse = Literal["whole", "part", "complete", "xet"]


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
    part_bytes: int = PART_BYTES


@dataclass(frozen=True, slots=True)
class UploadTickets:
    """Tickets to send a file by.

    Attributes:
        last: ticket of the whole file; where it comes in parts, the one to say that all came.
        parts: tickets of the parts, in order.
        part_bytes: size of each part but the last.
    """

    last: str
    parts: tuple[str, ...] = ()
    part_bytes: int = 0


@dataclass(frozen=True, slots=True)
class UploadSpool:
    """Files that were uploaded and belong to no commit yet. Thread-safe, for several processes.

    Attributes:
        folder: where they lie.
        key: gives the key of tickets.
        clock: seconds since 1970.
        encoding: held by whoever stores uploads in a repository, which takes memory and cores.
        part_bytes: size of parts of files that come in parts.
    """

    folder: Path
    key: Callable[[], bytes]
    clock: Callable[[], float] = time.time
    encoding: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(ENCODED_AT_ONCE))
    part_bytes: int = PART_BYTES

    def cuts(self, size_bytes: int) -> bool:
        """Whether a file of that size comes in parts, where its sender can do so."""
        return size_bytes >= MULTIPART_FROM_PARTS * self.part_bytes

    def find(self, access: RepositoryAccess, sha256: str) -> Path | None:
        """The file of that SHA-256 that this caller brought to this repository."""
        return find_proved(self.folder_of(_owner(access)) / check_sha256(sha256))

    def forget(self, access: RepositoryAccess, sha256: str) -> None:
        """A commit has it now."""
        forget(self.folder_of(_owner(access)) / check_sha256(sha256))

    def forget_damaged(self, access: RepositoryAccess, sha256s: Iterable[str]) -> None:
        """Drop those that are not what came any more, so that they are asked for again."""
        for sha256 in sha256s:
            path = self.folder_of(_owner(access)) / check_sha256(sha256)
            if path.is_file() and not is_unchanged(path):
                forget(path)

    def tickets(
        self, access: RepositoryAccess, sha256: str, size_bytes: int, *, parts: bool
    ) -> UploadTickets:
        """Tickets to send a file by: of the whole, or of each part and of the end.

        Raises:
            TooLargeError: there is no room for it.
        """
        check_sha256(sha256)
        self._refuse_large(access, sha256, size_bytes)
        seconds = max(_LEAST_SECONDS, size_bytes // _SLOWEST)
        until = int(self.clock()) + min(seconds, _EXPIRES_SECONDS)
        owner = _owner(access)
        part_bytes = part_size(size_bytes, self.part_bytes)

        def ticket(use: TicketUse, part: int = 0) -> str:
            user = access.caller.name
            return self._signed(
                UploadTicket(
                    use, access.name, owner, user, sha256, size_bytes, part, until, part_bytes
                )
            )

        if not parts:
            return UploadTickets(ticket("whole"))
        count = -(-size_bytes // part_bytes)
        numbered = tuple(ticket("part", number) for number in range(1, count + 1))
        return UploadTickets(ticket("complete"), numbered, part_bytes)

    def xet_ticket(self, access: RepositoryAccess) -> tuple[str, UploadTicket]:
        """A token to upload by Xet with, and what it says."""
        until = int(self.clock()) + _XET_SECONDS
        owner = _owner(access)
        ticket = UploadTicket("xet", access.name, owner, access.caller.name, "", 0, 0, until)
        return self._signed(ticket), ticket

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
            ConflictError: they are a part of a file that is being made of its parts.
        """
        if ticket.use == "part":
            return await self._receive_part(ticket, pieces)
        path = await run_in_threadpool(self._begin, ticket)
        descriptor = await run_in_threadpool(_open, path)
        try:
            hasher = ProofHasher()
            size = await write_pieces(descriptor, pieces, ticket.size_bytes, hasher.update)
            _check(hasher.sha256, ticket.sha256, size, ticket.size_bytes)
            target = self.folder_of(ticket.owner) / ticket.sha256
            await run_in_threadpool(keep, path, target, hasher.checksum)
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(descriptor)
        return hasher.sha256

    async def _receive_part(self, ticket: UploadTicket, pieces: AsyncIterator[bytes]) -> str:
        parts = self._parts(ticket)
        start, stop = parts.span(ticket.part)
        with parts.writing(ticket.part) as descriptor:
            hasher = ProofHasher()
            size = await write_pieces(descriptor, pieces, stop - start, hasher.update)
            _check(hasher.sha256, hasher.sha256, size, stop - start)
            parts.arrived(ticket.part, hasher.sha256)
        return hasher.sha256

    def complete(self, ticket: UploadTicket, sha256: str, told: Mapping[int, str]) -> None:
        """Make one file of its parts, whose ETags are `told` by their numbers.

        Raises:
            ConflictError: parts are missing, or are being written.
            InvalidInputError: it is another file that is meant, or others parts, or together they
                are another file. Then all are forgotten.
        """
        if sha256 != ticket.sha256:
            raise InvalidInputError(
                f"this address is for the file {ticket.sha256:.12}, not for {sha256:.80}"
            )
        self._parts(ticket).complete(sha256, self.folder_of(ticket.owner) / sha256, told)

    def room(self) -> Path:
        """A folder for what is on its way and is no file yet."""
        folder = self.folder / "rooms"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def expire(self) -> None:
        """Delete what is too old."""
        remove_older(self.folder.glob("*/*"), self.clock() - _EXPIRES_SECONDS)

    def _begin(self, ticket: UploadTicket) -> Path:
        folder = self.folder_of(ticket.owner)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"{ticket.sha256}.{secrets.token_hex(8)}"

    def folder_of(self, owner: str) -> Path:
        """Where the uploads of an owner lie."""
        return self.folder / owner

    def _parts(self, ticket: UploadTicket) -> UploadParts:
        folder = self.folder_of(ticket.owner) / f"{ticket.sha256}.parts"
        return UploadParts(folder, ticket.size_bytes, ticket.part_bytes)

    def _refuse_large(self, access: RepositoryAccess, sha256: str, size_bytes: int) -> None:
        owner = _owner(access)
        # Parts of it that came take its own room.
        self.require_room(owner, size_bytes, self.folder_of(owner) / f"{sha256}.parts")

    def require_room(self, owner: str, size_bytes: int, own: Path | None = None) -> None:
        """Raises TooLargeError where an owner's uploads may not grow so; `own` does not count."""
        if not 0 <= size_bytes <= MAX_FILE_BYTES:
            raise TooLargeError(f"a file has at most {MAX_FILE_BYTES:,} bytes, not {size_bytes:,}")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        uploads = self.folder_of(owner).rglob("*")
        owned = sum(_disk_bytes(path) for path in uploads if own not in path.parents)
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
        raise InvalidInputError(
            f"the bytes that came have SHA-256 {found:.12}, expected {sha256:.12}: send them again"
        )


def _disk_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:  # it went meanwhile
        return 0


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise explain(error, "write", path) from error

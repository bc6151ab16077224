"""Uploads by Xet on their way: xorbs kept while they may be referred to, files made of them.

A client cuts files into chunks, sends those that it did not send before in xorbs, and then shards
that say of which chunks each file is. The files go where git-lfs puts them (`upload_spool`), proved
by their SHA-256, and a commit finds them there.

    <folder>/<owner>/xet-<began>-<random>/<xorb>    chunks as they are, and how long each is

**Epochs.** Clients remember, for weeks and by the URL that they were given, what they sent, and
refer to it without sending it again. So the URL names an epoch, which is a folder of xorbs: what
was sent to it is there as long as it is. A new one begins after some hours, or when the last one is
gone; an old one goes a day after its last xorb came. Nobody's epoch is anybody else's, so whoever
refers to a xorb sent it: that somebody knows a hash is no right to what has it.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from tempfile import TemporaryFile
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.huggingface.proved_files import ProofHasher, keep
from tensorrepo.api.huggingface.upload_spool import UploadSpool, UploadTicket
from tensorrepo.api.huggingface.xet_format import (
    MAX_BODY_BYTES,
    MAX_XORB_BYTES,
    ChunkRun,
    ShardFile,
    check_hash,
    chunk_hash,
    read_chunks,
    read_shard,
    xorb_hash,
)
from tensorrepo.api.transfer.body_writer import write_pieces
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.objects.cache import LimitedCache

EPOCH_SECONDS: Final = 6 * 3600
_EPOCH: Final = re.compile(r"xet-([0-9]{1,12})-[0-9a-f]{16}")
_COPIED_BYTES: Final = 1 << 20
_KEPT_BYTES: Final = 8 << 20  # of tables, while files are made
# Layout of a xorb on disk: chunks | their sizes as u32 | number of chunks, magic.
_TRAILER: Final = Struct("<I4s")
_MAGIC: Final = b"XORB"


@dataclass(frozen=True, slots=True)
class XetSession:
    """What a client is told to upload by.

    Attributes:
        epoch: last part of the URL.
        token: proves who uploads, to that URL and to those of the same owner before it.
        until: when the token ends, in seconds since 1970.
    """

    epoch: str
    token: str
    until: int


@dataclass(frozen=True, slots=True)
class XetEpoch:
    """Xorbs of one owner, and what files are made of them.

    Attributes:
        spool: where files go.
        ticket: says whose they are.
        folder: place of the epoch's xorbs.
    """

    spool: UploadSpool
    ticket: UploadTicket
    folder: Path

    async def add_xorb(self, name: str, pieces: AsyncIterator[bytes]) -> bool:
        """Keep a xorb; False where it was there.

        Raises:
            InvalidInputError: its chunks are not those that its name proves.
            TooLargeError: there is no room for it.
        """
        check_hash(name)
        await run_in_threadpool(self.spool.require_room, self.ticket.owner, MAX_XORB_BYTES)
        with TemporaryFile(dir=self.spool.room()) as body:
            await write_pieces(body.fileno(), pieces, MAX_BODY_BYTES)
            return await run_in_threadpool(self._keep, name, body)

    async def add_shard(self, pieces: AsyncIterator[bytes]) -> None:
        """Make the files of a shard; those that were made before one that is refused stay.

        Raises:
            InvalidInputError: it is no shard, refers to xorbs that this owner did not send in this
                epoch, or the bytes of a file are others than its SHA-256 says.
            TooLargeError: there is no room for them.
        """
        with TemporaryFile(dir=self.spool.room()) as body:
            await write_pieces(body.fileno(), pieces, MAX_BODY_BYTES)
            await run_in_threadpool(self._make_files, body)

    def _keep(self, name: str, body: BinaryIO) -> bool:
        if (self.folder / name).is_file():
            return False
        with _written(self.folder, name) as file:
            chunks = []
            for chunk in read_chunks(_mapped(body)):
                chunks.append((chunk_hash(chunk), len(chunk)))
                file.write(chunk)
            found = xorb_hash(chunks) if chunks else "nothing"
            if found != name:
                raise InvalidInputError(
                    f"the chunks that came are the xorb {found:.12}, expected {name:.12}"
                )
            file.write(np.array([size for _, size in chunks], "<u4").tobytes())
            file.write(_TRAILER.pack(len(chunks), _MAGIC))
        return True

    def _make_files(self, body: BinaryIO) -> None:
        shard, xorbs = _mapped(body), _Xorbs(self.folder)
        # All of it is looked at before anything is written; a shard may tell of 400,000 files, so
        # that it is read again rather than kept.
        sizes = (self._missing_bytes(file, xorbs) for file in read_shard(shard))
        self.spool.require_room(self.ticket.owner, sum(sizes))
        for file in read_shard(shard):
            if self._missing_bytes(file, xorbs):
                self._make(file, xorbs)

    def _missing_bytes(self, file: ShardFile, xorbs: _Xorbs) -> int:
        """Size of a file that has to be made; 0: it is there. Refuses what cannot be made."""
        size_bytes = 0
        for segment in file.segments():
            start, stop = xorbs.place(segment)
            size_bytes += stop - start
        with suppress(OSError):
            if (self.folder.parent / file.sha256).stat().st_size == size_bytes:
                return 0
        return size_bytes

    def _make(self, file: ShardFile, xorbs: _Xorbs) -> None:
        hasher = ProofHasher()
        with _written(self.folder.parent, file.sha256, hasher) as made:
            for piece in xorbs.pieces(file):
                hasher.update(piece)
                made.write(piece)
            if hasher.sha256 != file.sha256:
                raise InvalidInputError(
                    f"the chunks of a file have SHA-256 {hasher.sha256:.12}, expected "
                    f"{file.sha256:.12} as the shard says"
                )


class _Xorbs:
    """Xorbs of an epoch, while files are made of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables = LimitedCache[NDArray[np.int64]](_KEPT_BYTES)

    def place(self, segment: ChunkRun) -> tuple[int, int]:
        """Half-open range of bytes of a segment in its xorb.

        Raises:
            InvalidInputError: the xorb is not there, or does not have such chunks.
        """
        ends = self._tables.get_or_load(segment.xorb, lambda: self._table(segment.xorb))
        if segment.stop >= len(ends):
            raise InvalidInputError(
                f"chunks {segment.start} to {segment.stop} of xorb {segment.xorb:.12}, which has "
                f"{len(ends) - 1}"
            )
        start, stop = int(ends[segment.start]), int(ends[segment.stop])
        if stop - start != segment.size_bytes:
            raise InvalidInputError(
                f"chunks {segment.start} to {segment.stop} of xorb {segment.xorb:.12} have "
                f"{stop - start:,} bytes, and the shard says {segment.size_bytes:,}"
            )
        return start, stop

    def pieces(self, file: ShardFile) -> Iterator[bytes]:
        """The bytes of a file."""
        for segment in file.segments():
            start, stop = self.place(segment)
            with open(self._folder / segment.xorb, "rb") as xorb:
                xorb.seek(start)
                for at in range(start, stop, _COPIED_BYTES):
                    yield xorb.read(min(_COPIED_BYTES, stop - at))

    def _table(self, name: str) -> tuple[NDArray[np.int64], int]:
        """Where the chunks of a xorb end, behind a 0; and the bytes that this takes."""
        try:
            with open(self._folder / name, "rb") as xorb:
                xorb.seek(-_TRAILER.size, os.SEEK_END)
                count, magic = _TRAILER.unpack(xorb.read(_TRAILER.size))
                assert magic == _MAGIC, "it was written whole, then named"
                xorb.seek(-_TRAILER.size - 4 * count, os.SEEK_END)
                sizes = np.frombuffer(xorb.read(4 * count), "<u4")
        except FileNotFoundError:
            raise InvalidInputError(
                f"xorb {name:.12} was not sent by you to this address: send it, or begin anew"
            ) from None
        ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        return ends, ends.nbytes


def begin_xet(spool: UploadSpool, access: RepositoryAccess) -> XetSession:
    """Let a caller who may write upload by Xet, in their epoch or a new one."""
    token, ticket = spool.xet_ticket(access)
    folder = spool.folder_of(ticket.owner)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    now = int(spool.clock())
    began = {path.name: _EPOCH.fullmatch(path.name) for path in folder.glob("xet-*")}
    going_on = sorted(
        (int(parts[1]), name)
        for name, parts in began.items()
        if parts is not None and now - EPOCH_SECONDS < int(parts[1]) <= now
    )
    if going_on:
        return XetSession(going_on[-1][1], token, ticket.until)
    made = f"xet-{now}-{secrets.token_hex(8)}"
    (folder / made).mkdir(mode=0o700)
    return XetSession(made, token, ticket.until)


def open_epoch(spool: UploadSpool, token: str, repository: str, epoch: str) -> XetEpoch:
    """The epoch that a URL names, for whoever has a token.

    Raises:
        UnauthenticatedError: the token is none of ours, of another repository, or too old.
        NotFoundError: the owner of the token has no such epoch, or not any more.
    """
    ticket = spool.check(token, repository, "xet")
    folder = spool.folder_of(ticket.owner) / epoch
    if _EPOCH.fullmatch(epoch) is None or not folder.is_dir():
        raise NotFoundError("this address for uploads is over: begin the upload anew")
    return XetEpoch(spool, ticket, folder)


def _mapped(body: BinaryIO) -> memoryview:
    """The bytes of a file, which take no memory of this process's own."""
    if not os.fstat(body.fileno()).st_size:
        return memoryview(b"")
    return memoryview(mmap(body.fileno(), 0, access=ACCESS_READ))


@contextmanager
def _written(folder: Path, name: str, hasher: ProofHasher | None = None) -> Iterator[BinaryIO]:
    """A new file that gets its name when it is whole; `hasher` has what proves it."""
    path = folder / f"{name}.{secrets.token_hex(8)}"
    try:
        with open(path, "xb", opener=lambda at, flags: os.open(at, flags, 0o600)) as file:
            yield file
            file.flush()
            if hasher is None:  # a xorb is referred to for hours, and never sent again
                os.fsync(file.fileno())
        if hasher is None:
            path.rename(folder / name)
        else:
            keep(path, folder / name, hasher.checksum)
    finally:
        path.unlink(missing_ok=True)

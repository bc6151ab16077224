"""Bodies on their way to the disk: what is seen and written, and when nobody writes any more."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event, Thread

import pytest
import xxhash

from tensorrepo.api.huggingface.proved_files import ProofHasher
from tensorrepo.api.transfer.body_writer import to_its_end, write_pieces
from tensorrepo.repo.errors import StorageError, TooLargeError

MIB = 1 << 20


async def _sent(*pieces: bytes, error: Exception | None = None) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(0)
    if error is not None:
        raise error


@pytest.mark.parametrize("sizes", [[], [1], [MIB, MIB, 5], [3, MIB - 1, 2 * MIB + 7] * 3])
def test_what_came_is_there(tmp_path: Path, sizes: list[int]) -> None:
    pieces = [os.urandom(size) for size in sizes]
    with (tmp_path / "file").open("wb") as file:
        hasher = ProofHasher()
        writing = write_pieces(file.fileno(), _sent(*pieces), sum(sizes), hasher.update)
        size = asyncio.run(writing)
    whole = b"".join(pieces)
    assert (hasher.sha256, size) == (hashlib.sha256(whole).hexdigest(), len(whole))
    assert hasher.checksum == xxhash.xxh3_128_digest(whole)
    assert (tmp_path / "file").read_bytes() == whole


def test_more_than_was_to_come_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(TooLargeError, match="bytes came"):
        asyncio.run(write_pieces(file.fileno(), _sent(bytes(MIB), bytes(MIB)), 2 * MIB - 1))


def test_a_disk_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        (tmp_path / "file").open("rb") as file,
        pytest.raises(StorageError, match="not be written"),
    ):
        asyncio.run(write_pieces(file.fileno(), _sent(bytes(MIB), bytes(MIB)), 2 * MIB))


@pytest.mark.parametrize("ends", ["by an error", "cancelled"])
def test_nobody_writes_after_it_ended(ends: str) -> None:
    reader, writer = os.pipe()
    go_on, drained = Event(), []

    def drain() -> None:
        go_on.wait()
        left = MIB
        while left:
            drained.append(len(os.read(reader, left)))
            left -= drained[-1]

    async def send() -> None:
        pieces = _sent(bytes(MIB), error=ConnectionError("gone") if ends == "by an error" else None)
        task = asyncio.create_task(write_pieces(writer, pieces, 2 * MIB))
        await asyncio.sleep(0.05)  # the thread has begun, and the pipe is full
        if ends == "cancelled":
            task.cancel()
            await asyncio.sleep(0.05)
        assert not task.done()
        go_on.set()
        await task

    thread = Thread(target=drain)
    thread.start()
    try:
        with pytest.raises(ConnectionError if ends == "by an error" else asyncio.CancelledError):
            asyncio.run(send())
    finally:
        go_on.set()
        thread.join()
        os.close(reader)
        os.close(writer)
    assert sum(drained) == MIB


@pytest.mark.parametrize("cancels", [0, 2])
def test_a_thread_is_waited_for_to_its_end(cancels: int) -> None:
    has_begun, may_end, has_ended = Event(), Event(), Event()

    def work() -> int:
        has_begun.set()
        may_end.wait(20)
        has_ended.set()
        return 7

    async def run() -> int:
        task = asyncio.create_task(to_its_end(work))
        await asyncio.to_thread(has_begun.wait, 20)
        for _ in range(cancels):
            task.cancel()
            await asyncio.sleep(0.01)
        assert not task.done()
        may_end.set()
        return await task

    with pytest.raises(asyncio.CancelledError) if cancels else nullcontext():
        assert asyncio.run(run()) == 7
    assert has_ended.is_set()

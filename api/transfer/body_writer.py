"""Bodies of requests, written to files while they arrive, by threads that are waited for.

A thread goes on when the task that waits for it is cancelled. Whoever closes its file meanwhile
lets it write into whatever file is given that descriptor next.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final, TypeVar

from starlette.concurrency import run_in_threadpool

from tensorrepo.repo.errors import StorageError, TooLargeError

_WRITE_BYTES: Final = 1 << 20
_MOST_PIECES: Final = 1024  # that one call of the system writes
T = TypeVar("T")


async def to_its_end(call: Callable[[], T]) -> T:
    """What `call` gives on a thread, which has ended when this returns or raises."""
    running = asyncio.create_task(run_in_threadpool(call))
    try:
        await asyncio.wait([running])  # to await the task would cancel it with the caller
    finally:
        await _ended(running)
    return running.result()


async def _ended(running: asyncio.Task[T]) -> None:
    """Wait for a task, whatever happens."""
    while not running.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    if not running.cancelled():
        running.exception()  # was raised, or what is raised now came before it


async def write_pieces(
    descriptor: int,
    pieces: AsyncIterator[bytes],
    most: int,
    see: Callable[[bytes], object] = lambda _piece: None,
) -> int:
    """Write what comes where a file stands; gives its size.

    When this returns or raises, nobody writes any more: the caller may close the file.

    Args:
        descriptor: of the file.
        pieces: what comes.
        most: bytes that may come.
        see: called with each piece, in order, before it is written, on the thread that does.

    Raises:
        TooLargeError: more than `most` bytes came.
        StorageError: the disk refuses.
    """
    batches, size = _BatchWriter(descriptor, see), 0
    batch: list[bytes] = []
    held = 0
    try:
        async for piece in pieces:
            size += len(piece)
            if size > most:
                raise TooLargeError(f"more than the {most:,} bytes came that were to come")
            batch.append(piece)
            held += len(piece)
            if held >= _WRITE_BYTES:
                await batches.begin(batch)
                batch, held = [], 0
        await batches.begin(batch)
        await batches.written()
    finally:
        await batches.close()
    return size


class _BatchWriter:
    """Writes a batch on a thread while the next one arrives."""

    def __init__(self, descriptor: int, see: Callable[[bytes], object]) -> None:
        self._descriptor, self._see = descriptor, see
        self._task: asyncio.Task[None] | None = None

    async def begin(self, batch: list[bytes]) -> None:
        """Let a thread write a batch, behind those that are written. Raises StorageError."""
        await self.written()
        self._task = asyncio.create_task(run_in_threadpool(self._write, batch))

    async def written(self) -> None:
        """Wait for what was begun. Raises StorageError."""
        if self._task is not None:
            await asyncio.wait([self._task])
            self._task.result()

    async def close(self) -> None:
        """Wait until nobody writes, whatever happens."""
        if self._task is not None:
            await _ended(self._task)

    def _write(self, batch: list[bytes]) -> None:
        for piece in batch:
            self._see(piece)
        try:
            for at in range(0, len(batch), _MOST_PIECES):
                self._write_some(batch[at : at + _MOST_PIECES])
        except OSError as error:
            raise StorageError(f"an upload could not be written: {error.strerror}") from error

    def _write_some(self, pieces: list[bytes]) -> None:
        left = [memoryview(piece) for piece in pieces if piece]
        while left:
            written = os.writev(self._descriptor, left)
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if written:
                left[0] = left[0][written:]

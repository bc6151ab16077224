"""Downloads by clients that do not keep up: what is held for them, and that all bytes come."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from starlette.requests import Request
from starlette.types import Message

from tensorrepo.api.routes import downloads
from tensorrepo.api.routes.downloads import DownloadResponse

_PIECE_BYTES = 1 << 20


class _Content:
    """Something to download, which knows how many readers of it are open."""

    name, etag, headers = "file", '"x"', ()

    def __init__(self, size_bytes: int) -> None:
        self.data = os.urandom(size_bytes)
        self.size_bytes = size_bytes
        self.readers = 0

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        self.readers += 1
        try:
            for at in range(start, stop, _PIECE_BYTES):
                yield memoryview(self.data)[at : min(at + _PIECE_BYTES, stop)]
        finally:
            self.readers -= 1


class _Client:
    """Takes what is sent, but waits once, from `stalls_at` bytes on, for `may_go_on`."""

    def __init__(self, stalls_at: int | None = None) -> None:
        self._stalls_at = stalls_at
        self.taken = bytearray()
        self.is_stalled = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def send(self, message: Message) -> None:
        if self._stalls_at is not None and len(self.taken) >= self._stalls_at:
            self._stalls_at = None
            self.is_stalled.set()
            await self.may_go_on.wait()
        self.taken += message.get("body", b"")

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError


async def _download(content: _Content, client: _Client) -> None:
    scope = {"type": "http", "method": "GET", "headers": [], "path": "/"}
    answer = DownloadResponse(Request(scope), content)
    await answer(scope, client.receive, client.send)


async def _is_let_go(content: _Content) -> bool:
    """Whether nobody reads it any more, soon."""
    for _ in range(2000):
        if not content.readers:
            return True
        await asyncio.sleep(0.01)
    return False


def test_all_bytes_come_in_order() -> None:
    async def run() -> None:
        content, client = _Content(30_000_001), _Client()
        await _download(content, client)
        assert bytes(client.taken) == content.data
        assert content.readers == 0

    asyncio.run(run())


def test_nothing_is_read_ahead_for_who_does_not_keep_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "STALLED_SECONDS", 0.05)

    async def run() -> None:
        content, client = _Content(30_000_001), _Client(stalls_at=5_000_000)
        running = asyncio.create_task(_download(content, client))
        await client.is_stalled.wait()
        assert await _is_let_go(content)
        client.may_go_on.set()
        await running
        assert bytes(client.taken) == content.data

    asyncio.run(run())

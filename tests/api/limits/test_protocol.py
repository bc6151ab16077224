"""Headers of an answer are sent with what follows them, in order, and never kept back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tensorrepo.api.limits.protocol import MOST_JOINED_BYTES, JoinedWrites

HEADERS = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
LARGE = bytes(MOST_JOINED_BYTES)


class Sent:
    """A transport that keeps what it is to send."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def is_closing(self) -> bool:
        return self.closed_after is not None

    def close(self) -> None:
        self.closed_after = len(self.writes)


async def _alone(_: JoinedWrites) -> None:
    await asyncio.sleep(0)


async def _body(transport: JoinedWrites) -> None:
    transport.write(b"body")
    transport.write(b"more")


async def _large(transport: JoinedWrites) -> None:
    transport.write(LARGE)


async def _later(transport: JoinedWrites) -> None:
    await asyncio.sleep(0)
    transport.write(b"body")


async def _again(transport: JoinedWrites) -> None:
    transport.write(HEADERS)
    await asyncio.sleep(0)
    transport.write(HEADERS)
    await asyncio.sleep(0)


async def _closing(transport: JoinedWrites) -> None:
    transport.close()
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("then", "writes"),
    [
        (_alone, [HEADERS]),
        (_body, [HEADERS + b"body", b"more"]),
        (_large, [HEADERS, LARGE]),
        (_later, [HEADERS, b"body"]),
        (_again, [HEADERS + HEADERS, HEADERS]),
        (_closing, [HEADERS]),
    ],
    ids=["alone", "body", "large body", "body later", "two answers", "closed"],
)
def test_headers_are_sent_with_what_is_written_in_the_same_turn(
    then: Callable[[JoinedWrites], Awaitable[None]], writes: list[bytes]
) -> None:
    sent = Sent()

    async def answer() -> None:
        transport = JoinedWrites(sent, asyncio.get_running_loop())  # type: ignore[arg-type]
        transport.write(HEADERS)
        await then(transport)

    asyncio.run(answer())
    assert sent.writes == writes
    assert sent.closed_after in (None, len(writes))

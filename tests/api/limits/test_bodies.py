"""Bodies of requests: how far behind a sender may be."""

from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from tensorrepo.api.limits.bodies import MIN_BYTES_PER_SECOND, bounded


class _Sender:
    """Sends pieces, each so many seconds after it is asked for, and never the last one."""

    def __init__(self, *pieces: tuple[float, int]) -> None:
        self._pieces = list(pieces)
        self.now = 0.0

    async def receive(self) -> Message:
        seconds, size = self._pieces.pop(0)
        self.now += seconds
        return {"type": "http.request", "body": bytes(size), "more_body": True}

    def read(self, pieces: int, *, pause_seconds: float = 0.0) -> None:
        """Ask for pieces, with a pause of the service behind each."""
        receive = bounded(
            {"headers": []},
            self.receive,
            most_bytes=1 << 40,
            idle_seconds=60,
            timer=lambda: self.now,
        )

        async def ask() -> None:
            for _ in range(pieces):
                await receive()
                self.now += pause_seconds

        asyncio.run(ask())


def test_what_came_fast_earns_no_longer_wait() -> None:
    sender = _Sender((0.1, 32 << 20), (40, 1), (40, 1))
    with pytest.raises(HTTPException) as refused:
        sender.read(3)
    assert refused.value.status_code == 408


def test_who_keeps_the_least_pace_is_waited_for() -> None:
    _Sender(*[(50, 50 * MIN_BYTES_PER_SECOND)] * 100).read(100)


def test_time_that_the_service_takes_is_not_the_senders() -> None:
    _Sender(*[(1, 1)] * 50).read(50, pause_seconds=1000)

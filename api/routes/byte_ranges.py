"""Answers that are bytes: whole or one range of them, streamed."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tensorrepo.api.transfer.stored_values import StoredValue

_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ByteRangeResponse(Response):
    """A stored value, or the one range of it that was asked for. Closes the value.

    Several ranges are answered by the whole, as HTTP allows. Behind the end is 416.
    """

    def __init__(
        self,
        value: StoredValue,
        *,
        method: str,
        asked: str | None,
        headers: Mapping[str, str],
    ) -> None:
        self._value, self._has_body = value, method != "HEAD"
        size = value.size_bytes
        span = None if asked is None else byte_range(asked, size)
        self.start, self.stop = span or (0, size)
        status, more = HTTPStatus.OK, {}
        if span is not None:
            status = HTTPStatus.PARTIAL_CONTENT
            more = {"Content-Range": f"bytes {self.start}-{self.stop - 1}/{size}"}
            if self.start >= self.stop:
                status = HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE
                more, self._has_body = {"Content-Range": f"bytes */{size}"}, False
                self.start = self.stop = 0
        length = {"Content-Length": str(self.stop - self.start), "Accept-Ranges": "bytes"}
        super().__init__(None, status, {**headers, **length, **more}, "application/octet-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        start = {"type": "http.response.start", "status": self.status_code}
        try:
            await send(start | {"headers": self.raw_headers})
            if self._has_body and self.stop > self.start:
                async with aclosing(self._pieces()) as pieces:
                    async for piece in pieces:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._value.close()

    async def _pieces(self) -> AsyncGenerator[object, None]:
        async for piece in self._value.pieces(self.start, self.stop):
            yield piece


def byte_range(asked: str, size: int) -> tuple[int, int] | None:
    """Half-open range that a header asks for, empty behind the end; None: none that is one."""
    match = _RANGE.fullmatch(asked.replace(" ", ""))
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        count = min(int(match[2]), size)
        return (size - count, size) if count else (size, size)
    start = int(match[1])
    stop = size if not match[2] else min(int(match[2]) + 1, size)
    if match[2] and int(match[2]) < start:
        return None
    return start, max(stop, start)

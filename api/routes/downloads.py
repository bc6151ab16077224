"""Downloads: bytes, whole or one range of them, streamed; no thread is held while a client is slow.

Some pieces are read on a thread and sent from the event loop, while the next ones are being read.
Conditions (If-None-Match, If-Match, If-Range) are on the strong ETag of the bytes.

Whoever may write to a repository may put anything into it. So what comes out is saved and not
shown, its type is never guessed, and what a browser shows all the same may load and run nothing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tensorrepo.api.routes.byte_ranges import byte_range
from tensorrepo.api.routes.conditional import PRIVATE, matches
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import Buffer

BINARY: Final = "application/octet-stream"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
SEND_BYTES: Final = 1 << 20
_GATHER_BYTES: Final = 4 << 20  # that one call of a thread brings: a call costs as much as 256 KiB
_LARGE_BYTES: Final = 128 << 10  # of a piece, from which on it is not worth joining
SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Downloadable(Protocol):
    """What can be downloaded."""

    @property
    def name(self) -> str: ...
    @property
    def etag(self) -> str: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def headers(self) -> tuple[tuple[str, str], ...]: ...
    def pieces(self, start: int, stop: int) -> Iterator[memoryview]: ...


class DownloadResponse(Response):
    """Answer to a GET or HEAD of something to download.

    One range is answered by 206, none that is one, or several, by the whole; behind the end by 416.
    """

    def __init__(
        self,
        request: Request,
        source: Downloadable,
        media_type: str = BINARY,
        *,
        inline: bool = False,
    ) -> None:
        self._source = source
        status, span = _decide(request, source)
        self._start, self._stop = span
        headers = {
            **SAFE,
            "ETag": source.etag,
            "Cache-Control": PRIVATE,
            "Accept-Ranges": "bytes",
            "Content-Disposition": disposition(source.name, inline=inline),
            **dict(source.headers),
        }
        if status != HTTPStatus.NOT_MODIFIED:
            headers["Content-Length"] = str(self._stop - self._start)
        if status == HTTPStatus.PARTIAL_CONTENT:
            headers["Content-Range"] = f"bytes {self._start}-{self._stop - 1}/{source.size_bytes}"
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            headers["Content-Range"] = f"bytes */{source.size_bytes}"
        self._sends = request.method != "HEAD"
        super().__init__(None, status, headers, media_type)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        pieces: Iterator[memoryview] = iter(())
        if self._sends and self._start < self._stop:
            pieces = self._source.pieces(self._start, self._stop)
        gone = asyncio.create_task(_disconnected(receive))
        try:
            # Read before the answer begins: what is damaged there is still told as an error.
            batch = await run_in_threadpool(_gathered, pieces)
            start = {"type": "http.response.start", "status": self.status_code}
            await send(start | {"headers": self.raw_headers})
            while batch and not gone.done():
                following = asyncio.create_task(run_in_threadpool(_gathered, pieces))
                try:
                    for part in _parts(batch):
                        await send({"type": "http.response.body", "body": part, "more_body": True})
                finally:
                    batch = await following
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            close = getattr(pieces, "close", None)
            if close is not None:
                await run_in_threadpool(close)


async def _disconnected(receive: Receive) -> None:
    """Ends when the client is gone."""
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass


def _gathered(pieces: Iterator[memoryview]) -> list[memoryview]:
    """The next pieces, small ones joined; none after the last."""
    some, size = [], 0
    for piece in pieces:
        some.append(piece)
        size += piece.nbytes
        if size >= _GATHER_BYTES:
            break
    if size < len(some) * _LARGE_BYTES and len(some) > 1:
        return [memoryview(b"".join(some))]
    return some


def _parts(batch: list[memoryview]) -> Iterator[memoryview]:
    """What is sent at once."""
    for piece in batch:
        for at in range(0, piece.nbytes, SEND_BYTES):
            yield piece[at : at + SEND_BYTES]


def _decide(request: Request, source: Downloadable) -> tuple[HTTPStatus, tuple[int, int]]:
    """Status of the answer, and the bytes that it has."""
    size, headers = source.size_bytes, request.headers
    if "if-match" in headers and not matches(headers["if-match"], source.etag):
        return HTTPStatus.PRECONDITION_FAILED, (0, 0)
    if matches(headers.get("if-none-match"), source.etag):
        return HTTPStatus.NOT_MODIFIED, (0, 0)
    asked = headers.get("range")
    if asked is None or headers.get("if-range", source.etag) != source.etag:
        return HTTPStatus.OK, (0, size)
    span = byte_range(asked, size)
    if span is None:
        return HTTPStatus.OK, (0, size)
    if span[0] >= span[1]:
        return HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, (0, 0)
    return HTTPStatus.PARTIAL_CONTENT, span


@dataclass(frozen=True, slots=True)
class _File:
    """Bytes under a name; `read` gives those of ``[start, stop)``."""

    name: str
    etag: str
    size_bytes: int
    read: Callable[[int, int], Iterator[Buffer]]
    headers: tuple[tuple[str, str], ...] = ()

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        return (memoryview(piece).cast("B") for piece in self.read(start, stop))


def answer_file(
    request: Request,
    pieces: Callable[[int, int], Iterator[Buffer]],
    *,
    size_bytes: int,
    etag: str,
    name: str,
    media_type: str = BINARY,
    inline: bool = False,
) -> Response:
    """A file, or the one range of it that is asked for.

    Args:
        request: with Range, If-Range and If-None-Match.
        pieces: gives the bytes ``[start, stop)``.
        size_bytes: size of the whole.
        etag: names the bytes, for ever.
        name: what to call it where it is saved.
        media_type: what it is.
        inline: whether a browser may show it, as it does pictures.
    """
    file = _File(name, f'"{etag}"', size_bytes, pieces)
    return DownloadResponse(request, file, media_type, inline=inline)


def answer_bytes(
    request: Request, data: bytes, *, etag: str, name: str, media_type: str, inline: bool = False
) -> Response:
    """Bytes in memory as a file."""
    return answer_file(
        request,
        lambda start, stop: iter([data[start:stop]] if stop > start else []),
        size_bytes=len(data),
        etag=etag,
        name=name,
        media_type=media_type,
        inline=inline,
    )


def answer_arrow(pieces: Iterator[bytes]) -> Response:
    """An Arrow stream, made while it is sent; what is wrong at its beginning is an error."""
    first = next(pieces, None)
    body = (bytes(piece) for piece in _again(first, pieces))
    headers = {**SAFE, "Content-Disposition": disposition("rows.arrows", inline=False)}
    return StreamingResponse(body, 200, headers, ARROW_STREAM)


def disposition(name: str, *, inline: bool) -> str:
    """Content-Disposition with a file name that breaks out of no header."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:200] or "file"
    word = "inline" if inline else "attachment"
    return f"{word}; filename=\"{plain}\"; filename*=UTF-8''{quote(name[:200], safe='')}"


def _again(first: Buffer | None, rest: Iterator[Buffer]) -> Iterator[Buffer]:
    if first is not None:
        yield first
    yield from rest

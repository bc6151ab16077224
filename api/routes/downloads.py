"""Downloads: bytes, whole or one range of them, streamed; no thread is held while a client is slow.

Some pieces are read on a thread and sent from the event loop, while the next ones are being read.
That takes some 16 MiB for each download, so a bounded number of them do so at once, and none whose
client does not keep up: the others read what they send next, and no more.

Conditions (If-None-Match, If-Match, If-Range) are on the strong ETag of the bytes.

Whoever may write to a repository may put anything into it. So what comes out is saved and not
shown, its type is never guessed, and what a browser shows all the same may load and run nothing.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar
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
MOST_AHEAD: Final = 32  # downloads of a process that read ahead
STALLED_SECONDS: Final = 10.0  # in which a client takes no `_GATHER_BYTES`
_STEP_BYTES: Final = 512 << 10  # that a download holds which does not read ahead
_QUICK_SECONDS: Final = 0.5  # in which a client takes these that may be read ahead for
SAFE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
}


T = TypeVar("T")


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
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await self._send_all(gone, send)
        finally:
            gone.cancel()

    async def _send_all(self, gone: asyncio.Task[None], send: Send) -> None:
        stop = self._stop if self._sends else self._start
        sent = _Sent(self._source, self._start, stop, send)
        start = {"type": "http.response.start", "status": self.status_code}
        # Read before the answer begins: what is damaged there is still told as an error.
        first = await sent.read_step()
        await send(start | {"headers": self.raw_headers})
        is_quick = await sent.send_step(first)
        while sent.at < stop and not gone.done():
            if is_quick and _AHEAD.acquire(blocking=False):
                await sent.read_ahead(gone, _AHEAD.release)
                is_quick = False
            else:
                is_quick = await sent.send_step(await sent.read_step())
        await send({"type": "http.response.body", "body": b"", "more_body": False})


_AHEAD: Final = threading.BoundedSemaphore(MOST_AHEAD)
_READERS: Final = RunVar[CapacityLimiter]("readers of downloads")


async def _on_thread(call: Callable[..., T], *given: object) -> T:
    """What `call` gives on a thread: of half of those there are, the others answer meanwhile."""
    readers = _READERS.get(None)
    if readers is None:
        threads = to_thread.current_default_thread_limiter().total_tokens
        readers = CapacityLimiter(max(1, int(threads) // 2))
        _READERS.set(readers)
    return await to_thread.run_sync(call, *given, limiter=readers)


class _Sent:
    """Bytes on their way to one client; `at` is the first that was not sent."""

    def __init__(self, source: Downloadable, start: int, stop: int, send: Send) -> None:
        self._source, self._stop, self._send = source, stop, send
        self.at = start

    async def read_step(self) -> bytes:
        """The next few bytes, and nothing of what they were decoded from."""
        stop = min(self.at + _STEP_BYTES, self._stop)
        return await _on_thread(_joined, self._source, self.at, stop)

    async def send_step(self, data: bytes) -> bool:
        """Send these; gives whether the client took them at once."""
        began = time.monotonic()
        await self._send_part(memoryview(data))
        return time.monotonic() - began < _QUICK_SECONDS

    async def read_ahead(self, gone: asyncio.Task[None], release: Callable[[], None]) -> None:
        """Send what is left, and read meanwhile; until the client does not keep up.

        `release` is called when nothing is read ahead any more, which may be long before the
        client has taken what it was being sent.
        """
        pieces = self._source.pieces(self.at, self._stop) if self.at < self._stop else iter(())
        parts: deque[memoryview] = deque()
        sending: asyncio.Task[None] | None = None
        try:
            try:
                keeps_up = True
                batch = await _on_thread(_gathered, pieces)
                while batch and keeps_up and not gone.done():
                    parts.extend(_parts(batch))
                    sending = asyncio.create_task(self._send_parts(parts))
                    batch = await _on_thread(_gathered, pieces)
                    await asyncio.wait([sending], timeout=STALLED_SECONDS)
                    keeps_up = sending.done()
                    if keeps_up:
                        sending.result()
            finally:
                parts.clear()
                batch = []
                try:
                    await _on_thread(_close, pieces)
                finally:
                    release()
            if sending is not None:
                await sending
        finally:
            if sending is not None:
                sending.cancel()

    async def _send_parts(self, parts: deque[memoryview]) -> None:
        while parts:
            await self._send_part(parts.popleft())

    async def _send_part(self, part: memoryview) -> None:
        await self._send({"type": "http.response.body", "body": part, "more_body": True})
        self.at += part.nbytes


def _close(pieces: Iterator[memoryview]) -> None:
    close = getattr(pieces, "close", None)
    if close is not None:
        close()


def _joined(source: Downloadable, start: int, stop: int) -> bytes:
    return b"".join(source.pieces(start, stop)) if start < stop else b""


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

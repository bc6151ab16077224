"""A small S3 server over a folder, for the demo and the tests: never for data that you need.

    python examples/s3_server.py --root /tmp/s3 --port 9000 --latency-ms 20

It speaks the part of S3 that a repository uses: whole and ranged GET, HEAD, PUT with
`If-None-Match: *` and `If-Match`, DELETE, list-objects-v2. Creating is atomic. Signatures are not
checked; with `access_key`, requests that name another key are refused.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Self
from xml.sax.saxutils import escape, unescape

from aiohttp import web

_XML = '<?xml version="1.0" encoding="UTF-8"?>\n'
_PAGE = 1000
_TEMPORARY = ".tmp"

Fault = str  # "500 before", "403 before", "drop after", ...: before or after the work is done


class S3Server:
    """The server on a thread of its own; a context manager.

    Args:
        root: folders in it are buckets.
        port: 0 takes a free one.
        latency_ms: how long the first byte of every answer is held back.
        access_key: the only access key id that is let in; None lets everybody in.
    """

    def __init__(
        self, root: Path, *, port: int = 0, latency_ms: float = 0, access_key: str | None = None
    ) -> None:
        self.root = root
        self.latency_ms = latency_ms
        self.access_key = access_key
        self.fault: Callable[[str, str], Fault | None] = lambda _method, _path: None
        self.requests: list[tuple[str, str]] = []  # method and path of each, for tests
        self._port = port
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        (self.root / _TEMPORARY).mkdir(parents=True, exist_ok=True)
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def wait(self) -> None:
        """Serve until the process is interrupted."""
        self._thread.join()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        application = web.Application(client_max_size=0)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self._port)
        await site.start()
        self._port = runner.addresses[0][1]
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.match_info["path"]))
        if self.latency_ms:
            await asyncio.sleep(self.latency_ms / 1000)
        what, _, when = (self.fault(request.method, request.match_info["path"]) or "").partition(
            " "
        )
        if when == "before":
            return _fail(request, what)
        try:
            response = await self._work(request)
        except ConnectionResetError:  # the client went away
            response = _error(500, "InternalError")
        return _fail(request, what) if when == "after" else response

    async def _work(self, request: web.Request) -> web.StreamResponse:
        bucket, _, key = request.match_info["path"].partition("/")
        credential = request.headers.get("Authorization", "").partition("Credential=")[2]
        if self.access_key is not None and credential.partition("/")[0] != self.access_key:
            return _error(403, "InvalidAccessKeyId")
        if not bucket or bucket == _TEMPORARY or ".." in Path(key).parts:
            return _error(400, "InvalidRequest")
        if not key:
            return _on_bucket(
                self.root / bucket, request.method, request.query, await request.text()
            )
        if not (self.root / bucket).is_dir():
            return _error(404, "NoSuchBucket")
        path = self.root / bucket / key
        if request.method == "PUT":
            return await self._put(path, request)
        if request.method == "DELETE":
            path.unlink(missing_ok=True)
            return web.Response(status=204)
        return _get(path)

    async def _put(self, path: Path, request: web.Request) -> web.Response:
        partial = self.root / _TEMPORARY / secrets.token_hex(16)
        with partial.open("wb") as file:
            async for chunk in request.content.iter_chunked(1 << 20):
                file.write(chunk)
        # No await from here on: the check and the rename are one step for every other request.
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Google's header is the same wish: its XML interface is S3's in all that we use.
            google = request.headers.get("x-goog-if-generation-match") == "0"
            if google or request.headers.get("If-None-Match") == "*":
                os.link(partial, path)
            else:
                _replace(partial, path, request.headers.get("If-Match"))
            return web.Response(headers={"ETag": _tag(path)})
        except FileExistsError:
            return _error(412, "PreconditionFailed")
        finally:
            partial.unlink(missing_ok=True)


def _on_bucket(bucket: Path, method: str, query: Mapping[str, str], body: str) -> web.Response:
    if method == "PUT":
        bucket.mkdir(exist_ok=True)
        return web.Response()
    if not bucket.is_dir():
        return _error(404, "NoSuchBucket")
    return _delete(bucket, body) if method == "POST" else _list(bucket, query)


def _list(bucket: Path, query: Mapping[str, str]) -> web.Response:
    after = query.get("continuation-token") or query.get("start-after") or ""
    prefix = query.get("prefix", "")
    above = bucket / prefix.rpartition("/")[0]
    keys = sorted(
        key
        for folder, _, names in os.walk(above)
        for key in (str((Path(folder) / name).relative_to(bucket)) for name in names)
        if key.startswith(prefix) and key > after
    )
    size = min(int(query.get("max-keys", _PAGE)), _PAGE)
    page, more = keys[:size], len(keys) > size
    entries = [_entry(bucket, key) for key in page]
    token = escape(page[-1]) if more else ""
    body = (
        f'{_XML}<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{escape(bucket.name)}</Name><Prefix>{escape(prefix)}</Prefix>"
        f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{size}</MaxKeys>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        f"<NextContinuationToken>{token}</NextContinuationToken>"
        f"{''.join(entries)}</ListBucketResult>"
    )
    return web.Response(text=body, content_type="application/xml")


def _delete(bucket: Path, body: str) -> web.Response:
    """The bulk form of DELETE, which clients use for a single key too."""
    keys = [unescape(key) for key in re.findall("<Key>([^<]*)</Key>", body)]
    for key in keys:
        (bucket / key).unlink(missing_ok=True)
    deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
    body = f"{_XML}<DeleteResult>{deleted}</DeleteResult>"
    return web.Response(text=body, content_type="application/xml")


def _replace(partial: Path, path: Path, wanted: str | None) -> None:
    """Raises FileExistsError when `path` has not the wanted tag."""
    if wanted is not None and (not path.exists() or _tag(path) != wanted):
        raise FileExistsError(path)
    partial.replace(path)


def _get(path: Path) -> web.StreamResponse:
    if not path.is_file():
        return _error(404, "NoSuchKey")
    # FileResponse answers ranges and HEAD, and sends by sendfile.
    return web.FileResponse(path, chunk_size=1 << 20, headers={"ETag": _tag(path)})


def _entry(bucket: Path, key: str) -> str:
    status = (bucket / key).stat()
    modified = datetime.fromtimestamp(status.st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return (
        f"<Contents><Key>{escape(key)}</Key><Size>{status.st_size}</Size>"
        f"<LastModified>{modified}</LastModified><ETag>{escape(_tag(bucket / key))}</ETag>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _tag(path: Path) -> str:
    status = path.stat()
    return f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'


def _error(status: int, code: str) -> web.Response:
    body = f"{_XML}<Error><Code>{code}</Code><Message>{code}</Message></Error>"
    return web.Response(status=status, text=body, content_type="application/xml")


def _fail(request: web.Request, what: str) -> web.Response:
    if what == "drop" and request.transport is not None:
        request.transport.abort()
    return _error(int(what) if what.isdigit() else 500, "Fault")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small S3 server over a folder.")
    parser.add_argument("--root", type=Path, required=True, help="where buckets lie")
    parser.add_argument("--port", type=int, default=9000, help="0 takes a free one")
    parser.add_argument("--latency-ms", type=float, default=0, help="held back before each answer")
    parser.add_argument("--bucket", action="append", default=[], help="made when it is not there")
    arguments = parser.parse_args()
    for bucket in arguments.bucket:
        (arguments.root / bucket).mkdir(parents=True, exist_ok=True)
    server = S3Server(arguments.root, port=arguments.port, latency_ms=arguments.latency_ms)
    with server, suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        server.wait()


if __name__ == "__main__":
    main()

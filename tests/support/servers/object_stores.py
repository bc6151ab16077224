"""Object stores on this machine: moto's S3, our S3, and our S3 made to look like Azure.

Each is a context manager that yields a `Bucket`; tests keep one open for the session.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from urllib.request import Request, urlopen
from xml.sax.saxutils import escape

from aiohttp import web

from examples.s3_server import S3Server

SECRET = "Kq7-a-secret-that-nobody-may-see"


@dataclass(frozen=True, slots=True)
class Bucket:
    """An empty bucket: its URL, the environment to reach it with, our server if it is ours."""

    url: str
    environment: Mapping[str, str] = field(repr=False)
    server: S3Server | None = None


@contextmanager
def s3_on_moto() -> Iterator[Bucket]:
    """S3 as moto understands it: an opinion that is not ours."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer  # takes a second

    _make_moto_atomic()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        environment = _s3_environment(f"http://{host}:{port}")
        _put_bucket(f"http://{host}:{port}", "bucket")
        yield Bucket("s3://bucket", environment)
    finally:
        server.stop()
        assert server._server is not None
        server._server.server_close()


@contextmanager
def s3_on_ours(root: Path, *, access_key: str | None = None) -> Iterator[Bucket]:
    (root / "bucket").mkdir(parents=True)
    with S3Server(root, access_key=access_key) as server:
        yield Bucket("s3://bucket", _s3_environment(server.url), server)


@contextmanager
def gcs_on_ours(root: Path) -> Iterator[Bucket]:
    """Google's XML interface, which is S3's in all that a repository uses."""
    (root / "bucket").mkdir(parents=True)
    with S3Server(root) as server:
        yield Bucket("gs://bucket", {"STORAGE_EMULATOR_HOST": server.url}, server)


@contextmanager
def azure_on_ours(root: Path) -> Iterator[Bucket]:
    (root / "bucket").mkdir(parents=True)
    with AzureServer(root) as server:
        environment = {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_ACCOUNT_KEY": "S3E3LWEtc2VjcmV0LXRoYXQtbm9ib2R5LW1heS1zZWU=",
            "AZURE_STORAGE_ENDPOINT": server.url,
        }
        yield Bucket("az://bucket", environment, server)


class AzureServer(S3Server):
    """Azure's listing, and its 409 where S3 answers 412."""

    async def _work(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("comp") == "list":
            return self._list_blobs(request.match_info["path"], request.query)
        if request.query.get("comp") == "batch":
            return self._delete_blobs(await request.text())
        response = await super()._work(request)
        if response.status == 412 and request.headers.get("If-None-Match") == "*":
            return web.Response(status=409, text="<Error><Code>BlobAlreadyExists</Code></Error>")
        return response

    def _delete_blobs(self, body: str) -> web.Response:
        answers = []
        for number, path in enumerate(re.findall(r"DELETE (?:https?://[^/ ]+)?/(\S+)", body)):
            target = self.root / unquote(path.partition("?")[0])
            status = "202 Accepted" if target.exists() else "404 BlobNotFound"
            target.unlink(missing_ok=True)
            head = f"Content-Type: application/http\r\nContent-ID: {number}"
            answers.append(f"--batch\r\n{head}\r\n\r\nHTTP/1.1 {status}\r\n\r\n\r\n")
        data = "".join([*answers, "--batch--\r\n"]).encode()
        content_type = {"Content-Type": "multipart/mixed; boundary=batch"}
        return web.Response(status=202, body=data, headers=content_type)

    def _list_blobs(self, container: str, query: Mapping[str, str]) -> web.Response:
        folder = self.root / container
        keys = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
        found = [key for key in keys if key.startswith(query.get("prefix", ""))]
        start = int(query.get("marker") or 0)
        stop = start + int(query.get("maxresults") or 1000)
        blobs = "".join(
            f"<Blob><Name>{escape(key)}</Name><Properties>"
            "<Last-Modified>Wed, 01 Jul 2026 10:00:00 GMT</Last-Modified><Etag>0x1</Etag>"
            f"<Content-Length>{(folder / key).stat().st_size}</Content-Length>"
            "<Content-Type>application/octet-stream</Content-Type></Properties></Blob>"
            for key in found[start:stop]
        )
        marker = f"<NextMarker>{stop}</NextMarker>" if stop < len(found) else "<NextMarker/>"
        body = f"<EnumerationResults><Blobs>{blobs}</Blobs>{marker}</EnumerationResults>"
        return web.Response(text=f'<?xml version="1.0"?>{body}', content_type="application/xml")


def _s3_environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
    }


def _make_moto_atomic() -> None:
    """Let moto handle one change at a time: two of its threads can both find a key absent."""
    from moto.s3.responses import S3Response

    if getattr(S3Response, "_one_at_a_time", None) is not None:
        return
    lock = threading.RLock()
    S3Response._one_at_a_time = lock  # type: ignore[attr-defined]  # only to do this once
    for name in ("put_object", "copy_object", "delete_object"):
        setattr(S3Response, name, _locked(getattr(S3Response, name), lock))


def _locked(method: Any, lock: threading.RLock) -> Any:
    def locked(*arguments: Any, **keywords: Any) -> Any:
        with lock:
            return method(*arguments, **keywords)

    return locked


def _put_bucket(endpoint: str, name: str) -> None:
    request = Request(f"{endpoint}/{name}", method="PUT", data=b"")
    with urlopen(request) as response:
        assert response.status == 200

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import ClassVar

import pytest
from obstore.exceptions import BaseError, GenericError, NotSupportedError, PermissionDeniedError

from tensorrepo.repo.backends.base import Backend, StreamsRanges
from tensorrepo.repo.backends.cloud import CloudBackend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.backends.remote import explain, find_place
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tests.support.servers.object_stores import SECRET, Bucket, s3_on_moto, s3_on_ours


class Cutting(BaseHTTPRequestHandler):
    """Says that there are 100 bytes, and hangs up after 10 of them; twice for each file."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        self.answers[self.path] += 1
        asked = self.headers.get("Range")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-99/100")
        self.send_header("Content-Length", str(100 - start))
        self.end_headers()
        self.wfile.write(bytes(range(100))[start:][: 100 if self.answers[self.path] > 2 else 10])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def cutting() -> Iterator[Backend]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Cutting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield open_backend(f"http://127.0.0.1:{server.server_port}", environment={})
        server.shutdown()


@pytest.mark.parametrize(
    "read",
    [
        lambda backend: len(backend.read("whole")),
        lambda backend: len(backend.read_range("range", 0, 100)),
        lambda backend: backend.read_into("into", 0, memoryview(bytearray(100))),
    ],
)
def test_an_answer_that_was_cut_is_asked_for_again(
    cutting: Backend, read: Callable[[Backend], int | None]
) -> None:
    assert read(cutting) in (100, None)


def test_a_stream_that_was_cut_goes_on_where_it_ended(cutting: Backend) -> None:
    assert isinstance(cutting, StreamsRanges)
    assert b"".join(map(bytes, cutting.stream_range("stream", 5, 100))) == bytes(range(5, 100))


def test_one_request_alone_tells_that_its_answer_was_cut(cutting: Backend) -> None:
    with pytest.raises(StorageError, match="cannot read") as failure:
        cutting.read_once("once", 0, 100)  # type: ignore[attr-defined]
    assert failure.value.transient


PLACE = find_place("s3://bucket/name", {"key": "identity", "secret": SECRET}, {})
STATUS = "Server returned non-2xx status code: "


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_on_ours(tmp_path_factory.mktemp("ours") / "s3", access_key="tester") as bucket:
        yield bucket


@pytest.mark.parametrize(
    ("text", "expected", "transient", "says"),
    [
        (
            f"{STATUS}500 Server Error: <Code>Oops</Code>",
            StorageError,
            True,
            "500 Server Error (Oops)",
        ),
        (f"{STATUS}503 Slow Down", StorageError, True, "503"),
        (f"{STATUS}429 Too Many", StorageError, True, "429"),
        (f"{STATUS}400 Bad Request", StorageError, False, "400"),
        (f"{STATUS}301 Moved", StorageError, False, "AWS_REGION"),
        (f"{STATUS}501 Not Implemented", UnsupportedError, None, "lacks"),
        (f"{STATUS}401 Unauthorized", PermissionDenied, None, "AWS_ACCESS_KEY_ID"),
        ("PUT to 169.254.169.254/latest", PermissionDenied, None, "no credentials"),
        (f"{STATUS}404: <Code>NoSuchBucket</Code>", NotFoundError, None, "bucket"),
        ("HTTP error\n\nConnect ConnectionRefused", StorageError, True, "refused"),
        ("HTTP error\n\n dns error", StorageError, True, "host name"),
        ("HTTP error\n\nkind: Timeout", StorageError, True, "no answer in time"),
        ("HTTP error\n\ninvalid peer certificate", StorageError, False, "certificate"),
        ("HTTP error: builder error\n\nBadScheme", StorageError, False, "https"),
        ("HTTP error: something new", StorageError, True, "something new"),
        ("Got invalid list response", StorageError, False, "invalid list response"),
    ],
)
def test_a_failure_is_told_by_what_to_do_next(
    text: str, expected: type[Error], transient: bool | None, says: str
) -> None:
    ours = explain(GenericError(text), "cannot read x", PLACE)
    assert type(ours) is expected
    assert getattr(ours, "transient", None) is transient
    assert says in str(ours)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(NotSupportedError, UnsupportedError), (PermissionDeniedError, PermissionDenied)],
)
def test_obstores_own_classes_count_too(error: type[BaseError], expected: type[Error]) -> None:
    assert type(explain(error("no"), "cannot read x", PLACE)) is expected


def test_secrets_and_signatures_are_cut_out_of_messages() -> None:
    text = (
        f"HTTP error: GET https://example.test/x?sv=1&sig=abcdef failed, key {SECRET}, id identity"
    )
    shown = str(explain(GenericError(text), "cannot read x", PLACE))
    assert [part for part in ("sig=", SECRET, "identity") if part in shown] == []
    assert "https://example.test/x" in shown


def open_ours(ours: Bucket, url: str = "s3://bucket/x", **changed: str) -> Backend:
    return open_backend(url, environment={**ours.environment, **changed})


def test_a_missing_bucket_is_said_to_be_missing(ours: Bucket) -> None:
    backend = open_ours(ours, "s3://nobody/x")
    with pytest.raises(NotFoundError, match="no such bucket"):
        backend.read("log/1")
    with pytest.raises(NotFoundError, match="no such bucket"):
        backend.create("log/1", (b"",))
    with pytest.raises(NotFoundError, match="no such bucket"):
        list(backend.list(""))


def test_wrong_credentials_are_refused_with_the_names_to_check(ours: Bucket) -> None:
    backend = open_ours(ours, AWS_ACCESS_KEY_ID="somebody-else")
    with pytest.raises(PermissionDenied, match=r"InvalidAccessKeyId.*AWS_SECRET_ACCESS_KEY"):
        backend.read("log/1")
    with pytest.raises(PermissionDenied, match="AWS_ACCESS_KEY_ID"):
        backend.create("log/1", (b"",))


def test_the_original_error_with_its_headers_is_not_chained(ours: Bucket) -> None:
    with pytest.raises(PermissionDenied) as caught:
        open_ours(ours, AWS_ACCESS_KEY_ID="somebody-else").read("log/1")
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b/x", {"nonsense": "1"}),
        ("s3://b/x", {"timeout": "soon"}),
        ("https://host/x", {"nonsense": "1"}),
        ("az://c/x", {}),
        ("gs://b/x", {"token": "/no/such/file.json"}),
    ],
)
def test_settings_that_cannot_be_used_are_refused_at_once(
    url: str, options: dict[str, str]
) -> None:
    with pytest.raises(InvalidInputError, match=url):
        open_backend(url, options, environment={})


def test_a_value_larger_than_one_put_is_sent_in_parts() -> None:
    with s3_on_moto() as bucket:
        place = find_place(f"{bucket.url}/parts", {}, bucket.environment)
        backend = CloudBackend(place, single_put_bytes=1 << 20)
        block = bytes(range(256)) * 4096
        parts = [block] * 7
        assert backend.create("objects/aa/big", parts) is True
        assert backend.create("objects/aa/big", [b"other" * (1 << 20)]) is False
        assert backend.read("objects/aa/big") == b"".join(parts)


def test_a_forked_process_is_told_and_does_not_hang(ours: Bucket) -> None:
    backend = open_ours(ours)
    assert backend.size("log/1") is None
    here, there = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_read, args=(backend, there))
    child.start()
    answered = here.poll(30)
    child.kill()
    child.join()
    assert answered
    assert here.recv() == "UnsupportedError: True"
    here.close()
    there.close()


def _read(backend: Backend, answer: Connection) -> None:
    try:
        backend.size("log/1")
    except Error as error:
        answer.send(f"{type(error).__name__}: {'spawn' in str(error)}")


def test_an_answer_of_conflict_is_no_proof_that_the_key_exists(tmp_path: Path) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        assert bucket.server is not None
        backend = open_backend("s3://bucket/x", environment=bucket.environment)
        first = iter(["409 before"])
        bucket.server.fault = lambda method, _: next(first, None) if method == "PUT" else None
        assert backend.create("log/1", (b"mine",)) is True
        assert backend.read("log/1") == b"mine"


@pytest.mark.parametrize(("status", "busy"), [(503, True), (429, True), (500, False)])
def test_a_read_that_fails_for_a_moment_is_left_to_who_wants_to_repeat_it(
    tmp_path: Path, status: int, busy: bool
) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        assert bucket.server is not None
        backend = CloudBackend(find_place("s3://bucket/x", {}, bucket.environment))
        backend.create("objects/a", (b"0123456789",))
        assert bytes(backend.read_once("objects/a", 2, 5)) == b"234"
        bucket.server.fault = lambda *_: f"{status} before"
        bucket.server.requests.clear()
        with pytest.raises(StorageError) as failure:
            backend.read_once("objects/a", 2, 5)
        assert (failure.value.transient, failure.value.busy) == (True, busy)
        assert len(bucket.server.requests) == 1

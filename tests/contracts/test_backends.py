"""Every backend keeps the promises of `tensorrepo.repo.backends.base`."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count

import pytest

from tensorrepo.repo.backends.base import Backend, Guarantee
from tensorrepo.repo.backends.conformance import CHECKS
from tensorrepo.repo.backends.fsspec import FsspecBackend
from tensorrepo.repo.backends.probe import probe
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.backends.trial import Check, CheckFolder, judged
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tests.support.effort import soaking
from tests.support.processes.interrupts import interrupts
from tests.support.servers.object_stores import (
    SECRET,
    Bucket,
    azure_on_ours,
    gcs_on_ours,
    s3_on_moto,
    s3_on_ours,
)
from tests.support.servers.postgres import server
from tests.support.servers.service import running_service

KEY = f"objects/ab/{'cd' * 31}"
VALUE = bytes(range(256)) * 40
NUMBERS = count()
CLOUD = {
    "s3-moto": lambda _: s3_on_moto(),
    "s3-ours": lambda path: s3_on_ours(path / "s3"),
    "gcs": lambda path: gcs_on_ours(path / "gcs"),
    "azure": lambda path: azure_on_ours(path / "azure"),
}
SQL = ["sqlite-log", "postgres-log"]
ATOMIC = ["memory", "local", *SQL, *CLOUD]
WRITABLE = [*ATOMIC, "fsspec-memory", "fsspec-dir"]
# No other process sees what is in memory; our servers join no parts; moto takes 4 ms a key, and
# closes values that somebody reads when they are replaced. Outside of a soak a race is one of a
# kind of store, and long listings are those of one cloud, where a test below pages through all.
APART = {
    "race of processes": {"memory"} if soaking() else {*ATOMIC} - {"local", "s3-ours"},
    "overwriting": {"s3-moto"},
    "values in parts": {"s3-ours", "gcs", "azure"},
    "long listings": set() if soaking() else {*WRITABLE} - {"local", "postgres-log", "azure"},
    "race of threads": set() if soaking() else {"s3-moto", "gcs", "azure", "fsspec-dir"},
}
# What moto, the slowest, is asked outside of a soak: parts, which our servers do not join, and what
# others' code may answer in another way than ours.
OF_MOTO = {"creating again", "whole values", "ranges", "values in parts", "listing", "prefixes"}
PROMISES = [
    pytest.param(name, check, id=f"{name} {check.name}")
    for name in WRITABLE
    for check in CHECKS
    if name not in APART.get(check.name, ())
    if soaking() or name != "s3-moto" or check.name in OF_MOTO
]


@dataclass(frozen=True)
class Places:
    """Opens fresh, empty backends by name; servers start with the first that needs them."""

    path: Callable[[], str]
    buckets: dict[str, Bucket]
    start: Callable[[str], Bucket]
    postgres: Callable[[], str]
    served: Callable[[], Backend]

    def bucket(self, name: str) -> Bucket:
        return self.buckets.get(name) or self.start(name)

    def open(self, name: str) -> Backend:
        fresh = f"fresh-{os.getpid()}-{next(NUMBERS)}"
        if name in CLOUD:
            bucket = self.bucket(name)
            return open_backend(f"{bucket.url}/{fresh}", environment=bucket.environment)
        if name == "memory":
            return open_backend(f"memory://{fresh}", environment={})
        if name in SQL:
            is_file = name == "sqlite-log"
            database = f"sqlite:///{self.path()}/log.db" if is_file else self.postgres()
            store = open_backend(f"{self.path()}/{fresh}", environment={})
            log = SqlLogBackend(store, database, fresh)
            log.prepare(b"identity")
            return log
        if name == "local":
            return open_backend(f"{self.path()}/{fresh}", environment={})
        if name == "fsspec-memory":
            return FsspecBackend(f"memory://{fresh}")
        return open_backend(f"dir::file://{self.path()}/{fresh}", environment={})


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    buckets: dict[str, Bucket] = {}
    with ExitStack() as stack:

        def start(name: str) -> Bucket:
            path = tmp_path_factory.mktemp(name)
            buckets[name] = stack.enter_context(CLOUD[name](path))
            return buckets[name]

        @cache
        def postgres() -> str:
            return stack.enter_context(server()).url("postgres")

        @cache
        def served() -> Backend:
            """A repository behind a service, in whose store a value was put."""
            running = stack.enter_context(running_service(tmp_path_factory.mktemp("service")))
            place = running.service.directory.create("team/photos").url
            open_backend(place, environment={}).create(KEY, (VALUE,))
            url = f"{running.url}/team/photos"
            return open_http(url, {"token": running.token}, environment={})

        yield Places(
            lambda: str(tmp_path_factory.mktemp("backends")), buckets, start, postgres, served
        )


@pytest.fixture(params=WRITABLE)
def backend(request: pytest.FixtureRequest, places: Places) -> Iterator[Backend]:
    opened = places.open(request.param)
    yield opened
    opened.close()


@pytest.fixture(scope="module", params=[*WRITABLE, "http", "service"])
def reader(request: pytest.FixtureRequest, places: Places) -> Backend:
    """A backend that holds VALUE under KEY, and nothing under log/; no test writes to it."""
    if request.param == "service":
        return places.served()
    name = "s3-ours" if request.param == "http" else request.param
    opened = places.open(name)
    opened.create(KEY, (VALUE,))
    if request.param != "http":
        return opened
    server = places.buckets[name].server
    assert server is not None
    published = opened.url.replace("s3://", f"{server.url}/")
    return open_backend(published, environment={})


def test_a_value_is_read_back_whole(reader: Backend) -> None:
    assert reader.read(KEY) == VALUE
    assert isinstance(reader.read(KEY), bytes)


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, len(VALUE)), (17, 5000), (len(VALUE) - 1, len(VALUE)), (9, 9)]
)
def test_a_range_is_exactly_the_bytes_asked_for(reader: Backend, start: int, stop: int) -> None:
    assert bytes(reader.read_range(KEY, start, stop)) == VALUE[start:stop]
    buffer = bytearray(stop - start + 2)
    reader.read_into(KEY, start, memoryview(buffer)[1:-1])
    assert buffer == b"\0" + VALUE[start:stop] + b"\0"


@pytest.mark.parametrize(
    ("start", "stop"),
    [(0, len(VALUE) + 1), (len(VALUE), len(VALUE) + 9), (10**6, 10**6 + 1), (5, 1 << 50)],
)
def test_a_range_behind_the_end_is_an_error_and_no_short_answer(
    reader: Backend, start: int, stop: int
) -> None:
    with pytest.raises(StorageError, match="cut short") as caught:
        reader.read_range(KEY, start, stop)
    assert not caught.value.transient


def test_a_buffer_is_never_filled_in_part_only(reader: Backend) -> None:
    with pytest.raises(StorageError, match="cut short"):
        reader.read_into(KEY, 10, memoryview(bytearray(len(VALUE))))


@pytest.mark.parametrize("read", ["read", "read_range", "read_into", "empty range"])
def test_an_absent_key_is_not_found(reader: Backend, read: str) -> None:
    calls: dict[str, Callable[[], object]] = {
        "read": lambda: reader.read("log/absent"),
        "read_range": lambda: reader.read_range("log/absent", 0, 1),
        "read_into": lambda: reader.read_into("log/absent", 0, memoryview(bytearray(1))),
        "empty range": lambda: reader.read_range("log/absent", 0, 0),
    }
    with pytest.raises(NotFoundError, match="log/absent"):
        calls[read]()


def test_the_size_tells_whether_a_key_is_there(reader: Backend) -> None:
    assert reader.size(KEY) == len(VALUE)
    assert reader.size("log/absent") is None


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "../a", "a/../b", "a/.", "a b", "a\0b", "ä", "a\\b", "x" * 600]
)
def test_a_key_that_could_mean_another_place_is_refused(reader: Backend, key: str) -> None:
    with pytest.raises(InvalidInputError, match="storage key"):
        reader.read(key)
    with pytest.raises(InvalidInputError, match="storage key"):
        reader.size(key)


@pytest.mark.parametrize(("name", "check"), PROMISES)
def test_a_store_keeps_each_promise_that_doctor_tries(
    places: Places, name: str, check: Check
) -> None:
    made: set[str] = set()
    with closing(places.open(name)) as opened:
        result = judged(check, CheckFolder(opened, "log/check/", made))
        is_promised = opened.guarantee is Guarantee.ATOMIC or not check.name.startswith("race")
    assert (result.level, result.expected) == ("ok" if is_promised else "warning", ""), result
    assert is_promised or "not promised" in result.found


def test_uploads_can_be_finished_more_than_once(backend: Backend) -> None:
    with backend.uploads() as uploads:
        assert uploads.finish() == {}
        uploads.create("objects/01/a", (b"a",))
        assert uploads.finish() == {"objects/01/a": True}
        uploads.create("objects/01/b", (b"b",))
        assert uploads.finish() == {"objects/01/b": True}
    assert backend.read("objects/01/a") + backend.read("objects/01/b") == b"ab"


def test_a_key_uploaded_twice_is_stored_once(backend: Backend) -> None:
    with backend.uploads() as uploads:
        uploads.create(KEY, (b"first",))
        uploads.create(KEY, (b"second",))
        assert uploads.finish() == {KEY: True}
    assert backend.read(KEY) == b"first"


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_leaving_uploads_early_leaves_no_thread_and_no_partial_key(
    backend: Backend, large: bool
) -> None:
    data = VALUE * (300 if large else 1)

    def interrupted() -> None:
        with backend.uploads() as uploads:
            for number in range(5):
                uploads.create(f"objects/00/{number}", (data,))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert our_threads() == []
    assert {stored.bytes for stored in backend.list("")} <= {len(data)}


def test_finished_uploads_leave_no_thread(backend: Backend) -> None:
    with backend.uploads() as uploads:
        uploads.create(KEY, (VALUE * 300,))
        uploads.finish()
        assert our_threads() == []


def test_aborted_uploads_take_nothing_more(backend: Backend) -> None:
    uploads = backend.uploads()
    uploads.create(KEY, (VALUE,))
    uploads.abort()
    uploads.abort()
    assert our_threads() == []


def test_an_empty_store_lists_nothing(backend: Backend) -> None:
    assert list(backend.list("")) == []


def test_a_listing_says_when_keys_were_written(backend: Backend) -> None:
    backend.create(KEY, (VALUE,))
    (stored,) = backend.list("")
    assert stored.modified_seconds is not None
    assert stored.modified_seconds > 1.7e9


def test_a_prefix_ends_in_a_slash(backend: Backend) -> None:
    with pytest.raises(InvalidInputError, match="ends in '/'"):
        list(backend.list("log"))


def test_a_pickled_backend_sees_the_same_keys(reader: Backend) -> None:
    again = pickle.loads(pickle.dumps(reader))
    assert again.read(KEY) == VALUE
    assert again.url == reader.url
    assert again.guarantee is reader.guarantee


@pytest.mark.parametrize("name", ATOMIC)
def test_the_probe_confirms_and_cleans_up(places: Places, name: str) -> None:
    opened = places.open(name)
    assert probe(opened) is Guarantee.ATOMIC
    assert list(opened.list("")) == []


@pytest.mark.parametrize("name", ["fsspec-memory", "fsspec-dir"])
def test_fsspec_is_for_one_writer(places: Places, name: str) -> None:
    opened = places.open(name)
    assert opened.guarantee is Guarantee.SINGLE_WRITER
    assert probe(opened) is Guarantee.SINGLE_WRITER
    assert list(opened.list("")) == []


@pytest.mark.parametrize("verb", ["create", "uploads", "overwrite", "delete", "list"])
def test_a_web_server_is_read_and_nothing_else(places: Places, verb: str) -> None:
    bucket = places.bucket("s3-ours")
    assert bucket.server is not None
    web = open_backend(f"{bucket.server.url}/bucket", environment={})
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: web.create(KEY, (b"",)),
        "uploads": web.uploads,
        "overwrite": lambda: web.overwrite(KEY, (b"",)),
        "delete": lambda: web.delete(KEY),
        "list": lambda: web.list(""),
    }
    assert probe(web) is web.guarantee is Guarantee.READ_ONLY
    with pytest.raises(UnsupportedError, match="can only be read"):
        calls[verb]()


@pytest.mark.parametrize("name", ["s3-ours", "azure"])
def test_no_secret_is_ever_shown(places: Places, name: str) -> None:
    opened = places.open(name)
    secrets = [SECRET, "S3E3LWEtc2VjcmV0LXRoYXQtbm9ib2R5LW1heS1zZWU="]
    shown = [repr(opened), opened.url, repr(vars(opened)), repr(pickle.loads(pickle.dumps(opened)))]
    with faulty(places.bucket(name), "403 before"), pytest.raises(PermissionDenied) as caught:
        opened.read(KEY)
    shown += [str(caught.value), repr(caught.value.__cause__), repr(caught.value.args)]
    assert [text for text in shown for secret in secrets if secret in text] == []


def test_a_lost_reply_to_a_create_never_looks_like_success(places: Places) -> None:
    opened = places.open("s3-ours")
    with faulty(places.bucket("s3-ours"), "drop after", times=1):
        # The client sends again and is told that the key exists: the caller reads it.
        assert opened.create(KEY, (VALUE,)) is False
    assert opened.read(KEY) == VALUE


def test_a_request_that_never_arrived_is_sent_again(places: Places) -> None:
    opened = places.open("s3-ours")
    with faulty(places.bucket("s3-ours"), "drop before", times=2):
        assert opened.create(KEY, (VALUE,)) is True
    with faulty(places.bucket("s3-ours"), "500 before", times=2):
        assert opened.read(KEY) == VALUE


def test_an_interrupt_cancels_uploads_that_are_under_way(places: Places) -> None:
    opened = places.open("s3-ours")
    server = places.buckets["s3-ours"].server
    assert server is not None
    server.latency_ms = 60_000
    others = our_threads()

    def upload() -> None:
        with opened.uploads() as uploads:
            uploads.create(KEY, (VALUE,))
            interrupt()
            uploads.finish()

    try:
        with interrupts() as interrupt, pytest.raises(KeyboardInterrupt):
            upload()
    finally:
        server.latency_ms = 0
    assert our_threads() == others
    assert opened.size(KEY) is None


def our_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("tensorrepo")]


@contextmanager
def faulty(bucket: Bucket, fault: str, times: int = 10**9) -> Iterator[None]:
    """Let the next requests go wrong, and no others."""
    server = bucket.server
    assert server is not None
    calm, left = server.fault, count(times, -1)
    server.fault = lambda _method, _path: fault if next(left) > 0 else None
    try:
        yield
    finally:
        server.fault = calm

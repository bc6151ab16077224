"""What a transaction stores is there whole, under the right key, or it is told so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import zstandard

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import (
    CorruptError,
    NotFoundError,
    StorageError,
)
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.objects import writer as writer_module
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.log import digest
from tests.support.builders.stored import LARGE, WELL_COMPRESSED, grave, payload_of, put
from tests.support.faults.backends import CountingBackend, LostReplyBackend, WrappedBackend


@pytest.fixture(params=["memory", "local"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return MemoryBackend() if request.param == "memory" else LocalBackend(tmp_path / "store")


@pytest.mark.parametrize("size", [100, LARGE])
def test_a_writer_reads_what_it_put_before_it_is_durable(backend: Backend, size: int) -> None:
    writer = ObjectWriter(ObjectStore(backend), ())
    payload = bytes(range(100)) * (size // 100)
    link = writer.put(Kind.BLOB, payload)
    parent = writer.put(Kind.DATASET, b"parent", [link.digest])
    assert bytes(writer.get(link.digest).payload) == payload
    assert writer.get(parent.digest).links == (link,)
    assert writer.describe(link.digest) == link
    assert bytes(writer.read_range(link, 10, 20)) == payload[10:20]
    assert bytes(writer.read_checked(link, 10, 20, content_tag(payload[10:20]))) == payload[10:20]
    buffer = bytearray(5)
    writer.read_into(link, 95, memoryview(buffer))
    assert bytes(buffer) == payload[95:100]


def test_the_same_object_put_twice_is_uploaded_once() -> None:
    counting = CountingBackend(MemoryBackend())
    writer = ObjectWriter(ObjectStore(counting), ())
    assert writer.put(Kind.BLOB, b"same") == writer.put(Kind.BLOB, b"same")
    writer.flush()
    assert counting.count["upload"] == 1


def test_a_flush_waits_for_what_another_thread_makes_durable(tmp_path: Path) -> None:
    order: list[str] = []
    second_is_over = Event()

    class Waiting(LocalBackend):
        def sync_folders(self, folders: Iterable[str]) -> None:
            if folders:
                second_is_over.wait(0.2)
                order.append("synced")
            super().sync_folders(folders)

    def flush(writer: ObjectWriter) -> None:
        writer.flush()
        order.append("flushed")
        second_is_over.set()

    earlier = ObjectWriter(ObjectStore(LocalBackend(tmp_path)), ())
    earlier.put(Kind.BLOB, b"same")
    earlier.flush()
    writer = ObjectWriter(ObjectStore(Waiting(tmp_path)), ())
    assert writer.adopt(encode_object(Kind.BLOB, b"same").link)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(writer.flush)
        while not writer._syncing:
            time.sleep(0.001)
        threads.submit(flush, writer).result()
        first.result()
    assert order == ["synced", "flushed"]


def test_threads_may_put_side_by_side(backend: Backend) -> None:
    writer = ObjectWriter(ObjectStore(backend), ())
    with ThreadPoolExecutor(8) as pool:
        links = list(pool.map(lambda n: writer.put(Kind.BLOB, b"%d" % (n % 40)), range(80)))
    writer.flush()
    assert [payload_of(backend, link.digest) for link in links] == [
        b"%d" % (n % 40) for n in range(80)
    ]


def test_links_say_what_was_stored_and_not_what_the_caller_believes(backend: Backend) -> None:
    leaf = put(backend, Kind.CHUNK, b"leaf")
    inner = put(backend, Kind.LEAF, b"inner", [leaf.digest])
    outer = put(backend, Kind.DATASET, b"outer", [inner.digest, leaf.digest])
    found = {link.digest: link for link in ObjectStore(backend).get(outer.digest).links}
    assert found == {leaf.digest: leaf, inner.digest: inner}
    assert (found[leaf.digest].leaf, found[inner.digest].leaf) == (True, False)


def test_a_link_to_what_nobody_stored_is_refused(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match="0000000000"):
        put(backend, Kind.DATASET, b"", [digest(7)])


def test_an_aborted_writer_stores_nothing_that_is_seen_by_accident(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    writer = ObjectWriter(ObjectStore(backend), ())
    link = writer.put(Kind.BLOB, b"gone")
    writer.abort()
    assert list(backend.list("")) == []
    with pytest.raises(NotFoundError):
        ObjectStore(backend).get(link.digest)


@pytest.mark.parametrize("size", [100, 5000, LARGE])
@pytest.mark.parametrize("kind", [Kind.BLOB, Kind.MODEL])
def test_what_is_there_already_is_adopted(kind: Kind, size: int) -> None:
    inner = MemoryBackend()
    payload = (b"compressible " * size)[:size]
    link = put(inner, kind, payload)
    counting = CountingBackend(inner)
    assert put(counting, kind, payload) == link
    assert counting.count["overwrite"] == 0
    assert payload_of(inner, link.digest) == payload


def test_what_another_version_compressed_otherwise_is_adopted() -> None:
    backend = MemoryBackend()
    payload = WELL_COMPRESSED * 300
    encoded = encode_object(Kind.MODEL, payload)
    packed = zstandard.ZstdCompressor(level=19).compress(b"".join(encoded.parts))
    backend.create(object_key(encoded.link.digest), (packed,))
    assert put(backend, Kind.MODEL, payload) == encoded.link
    assert backend.read(object_key(encoded.link.digest)) == packed


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "a flipped bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "something else": lambda data: b"x" * len(data),
    "another object": lambda _: b"".join(encode_object(Kind.BLOB, b"another").parts),
}


@pytest.mark.together
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("kind", [Kind.BLOB, Kind.MODEL])
@pytest.mark.parametrize("payload", [b"small", WELL_COMPRESSED], ids=len)
def test_a_damaged_object_is_repaired_by_who_puts_it_again(
    backend: Backend, kind: Kind, payload: bytes, damage: Callable[[bytes], bytes]
) -> None:
    link = put(backend, kind, payload)
    key = object_key(link.digest)
    backend.overwrite(key, (damage(backend.read(key)),))
    assert put(backend, kind, payload) == link
    assert payload_of(backend, link.digest) == payload


@pytest.mark.parametrize("damage", ["empty", "cut short"])
def test_a_large_object_that_is_cut_short_is_refused_with_what_to_do(
    backend: Backend, damage: str
) -> None:
    link = put(backend, Kind.BLOB, bytes(LARGE))
    key = object_key(link.digest)
    backend.overwrite(key, (DAMAGES[damage](backend.read(key)),))
    with pytest.raises(CorruptError, match="fsck --deep --repair"):
        put(backend, Kind.BLOB, bytes(LARGE))
    backend.delete(key)
    put(backend, Kind.BLOB, bytes(LARGE))
    assert payload_of(backend, link.digest) == bytes(LARGE)


def test_a_large_manifest_that_is_damaged_is_not_adopted(backend: Backend) -> None:
    link = put(backend, Kind.MODEL, bytes(LARGE))
    key = object_key(link.digest)
    backend.overwrite(key, (DAMAGES["a flipped bit"](backend.read(key)),))
    with pytest.raises(CorruptError):
        put(backend, Kind.MODEL, bytes(LARGE))


def test_what_is_put_while_another_thread_flushes_is_looked_at_by_the_next_flush(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = put(backend, Kind.BLOB, b"damaged")
    key = object_key(link.digest)
    backend.overwrite(key, (DAMAGES["a flipped bit"](backend.read(key)),))
    writer = ObjectWriter(ObjectStore(backend), ())
    first = writer.put(Kind.BLOB, b"first")
    finish = writer._uploads.finish

    def finish_and_put() -> dict[str, bool]:
        finished = finish()
        monkeypatch.setattr(writer._uploads, "finish", finish)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(writer.put, Kind.BLOB, b"damaged").result(30) == link
        return finished

    monkeypatch.setattr(writer._uploads, "finish", finish_and_put)
    writer.flush()
    assert payload_of(backend, first.digest) == b"first"
    assert bytes(writer.get(link.digest).payload) == b"damaged"  # from memory, or mended
    writer.flush()
    assert payload_of(backend, link.digest) == b"damaged"


def test_threads_may_read_and_flush_what_others_put(backend: Backend) -> None:
    """Of models of one transaction, each is read as a possible base while the next is stored."""
    writer = ObjectWriter(ObjectStore(backend), ())

    def put_and_read(number: int) -> None:
        for at in range(40):
            payload = f"{number} {at}".encode() * 10
            link = writer.put(Kind.BLOB, payload)
            assert bytes(writer.read_range(link, 0, 5)) == payload[:5]
            assert bytes(writer.get(link.digest).payload) == payload

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put_and_read, range(8)))
    writer.flush()
    assert (writer._pending, writer._pending_bytes, writer._unchecked) == ({}, 0, {})
    for digest_, link in writer.own.items():
        assert len(payload_of(backend, digest_)) == link.bytes - (link.payload_start or 0)


def put_and_flush(writer: ObjectWriter, payload: bytes) -> None:
    writer.put(Kind.BLOB, payload)
    writer.flush()


@pytest.mark.parametrize("late", [False, True], ids=["at put", "at flush"])
@pytest.mark.parametrize("mode", ["before", "after", "later"])
def test_an_upload_that_failed_is_never_believed(mode: str, *, late: bool) -> None:
    inner = MemoryBackend()
    failing = LostReplyBackend(inner, 1, mode, late=late)  # type: ignore[arg-type]
    writer = ObjectWriter(ObjectStore(failing), ())
    with pytest.raises(StorageError, match="lost"):
        put_and_flush(writer, b"content")
    with pytest.raises(StorageError, match="Begin it again"):
        writer.put(Kind.BLOB, b"content")
    with pytest.raises(StorageError, match="Begin it again"):
        writer.flush()


def test_an_interrupted_upload_is_never_believed() -> None:
    class Interrupted(WrappedBackend):
        def step(self, verb: str, key: str, work: Callable[[], object]) -> object:  # type: ignore[override]
            raise KeyboardInterrupt

    writer = ObjectWriter(ObjectStore(Interrupted(MemoryBackend())), ())
    with pytest.raises(KeyboardInterrupt):
        writer.put(Kind.BLOB, b"content")
    with pytest.raises(StorageError, match=r"\(KeyboardInterrupt\). Begin it again"):
        writer.flush()


def test_an_object_is_stored_under_the_newest_label_that_its_writer_knows_of() -> None:
    backend = MemoryBackend()
    name = put(backend, Kind.BLOB, b"content").digest
    graves = (grave(backend, 5, name), grave(backend, 9, name), grave(backend, 12, digest(1)))
    put(backend, Kind.BLOB, b"content", graves=graves)
    assert backend.size(object_key(name, 9)) is not None
    assert ObjectStore(backend).label(name, graves) == 9
    assert ObjectStore(backend).label(name, graves[:1]) == 5


def test_a_writer_holds_only_so_many_bytes_that_are_not_durable(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_PENDING_BYTES", 10_000)
    writer = ObjectWriter(ObjectStore(backend), ())
    payloads = [b"%04d" % n * 250 for n in range(100)]
    links = [writer.put(Kind.BLOB, payload) for payload in payloads]
    held = sum(encoded.link.bytes for encoded in writer._pending.values())
    assert held == writer._pending_bytes <= 10_000
    assert bytes(writer.get(links[0].digest).payload) == payloads[0]
    writer.flush()
    assert writer._pending_bytes == 0
    assert [payload_of(backend, link.digest) for link in links] == payloads


def test_what_a_writer_holds_no_longer_is_adopted_by_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "_PENDING_BYTES", 0)
    backend = MemoryBackend()
    link = put(backend, Kind.BLOB, b"content")
    assert put(backend, Kind.BLOB, b"content") == link
    backend.overwrite(object_key(link.digest), (b"short",))
    with pytest.raises(CorruptError, match="fsck --deep --repair"):
        put(backend, Kind.BLOB, b"content")

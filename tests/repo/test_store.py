"""Objects come back whole or not at all, from wherever they lie."""

from __future__ import annotations

import contextlib
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo import store as store_module
from tensorrepo.repo import writer as writer_module
from tensorrepo.repo.atrest import expand, stored_form
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.cache import DiskCache
from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.graves import encode_graves, object_key
from tensorrepo.repo.ids import content_tag, object_digest
from tensorrepo.repo.objects import Envelope, Kind, Link, encode_object
from tensorrepo.repo.state import Grave
from tensorrepo.repo.store import ObjectStore, _Recent
from tensorrepo.repo.writer import ObjectWriter
from tests.support.faults import CountingBackend, LostReplyBackend, WrappedBackend
from tests.support.log import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tensorrepo.repo.backends.base import Backend
    from tensorrepo.repo.ids import Buffer, Digest

RANGED = (Kind.BLOB, Kind.CHUNK, Kind.PACK)
WELL_COMPRESSED = b"".join(b"line %d\n" % n for n in range(2000))
LARGE = 3 << 20  # more than is remembered


def put(
    backend: Backend,
    kind: Kind,
    payload: Buffer,
    links: Sequence[Digest] = (),
    graves: tuple[Grave, ...] = (),
) -> Link:
    """Store one object, as a writer with no memory of anything."""
    writer = ObjectWriter(ObjectStore(backend), graves)
    link = writer.put(kind, payload, links)
    writer.flush()
    return link


def payload_of(backend: Backend, name: Digest) -> bytes:
    return bytes(ObjectStore(backend).get(name).payload)


def place(backend: Backend, data: bytes, label: int = 0) -> Digest:
    """Any bytes under the name that they have."""
    name = object_digest((data,))
    backend.overwrite(object_key(name, label), (data,))
    return name


@pytest.fixture(params=["memory", "local"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return MemoryBackend() if request.param == "memory" else LocalBackend(tmp_path / "store")


# ---- what is put comes back


@pytest.mark.parametrize("payload", [b"", b"short", WELL_COMPRESSED, bytes(LARGE)], ids=len)
@pytest.mark.parametrize("kind", Kind)
def test_an_object_of_every_kind_comes_back(backend: Backend, kind: Kind, payload: bytes) -> None:
    child = put(backend, Kind.BLOB, b"child")
    link = put(backend, kind, payload, [child.digest])
    envelope = ObjectStore(backend).get(link.digest)
    assert (envelope.kind, envelope.links, bytes(envelope.payload)) == (kind, (child,), payload)
    assert ObjectStore(backend).describe(link.digest) == link


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


def test_an_absent_object_is_not_found_by_name(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match=r"0000000000.*tensorrepo doctor"):
        ObjectStore(backend).get(digest(7))


def test_an_aborted_writer_stores_nothing_that_is_seen_by_accident(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    writer = ObjectWriter(ObjectStore(backend), ())
    link = writer.put(Kind.BLOB, b"gone")
    writer.abort()
    assert list(backend.list("")) == []
    with pytest.raises(NotFoundError):
        ObjectStore(backend).get(link.digest)


# ---- what is stored, and that names do not depend on it


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in RANGED])
def test_metadata_is_compressed_where_that_pays(kind: Kind) -> None:
    backend = MemoryBackend()
    link = put(backend, kind, WELL_COMPRESSED)
    stored = backend.read(object_key(link.digest))
    assert stored[:4] == store_module.ZSTD_MAGIC
    assert len(stored) < link.bytes // 2


@pytest.mark.parametrize("kind", RANGED)
def test_what_is_read_in_ranges_is_never_compressed(kind: Kind) -> None:
    backend = MemoryBackend()
    link = put(backend, kind, WELL_COMPRESSED)
    assert len(backend.read(object_key(link.digest))) == link.bytes


@pytest.mark.parametrize("payload", [b"", b"small", bytes(300), bytes(5000)], ids=len)
def test_metadata_that_is_small_or_would_be_is_stored_as_it_is(payload: bytes) -> None:
    """The first 32 bytes of any stored object can be read."""
    backend = MemoryBackend()
    link = put(backend, Kind.MODEL, payload)
    assert len(backend.read(object_key(link.digest))) == link.bytes


@given(st.binary(max_size=3000), st.sampled_from([1, 3, 19]))
def test_a_name_is_that_of_the_bytes_before_compression(content: bytes, level: int) -> None:
    """Another version, or another level, stores other bytes: every reader takes them all."""
    backend = MemoryBackend()
    payload = bytes(range(256)) + content  # never less than 64 bytes
    encoded = encode_object(Kind.MODEL, payload)
    whole = b"".join(encoded.parts)
    packed = zstandard.ZstdCompressor(level=level).compress(whole)
    backend.create(object_key(encoded.link.digest), (packed,))
    assert encoded.link.digest == object_digest((whole,))
    assert expand(b"".join(stored_form(encoded)), encoded.link.digest) == whole
    assert payload_of(backend, encoded.link.digest) == payload
    assert ObjectStore(backend).describe(encoded.link.digest) == encoded.link


def test_a_compressed_object_cannot_make_a_reader_allocate_what_it_claims() -> None:
    bomb = zstandard.ZstdCompressor().compress(bytes(65 << 20))
    assert len(bomb) < 10_000
    with pytest.raises(CorruptError, match=f"claims {65 << 20} bytes"):
        expand(bomb, digest(1))


def test_a_compressed_object_must_say_its_size() -> None:
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(WELL_COMPRESSED)
    with pytest.raises(CorruptError, match="claims"):
        expand(silent, digest(1))


@pytest.mark.parametrize("cut", [4, 5, 10, -1])
def test_a_compressed_object_that_was_cut_short_is_corrupt(cut: int) -> None:
    packed = zstandard.ZstdCompressor().compress(WELL_COMPRESSED)
    with pytest.raises(CorruptError, match="damaged"):
        expand(packed[:cut], digest(1))


# ---- adoption (rule W1)


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
    with pytest.raises(CorruptError, match="delete that one file and repeat"):
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


# ---- after a failure nothing is taken for stored


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
    with pytest.raises(StorageError, match="Begin it again"):
        writer.flush()


# ---- where an object is looked for


def grave(backend: Backend, generation: int, *names: Digest) -> Grave:
    """A condemnation of `names` at `generation`."""
    table = put(backend, Kind.GRAVES, encode_graves((name, generation) for name in names))
    return Grave(generation, digest(0), table.digest)


def object_reads(counting: CountingBackend, name: Digest) -> list[str]:
    """Labels under which `name` was asked for, in order; "list" for a listing."""
    keys = [key for verb, key in counting.operations if verb == "read"]
    bare = object_key(name)
    labels = [key.removeprefix(bare) or "0" for key in keys if key.startswith(bare)]
    return labels + [verb for verb, _ in counting.operations if verb == "list"]


def test_an_object_is_stored_under_the_newest_label_that_its_writer_knows_of() -> None:
    backend = MemoryBackend()
    name = put(backend, Kind.BLOB, b"content").digest
    graves = (grave(backend, 5, name), grave(backend, 9, name), grave(backend, 12, digest(1)))
    put(backend, Kind.BLOB, b"content", graves=graves)
    assert backend.size(object_key(name, 9)) is not None
    assert ObjectStore(backend).label(name, graves) == 9
    assert ObjectStore(backend).label(name, graves[:1]) == 5


def test_an_object_is_sought_without_label_first_then_newest_label_first_then_by_listing() -> None:
    inner = MemoryBackend()
    name = put(inner, Kind.BLOB, b"content").digest
    known = (grave(inner, 5, name), grave(inner, 9, name))
    newer = (*known, grave(inner, 20, name))
    inner.delete(object_key(name))
    counting = CountingBackend(inner)
    store = ObjectStore(counting, condemned=lambda: known, refresh=lambda: newer)
    with pytest.raises(NotFoundError):
        store.get(name)
    assert object_reads(counting, name) == ["0", ".9", ".5", ".20", "list"]


@pytest.mark.parametrize(("label", "asked"), [(0, ["0"]), (9, ["0", ".9"]), (20, None)])
def test_looking_ends_with_the_first_incarnation(label: int, asked: list[str] | None) -> None:
    inner = MemoryBackend()
    name = put(inner, Kind.BLOB, b"content").digest
    known = (grave(inner, 5, name), grave(inner, 9, name))
    newer = (*known, grave(inner, 20, name))
    data = inner.read(object_key(name))
    inner.delete(object_key(name))
    inner.create(object_key(name, label), (data,))
    counting = CountingBackend(inner)
    store = ObjectStore(counting, condemned=lambda: known, refresh=lambda: newer)
    assert bytes(store.get(name).payload) == b"content"
    assert object_reads(counting, name) == (asked or ["0", ".9", ".5", ".20"])


@pytest.mark.parametrize("label", [1, 77, 10**12])
def test_an_incarnation_that_no_grave_names_is_found_by_listing(
    backend: Backend, label: int
) -> None:
    link = put(backend, Kind.BLOB, b"content")
    key = object_key(link.digest)
    backend.create(object_key(link.digest, label), (backend.read(key),))
    backend.delete(key)
    assert payload_of(backend, link.digest) == b"content"
    assert bytes(ObjectStore(backend).read_range(link, 1, 4)) == b"ont"
    assert ObjectStore(backend).describe(link.digest) == link


def test_a_damaged_incarnation_is_passed_over_for_a_whole_one(backend: Backend) -> None:
    link = put(backend, Kind.BLOB, b"content")
    key = object_key(link.digest)
    backend.create(object_key(link.digest, 3), (backend.read(key),))
    backend.overwrite(key, (b"damaged",))
    assert payload_of(backend, link.digest) == b"content"


def test_of_damaged_incarnations_alone_nothing_is_returned(backend: Backend) -> None:
    name = put(backend, Kind.BLOB, b"content").digest
    backend.overwrite(object_key(name), (b"damaged",))
    backend.create(object_key(name, 3), (b"damaged too",))
    with pytest.raises(CorruptError, match=str(name[:12])):
        ObjectStore(backend).get(name)


class LiesOnce(WrappedBackend):
    """The first read of each key comes back with a bit flipped, as from a bad cable."""

    def __init__(self, inner: Backend, times: int = 1) -> None:
        super().__init__(inner)
        self.times = times
        self.lies = 0

    def read(self, key: str) -> bytes:
        return bytes(self._bend(self.inner.read(key)))

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        return self._bend(self.inner.read_range(key, start, stop))

    def _bend(self, data: Buffer) -> Buffer:
        if self.lies >= self.times:
            return data
        self.lies += 1
        return bytes(data[:-1]) + bytes([data[-1] ^ 4])


def test_a_whole_read_that_does_not_verify_is_repeated_once() -> None:
    inner = MemoryBackend()
    name = put(inner, Kind.BLOB, b"content").digest
    assert payload_of(LiesOnce(inner), name) == b"content"
    with pytest.raises(CorruptError):
        payload_of(LiesOnce(inner, times=2), name)


def test_a_checked_range_that_does_not_verify_is_asked_for_once_more() -> None:
    inner = MemoryBackend()
    link = put(inner, Kind.CHUNK, b"0123456789")
    tag = content_tag(b"3456")
    assert ObjectStore(LiesOnce(inner)).read_checked(link, 3, 7, tag) == b"3456"
    with pytest.raises(CorruptError, match="payload bytes 3 to 7") as caught:
        ObjectStore(LiesOnce(inner, times=2)).read_checked(link, 3, 7, tag)
    assert tag.hex()[:16] in str(caught.value)


def test_find_gives_each_digest_of_a_prefix_once(backend: Backend) -> None:
    links = [put(backend, Kind.BLOB, b"%d" % n) for n in range(64)]
    first = links[0].digest
    backend.create(object_key(first, 5), (backend.read(object_key(first)),))
    backend.create("objects/" + first[:2] + "/no-object", (b"",))
    expected = sorted(link.digest for link in links if link.digest.startswith(first[:3]))
    assert sorted(ObjectStore(backend).find(first[:3])) == expected


# ---- what a parent or a header says


def test_a_header_is_not_believed_where_the_object_is_damaged(backend: Backend) -> None:
    """What `describe` says is written into parents for ever."""
    link = put(backend, Kind.BLOB, b"content")
    key = object_key(link.digest)
    data = bytearray(backend.read(key))
    data[16] -= 1  # payload_bytes
    backend.overwrite(key, (bytes(data),))
    with pytest.raises(CorruptError):
        ObjectStore(backend).describe(link.digest)


def test_the_header_of_a_large_object_must_fit_its_size(backend: Backend) -> None:
    link = put(backend, Kind.BLOB, bytes(LARGE))
    assert ObjectStore(backend).describe(link.digest) == link
    key = object_key(link.digest)
    data = bytearray(backend.read(key))
    data[16] += 1
    backend.overwrite(key, (bytes(data),))
    with pytest.raises(CorruptError, match="its header promises"):
        ObjectStore(backend).describe(link.digest)


def test_what_a_parent_said_needs_no_request() -> None:
    inner = MemoryBackend()
    child = put(inner, Kind.CHUNK, b"child")
    parent = put(inner, Kind.LEAF, b"parent", [child.digest])
    counting = CountingBackend(inner)
    store = ObjectStore(counting)
    store.get(parent.digest)
    counting.reset()
    assert store.describe(child.digest) == child
    assert counting.operations == []


# ---- what this version does not know


def test_an_envelope_of_a_newer_version_is_unsupported(backend: Backend) -> None:
    data = bytearray(b"".join(encode_object(Kind.BLOB, b"content").parts))
    data[4] = 2
    name = place(backend, bytes(data))
    with pytest.raises(UnsupportedError, match="version 2"):
        ObjectStore(backend).get(name)
    with pytest.raises(UnsupportedError, match="version 2"):
        ObjectStore(backend).describe(name)


def test_a_kind_that_is_unknown_here_is_unsupported(backend: Backend) -> None:
    data = bytearray(b"".join(encode_object(Kind.BLOB, b"content").parts))
    data[5] = 200
    name = place(backend, bytes(data))
    with pytest.raises(UnsupportedError, match="kind 200"):
        ObjectStore(backend).get(name)


def test_an_object_of_another_kind_is_not_taken_for_a_commit(backend: Backend) -> None:
    name = put(backend, Kind.TREE_PAGE, b"content").digest
    with pytest.raises(InvalidInputError, match="tree page, not a commit"):
        read_commit(ObjectStore(backend), name)


def test_an_object_that_is_no_table_of_graves_is_not_taken_for_one(backend: Backend) -> None:
    name = put(backend, Kind.BLOB, b"11 bytes...").digest
    with pytest.raises(CorruptError, match="grave table"):
        ObjectStore(backend).label(digest(1), (Grave(3, digest(0), name),))


# ---- the cache on disk


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path / "cache", 10 << 20)


def damage_cache(cache: DiskCache) -> None:
    for path in cache.root.rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[0] ^= 1
            path.write_bytes(bytes(data))


def test_what_was_read_once_comes_from_the_cache(cache: DiskCache) -> None:
    inner = MemoryBackend()
    link = put(inner, Kind.CHUNK, b"0123456789")
    manifest = put(inner, Kind.MODEL, WELL_COMPRESSED)
    tag = content_tag(b"3456")
    ObjectStore(inner, cache=cache).read_checked(link, 3, 7, tag)
    ObjectStore(inner, cache=cache).get(manifest.digest)
    counting = CountingBackend(inner)
    store = ObjectStore(counting, cache=cache)
    assert bytes(store.read_checked(link, 3, 7, tag)) == b"3456"
    assert bytes(store.get(manifest.digest).payload) == WELL_COMPRESSED
    assert counting.operations == []


def test_a_damaged_cache_falls_back_to_the_store_and_is_mended(cache: DiskCache) -> None:
    inner = MemoryBackend()
    link = put(inner, Kind.CHUNK, b"0123456789")
    manifest = put(inner, Kind.MODEL, WELL_COMPRESSED)
    tag = content_tag(b"3456")
    store = ObjectStore(inner, cache=cache)
    store.read_checked(link, 3, 7, tag)
    store.get(manifest.digest)
    damage_cache(cache)
    fresh = ObjectStore(inner, cache=cache)
    assert bytes(fresh.read_checked(link, 3, 7, tag)) == b"3456"
    assert bytes(fresh.get(manifest.digest).payload) == WELL_COMPRESSED
    counting = CountingBackend(inner)
    ObjectStore(counting, cache=cache).get(manifest.digest)
    ObjectStore(counting, cache=cache).read_checked(link, 3, 7, tag)
    assert counting.operations == []


def test_a_cache_that_holds_another_object_under_a_name_is_not_believed(cache: DiskCache) -> None:
    inner = MemoryBackend()
    manifest = put(inner, Kind.MODEL, WELL_COMPRESSED)
    cache.put(manifest.digest, encode_object(Kind.MODEL, b"another").parts)
    store = ObjectStore(inner, cache=cache)
    assert bytes(store.get(manifest.digest).payload) == WELL_COMPRESSED


def test_ranges_with_one_start_are_told_apart_in_the_cache(cache: DiskCache) -> None:
    inner = MemoryBackend()
    link = put(inner, Kind.CHUNK, b"0123456789")
    store = ObjectStore(inner, cache=cache)
    assert bytes(store.read_checked(link, 0, 4, content_tag(b"0123"))) == b"0123"
    assert bytes(store.read_checked(link, 0, 9, content_tag(b"012345678"))) == b"012345678"


def test_a_repository_on_this_disk_is_not_cached_on_it_again(
    tmp_path: Path, cache: DiskCache
) -> None:
    backend = LocalBackend(tmp_path / "store")
    manifest = put(backend, Kind.MODEL, WELL_COMPRESSED)
    ObjectStore(backend, cache=cache).get(manifest.digest)
    assert not cache.root.exists()


# ---- mapping


@pytest.mark.parametrize("kind", [Kind.CHUNK, Kind.PACK, Kind.BLOB])
def test_a_local_object_is_mapped_and_writing_to_the_map_changes_no_file(
    tmp_path: Path, kind: Kind
) -> None:
    backend = LocalBackend(tmp_path)
    payload = bytes(range(256)) * 64
    link = put(backend, kind, payload)
    mapped = ObjectStore(backend).map(link)
    assert mapped is not None
    assert bytes(mapped) == payload
    mapped[0] = 99
    assert payload_of(backend, link.digest) == payload


def test_a_map_is_shared_and_outlives_the_store(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    link = put(backend, Kind.CHUNK, b"0123456789")
    store = ObjectStore(backend)
    mapped = store.map(link)
    assert mapped is store.map(link)
    backend.delete(object_key(link.digest))
    del store
    gc.collect()
    assert mapped is not None
    assert bytes(mapped) == b"0123456789"


def test_nothing_is_mapped_that_lies_elsewhere() -> None:
    backend = MemoryBackend()
    link = put(backend, Kind.CHUNK, b"0123456789")
    assert ObjectStore(backend).map(link) is None


@pytest.mark.parametrize("size", [0, 10, 4096, 4106])
def test_a_mapped_object_of_another_size_is_corrupt(tmp_path: Path, size: int) -> None:
    backend = LocalBackend(tmp_path)
    link = put(backend, Kind.CHUNK, b"0123456789" * 2)
    backend.overwrite(object_key(link.digest), (bytes(size),))
    with pytest.raises((CorruptError, StorageError)):
        ObjectStore(backend).map(link)


def test_only_so_many_maps_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_MAPS", 3)
    backend = LocalBackend(tmp_path)
    links = [put(backend, Kind.CHUNK, b"%d" % n) for n in range(8)]
    store = ObjectStore(backend)
    assert [bytes(store.map(link) or b"") for link in links] == [b"%d" % n for n in range(8)]
    assert len(store._maps) == 3


# ---- memory


ENVELOPES = st.builds(
    lambda size: Envelope(Kind.BLOB, (), memoryview(bytes(size))), st.integers(0, 3000)
)


@given(st.lists(st.tuples(st.integers(0, 9), ENVELOPES), max_size=40), st.integers(0, 9))
def test_what_is_remembered_stays_within_its_limit(
    puts: list[tuple[int, Envelope]], used: int
) -> None:
    recent = _Recent(8000)
    first: dict[Digest, Envelope] = {}
    for number, envelope in puts:
        recent.put(digest(number), envelope)
        recent.get(digest(used))
        if digest(number) in recent._items:
            first.setdefault(digest(number), envelope)
    costs = [store_module._cost(envelope) for envelope in recent._items.values()]
    assert recent._bytes == sum(costs) <= 8000


def test_what_was_used_last_is_remembered_longest() -> None:
    recent = _Recent(3 * 1500)
    envelope = Envelope(Kind.BLOB, (), memoryview(bytes(1000)))
    recent.put(digest(1), envelope)
    recent.put(digest(2), envelope)
    recent.get(digest(1))
    recent.put(digest(3), envelope)
    recent.put(digest(4), envelope)
    assert [recent.get(digest(n)) is not None for n in (1, 2, 3, 4)] == [True, False, True, True]


def test_large_objects_are_not_remembered() -> None:
    backend = MemoryBackend()
    link = put(backend, Kind.BLOB, bytes(LARGE))
    counting = CountingBackend(backend)
    store = ObjectStore(counting)
    store.get(link.digest)
    store.get(link.digest)
    assert counting.count["read"] == 2


def test_small_objects_are_remembered() -> None:
    backend = MemoryBackend()
    link = put(backend, Kind.BLOB, b"small")
    counting = CountingBackend(backend)
    store = ObjectStore(counting)
    store.get(link.digest)
    store.get(link.digest)
    assert counting.count["read"] == 1


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
    with pytest.raises(CorruptError, match="delete that one file"):
        put(backend, Kind.BLOB, b"content")


def test_what_parents_said_is_forgotten_before_it_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_module, "_REMEMBERED_LINKS", 10)
    backend = MemoryBackend()
    children = [put(backend, Kind.CHUNK, b"%d" % n).digest for n in range(8)]
    parents = [put(backend, Kind.LEAF, b"%d" % n, children[n:]).digest for n in range(8)]
    store = ObjectStore(backend)
    for parent in parents:
        store.get(parent)
        assert len(store._links) <= 10
    assert store.describe(children[0]).digest == children[0]


def test_reading_an_absent_range_says_that_it_is_absent(backend: Backend) -> None:
    link = Link(digest(9), 100, Kind.BLOB, leaf=True)
    with pytest.raises(NotFoundError):
        ObjectStore(backend).read_range(link, 0, 5)
    with contextlib.suppress(NotFoundError):
        assert ObjectStore(backend).map(link) is None


# ---- commits that are at hand


def test_only_commits_that_a_child_named_are_looked_for_in_the_past() -> None:
    backend = MemoryBackend()
    parent = put(backend, Kind.COMMIT, b"parent")
    blob = put(backend, Kind.BLOB, b"content")
    child = put(backend, Kind.COMMIT, b"child", [parent.digest, blob.digest])
    asked: list[Digest] = []
    store = ObjectStore(backend, past=asked.append)
    for link in (child, blob, parent):
        store.get(link.digest)
    assert asked == [parent.digest]


def test_a_commit_that_is_at_hand_is_not_read_from_the_store(tmp_path: Path) -> None:
    backend = CountingBackend(MemoryBackend())
    parent = put(backend, Kind.COMMIT, b"parent")
    child = put(backend, Kind.COMMIT, b"child", [parent.digest])
    whole = b"".join(encode_object(Kind.COMMIT, b"parent").parts)
    cache = DiskCache(tmp_path, 1 << 20)
    store = ObjectStore(backend, cache=cache, past={parent.digest: whole}.get)
    store.get(child.digest)
    backend.reset()
    assert bytes(store.get(parent.digest).payload) == b"parent"
    assert backend.round_trips == 0
    assert cache.get(parent.digest) == whole  # for the next process


def test_what_is_at_hand_but_is_another_object_is_never_returned() -> None:
    backend = MemoryBackend()
    parent = put(backend, Kind.COMMIT, b"parent")
    child = put(backend, Kind.COMMIT, b"child", [parent.digest])
    other = b"".join(encode_object(Kind.COMMIT, b"other").parts)
    store = ObjectStore(backend, past=lambda _: other)
    store.get(child.digest)
    assert bytes(store.get(parent.digest).payload) == b"parent"

"""Objects come back whole or not at all, from wherever they lie."""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path
from weakref import ref

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.state import Condemnation
from tensorrepo.repo.objects import mapping
from tensorrepo.repo.objects import store as store_module
from tensorrepo.repo.objects.cache import DiskCache
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, encode_object
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tests.support.builders.log import digest
from tests.support.builders.stored import LARGE, WELL_COMPRESSED, grave, payload_of, place, put
from tests.support.faults.backends import CountingBackend, WrappedBackend


@pytest.fixture(params=["memory", "local"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return MemoryBackend() if request.param == "memory" else LocalBackend(tmp_path / "store")


@pytest.mark.together
@pytest.mark.parametrize("payload", [b"", b"short", WELL_COMPRESSED, bytes(LARGE)], ids=len)
@pytest.mark.parametrize("kind", Kind)
def test_an_object_of_every_kind_comes_back(backend: Backend, kind: Kind, payload: bytes) -> None:
    child = put(backend, Kind.BLOB, b"child")
    link = put(backend, kind, payload, [child.digest])
    envelope = ObjectStore(backend).get(link.digest)
    assert (envelope.kind, envelope.links, bytes(envelope.payload)) == (kind, (child,), payload)
    assert ObjectStore(backend).describe(link.digest) == link
    assert ObjectStore(backend).unlinked(link.digest) == (kind, payload)


def test_an_absent_object_is_not_found_by_name(backend: Backend) -> None:
    with pytest.raises(NotFoundError, match=r"0000000000.*tensorrepo fsck"):
        ObjectStore(backend).get(digest(7))


def object_reads(counting: CountingBackend, name: Digest) -> list[str]:
    """Labels under which `name` was asked for, in order; "list" for a listing."""
    keys = [key for verb, key in counting.operations if verb == "read"]
    bare = object_key(name)
    labels = [key.removeprefix(bare) or "0" for key in keys if key.startswith(bare)]
    return labels + [verb for verb, _ in counting.operations if verb == "list"]


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


def test_tables_that_are_merged_and_taken_again_and_again_are_read_as_they_are_then() -> None:
    inner = MemoryBackend()
    name = put(inner, Kind.BLOB, b"content").digest
    states = [(grave(inner, generation, name),) for generation in (5, 9, 20)]
    for (taken,) in states[:2]:
        inner.delete(object_key(taken.graves))
    later = iter(states[1:])
    store = ObjectStore(inner, refresh=lambda: next(later))
    assert store.label(name, states[0]) == 20
    inner.delete(object_key(states[2][0].graves))
    missing = ObjectStore(inner, refresh=lambda: states[2])
    with pytest.raises(NotFoundError):  # it is gone, and nobody merged it
        missing.label(name, states[0])


def test_tables_that_were_merged_are_let_go() -> None:
    inner = MemoryBackend()
    name = put(inner, Kind.BLOB, b"content").digest
    states = [(grave(inner, 5, name), grave(inner, 9, name)), (grave(inner, 20, name),)]
    known = states[0]
    counting = CountingBackend(inner)
    store = ObjectStore(counting, condemned=lambda: known)
    merged = [ref(store.table(each)) for each in known]
    assert all(table() is not None for table in merged)
    known = states[1]
    store.table(known[0])
    assert [table() for table in merged] == [None, None]
    counting.operations.clear()
    for _ in range(2):  # a writer that began before asks by them, and reads each once
        assert store.label(name, states[0]) == 9
    assert len(counting.operations) == 2


def test_who_asks_all_tables_does_not_mind_one_that_another_thread_reads_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inner = MemoryBackend()
    first, second = grave(inner, 5, digest(1)), grave(inner, 9, digest(2))
    store = ObjectStore(inner)
    table = store.table(first)
    label = table.label
    monkeypatch.setattr(table, "label", lambda name: [store.table(second), label(name)][1])
    with pytest.raises(NotFoundError, match="was collected"):
        store.get(digest(7))


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
    assert ObjectStore(backend).unlinked(link.digest) == (Kind.BLOB, b"content")


def test_of_damaged_incarnations_alone_nothing_is_returned(backend: Backend) -> None:
    name = put(backend, Kind.BLOB, b"content").digest
    backend.overwrite(object_key(name), (b"damaged",))
    backend.create(object_key(name, 3), (b"damaged too",))
    for read in (ObjectStore(backend).get, ObjectStore(backend).unlinked):
        with pytest.raises(CorruptError, match=str(name[:12])):
            read(name)


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
        ObjectStore(backend).label(digest(1), (Condemnation(3, digest(0), name),))


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


def test_bytes_proved_by_another_tag_do_not_come_from_the_cache(cache: DiskCache) -> None:
    inner = MemoryBackend()
    link = put(inner, Kind.CHUNK, b"0123456789")
    hostile = ObjectStore(LiesOnce(inner), cache=cache)
    assert bytes(hostile.read_checked(link, 3, 7, content_tag(b"3452"))) == b"3452"
    store = ObjectStore(inner, cache=cache)
    assert bytes(store.read_checked(link, 3, 7, content_tag(b"3456"))) == b"3456"


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
    monkeypatch.setattr(mapping, "MAPPED_BYTES", 3 * mapping.LEAST_MAPPED_BYTES)
    backend = LocalBackend(tmp_path)
    links = [put(backend, Kind.CHUNK, b"%d" % n) for n in range(8)]
    store = ObjectStore(backend)
    assert [bytes(store.map(link) or b"") for link in links] == [b"%d" % n for n in range(8)]
    assert len(store._maps._items) == 3


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
    link = ObjectLink(digest(9), 100, Kind.BLOB, leaf=True)
    with pytest.raises(NotFoundError):
        ObjectStore(backend).read_range(link, 0, 5)
    with contextlib.suppress(NotFoundError):
        assert ObjectStore(backend).map(link) is None


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

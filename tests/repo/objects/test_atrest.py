"""What lies on disk for an object, and that names do not depend on it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import (
    CorruptError,
)
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.objects import store as store_module
from tensorrepo.repo.objects.envelope import Kind, encode_object, expand, stored_form, stored_forms
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tests.support.builders.log import digest
from tests.support.builders.stored import WELL_COMPRESSED, payload_of, put

if TYPE_CHECKING:
    pass

RANGED = (Kind.BLOB, Kind.CHUNK, Kind.PACK, Kind.HISTORY_PACK)


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


def test_many_at_once_are_stored_as_one_by_one() -> None:
    payloads = [WELL_COMPRESSED, b"small", bytes(range(256)) * 8, random.Random(1).randbytes(9000)]
    kinds = (Kind.TREE_PAGE, Kind.BLOB, Kind.MODEL)
    many = [encode_object(kind, payload) for payload in payloads for kind in kinds]
    for some in (many, many[:1], many[1:2], []):
        forms = [b"".join(form) for form in stored_forms(some)]
        assert forms == [b"".join(stored_form(encoded)) for encoded in some]


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

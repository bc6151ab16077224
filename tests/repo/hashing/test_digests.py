"""Names of objects, records and states."""

from __future__ import annotations

import os
import signal

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.hashing.digests import (
    content_tag,
    content_tags,
    object_digest,
    plain_hasher,
    record_digest,
    state_digest,
)


def test_the_name_of_no_bytes_never_changes() -> None:
    assert object_digest(()) == blake3(b"", derive_key_context="tensorrepo object v1").hexdigest()
    assert object_digest(()).startswith("8e1631f37221046a")


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_a_name_depends_on_the_bytes_and_not_on_how_they_are_cut(parts: list[bytes]) -> None:
    assert object_digest(parts) == object_digest([b"".join(parts)])


@pytest.mark.parametrize("cuts", [[0], [1], [32 << 10], [70_000, 70_001], [5, 32_768, 98_304]])
def test_a_name_is_the_same_wherever_large_parts_are_cut(cuts: list[int]) -> None:
    data = bytes(range(251)) * 800
    parts = [data[start:stop] for start, stop in zip([0, *cuts], [*cuts, None], strict=True)]
    assert (
        object_digest(parts) == blake3(data, derive_key_context="tensorrepo object v1").hexdigest()
    )


def test_a_name_is_the_same_when_it_is_computed_on_all_cores() -> None:
    data = bytes(range(256)) * 5000  # above the size from which BLAKE3 uses its threads
    assert object_digest([data]) == object_digest([data[:1000], data[1000:600_000], data[600_000:]])


def test_a_forked_process_hashes_what_is_large_as_well() -> None:
    data = bytes(range(256)) * 5000
    name, plain = object_digest([data]), plain_hasher().update(data).digest()
    # Both begin BLAKE3's threads, which the fork has not.
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # it would wait for them forever
        os._exit(object_digest([data]) == name and plain_hasher().update(data).digest() == plain)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert plain == blake3(data).digest()


@given(st.binary(max_size=100))
def test_a_name_made_for_one_purpose_is_no_name_for_another(data: bytes) -> None:
    names = {
        object_digest([data]),
        record_digest(data),
        state_digest(data),
        blake3(data).hexdigest(),
    }
    assert len(names) == 4
    assert not any(name.startswith(content_tag(data).hex()) for name in names)


def test_a_content_tag_has_16_bytes() -> None:
    assert len(content_tag(b"page")) == 16


@pytest.mark.parametrize("size", [0, 100, (32 << 10) - 1, 32 << 10, 300_000])
def test_a_content_tag_is_the_same_however_many_are_made_at_once(size: int) -> None:
    pages = [bytes([at]) * (size + at) for at in range(3)]
    tags = [
        blake3(page, derive_key_context="tensorrepo content v1").digest(length=16) for page in pages
    ]
    assert content_tags(pages) == list(map(content_tag, pages)) == tags

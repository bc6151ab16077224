"""The envelope of stored objects: what is written, and what a reader refuses."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import (
    EncodedObject,
    Kind,
    ObjectLink,
    decode_header,
    decode_object,
    decode_payload,
    encode_object,
)
from tests.support.faults.damage import short_survivors, survivors, unrefused

GOLDEN = Path(__file__).parents[2] / "golden" / "objects"

BLOB = ObjectLink(Digest("11" * 32), 69, Kind.BLOB, leaf=True)
CHUNK = ObjectLink(Digest("22" * 32), (1 << 48) - 1, Kind.CHUNK, leaf=True)
COMMIT = ObjectLink(Digest("f0" * 32), 4096, Kind.COMMIT, leaf=False)

# file in tests/golden/objects: (kind, payload, links)
CASES: dict[str, tuple[Kind, bytes, list[ObjectLink]]] = {
    "blob": (Kind.BLOB, b"hello", []),
    "empty-blob": (Kind.BLOB, b"", []),
    "tree-page": (Kind.TREE_PAGE, bytes(range(100)), [COMMIT, BLOB]),
    "chunk": (Kind.CHUNK, b"\xff" * 64, []),
    "model-of-two": (Kind.MODEL, b"manifest", [CHUNK, COMMIT, BLOB]),
}
PAYLOAD_AT = {"blob": 64, "empty-blob": 64, "tree-page": 128, "chunk": 4096, "model-of-two": 192}


def stored(encoded: EncodedObject) -> bytes:
    return b"".join(encoded.parts)


def small_object() -> bytes:
    return stored(encode_object(Kind.TREE_PAGE, b"payload", [BLOB, COMMIT]))


def with_field(at: int, layout: str, value: int) -> bytearray:
    """`small_object` with one integer of its header or links replaced."""
    data = bytearray(small_object())
    struct.pack_into(layout, data, at, value)
    return data


def links() -> st.SearchStrategy[ObjectLink]:
    return st.builds(
        ObjectLink,
        st.binary(min_size=32, max_size=32).map(lambda raw: Digest(raw.hex())),
        st.integers(0, (1 << 48) - 1),
        st.sampled_from(Kind),
        st.booleans(),
    )


# Golden files: what version 1 wrote must be read, and written alike, for ever.


@pytest.mark.parametrize("case", CASES)
def test_the_golden_file_is_what_is_written_today(case: str) -> None:
    kind, payload, linked = CASES[case]
    assert stored(encode_object(kind, payload, linked)) == (GOLDEN / f"{case}.bin").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_the_golden_file_is_read_by_the_spec_alone(case: str) -> None:
    """A second reader, written from docs/spec/objects.md with nothing but struct."""
    data = (GOLDEN / f"{case}.bin").read_bytes()
    kind, payload, linked = CASES[case]
    magic, version, kind_id, log2, flags, count, zero, size, zeros = struct.unpack(
        "<4sBBBBIIQQ", data[:32]
    )
    assert (magic, version, flags, zero, zeros) == (b"TRPO", 1, 0, 0, 0)
    start = -(-(32 + 40 * count) // (1 << log2)) * (1 << log2)
    rows = [data[at : at + 40] for at in range(32, 32 + 40 * count, 40)]
    found = [(r[:32].hex(), int.from_bytes(r[32:38], "little"), r[38], r[39]) for r in rows]
    expected = sorted((each.digest, each.bytes, int(each.kind), int(each.leaf)) for each in linked)
    assert (kind_id, found, start) == (int(kind), expected, PAYLOAD_AT[case])
    assert data[32 + 40 * count : start] == bytes(start - 32 - 40 * count)
    assert data[start:] == payload
    assert len(payload) == size


def test_the_golden_names_are_the_names_of_the_golden_files() -> None:
    names = dict(line.split() for line in (GOLDEN / "names.txt").read_text().splitlines())
    context = "tensorrepo object v1"
    found = {
        case: blake3((GOLDEN / f"{case}.bin").read_bytes(), derive_key_context=context).hexdigest()
        for case in CASES
    }
    assert found == names


@pytest.mark.parametrize("case", CASES)
def test_a_golden_file_read_back_gives_what_went_in(case: str) -> None:
    kind, payload, linked = CASES[case]
    encoded = encode_object(kind, payload, linked)
    found = decode_object((GOLDEN / f"{case}.bin").read_bytes(), encoded.link.digest)
    assert (found.kind, bytes(found.payload), found.links) == (kind, payload, tuple(sorted(linked)))


# Round trips.


@given(st.sampled_from(Kind), st.lists(st.binary(max_size=80), max_size=4), st.lists(links()))
def test_every_object_comes_back_as_it_went_in(
    kind: Kind, parts: list[bytes], linked: list[ObjectLink]
) -> None:
    encoded = encode_object(kind, parts, linked)
    data = stored(encoded)
    found = decode_object(data, encoded.link.digest)
    assert found.kind is kind
    assert bytes(found.payload) == b"".join(parts)
    assert found.links == tuple(sorted({each.digest: each for each in linked}.values()))
    assert encoded.link == ObjectLink(encoded.link.digest, len(data), kind, leaf=not found.links)


@given(st.lists(links(), unique_by=lambda link: link.digest).flatmap(st.permutations))
def test_the_order_in_which_links_are_given_does_not_matter(linked: list[ObjectLink]) -> None:
    ordered = sorted(linked, key=lambda link: link.digest)
    given_so = encode_object(Kind.COMMIT, b"c", linked)
    assert given_so.link == encode_object(Kind.COMMIT, b"c", ordered).link


def test_a_link_given_twice_is_stored_once() -> None:
    assert encode_object(Kind.COMMIT, b"", [BLOB, BLOB]).link.bytes == 32 + 40 + 56


@pytest.mark.parametrize("kind", Kind)
def test_a_leaf_says_where_its_payload_starts(kind: Kind) -> None:
    encoded = encode_object(kind, b"payload")
    assert stored(encoded)[encoded.link.payload_start :] == b"payload"


def test_only_its_own_header_says_where_the_payload_of_an_object_with_links_starts() -> None:
    assert encode_object(Kind.COMMIT, b"", [BLOB]).link.payload_start is None


@pytest.mark.parametrize("payload", [np.arange(6).reshape(2, 3), np.empty((0, 3)), np.empty(0)])
def test_the_payload_may_be_any_contiguous_array(payload: np.ndarray[Any, Any]) -> None:
    encoded = encode_object(Kind.CHUNK, [memoryview(payload)])
    assert bytes(decode_object(stored(encoded)).payload) == payload.tobytes()


def test_the_payload_is_a_read_only_view_into_what_was_read() -> None:
    data = bytearray(small_object())
    payload = decode_object(data).payload
    assert payload.readonly
    assert payload.obj is data


# What a reader refuses.


def test_no_flipped_byte_goes_unnoticed() -> None:
    name = encode_object(Kind.TREE_PAGE, b"payload", [BLOB, COMMIT]).link.digest
    found = survivors(
        small_object(),
        0xFF,
        lambda damaged: decode_object(damaged, name),
        (CorruptError,),
        match="digest",
    )
    assert found == {}


def test_the_payload_alone_is_that_of_the_whole_object() -> None:
    whole = decode_object(small_object())
    assert decode_payload(small_object()) == (whole.kind, whole.payload)
    assert short_survivors(small_object(), decode_payload) == {}


def test_an_object_cut_short_is_corrupt_even_without_its_name() -> None:
    assert short_survivors(small_object(), decode_object) == {}


def test_bytes_after_the_payload_are_corrupt() -> None:
    with pytest.raises(CorruptError, match="header promises"):
        decode_object(small_object() + b"\0")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_version_of_the_envelope_is_unsupported(version: int) -> None:
    with pytest.raises(UnsupportedError, match=f"envelope version {version}"):
        decode_object(with_field(4, "<B", version))


def test_an_unknown_kind_is_unsupported() -> None:
    unknown = sorted(set(range(256)) - set(map(int, Kind)))
    found = unrefused(
        unknown,
        lambda kind: decode_object(with_field(5, "<B", kind)),
        (UnsupportedError,),
        r"kind \d+ ",
    )
    assert found == {}
    with pytest.raises(UnsupportedError, match="kind 200 "):
        decode_object(with_field(5, "<B", 200))


def test_a_link_to_an_unknown_kind_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="links to kind 255"):
        decode_object(with_field(32 + 38, "<B", 255))


@pytest.mark.parametrize(
    ("at", "layout", "value"),
    [
        (0, "<I", 0),  # magic
        (6, "<B", 12),  # an alignment that is not the kind's
        (6, "<B", 255),
        (7, "<B", 1),  # reserved flags
        (8, "<I", 0),  # link_count: too few, too many, absurd
        (8, "<I", 1),
        (8, "<I", 3),
        (8, "<I", 0xFFFFFFFF),
        (12, "<I", 1),  # reserved
        (16, "<Q", 6),  # payload_bytes
        (16, "<Q", 8),
        (16, "<Q", 0xFFFFFFFFFFFFFFFF),
        (24, "<Q", 1),  # reserved
        (32, "<Q", 0xFFFFFFFFFFFFFFFF),  # first link's digest sorts behind the second's
        (32 + 39, "<B", 2),  # unknown link flag
        (32 + 80, "<B", 1),  # padding
        (127, "<B", 1),
    ],
)
def test_a_header_that_lies_is_corrupt_even_without_its_name(
    at: int, layout: str, value: int
) -> None:
    with pytest.raises(CorruptError):
        decode_object(with_field(at, layout, value))


def test_a_link_stored_twice_is_corrupt() -> None:
    data = bytearray(small_object())
    data[72:112] = data[32:72]
    with pytest.raises(CorruptError, match="sorted and unique"):
        decode_object(data)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_object_or_an_error_of_ours(data: bytes) -> None:
    with suppress(Error):
        assert decode_object(b"TRPO\x01" + data).payload.nbytes <= len(data)


@given(st.integers(0, 0xFFFFFFFF), st.integers(0, (1 << 64) - 1))
def test_a_header_alone_is_judged_without_allocating_what_it_promises(
    count: int, payload_bytes: int
) -> None:
    header = struct.pack("<4sBBBBIIQQ", b"TRPO", 1, Kind.COMMIT, 6, 0, count, 0, payload_bytes, 0)
    kind, links_found, start, size = decode_header(memoryview(header), None)
    assert (kind, links_found, size) == (Kind.COMMIT, count, payload_bytes)
    assert start % 64 == 0
    assert 0 <= start - 32 - 40 * count < 64


def test_the_error_names_the_object_the_expected_and_the_found_digest() -> None:
    wrong = Digest("ab" * 32)
    with pytest.raises(
        CorruptError, match=r"object abababababab: its 135 bytes have digest \w{12}"
    ):
        decode_object(small_object(), wrong)


def test_kinds_keep_their_numbers() -> None:
    numbers = (GOLDEN / "kinds.txt").read_text().split()
    assert [f"{kind.name}={int(kind)}" for kind in Kind][: len(numbers)] == numbers

"""Numbered arrays come back from a payload, or an error says what is wrong with it."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import Codec, encode_buffer
from tensorrepo.formats.dataset.pages.sections import (
    HEAD,
    SECTION,
    VERSION,
    decode_sections,
    encode_sections,
    section_array,
)
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tests.support.faults.damage import short_survivors

MAGIC = b"TEST"
ARRAYS = {
    7: np.arange(5, dtype="<u8"),
    2: np.frombuffer(b"abc", np.uint8),
    300: np.zeros(2, [("a", "<u4"), ("b", "u1")]),
}
PAYLOAD = encode_sections(MAGIC, ARRAYS)


def _section(
    number: int, stored: bytes, raw_bytes: int, codec: int = Codec.NONE, item: int = 8
) -> bytes:
    head = SECTION.pack(number, item, codec, 0, len(stored), raw_bytes)
    return head + stored + bytes(-len(stored) % 8)


def _payload(*sections: bytes) -> bytes:
    return HEAD.pack(MAGIC, VERSION, len(sections)) + b"".join(sections)


def test_arrays_come_back_in_the_order_of_their_numbers() -> None:
    found = decode_sections(MAGIC, PAYLOAD, "it")
    assert list(found) == [2, 7, 300]
    for number, array in ARRAYS.items():
        assert section_array(found, number, array.dtype, "it").tolist() == array.tolist()


def test_empty_arrays_are_left_out_and_read_as_empty() -> None:
    found = decode_sections(MAGIC, encode_sections(MAGIC, {1: np.empty(0, "<u8")}), "it")
    assert found == {}
    assert len(section_array(found, 1, np.dtype("<u8"), "it")) == 0


@pytest.mark.parametrize("codec", Codec)
def test_a_section_may_be_compressed(codec: Codec) -> None:
    numbers = np.arange(3000, dtype="<u8")
    stored = bytes(encode_buffer(codec, numbers.tobytes(), 8))
    payload = _payload(_section(1, stored, numbers.nbytes, codec))
    found = section_array(decode_sections(MAGIC, payload, "it"), 1, numbers.dtype, "it")
    assert found.tolist() == numbers.tolist()


def test_a_payload_cut_short_is_corrupt() -> None:
    found = short_survivors(PAYLOAD, lambda cut: decode_sections(MAGIC, cut, "it"), match="it: ")
    assert found == {}


@given(st.lists(st.tuples(st.integers(0, len(PAYLOAD) - 1), st.integers(0, 255)), max_size=4))
def test_damage_gives_sections_or_an_error_of_ours(changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(PAYLOAD)
    for at, value in changes:
        damaged[at] = value
    try:
        found = decode_sections(MAGIC, damaged, "it")
    except Error:
        return
    assert sum(section.nbytes for section in found.values()) <= len(PAYLOAD)


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"ELSE" + PAYLOAD[4:], CorruptError),
        (PAYLOAD + bytes(8), CorruptError),
        (PAYLOAD[:4] + b"\xff\x00" + PAYLOAD[6:], UnsupportedError),
        (_payload(_section(2, b"", 0), _section(2, b"", 0)), CorruptError),
        (_payload(_section(2, b"", 0), _section(1, b"", 0)), CorruptError),
        (_payload(_section(1, bytes(8), 16)), CorruptError),
        (_payload(_section(1, bytes(8), 8, codec=99)), UnsupportedError),
    ],
)
def test_what_a_payload_must_not_be(payload: bytes, error: type[Error]) -> None:
    with pytest.raises(error):
        decode_sections(MAGIC, payload, "it")


def test_padding_that_is_not_zero_is_corrupt() -> None:
    payload = _payload(_section(1, b"abc", 3))
    with pytest.raises(CorruptError, match="padding"):
        decode_sections(MAGIC, payload[:-1] + b"\1", "it")


def test_an_array_of_half_a_record_is_corrupt() -> None:
    found = decode_sections(MAGIC, _payload(_section(1, bytes(12), 12)), "it")
    with pytest.raises(CorruptError, match="no whole records of 8"):
        section_array(found, 1, np.dtype("<u8"), "it")


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.SHUFFLE_ZSTD, Codec.BITPACK])
@pytest.mark.parametrize("raw_bytes", [1 << 60, 1 << 40, 8 << 20])
def test_a_section_that_claims_too_much_allocates_nothing(codec: Codec, raw_bytes: int) -> None:
    stored: Any = encode_buffer(codec, bytes(1 << 16), 8)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            decode_sections(MAGIC, _payload(_section(1, bytes(stored), raw_bytes, codec)), "it")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()

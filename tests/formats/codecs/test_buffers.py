"""Buffers come back from every codec, and no stored byte makes a decoder allocate much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.codecs.buffers import Codec, decode_buffer, encode_buffer
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError


@given(st.sampled_from(Codec), st.binary(max_size=400), st.sampled_from([1, 2, 4, 8, 16]))
def test_every_codec_gives_back_what_it_got(codec: Codec, data: bytes, item: int) -> None:
    whole = data[: len(data) // item * item]
    stored = memoryview(encode_buffer(codec, whole, item))
    assert bytes(decode_buffer(codec, stored, len(whole), item)) == whole


@given(
    st.sampled_from(Codec), st.binary(max_size=60), st.integers(0, 2**64 - 1), st.integers(0, 255)
)
def test_hostile_bytes_give_an_error_of_ours(
    codec: Codec, stored: bytes, raw_bytes: int, item: int
) -> None:
    try:
        found = decode_buffer(codec, memoryview(stored), raw_bytes, item)
    except Error:
        return
    assert found.nbytes == raw_bytes


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("codec", list(Codec))
def test_another_length_than_promised_is_corrupt(codec: Codec, wrong: int) -> None:
    stored = memoryview(encode_buffer(codec, bytes(1000), 1))
    with pytest.raises(CorruptError):
        decode_buffer(codec, stored, 1000 + wrong, 1)


def test_an_unknown_codec_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="codec 9"):
        decode_buffer(9, memoryview(b""), 0, 1)


def test_shuffling_helps_small_numbers_in_wide_types() -> None:
    data = b"".join(at.to_bytes(8, "little") for at in range(2000))
    plain, shuffled = (encode_buffer(c, data, 8) for c in (Codec.ZSTD, Codec.SHUFFLE_ZSTD))
    assert len(shuffled) < len(plain) / 2

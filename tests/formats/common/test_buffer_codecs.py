"""Automatic compression pays, or does not happen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import (
    AUTO,
    CODEC_NAMES,
    LARGE_BYTES,
    Codec,
    CodecChoice,
    choose_codec,
    decode_buffer,
    encode_chosen,
    parse_codec,
)
from tensorrepo.repo.errors import InvalidInputError

RNG = np.random.default_rng(5)
WALK = np.cumsum(RNG.normal(size=40_000)).astype("<f4")
KINDS: dict[str, tuple[NDArray[Any], set[Codec]]] = {
    "noise": (RNG.integers(0, 256, 200_000, dtype=np.uint8), {Codec.NONE}),
    "small numbers in wide types": (RNG.integers(0, 1000, 30_000), {Codec.BITPACK}),
    "one number": (np.full(30_000, -7), {Codec.BITPACK, Codec.ZSTD}),
    "few bytes": (np.zeros(60, np.int64), {Codec.NONE}),
    "text": (np.frombuffer(b"the cat sat on the mat. " * 9000, np.uint8), {Codec.ZSTD}),
    "a slow walk": (np.round(WALK), {Codec.SHUFFLE_ZSTD}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_codec_suits_the_values(kind: str) -> None:
    array, expected = KINDS[kind]
    assert choose_codec(array.view(np.uint8).data, array.dtype.itemsize) in expected


@pytest.mark.parametrize("choice", CODEC_NAMES.values())
@pytest.mark.parametrize("kind", KINDS)
def test_compression_saves_a_quarter_or_is_left_out(kind: str, choice: CodecChoice) -> None:
    array, _ = KINDS[kind]
    data, item = array.view(np.uint8).data, array.dtype.itemsize
    codec, stored = encode_chosen(choice, data, item)
    assert codec is Codec.NONE or memoryview(stored).nbytes <= 0.75 * data.nbytes
    assert decode_buffer(codec, memoryview(stored), data.nbytes, item) == data


@given(st.binary(max_size=3000), st.sampled_from([1, 2, 4, 8, 16]))
def test_whatever_is_chosen_comes_back(data: bytes, item: int) -> None:
    whole = memoryview(data * 9)[: len(data) // item * item]
    codec, stored = encode_chosen(AUTO, whole, item)
    assert decode_buffer(codec, memoryview(stored), whole.nbytes, item) == whole


def test_a_sample_that_misleads_costs_nothing_but_time() -> None:
    data = RNG.integers(0, 256, 600_000, dtype=np.uint8)
    data[:30_000] = data[-30_000:] = data[285_000:315_000] = 7
    data[0] = 0
    assert choose_codec(data.data, 1) is Codec.ZSTD
    assert encode_chosen(AUTO, data.data, 1)[0] is Codec.NONE


def test_what_readers_would_take_for_a_bomb_is_not_compressed() -> None:
    zeros = np.zeros(LARGE_BYTES + 8, np.uint8)
    assert encode_chosen(Codec.ZSTD, zeros.data, 1)[0] is Codec.NONE


@pytest.mark.parametrize("name", CODEC_NAMES)
def test_a_choice_has_a_name(name: str) -> None:
    assert parse_codec(name) == CODEC_NAMES[name]


def test_every_codec_can_be_chosen() -> None:
    assert set(CODEC_NAMES.values()) == {*Codec, "auto"}


def test_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidInputError, match="'lzma'; choose one of none, zstd, shuffle"):
        parse_codec("lzma")

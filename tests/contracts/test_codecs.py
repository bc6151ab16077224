"""What every codec keeps: bits come back, wrong lengths and bombs do not get through."""

from __future__ import annotations

import tracemalloc
from struct import pack
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import (
    LARGE_BYTES,
    MAX_CONSTANT_BYTES,
    Codec,
    decode_buffer,
    encode_buffer,
    most_raw_bytes,
)
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tests.support.faults.damage import unrefused

ITEMS = (1, 2, 4, 8, 16)
RNG = np.random.default_rng(3)
RISING = np.zeros((70_001, 16), np.uint8)
RISING[:, :8] = np.arange(70_001, dtype="<u8")[:, np.newaxis].view(np.uint8)
MIB = 1 << 20


def _hostile(item: int) -> dict[str, bytes]:
    """Items that are easy to get wrong, of `item` bytes each."""
    top = 1 << 8 * item
    numbers = {
        "empty": [],
        "one": [top - 2],
        "constant": [top // 3] * 1000,
        "zeros": [0] * 1001,
        "extremes": [0, top - 1, top // 2, top // 2 - 1] * 9,
        "around the sign": [(at - 5) % top for at in range(11)],
        "two values": [7, 6] * 333 + [7],
    }
    found = {
        name: b"".join(number.to_bytes(item, "little") for number in some)
        for name, some in numbers.items()
    }
    many = {
        "one far away": bytes(item * 70_000) + (top - 1).to_bytes(item, "little"),
        "rising": RISING[:, :item].tobytes(),
        "random": RNG.bytes(item * 4099),
    }
    return found | many


CASES = [(item, data) for item in ITEMS for data in _hostile(item).values()]


@pytest.fixture(params=list(Codec), ids=lambda codec: codec.name)
def codec(request: pytest.FixtureRequest) -> Codec:
    return Codec(request.param)


def _round_trip(codec: Codec, data: Any, item: int) -> bytes:
    stored = memoryview(encode_buffer(codec, data, item))
    return bytes(decode_buffer(codec, stored, memoryview(data).nbytes, item))


def test_hostile_items_come_back_bit_for_bit(codec: Codec) -> None:
    changed = [(item, data) for item, data in CASES if _round_trip(codec, data, item) != data]
    assert changed == []


@given(st.binary(max_size=300), st.sampled_from([*ITEMS, 3, 12]))
def test_any_bytes_come_back(data: bytes, item: int) -> None:
    whole = data[: len(data) // item * item]
    assert [_round_trip(codec, whole, item) for codec in Codec] == [whole] * len(Codec)


@given(st.integers(0, 64), st.integers(0, 2**64 - 1), st.integers(1, 200), st.integers(0, 2**32))
def test_numbers_of_every_width_come_back(width: int, least: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    distances = [int.from_bytes(rng.bytes(8), "little") >> 64 - width for _ in range(count)]
    numbers = np.array([(least + each) % 2**64 for each in distances], "<u8")
    assert _round_trip(Codec.BITPACK, numbers.tobytes(), 8) == numbers.tobytes()


@pytest.mark.together
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_payload_of_a_nan_is_kept(codec: Codec, dtype: str) -> None:
    size = np.dtype(dtype).itemsize
    nans = np.frombuffer(b"\xff" * size + bytes([1] * (size - 1)) + b"\x7f", np.uint8)
    assert _round_trip(codec, nans.tobytes(), size) == nans.tobytes()


def test_what_was_decoded_cannot_be_changed(codec: Codec) -> None:
    data = bytes(range(240)) * 8
    stored = memoryview(encode_buffer(codec, data, 8))
    assert decode_buffer(codec, stored, len(data), 8).readonly


def test_an_unaligned_buffer_comes_back(codec: Codec) -> None:
    data = bytes(range(256)) * 33
    whole = memoryview(data)[1 : 1 + 8 * 1000]
    assert _round_trip(codec, whole, 8) == whole


def test_big_endian_items_come_back_as_they_came(codec: Codec) -> None:
    data = np.arange(-500, 500, dtype=">i4").tobytes()
    assert _round_trip(codec, data, 4) == data


@pytest.mark.together
@pytest.mark.parametrize("items", [-1, 1])
def test_another_length_than_promised_is_corrupt(codec: Codec, items: int) -> None:
    def decode(case: tuple[int, bytes]) -> object:
        item, data = case
        stored = memoryview(encode_buffer(codec, data, item))
        return decode_buffer(codec, stored, len(data) + items * item if data else item, item)

    assert unrefused(CASES, decode) == {}


@pytest.mark.together
@pytest.mark.parametrize("change", [lambda data: data[:-1], lambda data: data + b"\0"])
def test_bytes_cut_off_or_added_are_corrupt(codec: Codec, change: Any) -> None:
    data = np.arange(1000, dtype="<u4").tobytes()
    stored = change(bytes(encode_buffer(codec, data, 4)))
    with pytest.raises(CorruptError):
        decode_buffer(codec, memoryview(stored), len(data), 4)


@given(
    st.sampled_from(Codec), st.binary(max_size=60), st.integers(0, 2**64 - 1), st.integers(0, 255)
)
def test_any_stored_bytes_give_raw_ones_or_an_error_of_ours(
    codec: Codec, stored: bytes, raw_bytes: int, item: int
) -> None:
    try:
        found = decode_buffer(codec, memoryview(stored), raw_bytes, item)
    except Error:
        return
    assert found.nbytes == raw_bytes


@pytest.mark.parametrize("raw_bytes", [0, 1000])
def test_an_unknown_codec_is_unsupported(raw_bytes: int) -> None:
    with pytest.raises(UnsupportedError, match="codec 9"):
        decode_buffer(9, memoryview(bytes(raw_bytes)), raw_bytes, 1)


# ------------------------------------------------------------------------------ bombs


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def _without_size(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=False).compress(data)


def _claiming(content_size: int, *, blocks: int) -> bytes:
    """A frame whose header claims a size, with so many blocks of 128 KiB zeros in 4 bytes each."""
    head = pack("<IBBQ", 0xFD2FB528, 0xC0, 0x38, content_size)  # 8-byte size, window of 128 KiB
    block = (128 << 10) << 3 | 1 << 1
    return head + block.to_bytes(3, "little") + bytes(1) + (blocks - 1) * (pack("<I", block))


def _packed(numbers: int, width: int, body: bytes = b"", minimum: int = 0) -> bytes:
    return pack("<QQB7s", numbers, minimum, width, bytes(7)) + body


SKIPPABLE = pack("<II", 0x184D2A50, 4) + b"abcd"
BOMBS = {
    "zstd: a huge size": (Codec.ZSTD, _zstd(b"x" * 1000), 1 << 60, 1),
    "zstd: a frame that claims a huge size": (Codec.ZSTD, _claiming(1 << 60, blocks=1), 1 << 60, 1),
    "zstd: a frame that claims what its parent does not": (
        Codec.ZSTD,
        _claiming(64 * MIB, blocks=600),
        1000,
        1,
    ),
    "zstd: more blocks than the frame claims": (Codec.ZSTD, _claiming(1000, blocks=600), 1000, 1),
    "zstd: fewer blocks than the frame claims": (
        Codec.ZSTD,
        _claiming(4 * MIB, blocks=31) + bytes(3),
        4 * MIB,
        1,
    ),
    "zstd: a frame without a size": (Codec.ZSTD, _without_size(b"x" * 1000), 1000, 1),
    "zstd: a frame inside a frame": (Codec.ZSTD, _zstd(_zstd(bytes(64 * MIB))), 64 * MIB, 1),
    "zstd: two frames": (Codec.ZSTD, 2 * _zstd(b"x" * 500), 1000, 1),
    "zstd: a frame and an empty one": (Codec.ZSTD, _zstd(b"x" * 500) + _zstd(b""), 500, 1),
    "zstd: a frame to skip, then one": (Codec.ZSTD, SKIPPABLE + _zstd(b"x" * 500), 500, 1),
    "zstd: nothing but a frame to skip": (Codec.ZSTD, SKIPPABLE, 4, 1),
    "zstd: bytes behind the frame": (Codec.ZSTD, _zstd(b"x" * 500) + b"y", 500, 1),
    "zstd: no frame": (Codec.ZSTD, b"no frame at all", 500, 1),
    "zstd: nothing": (Codec.ZSTD, b"", 500, 1),
    "zstd: a frame of nothing": (Codec.ZSTD, _zstd(b""), 0, 1),
    "zstd: a quarter of a gigabyte and more of zeros": (
        Codec.ZSTD,
        _claiming(LARGE_BYTES + (128 << 10), blocks=2049),
        LARGE_BYTES + (128 << 10),
        1,
    ),
    "shuffle: no whole items": (Codec.SHUFFLE_ZSTD, _zstd(bytes(1001)), 1001, 4),
    "shuffle: items of no bytes": (Codec.SHUFFLE_ZSTD, _zstd(bytes(1000)), 1000, 0),
    "bitpack: a huge number of numbers": (Codec.BITPACK, _packed(1 << 60, 1), 1 << 60, 1),
    "bitpack: numbers times width beyond 64 bits": (
        Codec.BITPACK,
        _packed(1 << 61, 8),
        1 << 61,
        1,
    ),
    "bitpack: a constant without end": (
        Codec.BITPACK,
        _packed(MAX_CONSTANT_BYTES + 1, 0),
        MAX_CONSTANT_BYTES + 1,
        1,
    ),
    "bitpack: fewer bits than numbers": (Codec.BITPACK, _packed(1000, 3, bytes(374)), 1000, 1),
    "bitpack: more bits than numbers": (Codec.BITPACK, _packed(1000, 3, bytes(376)), 1000, 1),
    "bitpack: a width above the item's": (Codec.BITPACK, _packed(8, 9, bytes(9)), 8, 1),
    "bitpack: a width of 60": (Codec.BITPACK, _packed(8, 60, bytes(60)), 64, 8),
    "bitpack: a minimum above the item's": (
        Codec.BITPACK,
        _packed(8, 1, bytes(1), minimum=256),
        8,
        1,
    ),
    "bitpack: bits behind the last number": (Codec.BITPACK, _packed(5, 1, b"\xff"), 5, 1),
    "bitpack: half a header": (Codec.BITPACK, bytes(23), 8, 1),
    "bitpack: items of no bytes": (Codec.BITPACK, _packed(8, 1, bytes(1)), 8, 0),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_little_memory(name: str) -> None:
    codec, stored, raw_bytes, item = BOMBS[name]
    tracemalloc.start()
    try:
        with pytest.raises(CorruptError):
            decode_buffer(codec, memoryview(stored), raw_bytes, item)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


def test_what_a_bomb_is_made_of_decodes_when_it_keeps_its_promise() -> None:
    stored = memoryview(_claiming(4 * MIB, blocks=31) + pack("<I", (128 << 10) << 3 | 0b11)[:4])
    assert bytes(decode_buffer(Codec.ZSTD, stored, 4 * MIB, 1)) == bytes(4 * MIB)


@pytest.mark.together
@pytest.mark.parametrize("stored_bytes", [0, 1, 24, MIB, 1 << 34])
def test_no_codec_may_stand_for_more_than_it_can_justify(codec: Codec, stored_bytes: int) -> None:
    most = most_raw_bytes(codec, stored_bytes)
    assert stored_bytes <= most <= max(LARGE_BYTES, 256 * stored_bytes)
    assert most <= stored_bytes << 15

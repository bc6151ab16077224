"""Buffer codecs: zstd, byte shuffle and bit packing, and the choice among them.

A codec is a small number that stands in stored formats and never changes its meaning. Decoders
get the number of raw bytes from a verified parent and allocate no more than the stored bytes can
justify.

Each number is stored as its distance from the smallest one, in as many bits as the largest distance
needs. Distances are taken modulo the item's range, so whether numbers have a sign does not matter.

    0 numbers u64 | 8 minimum u64, as it stands in an unsigned item | 16 width u8 | 17 zeros
    24 distances, `width` bits each, little-endian: bit b of number i is bit i * width + b

"auto" is a writer's wish and never stored. It tries a sample with every codec and weighs the bytes
that each would save against the time that it takes to decode: zstd is used where it halves, bit
packing, which decodes five times as fast, where it saves a quarter. What is not compressed can be
mapped, and its rows read one by one.

Source:
    docs/spec/dataset.md, section "Codecs".
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import Any, Final, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

from tensorrepo.formats.native import number_spans, packed_numbers, planes
from tensorrepo.formats.native.packed_numbers import GROUP, MAX_WIDTH
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.zstd_frames import expand_frame

HEAD = Struct("<QQB7s")
assert HEAD.size == 24, "docs/spec/dataset.md promises a 24-byte header"
MAX_CONSTANT_BYTES = 1 << 19  # width 0 proves nothing by its length: larger buffers take width 1
_BLOCK = 8192  # groups at a time: what is computed stays in cache


def packed_width(items: NDArray[Any]) -> tuple[int, int]:
    """Minimum and width with which these unsigned numbers are packed best."""
    if not len(items):
        return 0, 0
    low, high, signed_low, signed_high = number_spans.BEST.spans(items.data, items.itemsize)
    most = 1 << 8 * items.itemsize
    # Where both spans are equal, the smaller minimum: of signed numbers one may be below zero.
    below = most if signed_low >= most // 2 else 0
    span, minimum = min((high - low, low), ((signed_high - signed_low) % most, signed_low - below))
    width = span.bit_length()
    if not width and items.nbytes > MAX_CONSTANT_BYTES:
        width = 1
    if width > min(MAX_WIDTH, 8 * items.itemsize):  # wider ones are stored as items
        width, minimum = 8 * items.itemsize, 0
    return minimum % (1 << 8 * items.itemsize), width


def packed_bytes(numbers: int, width: int) -> int:
    """Bytes of so many packed numbers, header included."""
    return HEAD.size + -(-numbers * width // 8)


def pack(items: NDArray[Any]) -> bytes:
    """Pack little-endian unsigned numbers of 1, 2, 4 or 8 bytes."""
    minimum, width = packed_width(items)
    head = HEAD.pack(len(items), minimum, width, bytes(7))
    if width == 8 * items.itemsize and not minimum:
        return head + items.tobytes()
    return head + _pack(items, items.dtype.type(minimum), width).tobytes()


def unpack(stored: memoryview, numbers: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The `numbers` numbers that `pack` packed; `dtype` is an unsigned one.

    Raises:
        CorruptError: the header makes no sense, or the length is not that of so many numbers.
    """
    if stored.nbytes < HEAD.size:
        raise CorruptError(f"bitpack: {stored.nbytes} bytes are fewer than its header")
    count, minimum, width, reserved = HEAD.unpack_from(stored)
    if count != numbers:
        raise CorruptError(f"bitpack: {count} numbers, expected {numbers}")
    bits = 8 * dtype.itemsize
    if any(reserved) or width > bits or MAX_WIDTH < width < bits or minimum >> bits:
        raise CorruptError(f"bitpack: no header of {bits}-bit items: {minimum:x}, width {width}")
    if not width and numbers * dtype.itemsize > MAX_CONSTANT_BYTES:
        raise CorruptError(f"bitpack: width 0 for {numbers} numbers, more than it may stand for")
    if stored.nbytes != packed_bytes(numbers, width):
        raise CorruptError(
            f"bitpack: {stored.nbytes} bytes, expected {packed_bytes(numbers, width)} "
            f"for {numbers} numbers of width {width}"
        )
    packed = np.frombuffer(stored, np.uint8, offset=HEAD.size)
    if (tail := numbers * width % 8) and packed[-1] >> tail:
        raise CorruptError("bitpack: bits after the last number are set")
    if not width:
        return np.full(numbers, minimum, dtype)
    if width in (8, 16, 32, 64):
        found = packed.view(f"<u{width // 8}").astype(dtype)
        if minimum:
            found += dtype.type(minimum)
        return found
    found = np.empty(numbers, dtype)
    packed_numbers.BEST.unpack(packed, width, minimum, found)
    return found


# ------------------------------------------------------------------------------ packing


def _pack(items: NDArray[Any], minimum: np.unsignedinteger[Any], width: int) -> NDArray[np.uint8]:
    out = np.zeros(packed_bytes(len(items), width) - HEAD.size, np.uint8)
    if not width:
        return out
    step = GROUP * _BLOCK
    for start in range(0, len(items), step):
        distances = items[start : start + step] - minimum
        at = start * width // 8
        part = _pack_block(distances, width)
        out[at : at + len(part)] = part[: len(out) - at]
    return out


def _pack_block(distances: NDArray[Any], width: int) -> NDArray[np.uint8]:
    """One block, filled up with zeros to whole groups."""
    if width == 1:
        return np.packbits(distances != 0, bitorder="little")
    if width in (2, 4):
        lanes = np.zeros((-(-len(distances) * width // 8), 8 // width), np.uint8)
        lanes.reshape(-1)[: len(distances)] = distances
        found = lanes[:, 0].copy()
        for place in range(1, 8 // width):
            found |= lanes[:, place] << place * width
        return found
    if width in (8, 16, 32):
        return distances.astype(f"<u{width // 8}").view(np.uint8)
    groups = -(-len(distances) // GROUP)
    numbers = np.zeros((groups, GROUP), np.uint64)
    numbers.reshape(-1)[: len(distances)] = distances
    if width < 8:
        # All eight fit one word, whose low bytes they fill.
        for place in range(1, GROUP):
            numbers[:, 0] |= numbers[:, place] << np.uint64(place * width)
        words = numbers[:, 0].astype("<u8").view(np.uint8).reshape(groups, 8)
        return np.ascontiguousarray(words[:, :width]).reshape(-1)
    out = np.zeros(groups * width + 8, np.uint8)
    for place in range(GROUP):
        at, shift = divmod(place * width, 8)
        # Groups are at least 8 bytes apart here, so no two windows of one place overlap.
        windows = np.ndarray((groups,), "<u8", out.data, at, (width,))
        windows |= numbers[:, place] << np.uint64(shift)
    return out[: groups * width]


LEVEL = 1
# A block of zstd stands for 128 KiB at most and takes 4 bytes at least.
MAX_RATIO = 1 << 15
# What decodes to more than this must be justified by more bytes.
LARGE_BYTES = 256 << 20
LARGE_RATIO = 1 << 8


class Codec(IntEnum):
    """Number of a codec, for page buffers, tiles and metadata sections alike."""

    NONE = 0
    ZSTD = 1
    SHUFFLE_ZSTD = 2  # bytes regrouped by their place in the item, then zstd
    BITPACK = 3  # distances from the smallest number, in as few bits as the largest needs
    # 4 is that of scans in bands, of the last buffer of a page alone: see `scan_bands` there.


_KNOWN = frozenset(Codec)


def most_raw_bytes(codec: int, stored_bytes: int) -> int:
    """What so many stored bytes can stand for at most; readers refuse what claims more."""
    if codec == Codec.NONE:
        return stored_bytes
    return min(stored_bytes * MAX_RATIO, max(LARGE_BYTES, stored_bytes * LARGE_RATIO))


def encode_buffer(codec: Codec, data: Buffer, item_bytes: int) -> Buffer:
    """`data` compressed; `item_bytes` is the element size that it is regrouped or packed by.

    Its bytes are whole items. The result may be larger than `data`, or smaller than
    `most_raw_bytes` allows: who stores it looks first. No bytes are no bytes in every codec.
    """
    if codec is Codec.NONE or not memoryview(data).nbytes:
        return data
    if codec is Codec.BITPACK:
        return pack(np.frombuffer(data, packed_dtype(item_bytes)))
    if codec is Codec.SHUFFLE_ZSTD:
        data = _shuffle(data, item_bytes)
    return _MINE.compressor.compress(data)


class _Mine(threading.local):
    """What each thread has of its own: making a compressor takes as long as using it on a page."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)


_MINE = _Mine()


def decode_buffer(codec: int, stored: memoryview, raw_bytes: int, item_bytes: int) -> memoryview:
    """The `raw_bytes` bytes that `stored` was made from; a view of it where nothing was done.

    What was decoded is read-only: it may be kept and shared.

    Raises:
        UnsupportedError: a codec that this version does not know.
        CorruptError: the bytes do not decode to exactly `raw_bytes`.
    """
    if codec not in _KNOWN:
        raise UnsupportedError(f"codec {codec} is unknown here. Update tensorrepo.")
    if codec == Codec.NONE or not raw_bytes:
        if stored.nbytes != raw_bytes:
            raise CorruptError(f"buffer has {stored.nbytes} bytes, expected {raw_bytes}")
        return stored
    if raw_bytes > most_raw_bytes(codec, stored.nbytes):
        raise CorruptError(f"{stored.nbytes} bytes of codec {codec} cannot stand for {raw_bytes}")
    if item_bytes < 1 or raw_bytes % item_bytes:
        raise CorruptError(f"{raw_bytes} bytes are no whole items of {item_bytes}")
    if codec == Codec.BITPACK:
        dtype = packed_dtype(item_bytes)
        found = unpack(stored, raw_bytes // dtype.itemsize, dtype)
        return found.view(np.uint8).data.toreadonly()
    raw = decompress_zstd(stored, raw_bytes)
    return _unshuffle(raw, item_bytes) if codec == Codec.SHUFFLE_ZSTD else memoryview(raw)


def decompress_zstd(stored: memoryview, raw_bytes: int) -> bytes:
    """The `raw_bytes` bytes in one zstd frame. Raises CorruptError."""
    raw = expand_frame(stored, "zstd frame", raw_bytes)
    if len(raw) != raw_bytes:
        raise CorruptError(f"{stored.nbytes} zstd bytes do not hold exactly {raw_bytes}")
    return raw


@lru_cache(maxsize=256)
def packed_dtype(item_bytes: int) -> np.dtype[Any]:
    """Items are packed as numbers of 8, 4, 2 or 1 bytes: the largest that divides them."""
    return np.dtype(f"<u{next(size for size in (8, 4, 2, 1) if item_bytes % size == 0)}")


def _shuffle(data: Buffer, item_bytes: int) -> memoryview:
    items: NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(-1, item_bytes)
    if item_bytes not in (2, 4, 8):
        return np.ascontiguousarray(items.T).reshape(-1).data
    lanes = np.empty((item_bytes, len(items)), np.uint8)
    planes.BEST.split_into(items.reshape(-1), list(lanes[::-1]), turn=False)
    return lanes.reshape(-1).data


def _unshuffle(raw: bytes, item_bytes: int) -> memoryview:
    lanes = np.frombuffer(raw, np.uint8).reshape(item_bytes, -1)
    items = np.empty((lanes.shape[1], item_bytes), np.uint8)
    if item_bytes in (2, 4, 8):
        planes.BEST.join(list(lanes[::-1]), items.reshape(-1), turn=False)
    else:
        for place, lane in enumerate(lanes):
            items[:, place] = lane
    return items.reshape(-1).data.toreadonly()


AUTO: Final = "auto"
# Of new rows: a quarter saved is worth a page that cannot be mapped (benchmarks/results/auto.md).
DEFAULT_CODEC: Final = AUTO
CodecChoice = Codec | Literal["auto"]
CODEC_NAMES: Mapping[str, CodecChoice] = {
    "none": Codec.NONE,
    "zstd": Codec.ZSTD,
    "shuffle": Codec.SHUFFLE_ZSTD,
    "bitpack": Codec.BITPACK,
    "auto": AUTO,
}

SAMPLE_BYTES = 64 << 10
SAMPLE_PLACES = 3
MIN_BYTES = 512  # below this a directory and a decoder cost more than is saved
# The share that must be left at most. What zstd takes a third from streams at a fifth of the speed
# of mapped pages where these are at hand: so it must halve them.
_WORTH = {Codec.BITPACK: 0.75, Codec.ZSTD: 0.5, Codec.SHUFFLE_ZSTD: 0.5}
# Nanoseconds a byte. A choice must not depend on the machine, or equal rows would not be equal
# bytes: so these are round figures of one core (benchmarks/results/auto.md).
_FETCH = 3.0  # a disk or link of 330 MB/s: what a stored byte costs whoever has not got it yet
_DECODE = {Codec.BITPACK: 0.1, Codec.ZSTD: 0.55, Codec.SHUFFLE_ZSTD: 0.5}  # a raw byte
_PACKED_ITEM = 0.3  # beside that, of a packed number whatever its size


def parse_codec(name: str) -> CodecChoice:
    """The choice of that name, one of `CODEC_NAMES`. Raises InvalidInputError: another name."""
    if name not in CODEC_NAMES:
        raise InvalidInputError(f"no codec {name!r}; choose one of {', '.join(CODEC_NAMES)}")
    return CODEC_NAMES[name]


def encode_chosen(choice: CodecChoice, data: memoryview, item_bytes: int) -> tuple[Codec, Buffer]:
    """`data` as it is to be stored, and in which codec that is.

    It stays as it is unless compression saves a quarter, and where readers would take the result
    for a bomb.
    """
    codec = choose_codec(data, item_bytes) if choice == AUTO else choice
    if codec is not Codec.NONE:
        stored = encode_buffer(codec, data, item_bytes)
        size = memoryview(stored).nbytes
        if size <= data.nbytes * 3 // 4 and data.nbytes <= most_raw_bytes(codec, size):
            return codec, stored
    return Codec.NONE, data


def choose_codec(data: memoryview, item_bytes: int) -> Codec:
    """The codec that brings `data`, whose bytes are whole items, soonest: fetched and decoded."""
    if data.nbytes < MIN_BYTES:
        return Codec.NONE
    sample = _sample(data, item_bytes)
    shares: dict[Codec, float] = {}
    # All numbers need as many bits as some of them do: mostly the sample tells that it is too many.
    if _packed_share(sample, item_bytes) <= _WORTH[Codec.BITPACK]:
        shares[Codec.BITPACK] = _packed_share(data, item_bytes)
    for codec in (Codec.ZSTD, Codec.SHUFFLE_ZSTD)[: 1 + (item_bytes > 1)]:
        packed = memoryview(encode_buffer(codec, sample, item_bytes))
        shares[codec] = packed.nbytes / sample.nbytes
    times = {Codec.NONE: _FETCH}
    for codec, share in shares.items():
        if share <= _WORTH[codec]:
            times[codec] = share * _FETCH + _DECODE[codec]
    if Codec.BITPACK in times:
        times[Codec.BITPACK] += _PACKED_ITEM / packed_dtype(item_bytes).itemsize
    return min(times, key=lambda codec: times[codec])


def _packed_share(data: memoryview, item_bytes: int) -> float:
    """Packed bytes by bytes."""
    items = np.frombuffer(data, packed_dtype(item_bytes))
    return packed_bytes(len(items), packed_width(items)[1]) / data.nbytes


def _sample(data: memoryview, item_bytes: int) -> memoryview:
    """Items from the beginning, the middle and the end; all of them where they are few."""
    if data.nbytes <= SAMPLE_BYTES:
        return data
    size = max(1, SAMPLE_BYTES // SAMPLE_PLACES // item_bytes) * item_bytes
    items = (data.nbytes - size) // item_bytes
    starts = (items * at // (SAMPLE_PLACES - 1) * item_bytes for at in range(SAMPLE_PLACES))
    return memoryview(b"".join([data[start : start + size] for start in starts]))

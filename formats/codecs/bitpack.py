"""How do numbers that differ little share bytes?

Each number is stored as its distance from the smallest one, in as many bits as the largest distance
needs. Distances are taken modulo the item's range, so whether numbers have a sign does not matter.

    0 numbers u64 | 8 minimum u64, as it stands in an unsigned item | 16 width u8 | 17 zeros
    24 distances, `width` bits each, little-endian: bit b of number i is bit i * width + b

Source:
    docs/spec/dataset.md, section "Codecs".
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEAD = Struct("<QQB7s")
assert HEAD.size == 24, "docs/spec/dataset.md promises a 24-byte header"
MAX_CONSTANT_BYTES = 1 << 19  # width 0 proves nothing by its length: larger buffers take width 1
MAX_WIDTH = 56  # a distance and the bits before it fit 8 bytes; wider ones are stored as items

_GROUP = 8  # so many numbers of any width begin and end at whole bytes
_BLOCK = 8192  # groups at a time: what is computed stays in cache


def packed_width(items: NDArray[Any]) -> tuple[int, int]:
    """Minimum and width with which these unsigned numbers are packed best."""
    if not len(items):
        return 0, 0
    signed = items.view(f"i{items.itemsize}")
    spans = [(int(each.max()) - int(each.min()), int(each.min())) for each in (items, signed)]
    span, minimum = min(spans)
    width = span.bit_length()
    if not width and items.nbytes > MAX_CONSTANT_BYTES:
        width = 1
    if width > min(MAX_WIDTH, 8 * items.itemsize):
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
    found = _unpack(packed, numbers, width, dtype)
    if minimum:
        found += dtype.type(minimum)
    return found


# ------------------------------------------------------------------------------ packing


def _pack(items: NDArray[Any], minimum: np.unsignedinteger[Any], width: int) -> NDArray[np.uint8]:
    out = np.zeros(packed_bytes(len(items), width) - HEAD.size, np.uint8)
    if not width:
        return out
    step = _GROUP * _BLOCK
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
    groups = -(-len(distances) // _GROUP)
    numbers = np.zeros((groups, _GROUP), np.uint64)
    numbers.reshape(-1)[: len(distances)] = distances
    if width < 8:
        # All eight fit one word, whose low bytes they fill.
        for place in range(1, _GROUP):
            numbers[:, 0] |= numbers[:, place] << np.uint64(place * width)
        words = numbers[:, 0].astype("<u8").view(np.uint8).reshape(groups, 8)
        return np.ascontiguousarray(words[:, :width]).reshape(-1)
    out = np.zeros(groups * width + 8, np.uint8)
    for place in range(_GROUP):
        at, shift = divmod(place * width, 8)
        # Groups are at least 8 bytes apart here, so no two windows of one place overlap.
        windows = np.ndarray((groups,), "<u8", out.data, at, (width,))
        windows |= numbers[:, place] << np.uint64(shift)
    return out[: groups * width]


def _unpack(
    packed: NDArray[np.uint8], numbers: int, width: int, dtype: np.dtype[Any]
) -> NDArray[Any]:
    if not width:
        return np.zeros(numbers, dtype)
    if width in (8, 16, 32, 64):
        return packed.view(f"<u{width // 8}").astype(dtype)
    out = np.empty(numbers, dtype)
    step = _GROUP * _BLOCK
    for start in range(0, numbers, step):
        stop = min(numbers, start + step)
        part = packed[start * width // 8 : -(-stop * width // 8)]
        _unpack_block(part, width, out[start:stop])
    return out


def _unpack_block(packed: NDArray[np.uint8], width: int, out: NDArray[Any]) -> None:
    if width == 1:
        out[...] = np.unpackbits(packed, count=len(out), bitorder="little")
        return
    if width in (2, 4):
        lanes = np.empty((len(packed), 8 // width), out.dtype)
        for place in range(8 // width):
            lanes[:, place] = (packed >> place * width) & ((1 << width) - 1)
        out[...] = lanes.reshape(-1)[: len(out)]
        return
    groups = -(-len(out) // _GROUP)
    # As wide as needed, as narrow as possible: a number begins up to 7 bits into its window.
    window = np.dtype("<u4" if width + 7 <= 32 else "<u8")
    padded = np.zeros(groups * width + window.itemsize, np.uint8)
    padded[: len(packed)] = packed
    found = np.empty((groups, _GROUP), out.dtype)
    mask = window.type((1 << width) - 1)
    for place in range(_GROUP):
        at, shift = divmod(place * width, 8)
        windows = np.ndarray((groups,), window, padded.data, at, (width,))
        found[:, place] = (windows >> window.type(shift)) & mask
    out[...] = found.reshape(-1)[: len(out)]

"""How is one buffer compressed?

A codec is a small number that stands in stored formats and never changes its meaning. Decoders
get the number of raw bytes from a verified parent and allocate no more than the stored bytes can
justify.

Source:
    docs/spec/dataset.md, section "Codecs".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import zstandard

from tensorrepo.formats.codecs.bitpack import pack, unpack
from tensorrepo.repo.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

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
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


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
    raw = _decompress(stored, raw_bytes)
    return _unshuffle(raw, item_bytes) if codec == Codec.SHUFFLE_ZSTD else memoryview(raw)


def _decompress(stored: memoryview, raw_bytes: int) -> bytes:
    try:
        # The decoder allocates what the frame claims: compare that before it does.
        claimed = zstandard.get_frame_parameters(stored).content_size
        if claimed != raw_bytes:
            raise CorruptError(f"zstd frame claims {claimed} bytes, expected {raw_bytes}")
        raw = zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"zstd cannot decode {stored.nbytes} bytes: {error}") from error
    if len(raw) != raw_bytes:
        raise CorruptError(f"{stored.nbytes} zstd bytes do not hold exactly {raw_bytes}")
    return raw


def packed_dtype(item_bytes: int) -> np.dtype[Any]:
    """Items are packed as numbers of 8, 4, 2 or 1 bytes: the largest that divides them."""
    return np.dtype(f"<u{next(size for size in (8, 4, 2, 1) if item_bytes % size == 0)}")


def _shuffle(data: Buffer, item_bytes: int) -> bytes:
    items: NDArray[np.uint8] = np.frombuffer(data, np.uint8).reshape(-1, item_bytes)
    return np.ascontiguousarray(items.T).tobytes()


def _unshuffle(raw: bytes, item_bytes: int) -> memoryview:
    planes = np.frombuffer(raw, np.uint8).reshape(item_bytes, -1)
    items = np.empty((planes.shape[1], item_bytes), np.uint8)
    for place, plane in enumerate(planes):
        items[:, place] = plane
    return items.reshape(-1).data.toreadonly()

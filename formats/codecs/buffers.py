"""How is one buffer compressed?

A codec is a small number that stands in stored formats and never changes its meaning. Decoders
get the number of raw bytes from a verified parent and allocate no more than the stored bytes can
justify.

Source:
    docs/spec/dataset.md, section "Codecs".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import zstandard

from tensorrepo.repo.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from tensorrepo.repo.ids import Buffer

LEVEL = 1
# zstd's format reaches about 1:32,000 on constant input; what claims more is a bomb.
MAX_RATIO = 1 << 16


class Codec(IntEnum):
    """Number of a codec, for page buffers and metadata sections alike."""

    NONE = 0
    ZSTD = 1
    SHUFFLE_ZSTD = 2  # bytes regrouped by their place in the item, then zstd


def encode_buffer(codec: Codec, data: Buffer, item_bytes: int) -> Buffer:
    """`data` compressed; `item_bytes` is the element size that shuffling regroups by."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.SHUFFLE_ZSTD:
        data = _shuffle(data, item_bytes)
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


def decode_buffer(codec: int, stored: memoryview, raw_bytes: int, item_bytes: int) -> memoryview:
    """The `raw_bytes` bytes that `stored` was made from; a view of it where nothing was done.

    Raises:
        UnsupportedError: a codec that this version does not know.
        CorruptError: the bytes do not decode to exactly `raw_bytes`.
    """
    if codec == Codec.NONE:
        if stored.nbytes != raw_bytes:
            raise CorruptError(f"buffer has {stored.nbytes} bytes, expected {raw_bytes}")
        return stored
    if codec not in (Codec.ZSTD, Codec.SHUFFLE_ZSTD):
        raise UnsupportedError(f"codec {codec} is unknown here. Update tensorrepo.")
    raw = _decompress(stored, raw_bytes)
    return _unshuffle(raw, item_bytes) if codec == Codec.SHUFFLE_ZSTD else memoryview(raw)


def _decompress(stored: memoryview, raw_bytes: int) -> bytes:
    if raw_bytes > stored.nbytes * MAX_RATIO:
        raise CorruptError(f"{stored.nbytes} zstd bytes cannot hold {raw_bytes}")
    try:
        # One byte more than promised shows a stream that holds too much.
        with zstandard.ZstdDecompressor().stream_reader(stored) as reader:
            raw = reader.read(raw_bytes + 1)
    except zstandard.ZstdError as error:
        raise CorruptError(f"zstd cannot decode {stored.nbytes} bytes: {error}") from error
    if len(raw) != raw_bytes:
        raise CorruptError(f"{stored.nbytes} zstd bytes do not hold exactly {raw_bytes}")
    return raw


def _shuffle(data: Buffer, item_bytes: int) -> bytes:
    items = np.frombuffer(data, np.uint8).reshape(-1, item_bytes)
    return np.ascontiguousarray(items.T).tobytes()


def _unshuffle(raw: bytes, item_bytes: int) -> memoryview:
    if item_bytes < 1 or len(raw) % item_bytes:
        raise CorruptError(f"{len(raw)} shuffled bytes are no whole items of {item_bytes}")
    planes = np.frombuffer(raw, np.uint8).reshape(item_bytes, -1)
    items = np.empty((planes.shape[1], item_bytes), np.uint8)
    for place, plane in enumerate(planes):
        items[:, place] = plane
    return items.reshape(-1).data

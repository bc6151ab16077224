"""Which codec pays for this buffer?

"auto" is a writer's wish and never stored. It tries a sample with every codec and compresses only
where that saves a quarter: what is not compressed can be mapped, and its rows read one by one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tensorrepo.formats.codecs.bitpack import packed_bytes, packed_width
from tensorrepo.formats.codecs.buffers import Codec, encode_buffer, most_raw_bytes, packed_dtype
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

AUTO: Final = "auto"
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
_CLOSE = 1.1  # codecs whose results differ less are told apart by the speed of decoding
_FASTEST_FIRST = (Codec.BITPACK, Codec.ZSTD, Codec.SHUFFLE_ZSTD)


def parse_codec(name: str) -> CodecChoice:
    """The choice of that name: "none", "zstd", "shuffle", "bitpack" or "auto".

    Raises:
        InvalidInputError: another name.
    """
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
        if _pays(size, data.nbytes) and data.nbytes <= most_raw_bytes(codec, size):
            return codec, stored
    return Codec.NONE, data


def choose_codec(data: memoryview, item_bytes: int) -> Codec:
    """The codec that seems best for `data`, whose bytes are whole items."""
    if data.nbytes < MIN_BYTES:
        return Codec.NONE
    items = np.frombuffer(data, packed_dtype(item_bytes))
    shares = {Codec.BITPACK: packed_bytes(len(items), packed_width(items)[1]) / data.nbytes}
    sample = _sample(np.frombuffer(data, np.uint8).reshape(-1, item_bytes))
    for codec in (Codec.ZSTD, Codec.SHUFFLE_ZSTD)[: 1 + (item_bytes > 1)]:
        packed = memoryview(encode_buffer(codec, sample.data, item_bytes))
        shares[codec] = packed.nbytes / sample.nbytes
    best = min(shares.values())
    if best > 0.75:
        return Codec.NONE
    return next(codec for codec in _FASTEST_FIRST if shares.get(codec, 1.0) <= best * _CLOSE)


def _sample(items: NDArray[Any]) -> NDArray[np.uint8]:
    """Items from the beginning, the middle and the end; all of them where they are few."""
    if items.nbytes <= SAMPLE_BYTES:
        return items.reshape(-1)
    count = max(1, SAMPLE_BYTES // SAMPLE_PLACES // items.shape[1])
    starts = np.linspace(0, len(items) - count, SAMPLE_PLACES, dtype=np.int64).tolist()
    return np.concatenate([items[start : start + count] for start in starts]).reshape(-1)


def _pays(stored_bytes: int, raw_bytes: int) -> bool:
    return stored_bytes <= raw_bytes * 3 // 4

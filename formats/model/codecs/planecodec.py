"""How is one plane of a frame stored?

A plane is a run of bytes whose length the decoder knows beforehand. A plane codec is a small
number that stands in packs and never changes its meaning. Nothing is stored larger than it is.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import zstandard

from tensorrepo.formats.model.codecs.tables import decode_tables, encode_tables, tables_of
from tensorrepo.formats.native.coder import BEST, FEW_LANES, MANY_LANES
from tensorrepo.repo.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

LEVEL: Final = 1  # finding more matches than this makes planes larger, not smaller
MANY_SYMBOLS: Final = 4096  # from here on MANY_LANES coders take turns
_SAMPLE_BYTES: Final = 32 << 10
_PAYS: Final = 0.98  # what is stored larger than this share stays raw: it decodes at once


class PlaneCodec(IntEnum):
    """Number of a plane codec. 2 was never given out."""

    RAW = 0
    ZSTD = 1
    CONSTANT = 3  # one byte, which all bytes of the plane are
    CODED = 4  # by the frequencies of its bytes
    DISTANCES = 5  # of numbers from a base: tokens by their frequencies, and bits
    LAYERS = 6  # of distances from a base: each byte of them by its frequencies


class StoredPlane(NamedTuple):
    """A plane as it is stored."""

    codec: int
    data: Buffer

    @property
    def size_bytes(self) -> int:
        return memoryview(self.data).nbytes


def lanes_for(symbols: int) -> int:
    """How many coders take turns over so many symbols."""
    return MANY_LANES if symbols >= MANY_SYMBOLS else FEW_LANES


def pack_plane(plane: NDArray[np.uint8]) -> StoredPlane:
    """A plane in the codec that seems to store it smallest; never larger than it is."""
    raw = StoredPlane(PlaneCodec.RAW, plane.data)
    if plane.size < 2:
        return raw
    counts = BEST.count(plane, None, 1)
    if counts.max() == plane.size:
        return StoredPlane(PlaneCodec.CONSTANT, plane[:1].tobytes())
    tables, groups = tables_of(counts)
    share = tables.bits(groups) / 8 / plane.size
    if _repeats(plane, share):
        packed = zstandard.ZstdCompressor(level=LEVEL).compress(plane.data)
        if len(packed) < min(share, _PAYS) * plane.size:
            return StoredPlane(PlaneCodec.ZSTD, packed)
    if share > _PAYS:
        return raw
    coded = BEST.pack(plane, None, tables.frequencies, lanes_for(plane.size))
    head = encode_tables(tables)
    if len(head) + coded.size >= plane.size:
        return raw
    return StoredPlane(PlaneCodec.CODED, join_buffers(head, coded).data)


def _repeats(plane: NDArray[np.uint8], share: float) -> bool:
    """Whether zstd finds more in a sample than how frequent each byte is."""
    middle = max(0, plane.size - _SAMPLE_BYTES) // 2
    sample = plane[middle : middle + _SAMPLE_BYTES]
    return len(zstandard.ZstdCompressor(level=LEVEL).compress(sample.data)) < share * sample.size


def unpack_plane(stored: StoredPlane, out: NDArray[np.uint8]) -> None:
    """Fill `out` with the plane.

    Raises:
        CorruptError: the bytes do not decode to exactly so many.
        UnsupportedError: a codec that this version does not know.
    """
    data = np.frombuffer(stored.data, np.uint8)
    if stored.codec == PlaneCodec.RAW:
        _check_size(data.size, out.size, "raw")
        out[...] = data
    elif stored.codec == PlaneCodec.CONSTANT:
        _check_size(data.size, 1, "constant")
        out[...] = data[0]
    elif stored.codec == PlaneCodec.ZSTD:
        out[...] = np.frombuffer(unzstd(data, out.size), np.uint8)
    elif stored.codec == PlaneCodec.CODED:
        tables, used = decode_tables(data)
        if not BEST.unpack(data[used:], None, tables.frequencies[:1], lanes_for(out.size), out):
            raise CorruptError(f"coded plane: {data.size} bytes do not decode to {out.size}")
    else:
        raise unknown_plane(stored.codec)


def raw_view(stored: StoredPlane, size: int) -> NDArray[np.uint8]:
    """A plane that takes `size` bytes decoded; where it was stored raw, nothing is copied.

    Raises:
        CorruptError: the bytes do not decode to exactly so many.
        UnsupportedError: a codec that this version does not know.
    """
    data = np.frombuffer(stored.data, np.uint8)
    if stored.codec == PlaneCodec.RAW and data.size == size:
        return data
    out = np.empty(size, np.uint8)
    unpack_plane(stored, out)
    return out


def join_buffers(*parts: Any) -> NDArray[np.uint8]:
    """Bytes of these buffers, one after the other."""
    return np.concatenate([np.frombuffer(part, np.uint8) for part in parts])


def unknown_plane(codec: int) -> UnsupportedError:
    return UnsupportedError(f"plane codec {codec} is unknown here. Update tensorrepo.")


def unzstd(data: NDArray[Any], raw_bytes: int) -> bytes:
    """The `raw_bytes` bytes in one zstd frame.

    Raises:
        CorruptError: it is none, or holds another number of bytes.
    """
    try:
        # The decoder allocates what the frame claims: compare that before it does.
        claimed = zstandard.get_frame_parameters(data.data).content_size
        if claimed != raw_bytes:
            raise CorruptError(f"zstd plane claims {claimed} bytes, expected {raw_bytes}")
        raw = zstandard.ZstdDecompressor().decompress(data.data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"zstd cannot decode a plane of {data.size} bytes: {error}") from error
    _check_size(len(raw), raw_bytes, "zstd")
    return raw


def _check_size(found: int, expected: int, kind: str) -> None:
    if found != expected:
        raise CorruptError(f"{kind} plane: expected {expected} bytes, found {found}")

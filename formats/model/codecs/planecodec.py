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

from tensorrepo.repo.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

LEVEL: Final = 1  # finding more matches than this makes planes larger, not smaller


class PlaneCodec(IntEnum):
    """Number of a plane codec."""

    RAW = 0
    ZSTD = 1
    CONSTANT = 3  # one byte, which all bytes of the plane are


class StoredPlane(NamedTuple):
    """A plane as it is stored."""

    codec: int
    data: Buffer

    @property
    def size_bytes(self) -> int:
        return memoryview(self.data).nbytes


def pack_plane(plane: NDArray[np.uint8]) -> StoredPlane:
    """A plane in the codec that stores it smallest; never larger than it is."""
    if plane.size > 1 and not np.any(plane != plane[0]):
        return StoredPlane(PlaneCodec.CONSTANT, plane[:1].tobytes())
    packed = zstandard.ZstdCompressor(level=LEVEL).compress(plane)
    if len(packed) < plane.size:
        return StoredPlane(PlaneCodec.ZSTD, packed)
    return StoredPlane(PlaneCodec.RAW, plane.data)


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
    else:
        raise unknown_plane(stored.codec)


def unknown_plane(codec: int) -> UnsupportedError:
    return UnsupportedError(f"plane codec {codec} is unknown here. Update tensorrepo.")


def unzstd(data: NDArray[Any], raw_bytes: int) -> bytes:
    """The `raw_bytes` bytes in one zstd frame.

    Raises:
        CorruptError: it is none, or holds another number of bytes.
    """
    try:
        # The decoder allocates what the frame claims: compare that before it does.
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed != raw_bytes:
            raise CorruptError(f"zstd plane claims {claimed} bytes, expected {raw_bytes}")
        raw = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"zstd cannot decode a plane of {data.size} bytes: {error}") from error
    _check_size(len(raw), raw_bytes, "zstd")
    return raw


def _check_size(found: int, expected: int, kind: str) -> None:
    if found != expected:
        raise CorruptError(f"{kind} plane: expected {expected} bytes, found {found}")

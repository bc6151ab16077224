"""Zstandard frames: expanded only where what they claim to hold is no more than may be."""

from __future__ import annotations

import threading
from typing import Final

import zstandard

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer

_UNKNOWN: Final = zstandard.CONTENTSIZE_UNKNOWN
_OWN: Final = threading.local()


def _decompressor() -> zstandard.ZstdDecompressor:
    """That of this thread: making one takes longer than expanding a small object."""
    known: zstandard.ZstdDecompressor | None = getattr(_OWN, "decompressor", None)
    if known is None:
        known = _OWN.decompressor = zstandard.ZstdDecompressor()
    return known


def claimed_bytes(frame: Buffer, where: str) -> int:
    """The size that a frame says its content has.

    Raises:
        CorruptError: not the beginning of a frame, or one that tells no size.
    """
    try:
        claimed = zstandard.get_frame_parameters(frame).content_size
    except zstandard.ZstdError as error:
        raise CorruptError(f"{where}: its compressed form is damaged: {error}") from None
    if claimed == _UNKNOWN:
        raise CorruptError(f"{where}: its compressed form claims no size")
    return claimed


def expand_frame(frame: Buffer, where: str, most_bytes: int) -> bytes:
    """The content of exactly one frame.

    Raises:
        CorruptError: damaged, followed by other bytes, or larger than `most_bytes`; of such a frame
            nothing is expanded.
    """
    claimed = claimed_bytes(frame, where)
    if claimed > most_bytes:  # the decoder would allocate what the frame claims
        raise CorruptError(
            f"{where}: its compressed form claims {claimed} bytes, at most {most_bytes} may be"
        )
    try:
        return _decompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CorruptError(f"{where}: its compressed form is damaged: {error}") from None

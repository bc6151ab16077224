"""Flipped bytes, for tests that no damage goes unnoticed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")

FLIPS = (0x01, 0x80, 0xFF)


def flipped(data: bytes, at: int, mask: int) -> bytes:
    """`data` with the bits of `mask` turned over in the byte at `at`."""
    damaged = bytearray(data)
    damaged[at] ^= mask
    return bytes(damaged)


def survivors(
    data: bytes,
    mask: int,
    read: Callable[[bytes], _T],
    refused: tuple[type[Error], ...] = (CorruptError, UnsupportedError),
) -> dict[int, _T]:
    """What `read` makes of `data` with one byte flipped, by the place of the byte.

    Places where it refuses to read are left out: an empty answer says that no damage goes
    unnoticed. One test asks for all places, since a test for each takes longer than reading does.
    """
    found = {}
    for at in range(len(data)):
        with suppress(*refused):
            found[at] = read(flipped(data, at, mask))
    return found

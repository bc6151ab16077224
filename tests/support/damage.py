"""Flipped bytes, for tests that no damage goes unnoticed."""

from __future__ import annotations

FLIPS = (0x01, 0x80, 0xFF)


def flipped(data: bytes, at: int, mask: int) -> bytes:
    """`data` with the bits of `mask` turned over in the byte at `at`."""
    damaged = bytearray(data)
    damaged[at] ^= mask
    return bytes(damaged)

"""Flipped and missing bytes, for tests that no damage goes unnoticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tests.support.effort import sampled, soaking

_T = TypeVar("_T")
_Case = TypeVar("_Case")

_ENDS, _BETWEEN = 16, 24  # bytes at each end, and about so many between them

FLIPS = sampled((0x01, 0x80, 0xFF), 1)


def places(size: int, start: int = 0) -> list[int]:
    """Where to damage `size` bytes: everywhere in a soak, else at both ends and here and there."""
    if soaking() or size - start <= 2 * _ENDS:
        return list(range(start, size))
    between = range(start + _ENDS, size - _ENDS, 1 + (size - start) // _BETWEEN)
    return [*range(start, start + _ENDS), *between, *range(size - _ENDS, size)]


def flipped(data: bytes, at: int, mask: int) -> bytes:
    """`data` with the bits of `mask` turned over in the byte at `at`."""
    damaged = bytearray(data)
    damaged[at] ^= mask
    return bytes(damaged)


def unrefused(
    cases: Iterable[_Case],
    read: Callable[[_Case], _T],
    refused: tuple[type[Error], ...] = (CorruptError,),
    match: str = "",
) -> dict[_Case, _T]:
    """What `read` makes of the cases that it does not refuse.

    An empty answer says that it refuses them all, each with a message in which `match` is found.
    One test asks for many cases, since a test for each takes longer than reading does.
    """
    found = {}
    for case in cases:
        try:
            found[case] = read(case)
        except refused as error:
            if not re.search(match, str(error)):
                raise AssertionError(f"case {case!r} is refused without {match!r}") from error
    return found


def survivors(
    data: bytes,
    mask: int,
    read: Callable[[bytes], _T],
    refused: tuple[type[Error], ...] = (CorruptError, UnsupportedError),
    match: str = "",
) -> dict[int, _T]:
    """What `read` makes of `data` with one byte flipped, by the place of the byte.

    Places where it refuses to read are left out: an empty answer says that no damage goes
    unnoticed.
    """
    return unrefused(places(len(data)), lambda at: read(flipped(data, at, mask)), refused, match)


def short_survivors(
    data: bytes,
    read: Callable[[bytes], _T],
    refused: tuple[type[Error], ...] = (CorruptError,),
    match: str = "",
) -> dict[int, _T]:
    """What `read` makes of the beginnings of `data` that it does not refuse, by their length."""
    return unrefused(places(len(data)), lambda length: read(data[:length]), refused, match)

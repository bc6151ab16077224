"""Which part of a picture is seen, and how large does it become?

Boxes are whole pixels of the picture as it is shown. Chance comes in as numbers in [0, 1) that are
a function of seed, epoch and row: the same picture is cut alike on every rank, by every thread and
after every resume, and columns whose pictures are of one size are cut alike in every row.

Source:
    docs/spec/stream-order.md, section "Keyed numbers", for the numbers; the random box is that of
    Szegedy et al., "Going deeper with convolutions", as torchvision's RandomResizedCrop draws it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tensorrepo.formats.dataset.streaming.ordering.keyed import numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

ATTEMPTS = 10  # of a random box that has to lie inside the picture
_PER_ATTEMPT = 4
CHANCES = 1 + ATTEMPTS * _PER_ATTEMPT  # numbers that a row needs at most; the first is the flip's
_FRACTION_BITS = 53


class Box(NamedTuple):
    """Rows ``[top, top + height)`` and columns ``[left, left + width)`` of a picture."""

    top: int
    left: int
    height: int
    width: int


def chances(key: int, draws: NDArray[np.uint64] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Numbers in [0, 1), ``(len(draws), CHANCES)``: a function of an epoch's key and row."""
    keys = numbers(key, draws.view(np.uint64))
    drawn = numbers(keys[:, None], np.arange(CHANCES, dtype=np.uint64)[None, :])
    found: NDArray[np.float64] = (drawn >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64)
    found *= 2.0**-_FRACTION_BITS
    return found


def whole(height: int, width: int) -> Box:
    return Box(0, 0, height, width)


def middle(height: int, width: int, size: tuple[int, int]) -> Box:
    """The largest box in the middle that has the shape of `size`, (height, width)."""
    high, wide = size
    cut_height = min(height, max(1, round(width * high / wide)))
    cut_width = min(width, max(1, round(height * wide / high)))
    return Box((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width)


def inside(height: int, width: int, size: tuple[int, int]) -> tuple[int, int]:
    """How large the whole picture becomes when it has to fit into `size`."""
    scale = min(size[0] / height, size[1] / width)
    return (
        min(size[0], max(1, round(height * scale))),
        min(size[1], max(1, round(width * scale))),
    )


def drawn(
    height: int,
    width: int,
    numbers_of_row: Sequence[float],
    area: tuple[float, float],
    ratio: tuple[float, float],
) -> Box:
    """A box of random area and shape somewhere in the picture.

    Args:
        height: of the picture.
        width: of the picture.
        numbers_of_row: a row of `chances`.
        area: least and most part of the picture's area.
        ratio: least and most width per height, drawn evenly on a logarithmic scale.

    Returns:
        The first of `ATTEMPTS` that fits; else the middle, of the shape closest to the picture's.
    """
    stretch = ratio[1] / ratio[0]
    for at in range(1, CHANCES, _PER_ATTEMPT):
        how_much, which_shape, how_low, how_far = numbers_of_row[at : at + _PER_ATTEMPT]
        pixels = height * width * (area[0] + (area[1] - area[0]) * how_much)
        shape = ratio[0] * stretch**which_shape
        cut_height, cut_width = round(math.sqrt(pixels / shape)), round(math.sqrt(pixels * shape))
        if 0 < cut_height <= height and 0 < cut_width <= width:
            top = int(how_low * (height - cut_height + 1))
            left = int(how_far * (width - cut_width + 1))
            return Box(top, left, cut_height, cut_width)
    shape = min(max(width / height, ratio[0]), ratio[1])
    cut_height = min(height, max(1, round(width / shape)))
    cut_width = min(width, max(1, round(height * shape)))
    return Box((height - cut_height) // 2, (width - cut_width) // 2, cut_height, cut_width)


def scaled(box: Box, of: tuple[int, int], to: tuple[int, int]) -> Box:
    """`box` of a picture of size `of` in the same picture of size `to`, at least one pixel."""
    top, bottom = (round(edge * to[0] / of[0]) for edge in (box.top, box.top + box.height))
    left, right = (round(edge * to[1] / of[1]) for edge in (box.left, box.left + box.width))
    top, left = min(top, to[0] - 1), min(left, to[1] - 1)
    return Box(top, left, max(1, bottom - top), max(1, right - left))

"""The nearest signatures that C finds are those of numpy, and those of a sort."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorrepo.formats.native.signatures import NATIVE, NUMPY, NearestSignatures

BOTH = [pytest.param(one, id=one.name) for one in (NUMPY, NATIVE) if one is not None]


def nearest(
    by: NearestSignatures, words: NDArray[np.uint64], known: NDArray[np.bool_], few: int
) -> list[list[int]]:
    """Of all rows, asked for in two parts."""
    found = np.full((len(words), few), -1, np.int64)
    by.nearest(words, known, few, 0, found[:3])
    by.nearest(words, known, few, 3, found[3:])
    return found.tolist()


def sorted_by_hand(
    words: NDArray[np.uint64], known: NDArray[np.bool_], few: int
) -> list[list[int]]:
    def bits(one: int, other: int) -> int:
        both = zip(words[one].tolist(), words[other].tolist(), strict=True)
        return sum((a ^ b).bit_count() for a, b in both) if known[one] and known[other] else 0

    rows = range(len(words))
    return [
        sorted(
            (row for row in rows if row != at),
            key=lambda row: (bits(at, row), abs(row - at), row),
        )[:few]
        for at in rows
    ]


@pytest.mark.parametrize("by", BOTH)
@pytest.mark.parametrize(
    ("rows", "few", "width"), [(4, 3, 1), (17, 1, 64), (40, 3, 5), (40, 16, 2)]
)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_those_come_that_differ_least_and_of_equal_ones_the_next(
    by: NearestSignatures, rows: int, few: int, width: int, share: float
) -> None:
    rng = np.random.default_rng(rows)
    words = rng.integers(0, 1 << 63, (rows // 3 + 1, width)).astype(np.uint64)
    words = words[rng.integers(0, len(words), rows)]  # many are equal
    words ^= rng.integers(0, 2, words.shape).astype(np.uint64)
    known = rng.random(rows) < share
    assert nearest(by, words, known, few) == sorted_by_hand(words, known, few)


@pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")
@pytest.mark.parametrize(
    ("rows", "few", "first", "taken", "told"),
    [
        (4, 4, 0, 4, "no 4 nearest"),
        (40, 17, 0, 1, "no 17 nearest"),
        (40, 3, 38, 3, "3 rows from 38 among 40"),
        (40, 3, -1, 3, "3 rows from -1"),
        (40, 3, (1 << 63) - 1, 3, "among 40"),
        (0, 1, 0, 0, "among 0"),
    ],
)
def test_what_makes_no_sense_is_refused(
    rows: int, few: int, first: int, taken: int, told: str
) -> None:
    assert NATIVE is not None
    words, out = np.zeros((rows, 2), np.uint64), np.zeros((taken, few), np.int64)
    with pytest.raises(ValueError, match=told):
        NATIVE.nearest(words, np.ones(rows, bool), few, first, out)
    with pytest.raises(ValueError, match="words has"):
        NATIVE.nearest(np.zeros(81, np.uint64), np.ones(40, bool), 3, 0, np.zeros((1, 3), np.int64))

"""Sums of rows: in C and by the library, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.native.row_sums import NATIVE, PYTHON, RowSummer
from tests.support.builders.native import needs_native

SUMMERS: list[Any] = [
    pytest.param(PYTHON, id="python"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
EVERY = pytest.mark.parametrize("summer", SUMMERS)
DATA = np.random.default_rng(3).integers(0, 256, 400_000, np.uint8)


@EVERY
def test_rows_of_every_length_have_the_low_half_of_their_xxh3(summer: RowSummer) -> None:
    lengths = [*range(700), 1023, 1024, 1025, 4096, 70_000]
    bounds = np.cumsum([5, *lengths], dtype=np.int64)
    found = np.empty(len(lengths), np.uint32)
    summer.sum(DATA, bounds, found)
    copied = np.empty(bounds[-1] - bounds[0], np.uint8)
    again = np.empty_like(found)
    summer.sum(DATA, bounds, again, copied)
    rows = [DATA[start:][:length].tobytes() for start, length in zip(bounds, lengths, strict=False)]
    assert copied.tobytes() == b"".join(rows)
    assert again.tolist() == found.tolist() == [xxh3_64_intdigest(row) & 0xFFFFFFFF for row in rows]


@EVERY
@pytest.mark.parametrize("bounds", [[0, 3], [2, 1, 3], [-1, 1, 2], [0, 1, 4]])
def test_bounds_that_do_not_fit_are_refused(summer: RowSummer, bounds: list[int]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        summer.sum(DATA[:3], np.array(bounds), np.empty(2, np.uint32))


@EVERY
@pytest.mark.parametrize(("row_bytes", "rows"), [(1, 3), (256, 2), (3072, 85), (640, 7)])
def test_pages_are_filled_with_rows_and_their_sums(
    summer: RowSummer, row_bytes: int, rows: int
) -> None:
    data = [DATA[start : start + rows * row_bytes] for start in (0, 5)]
    heads = [bytes([7]) * 64, bytes([9]) * 64]
    sums = [np.empty(rows, "<u4") for _ in data]
    for part, found in zip(data, sums, strict=True):
        PYTHON.sum(part, np.arange(0, len(part) + 1, row_bytes), found)
    expected = [
        head + _padded(part.tobytes()) + _padded(found.tobytes())
        for head, part, found in zip(heads, data, sums, strict=True)
    ]
    rooms = [np.full(len(page), 255, np.uint8) for page in expected]
    checksums = summer.fill(data, heads, rooms, row_bytes)
    assert [room.tobytes() for room in rooms] == expected
    assert checksums.tolist() == [xxh3_64_intdigest(page) for page in expected]


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 64)


@EVERY
@pytest.mark.parametrize(("head", "rows", "room"), [(63, 512, 640), (64, 511, 640), (64, 512, 576)])
def test_pages_of_another_size_are_refused(
    summer: RowSummer, head: int, rows: int, room: int
) -> None:
    with pytest.raises(ValueError, match="bytes"):
        summer.fill([DATA[:rows]], [bytes(head)], [np.empty(room, np.uint8)], 256)

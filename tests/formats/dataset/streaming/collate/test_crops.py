"""Parts of pictures: inside, of the right shape, and a function of seed, epoch and row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.collate import pixels
from tensorrepo.formats.dataset.streaming.collate.pixels import Box
from tensorrepo.formats.dataset.streaming.order.random_numbers import number

SIDES = st.integers(1, 5000)
SIZES = st.tuples(st.integers(1, 600), st.integers(1, 600))
AREA, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


def lies_inside(box: Box, height: int, width: int) -> bool:
    whole = box.top >= 0 and box.left >= 0 and box.height > 0 and box.width > 0
    return whole and box.top + box.height <= height and box.left + box.width <= width


@given(SIDES, SIDES, SIZES)
def test_the_middle_lies_inside_and_touches_two_sides(
    height: int, width: int, size: tuple[int, int]
) -> None:
    box = pixels.middle(height, width, size)
    assert lies_inside(box, height, width)
    assert box.height == height or box.width == width


def test_the_middle_has_the_shape_that_was_asked_for() -> None:
    assert pixels.middle(375, 500, (224, 224)) == Box(0, 62, 375, 375)
    assert pixels.middle(500, 375, (100, 200)) == Box(156, 0, 188, 375)


@given(SIDES, SIDES, SIZES)
def test_what_is_put_inside_fits(height: int, width: int, size: tuple[int, int]) -> None:
    high, wide = pixels.inside(height, width, size)
    assert 1 <= high <= size[0]
    assert 1 <= wide <= size[1]


@given(SIDES, SIDES, st.integers(0, 1 << 40))
def test_a_random_box_lies_inside(height: int, width: int, row: int) -> None:
    numbers = pixels.chances(7, np.array([row]))[0].tolist()
    assert lies_inside(pixels.drawn(height, width, numbers, AREA, RATIO), height, width)


def test_random_boxes_have_the_area_and_shape_that_were_asked_for() -> None:
    rows = pixels.chances(7, np.arange(500)).tolist()
    boxes = np.array([pixels.drawn(400, 400, row, (0.2, 0.5), RATIO) for row in rows])
    areas, shapes = boxes[:, 2] * boxes[:, 3] / 160_000, boxes[:, 3] / boxes[:, 2]
    assert areas.min() > 0.195
    assert areas.max() < 0.505
    assert abs(areas.mean() - 0.35) < 0.02
    assert shapes.min() > 0.74
    assert shapes.max() < 1.35
    assert len({tuple(box) for box in boxes.tolist()}) > 490


def test_a_picture_that_no_random_box_fits_gives_its_middle() -> None:
    numbers = pixels.chances(7, np.array([3]))[0].tolist()
    assert pixels.drawn(10, 1000, numbers, (1.0, 1.0), RATIO) == Box(0, 493, 10, 13)


def test_chances_are_the_keyed_numbers_of_a_row() -> None:
    found = pixels.chances(99, np.array([5, 6]))
    assert found.shape == (2, pixels.CHANCES)
    assert found[1, 3] == (number(number(99, 6), 3) >> 11) / 2**53
    assert ((found >= 0) & (found < 1)).all()


@given(
    st.integers(1, 300), st.integers(1, 300), st.integers(0, 1 << 30), st.sampled_from([2, 4, 8])
)
def test_a_box_stays_inside_the_smaller_picture(
    height: int, width: int, row: int, shrink: int
) -> None:
    numbers = pixels.chances(1, np.array([row]))[0].tolist()
    box = pixels.drawn(height, width, numbers, AREA, RATIO)
    to = -(-height // shrink), -(-width // shrink)
    assert lies_inside(pixels.scaled(box, (height, width), to), *to)


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_a_whole_picture_stays_whole_when_it_is_scaled(shrink: int) -> None:
    to = -(-375 // shrink), -(-500 // shrink)
    assert pixels.scaled(Box(0, 0, 375, 500), (375, 500), to) == (0, 0, *to)

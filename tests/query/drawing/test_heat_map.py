"""Heat maps are PNGs that another reader reads, whatever numbers a tensor has."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tensorrepo.query.drawing.heat_map import MOST_SIDE, heat_map_png, palette

Image = pytest.importorskip("PIL.Image")


def test_the_smallest_number_is_dark_and_the_largest_bright() -> None:
    found = _pixels(np.array([[0.0, 1.0], [np.nan, 0.5]]))
    assert found[0, 0].tolist() == palette()[1].tolist()
    assert found[0, 1].tolist() == palette()[255].tolist()
    assert found[1, 0].tolist() == palette()[0].tolist()


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        (np.zeros((0, 4)), (1, 1)),
        (np.float32(3.0), (1, 1)),
        (np.arange(7), (1, 7)),
        (np.zeros((2, 3, 4), np.complex64), (6, 4)),
        (np.full((2, 2), np.inf), (2, 2)),
        (np.array([[-1.7e308, 1.7e308]]), (1, 2)),
        (np.zeros((5000, 3), np.uint8), (MOST_SIDE, 3)),
    ],
)
def test_any_tensor_has_one(values: np.ndarray, shape: tuple[int, int]) -> None:
    assert _pixels(np.asarray(values)).shape == (*shape, 3)


def _pixels(values: np.ndarray) -> np.ndarray:
    with Image.open(io.BytesIO(heat_map_png(values))) as image:
        return np.asarray(image.convert("RGB"))

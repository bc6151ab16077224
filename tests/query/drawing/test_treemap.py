"""Treemaps fill their area with what they show, and escape names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.query.drawing.treemap import MOST_TILES, Rectangle, Tile, squarified, treemap


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60))
def test_places_have_areas_as_their_sizes_and_lie_inside(sizes: list[int]) -> None:
    ordered = sorted(sizes, reverse=True)
    places = squarified(ordered, Rectangle(0, 0, 1000, 400))
    shares = [place.width * place.height / 400_000 for place in places]
    assert shares == pytest.approx([size / sum(sizes) for size in ordered], rel=1e-6)
    assert max(place.x + place.width for place in places) == pytest.approx(1000)
    assert max(place.y + place.height for place in places) == pytest.approx(400)


def test_what_does_not_fit_is_one_tile() -> None:
    drawn = treemap([Tile(f"t{at}", 1) for at in range(MOST_TILES + 7)], "sizes")
    assert drawn.count("<rect") == MOST_TILES + 1
    assert "7 smaller ones" in drawn


def test_names_and_links_are_escaped() -> None:
    drawn = treemap([Tile('<script>"', 1, words="<b>", href='/"><script>')], "<i>")
    assert "<script" not in drawn
    assert "<b>" not in drawn
    assert "<i>" not in drawn

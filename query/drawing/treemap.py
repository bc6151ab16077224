"""Treemap: sizes as areas of rectangles that are nearly square, as SVG.

Source:
    Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tensorrepo.query.drawing.parts import COLORS, text
from tensorrepo.repo.deferred_dataclass import dataclass

WIDTH: Final = 1000
HEIGHT: Final = 440
MOST_TILES: Final = 600
_LETTER: Final = 6.6  # px, in the mean
_LEAST_TITLED: Final = (46, 18)  # width and height of a tile that shows its name


@dataclass(frozen=True, slots=True)
class Tile:
    """One thing of a treemap.

    Attributes:
        name: what it is called.
        size: its share of the whole, in any unit; positive.
        color: number of its color.
        words: what a pointer over it, or a screen reader, is told.
        href: where it leads; "" leads nowhere.
    """

    name: str
    size: int
    color: int = 0
    words: str = ""
    href: str = ""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A place in a drawing, px."""

    x: float
    y: float
    width: float
    height: float


def treemap(tiles: Sequence[Tile], label: str) -> str:
    """An SVG element of the largest `MOST_TILES`; the others together are the last tile."""
    shown = sorted((one for one in tiles if one.size > 0), key=lambda one: (-one.size, one.name))
    rest = shown[MOST_TILES:]
    shown = shown[:MOST_TILES]
    if rest:
        words = f"{len(rest):,} smaller ones"
        shown.append(Tile(words, sum(one.size for one in rest), COLORS - 1, words))
    places = squarified([one.size for one in shown], Rectangle(0, 0, WIDTH, HEIGHT))
    drawn = "".join(_tile(one, place) for one, place in zip(shown, places, strict=True))
    return (
        f'<svg class="treemap" role="group" aria-label="{text(label)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}">{drawn}</svg>'
    )


def squarified(sizes: Sequence[float], area: Rectangle) -> list[Rectangle]:
    """Places of `sizes`, which descend, so that together they fill `area`."""
    scale = area.width * area.height / (sum(sizes) or 1)
    waiting = [size * scale for size in sizes]
    places: list[Rectangle] = []
    while waiting:
        side = min(area.width, area.height)
        count = _row_length(waiting, side)
        row, waiting = waiting[:count], waiting[count:]
        made, area = _row(row, area)
        places += made
    return places


def _row_length(areas: Sequence[float], side: float) -> int:
    """How many of the next areas fit beside each other best: the flattest is least flat."""
    total, best = 0.0, float("inf")
    for count, one in enumerate(areas):
        total += one
        thickness = total / side if side else 0.0
        flatness = max(_flatness(each, thickness) for each in (areas[0], one))
        if flatness > best:
            return count
        best = flatness
    return len(areas)


def _flatness(area: float, thickness: float) -> float:
    length = area / thickness if thickness else 0.0
    return max(length / thickness, thickness / length) if length and thickness else float("inf")


def _row(areas: Sequence[float], area: Rectangle) -> tuple[list[Rectangle], Rectangle]:
    """A row along the shorter side, and what it leaves."""
    total = sum(areas)
    upright = area.width >= area.height
    side = area.height if upright else area.width
    thickness = total / side if side else 0.0
    places, at = [], area.y if upright else area.x
    for one in areas:
        length = one / thickness if thickness else 0.0
        places.append(
            Rectangle(area.x, at, thickness, length)
            if upright
            else Rectangle(at, area.y, length, thickness)
        )
        at += length
    left = (
        Rectangle(area.x + thickness, area.y, max(area.width - thickness, 0), area.height)
        if upright
        else Rectangle(area.x, area.y + thickness, area.width, max(area.height - thickness, 0))
    )
    return places, left


def _tile(one: Tile, at: Rectangle) -> str:
    wide, high = _LEAST_TITLED
    name = ""
    if at.width >= wide and at.height >= high:
        most = int((at.width - 10) / _LETTER)
        name = f'<text x="{at.x + 6:.1f}" y="{at.y + 14:.1f}">{text(one.name, most)}</text>'
    drawn = (
        f'<rect class="c{one.color % COLORS}" x="{at.x:.1f}" y="{at.y:.1f}" '
        f'width="{at.width:.1f}" height="{at.height:.1f}">'
        f"<title>{text(one.words or one.name, 300)}</title></rect>{name}"
    )
    if not one.href:
        return f"<g>{drawn}</g>"
    label = text(one.words or one.name, 300)
    return f'<a href="{text(one.href, 2000)}" aria-label="{label}">{drawn}</a>'

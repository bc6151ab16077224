"""What is computed of equal stretches of several tensors?

Everything is elementwise, in float64 (complex128), in a fixed order of operations: a stretch has
the same result whether it is computed alone or within a larger one.

Source:
    average: McMahan et al. 2017 and Wortsman et al. 2022 ("model soups"); SLERP: Shoemake 1985;
    task arithmetic: Ilharco et al. 2023; TIES: Yadav et al. 2023.
"""

from __future__ import annotations

from math import acos, frexp, ldexp, sin
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Values = NDArray[Any]

_SMALL_ANGLE = 1e-4  # below it an arc and a line are one


def average(sides: Sequence[Values], weights: Sequence[float]) -> Values:
    """The weighted mean; weights count by their ratio."""
    total = sum(weights)
    return _sum(sides, [weight / total for weight in weights])


def task_arithmetic(
    base: Values, sides: Sequence[Values], weights: Sequence[float], scale: float
) -> Values:
    """The base, plus the weighted sum of what each side changed."""
    return base + scale * _sum([side - base for side in sides], weights)


def ties(
    base: Values,
    sides: Sequence[Values],
    weights: Sequence[float],
    scale: float,
    thresholds: Sequence[float],
) -> Values:
    """Trim, elect a sign, merge what agrees with it.

    Args:
        base: what the sides were tuned from.
        sides: the tuned ones.
        weights: one for each side, of votes and of the mean.
        scale: of the joint change.
        thresholds: one for each side: smaller changes count as none.
    """
    changes = [
        np.where(np.abs(side - base) >= max(threshold, np.finfo(np.float64).tiny), side - base, 0)
        for side, threshold in zip(sides, thresholds, strict=True)
    ]
    elected = np.sign(_sum(changes, weights))
    joint = np.zeros_like(base)
    voters = np.zeros(base.shape, np.float64)
    for change, weight in zip(changes, weights, strict=True):
        agrees = (np.sign(change) == elected) & (change != 0)
        joint = joint + np.where(agrees, weight * change, 0)
        voters = voters + np.where(agrees, weight, 0)
    mean = np.divide(joint, voters, out=np.zeros_like(base), where=voters != 0)
    return base + scale * mean


def arc_shares(dot: float, one: float, two: float, place: float) -> tuple[float, float]:
    """What each of two tensors is multiplied by, for a place on the arc between them.

    Args:
        dot: their inner product.
        one: the L2 norm of the first.
        two: that of the second.
        place: 0 at the first, 1 at the second.

    Returns:
        Two shares, to 32 binary digits: sine and arc cosine may differ in the last ones between
        two machines, and what is made again must have the same bits.
    """
    if not one or not two:
        return 1 - place, place
    angle = acos(max(-1.0, min(1.0, dot / one / two)))
    if sin(angle) < _SMALL_ANGLE:
        return 1 - place, place
    return _rounded(sin((1 - place) * angle) / sin(angle)), _rounded(
        sin(place * angle) / sin(angle)
    )


def weighted_sum(sides: Sequence[Values], shares: Sequence[float]) -> Values:
    """Each side times its share, added from the first to the last."""
    return _sum(sides, shares)


def _sum(sides: Sequence[Values], weights: Sequence[float]) -> Values:
    total = sides[0] * weights[0]
    for side, weight in zip(sides[1:], weights[1:], strict=True):
        total = total + side * weight
    return total


def _rounded(share: float) -> float:
    mantissa, exponent = frexp(share)
    return ldexp(round(mantissa * 2**32), exponent - 32)

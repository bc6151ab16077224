"""Interval arithmetic on arrays: what a function of numbers gives that are known within bounds.

An `Interval` goes where an array goes, in numpy's own functions. What comes out contains whatever
the same function gives in float64 for any numbers between the bounds, in whatever order sums are
taken: additions and products round monotonically, sums and matrix products are widened by what
rounding can do to them, and functions such as `exp` by `ULPS` units in the last place.

Bounds may be wider than need be, never narrower: a number that occurs twice is taken for two.
`accuracy` and `cross_entropy` know their formula, and are as narrow as the scores allow. What has
no rule here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import ArrayLike, NDArray

from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

Floats: TypeAlias = NDArray[np.float64]
ULPS: Final = 8  # numpy's own bound for its functions is 4
_UNIT: Final = 2.0**-53
_TINY: Final = 2.0**-1074  # of each product that underflows


class Interval(NDArrayOperatorsMixin):
    """An array of numbers of which each is known to lie between two.

    Attributes:
        low: least values, float64.
        high: largest values, of the same shape; -inf and inf where nothing is known, or NaN may be.
    """

    __slots__ = ("high", "low")

    def __init__(self, low: ArrayLike, high: ArrayLike | None = None) -> None:
        """Numbers between `low` and `high`; or exactly `low`."""
        least: Floats = np.asarray(low, np.float64)
        most: Floats = least if high is None else np.asarray(high, np.float64)
        if least.shape != most.shape:
            raise InvalidInputError(f"bounds of shapes {least.shape} and {most.shape}")
        unknown = np.isnan(least) | np.isnan(most)
        if unknown.any():
            least, most = np.where(unknown, -np.inf, least), np.where(unknown, np.inf, most)
        self.low, self.high = least, most

    @property
    def shape(self) -> tuple[int, ...]:
        return self.low.shape

    @property
    def ndim(self) -> int:
        return self.low.ndim

    @property
    def size(self) -> int:
        return self.low.size

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.low.dtype

    @property
    def T(self) -> Interval:  # noqa: N802  numpy's word
        return Interval(self.low.T, self.high.T)

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, index: Any) -> Interval:
        return Interval(self.low[index], self.high[index])

    def astype(self, dtype: Any, **_: Any) -> Interval:
        """Itself: bounds are of float64, and stay so."""
        if np.dtype(dtype).kind != "f":
            raise _refused(f"astype({np.dtype(dtype)})")
        return self

    def reshape(self, *shape: Any, **options: Any) -> Interval:
        return Interval(self.low.reshape(*shape, **options), self.high.reshape(*shape, **options))

    def transpose(self, *axes: Any) -> Interval:
        return Interval(self.low.transpose(*axes), self.high.transpose(*axes))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Interval:
        return _sum(self, axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Interval:
        return _mean(self, axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Interval:
        return _reduced(np.max, self, axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Interval:
        return _reduced(np.min, self, axis, keepdims=keepdims)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        rule = _UFUNCS.get(ufunc)
        if rule is None or method != "__call__" or options:
            raise _refused(ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}")
        if ufunc is np.power:
            return _power(inputs[0], inputs[1])
        with np.errstate(all="ignore"):
            return rule(*map(_interval, inputs))

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...], options: Any
    ) -> Any:
        rule = _FUNCTIONS.get(function)
        if rule is None:
            raise _refused(function.__name__)
        with np.errstate(all="ignore"):
            return rule(*args, **options)

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        raise _refused("conversion to an array")

    def __bool__(self) -> bool:
        raise _refused("a yes or no")

    def __float__(self) -> float:
        raise _refused("float")

    def __repr__(self) -> str:
        if self.size == 1:
            return f"<between {self.low.item():.6g} and {self.high.item():.6g}>"
        return f"<intervals of shape {self.shape}>"


def accuracy(scores: Any, labels: ArrayLike) -> Any:
    """Share of rows whose largest score is that of their label.

    Args:
        scores: ``(rows, classes)``, an array or an interval.
        labels: ``(rows,)``, numbers of classes.

    Returns:
        A float; of an interval an interval, whose low end counts the rows that are right for sure.
    """
    wanted = _labels(scores, labels)
    if not isinstance(scores, Interval):
        return float((np.asarray(scores).argmax(-1) == wanted).mean())
    own = wanted[:, None]
    is_own = np.arange(scores.shape[1]) == own
    low = np.take_along_axis(scores.low, own, 1)[:, 0]
    high = np.take_along_axis(scores.high, own, 1)[:, 0]
    right = np.where(is_own, -np.inf, scores.high).max(1) < low
    wrong = np.where(is_own, -np.inf, scores.low).max(1) > high
    return Interval(right.mean(), (~wrong).mean())


def cross_entropy(scores: Any, labels: ArrayLike) -> Any:
    """Mean of minus the logarithm of the softmax of each row's label, in nats.

    Arguments and result are those of `accuracy`.
    """
    wanted = _labels(scores, labels)
    if not isinstance(scores, Interval):
        exact: Floats = np.asarray(scores, np.float64)
        return float(_entropies(exact, exact, wanted).mean())
    with np.errstate(all="ignore"):
        # It falls with the label's own score, and rises with the others.
        low = _entropies(scores.low, scores.high, wanted)
        high = _entropies(scores.high, scores.low, wanted)
        slack = 4 * ULPS * (scores.shape[1] + 1) * _UNIT
        each = Interval(low - slack * np.abs(low) - slack, high + slack * np.abs(high) + slack)
        return each.mean()


def _entropies(others: Floats, own: Floats, labels: NDArray[np.int64]) -> Floats:
    """Of each row log(sum(exp(scores - score of the label)))."""
    place = labels[:, None]
    apart = others - np.take_along_axis(own, place, 1)
    np.put_along_axis(apart, place, 0.0, 1)
    found: Floats = np.logaddexp.reduce(apart, axis=1)
    return found


def _labels(scores: Any, labels: ArrayLike) -> NDArray[np.int64]:
    wanted = np.asarray(labels)
    if scores.ndim != 2 or wanted.shape != (scores.shape[0],) or not wanted.size:
        raise InvalidInputError(
            f"scores of shape {scores.shape} and labels of shape {wanted.shape}: expected "
            "(rows, classes) and (rows,), at least one row"
        )
    if wanted.dtype.kind not in "iu" or wanted.min() < 0 or wanted.max() >= scores.shape[1]:
        raise InvalidInputError(f"labels are numbers of classes, from 0 to {scores.shape[1] - 1}")
    return wanted.astype(np.int64)


def _refused(what: str) -> UnsupportedError:
    known = sorted({one.__name__ for one in (*_UFUNCS, *_FUNCTIONS)})
    return UnsupportedError(
        f"numbers that are known within bounds have no {what}. There are {', '.join(known)}, and "
        "tensorrepo.intervals.accuracy and cross_entropy. A metric that needs more is evaluated on "
        "whole models, or by estimates"
    )


def _interval(value: Any) -> Interval:
    return value if isinstance(value, Interval) else Interval(value)


# ------------------------------------------------------------------------------ elementwise


def _add(a: Interval, b: Interval) -> Interval:
    return Interval(a.low + b.low, a.high + b.high)


def _subtract(a: Interval, b: Interval) -> Interval:
    return Interval(a.low - b.high, a.high - b.low)


def _multiply(a: Interval, b: Interval) -> Interval:
    return _corners(np.multiply, a, b)


def _divide(a: Interval, b: Interval) -> Interval:
    found = _corners(np.divide, a, b)
    around = (b.low <= 0) & (b.high >= 0)
    return Interval(np.where(around, -np.inf, found.low), np.where(around, np.inf, found.high))


def _corners(ufunc: np.ufunc, a: Interval, b: Interval) -> Interval:
    """Of a function that is monotone in each of both: among the four corners. NaN: unknown."""
    ends = [ufunc(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(np.minimum.reduce(ends), np.maximum.reduce(ends))


def _negative(a: Interval) -> Interval:
    return Interval(-a.high, -a.low)


def _absolute(a: Interval) -> Interval:
    ends = np.abs(a.low), np.abs(a.high)
    inside = (a.low <= 0) & (a.high >= 0)
    return Interval(np.where(inside, 0.0, np.minimum(*ends)), np.maximum(*ends))


def _square(a: Interval) -> Interval:
    near = _absolute(a)
    return Interval(np.square(near.low), np.square(near.high))


def _power(base: Any, exponent: Any) -> Interval:
    if isinstance(exponent, Interval) or np.ndim(exponent) or exponent not in (0, 1, 2, 3, 4):
        raise _refused("power but with an exponent of 0 to 4")
    value = _interval(base)
    with np.errstate(all="ignore"):
        if exponent == 2:
            return _square(value)
        if exponent in (0, 4):
            value = _absolute(value)
        ends = np.power(value.low, exponent), np.power(value.high, exponent)
        return _widened(*ends)


def _increasing(ufunc: np.ufunc, *, exact: bool = False) -> Callable[[Interval], Interval]:
    def rule(a: Interval) -> Interval:
        low, high = ufunc(a.low), ufunc(a.high)
        return Interval(low, high) if exact else _widened(low, high)

    return rule


def _exp(a: Interval) -> Interval:
    found = _widened(np.exp(a.low), np.exp(a.high))
    return Interval(np.maximum(found.low, 0.0), found.high)


def _widened(low: Floats, high: Floats) -> Interval:
    """By what a function may be off that numpy does not round exactly."""
    return Interval(low - ULPS * _spacing(low), high + ULPS * _spacing(high))


def _spacing(values: Floats) -> Floats:
    found: Floats = np.where(np.isfinite(values), np.spacing(np.abs(values)), 0.0)
    return found


def _pairwise(ufunc: np.ufunc) -> Callable[[Interval, Interval], Interval]:
    def rule(a: Interval, b: Interval) -> Interval:
        return Interval(ufunc(a.low, b.low), ufunc(a.high, b.high))

    return rule


# ------------------------------------------------------------------------------ sums


def _matmul(a: Interval, b: Interval) -> Interval:
    # A vector is a matrix of one row, or of one column, that is taken out of the result.
    if b.ndim == 1:
        return _matmul(a, b.reshape(-1, 1))[..., 0]
    if a.ndim == 1:
        return _matmul(a.reshape(1, -1), b)[..., 0, :]
    low, high = _product_bounds(a, b)
    terms = a.shape[-1]
    # What any order of sums rounds to is so near the sum itself; and the bounds round as well. The
    # sum of magnitudes is at most this: sum of a row's times the largest of a column.
    most = _magnitude(a).sum(-1, keepdims=True) * _magnitude(b).max(-2, keepdims=True, initial=0.0)
    slack = _gamma(terms) * most + 4 * terms * _TINY
    return Interval(low - slack, high + slack)


def _magnitude(a: Interval) -> Floats:
    found: Floats = np.maximum(np.abs(a.low), np.abs(a.high))
    return found


def _product_bounds(a: Interval, b: Interval) -> tuple[Floats, Floats]:
    """Bounds of ``a @ b``: each end takes the ends that fit, where signs of one side are known."""
    if _is_known(a) and _is_known(b):
        exact = a.low @ b.low
        return exact, exact
    if _is_known(b):
        return _by_known(a, b.low)
    if _is_known(a):
        return _turned(_by_known(_swapped(b), a.low.swapaxes(-1, -2)))
    if (b.low >= 0).all():
        return _times_positive(a, b)
    if (a.low >= 0).all():
        return _turned(_times_positive(_swapped(b), _swapped(a)))
    # Rump's: midpoints and radii. At most half wider than need be.
    middle, radius = _middle(a)
    other, width = _middle(b)
    centre = middle @ other
    far = np.abs(middle) @ width + radius @ (np.abs(other) + width)
    return centre - far, centre + far


def _is_known(a: Interval) -> bool:
    return a.low is a.high or np.array_equal(a.low, a.high)


def _by_known(a: Interval, b: Floats) -> tuple[Floats, Floats]:
    up, down = np.maximum(b, 0), np.minimum(b, 0)
    low, high = a.low @ up, a.high @ up
    if down.any():
        low, high = low + a.high @ down, high + a.low @ down
    return low, high


def _turned(ends: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    return ends[0].swapaxes(-1, -2), ends[1].swapaxes(-1, -2)


def _times_positive(a: Interval, b: Interval) -> tuple[Floats, Floats]:
    """Bounds of ``a @ b`` where nothing in `b` is below zero."""
    low = np.maximum(a.low, 0) @ b.low + np.minimum(a.low, 0) @ b.high
    high = np.maximum(a.high, 0) @ b.high + np.minimum(a.high, 0) @ b.low
    return low, high


def _swapped(a: Interval) -> Interval:
    return Interval(a.low.swapaxes(-1, -2), a.high.swapaxes(-1, -2))


def _middle(a: Interval) -> tuple[Floats, Floats]:
    """Midpoints, and radii that reach both ends however they were rounded."""
    middle = a.low / 2 + a.high / 2
    radius = np.maximum(a.high - middle, middle - a.low)
    return middle, radius * (1 + 4 * _UNIT) + _TINY


def _gamma(terms: int) -> float:
    """Relative error that sums of so many terms may have, several times over for our own bounds."""
    return 8 * (terms + 8) * _UNIT


def _sum(a: Any, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Interval:
    if options:
        raise _refused(f"sum with {', '.join(options)}")
    low, high = (np.sum(end, axis, keepdims=keepdims) for end in (a.low, a.high))
    most = np.sum(_magnitude(a), axis, keepdims=keepdims)
    slack = _gamma(a.size) * most
    return Interval(low - slack, high + slack)


def _mean(a: Any, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Interval:
    total = _sum(a, axis, keepdims=keepdims, **options)
    count = a.size // max(total.size, 1)
    return Interval(total.low / count, total.high / count)


def _reduced(
    function: Callable[..., Any], a: Any, axis: Any = None, *, keepdims: bool = False
) -> Interval:
    return Interval(
        function(a.low, axis=axis, keepdims=keepdims),
        function(a.high, axis=axis, keepdims=keepdims),
    )


# ------------------------------------------------------------------------------ shapes


def _moved(function: Callable[..., Any]) -> Callable[..., Interval]:
    def rule(a: Any, *args: Any, **options: Any) -> Interval:
        return Interval(function(a.low, *args, **options), function(a.high, *args, **options))

    return rule


def _joined(function: Callable[..., Any]) -> Callable[..., Interval]:
    def rule(arrays: Any, *args: Any, **options: Any) -> Interval:
        parts = [_interval(one) for one in arrays]
        low = function([one.low for one in parts], *args, **options)
        return Interval(low, function([one.high for one in parts], *args, **options))

    return rule


def _where(condition: Any, a: Any, b: Any) -> Interval:
    if isinstance(condition, Interval):
        raise _refused("where with a condition that is not known")
    one, other = _interval(a), _interval(b)
    return Interval(
        np.where(condition, one.low, other.low), np.where(condition, one.high, other.high)
    )


def _clip(a: Any, low: Any = None, high: Any = None, **options: Any) -> Interval:
    if isinstance(low, Interval) or isinstance(high, Interval) or not isinstance(a, Interval):
        raise _refused("clip to what is not known")
    return _moved(np.clip)(a, low, high, **options)


def _dot(a: Any, b: Any) -> Interval:
    one, other = _interval(a), _interval(b)
    if one.ndim > 2 or other.ndim > 2 or not (one.ndim and other.ndim):
        raise _refused("dot but of vectors and matrices")
    return _matmul(one, other)


_UFUNCS: Final[Mapping[Any, Callable[..., Interval]]] = {
    np.add: _add,
    np.subtract: _subtract,
    np.multiply: _multiply,
    np.divide: _divide,
    np.negative: _negative,
    np.positive: lambda a: a,
    np.absolute: _absolute,
    np.square: _square,
    np.power: _power,
    np.matmul: _matmul,
    np.maximum: _pairwise(np.maximum),
    np.minimum: _pairwise(np.minimum),
    np.sqrt: _increasing(np.sqrt, exact=True),
    np.exp: _exp,
    np.expm1: _increasing(np.expm1),
    np.log: _increasing(np.log),
    np.log1p: _increasing(np.log1p),
    np.tanh: _increasing(np.tanh),
    np.arctan: _increasing(np.arctan),
}
_FUNCTIONS: Final[Mapping[Any, Callable[..., Interval]]] = {
    np.sum: _sum,
    np.mean: _mean,
    np.max: lambda a, axis=None, **options: _reduced(np.max, a, axis, **options),
    np.min: lambda a, axis=None, **options: _reduced(np.min, a, axis, **options),
    np.dot: _dot,
    np.reshape: _moved(np.reshape),
    np.transpose: _moved(np.transpose),
    np.swapaxes: _moved(np.swapaxes),
    np.squeeze: _moved(np.squeeze),
    np.expand_dims: _moved(np.expand_dims),
    np.broadcast_to: _moved(np.broadcast_to),
    np.take: _moved(np.take),
    np.concatenate: _joined(np.concatenate),
    np.stack: _joined(np.stack),
    np.where: _where,
    np.clip: _clip,
}

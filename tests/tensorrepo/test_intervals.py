"""Interval arithmetic: what comes out contains what any numbers between the bounds give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.intervals import Interval, accuracy, cross_entropy
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.effort import examples

NUMBERS = st.floats(-50, 50).map(lambda value: round(value, 3)) | st.floats(-1e-300, 1e-300)
SQUARE = arrays.arrays("f8", (3, 3), elements=NUMBERS)
SHARES = arrays.arrays("f8", (3, 3), elements=st.floats(0, 1))
WIDTHS = arrays.arrays("f8", (3, 3), elements=st.sampled_from([0.0, 1e-6, 0.5, 3.0]))
Function = Callable[[Any, Any], Any]


def mlp(a: Any, b: Any) -> Any:
    hidden = np.maximum(a @ b + 0.5, 0)
    return np.tanh(hidden @ b.T) @ a


FUNCTIONS: dict[str, Function] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "scale": lambda a, b: 3 * a - b / 7,
    "divide": lambda a, b: a / b,
    "negative": lambda a, b: -a + +b,
    "matmul": lambda a, b: a @ b,
    "matmul by a known": lambda a, _: a @ np.arange(9.0).reshape(3, 3) - 4,
    "a known by matmul": lambda a, _: (np.arange(9.0).reshape(3, 3) - 4) @ a,
    "matmul of positive": lambda a, b: a @ np.abs(b) + np.abs(a) @ b,
    "dot": lambda a, b: np.dot(a[0], b) + np.dot(a, b[0]) + a[1] @ b[2],
    "relu": lambda a, b: np.maximum(a, 0) + np.minimum(b, a),
    "exp": lambda a, b: np.exp(a / 10) - np.expm1(b / 10),
    "log": lambda a, b: np.log(np.abs(a) + 1) + np.log1p(np.abs(b)),
    "tanh": lambda a, b: np.tanh(a) * np.arctan(b),
    "sqrt": lambda a, _: np.sqrt(np.square(a)),
    "powers": lambda a, b: a**2 + b**3 - a**4 + a**1 * b**0,
    "sum": lambda a, b: np.sum(a * b, axis=0) + (a - b).sum(),
    "mean": lambda a, b: np.mean(a, axis=1, keepdims=True) - b.mean(0),
    "max": lambda a, b: np.max(a, axis=1) - b.min(axis=0),
    "shapes": lambda a, b: np.concatenate([a.T, b.reshape(1, 9).reshape(3, 3)], axis=1),
    "stack": lambda a, b: np.stack([np.transpose(a), b[::-1]]).sum(0),
    "clip": lambda a, b: np.clip(a, -1, 2) + np.where(np.eye(3) > 0, a, b),
    "softmax": lambda a, _: np.exp(a - np.max(a, axis=1, keepdims=True)),
    "mlp": mlp,
}


def contains(bounds: Any, value: Any) -> bool:
    plain = np.asarray(value)
    known = ~np.isnan(plain)
    return bool(((bounds.low <= plain) & (plain <= bounds.high))[known].all())


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=examples(3))
@given(a=SQUARE, b=SQUARE, widths=WIDTHS, shares=SHARES)
def test_what_numbers_between_the_bounds_give_lies_between_the_bounds(
    name: str, a: Any, b: Any, widths: Any, shares: Any
) -> None:
    function = FUNCTIONS[name]
    with np.errstate(all="ignore"):
        bounds = function(Interval(a, a + widths), Interval(b - widths, b))
        for share in (shares, np.zeros((3, 3)), np.ones((3, 3))):
            inner = np.clip(a + share * widths, a, a + widths)
            other = np.clip(b - share * widths, b - widths, b)
            assert contains(bounds, function(inner, other))


def test_sums_contain_every_order_of_their_terms() -> None:
    rng = np.random.default_rng(5)
    terms = rng.normal(size=4000) * 10.0 ** rng.integers(-8, 8, 4000)
    total = np.sum(Interval(terms))
    for _ in range(50):
        assert contains(total, np.cumsum(rng.permutation(terms))[-1])
    product = Interval(terms[None]) @ np.ones((4000, 1))
    assert contains(product, [[sum(sorted(terms.tolist()))]])


@pytest.mark.parametrize("name", ["matmul", "mlp", "sum", "softmax"])
def test_known_numbers_give_narrow_bounds(name: str) -> None:
    rng = np.random.default_rng(6)
    a, b = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    found = FUNCTIONS[name](Interval(a), Interval(b))
    assert (found.high - found.low).max() < 1e-12


def test_products_with_known_signs_are_as_narrow_as_can_be() -> None:
    low, high = np.array([[-1.0, 2.0]]), np.array([[3.0, 4.0]])
    found = Interval(low, high) @ Interval([[1.0], [0.0]], [[2.0], [1.0]])
    assert np.allclose([found.low, found.high], [[[-2.0]], [[10.0]]])


def test_what_may_be_nan_is_unknown() -> None:
    found = Interval([np.nan, 1.0], [2.0, np.nan])
    assert np.isneginf(found.low).all()
    assert np.isposinf(found.high).all()
    assert contains(np.log(Interval([-1.0], [2.0])), np.log(2.0))
    assert repr(Interval(1.0, 2.0)) == "<between 1 and 2>"
    assert repr(Interval(np.zeros((2, 3)))) == "<intervals of shape (2, 3)>"


LABELS = arrays.arrays("i8", 3, elements=st.integers(0, 2))


@given(a=SQUARE, widths=WIDTHS, shares=SHARES, labels=LABELS)
def test_metrics_contain_those_of_numbers_between_the_bounds(
    a: Any, widths: Any, shares: Any, labels: Any
) -> None:
    inner = np.clip(a + shares * widths, a, a + widths)
    for metric in (accuracy, cross_entropy):
        bounds = metric(Interval(a, a + widths), labels)
        assert contains(bounds, metric(inner, labels))
        assert contains(bounds, metric(a, labels))


def test_rows_that_are_sure_are_decided() -> None:
    scores = Interval([[1.0, 0.0], [1.0, 0.0], [0.0, 5.0]], [[2.0, 0.5], [2.0, 3.0], [1.0, 6.0]])
    found = accuracy(scores, [0, 0, 0])
    assert (found.low, found.high) == (1 / 3, 2 / 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x > 0,
        lambda x: np.argmax(x, axis=0),
        float,
        bool,
        np.asarray,
        np.sin,
        lambda x: x**0.5,
        lambda x: x.astype("i4"),
        np.add.reduce,
        lambda x: np.add(x, x, where=np.True_),
        lambda x: np.where(x, 1, 0),
    ],
)
def test_what_has_no_bounds_is_refused_by_name(use: Callable[[Any], Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"known within bounds have no .*There are absolute"):
        use(Interval([1.0, 2.0]))


@pytest.mark.parametrize("labels", [[0], [0, 3], [0, -1], [0.5, 1.0]])
def test_labels_are_numbers_of_classes(labels: list[Any]) -> None:
    for scores in (Interval(np.zeros((2, 3))), np.zeros((2, 3))):
        with pytest.raises(InvalidInputError):
            accuracy(scores, labels)


def test_bounds_have_one_shape() -> None:
    with pytest.raises(InvalidInputError, match="shapes"):
        Interval([1.0], [[1.0]])

"""Weights: how often a row comes, in the mean and in one epoch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.selecting.row_bits import bits_of
from tensorrepo.formats.dataset.streaming.order.items import (
    balanced_weights,
    exact_sum,
    given_weights,
    rows_by_kind,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.second_readers.order import key, number

WEIGHT_LISTS = st.lists(st.floats(0, 100), min_size=1, max_size=100).filter(any)


def counts(weights: list[float], seed: int = 0, epoch: int = 0) -> list[int]:
    drawn = given_weights(np.array(weights), None, None).counts(seed, epoch)
    return drawn.counts(0, len(weights)).tolist()


@given(WEIGHT_LISTS, st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_a_row_comes_as_often_as_the_spec_says(weights: list[float], seed: int, epoch: int) -> None:
    drawn = [number(key(seed, epoch, 6), row) >> 32 for row in range(len(weights))]
    units = [round(weight * 2**32) for weight in weights]
    expected = [(unit + u) >> 32 for unit, u in zip(units, drawn, strict=True)]
    assert counts(weights, seed, epoch) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=100).filter(any), st.integers(0, 9))
def test_whole_weights_are_counts_in_every_epoch(weights: list[int], epoch: int) -> None:
    assert counts([float(weight) for weight in weights], epoch=epoch) == weights


def test_rows_of_all_parts_are_counted_by_kind() -> None:
    kind = np.arange(200_001, dtype=np.uint32) % 7
    assert rows_by_kind(kind, 8).tolist() == [28_572] * 4 + [28_571] * 3 + [0]


@given(WEIGHT_LISTS, st.integers(0, 9))
def test_a_count_is_its_weight_rounded_down_or_up(weights: list[float], epoch: int) -> None:
    for weight, count in zip(weights, counts(weights, epoch=epoch), strict=True):
        assert int(weight) <= count <= int(weight) + 1


def test_the_mean_over_epochs_is_the_weight() -> None:
    weights = [0.0, 0.1, 0.5, 1.3, 2.75]
    epochs = np.array([counts(weights, seed=4, epoch=epoch) for epoch in range(4000)])
    # Four standard errors of a mean of 4,000 yes-or-no draws.
    assert np.abs(epochs.mean(axis=0) - weights).max() < 4 * 0.5 / np.sqrt(4000)
    assert epochs[:, 0].max() == 0


def test_rows_are_drawn_independently_of_their_neighbours() -> None:
    drawn = np.array(counts([0.5] * 20_000, seed=1))
    apart = drawn[:-1] * 2 - 1, drawn[1:] * 2 - 1
    assert abs(np.mean(apart[0] * apart[1])) < 4 / np.sqrt(20_000)


def test_epochs_and_seeds_differ() -> None:
    weights = [0.5] * 64
    assert counts(weights) == counts(weights)
    assert counts(weights) != counts(weights, epoch=1)
    assert counts(weights) != counts(weights, seed=1)


@given(WEIGHT_LISTS, st.integers(1, 10**6))
def test_weights_are_scaled_to_the_rows_of_an_epoch(weights: list[float], rows: int) -> None:
    total = given_weights(np.array(weights), None, rows).total_units
    assert abs(total - (rows << 32)) <= len(weights) + (rows << 32) * 1e-9


@given(WEIGHT_LISTS, st.randoms())
def test_scaling_does_not_depend_on_the_order_of_rows(weights: list[float], chance: object) -> None:
    shuffled = list(enumerate(weights))
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    scaled = given_weights(np.array(weights), None, 100).units
    again = given_weights(np.array([weight for _, weight in shuffled]), None, 100).units
    assert again.tolist() == [scaled[row] for row, _ in shuffled]


def test_rows_outside_of_a_view_come_never_whatever_their_weight() -> None:
    view = bits_of(4, [np.array([1, 3])])
    found = given_weights(np.array([np.nan, 1.0, 5.0, 2.0]), view, 6)
    assert [unit / 2**32 for unit in found.units.tolist()] == [0, 2, 0, 4]
    assert found.positive().counts(0, 4).tolist() == [0, 1, 0, 1]


def test_every_class_comes_equally_often() -> None:
    kind = np.array([0, 0, 0, 1, 2, 2, 3], np.uint8)  # 3 stands for never
    found = balanced_weights(kind, np.array([3, 1, 2]), 12)
    drawn = np.zeros(7, np.int64)
    for epoch in range(300):
        drawn += found.counts(0, epoch).counts(0, 7)
    of_class = np.bincount(kind, drawn, minlength=4)
    assert of_class[3] == 0
    assert np.abs(of_class[:3] / 300 - 4).max() < 0.2
    assert found.expected_rows == 12


@pytest.mark.parametrize("weights", [[1.0, -0.5], [np.nan, 1], [np.inf, 1], [0.0, 0.0], [1e10, 1]])
def test_what_are_no_weights_is_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidInputError, match=r"weight|would come"):
        given_weights(np.array(weights), None, None)


def test_a_sum_of_large_numbers_does_not_overflow() -> None:
    assert exact_sum(np.full(100_000, (1 << 63) - 1, np.uint64)) == 100_000 * ((1 << 63) - 1)

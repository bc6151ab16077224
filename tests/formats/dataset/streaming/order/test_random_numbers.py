"""Keyed numbers and what is made of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    numbers,
    permutation,
    permutations,
    scattered,
)
from tests.support.second_readers import order as reference

WORDS = st.integers(0, 2**64 - 1)


def test_the_published_output_of_splitmix64_is_ours() -> None:
    assert number(1234567, 0) == 6457827717110365317


def test_the_runs_of_the_specs_example_stand_in_its_order() -> None:
    key = epoch_key(7, 0, Purpose.RUNS)
    assert permutation(key, 8).tolist() == [1, 0, 5, 2, 3, 4, 7, 6]


@given(WORDS, st.lists(WORDS, min_size=1, max_size=50))
def test_numbers_of_many_places_are_the_numbers_of_each(key: int, places: list[int]) -> None:
    found = numbers(key, np.array(places, dtype=np.uint64))
    assert found.tolist() == [reference.number(key, place) for place in places]


@given(WORDS, st.integers(0, 2**63), st.sampled_from(Purpose))
def test_keys_of_an_epoch_are_those_of_the_spec(seed: int, epoch: int, purpose: Purpose) -> None:
    assert epoch_key(seed, epoch, purpose) == reference.key(seed, epoch, purpose)


@given(WORDS, st.integers(1, 300))
def test_a_permutation_is_that_of_the_spec(key: int, count: int) -> None:
    assert permutation(key, count).tolist() == reference.perm(key, count)


@given(st.lists(st.tuples(WORDS, st.integers(1, 70)), min_size=1, max_size=20))
def test_permutations_of_unequal_length_are_made_together(wanted: list[tuple[int, int]]) -> None:
    keys = np.array([key for key, _ in wanted], dtype=np.uint64)
    counts = np.array([count for _, count in wanted])
    found = permutations(keys, counts)
    assert [found[i, :count].tolist() for i, count in enumerate(counts)] == [
        reference.perm(key, count) for key, count in wanted
    ]


@given(WORDS, st.integers(1, 600))
def test_the_global_order_has_every_row_once(key: int, count: int) -> None:
    found = scattered(key, count, np.arange(count))
    assert sorted(found.tolist()) == list(range(count))


@given(WORDS, st.integers(1, 2**62), st.data())
def test_the_global_order_is_that_of_the_spec(key: int, count: int, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=5))
    found = scattered(key, count, np.array(positions))
    assert found.tolist() == [reference.feistel(key, count, position) for position in positions]


@pytest.mark.parametrize("count", [1, 2, 3, 10_007])
def test_the_global_order_of_pieces_is_that_of_the_whole(count: int) -> None:
    whole = scattered(99, count, np.arange(count))
    halves = [np.arange(count // 2), np.arange(count // 2, count)]
    assert np.concatenate([scattered(99, count, half) for half in halves]).tolist() == (
        whole.tolist()
    )

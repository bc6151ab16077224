"""Rows put together from several places are the rows that each of them had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.reading.overlay import RowPiece, collect, overlay, repeated
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Tensor
from tests.support.builders.columns import presented
from tests.support.builders.datasets import TYPES, equal, value

COLUMNS = [
    Column("c", Scalar("int32"), nullable=True),
    Column("c", Tensor("float32", (6000,))),
    Column("c", Tensor("int16", (None, 400)), nullable=True),
    Column("c", Bytes()),
]


def _values(column: Column, rows: int, seed: int) -> tuple[list[Any], Any]:
    rng = np.random.default_rng(seed)
    given_rows = [value(column, rng) for _ in range(rows)]
    return given_rows, coerce_column(column, given_rows)


@given(TYPES, st.booleans(), st.integers(1, 20), st.integers(0, 2**32), st.data())
def test_patched_rows_have_the_new_value_and_others_the_old(
    kind: Any, nullable: bool, rows: int, seed: int, data: st.DataObject
) -> None:
    column = Column("c", kind, nullable)
    places = data.draw(st.lists(st.integers(0, rows - 1), unique=True))
    old, values = _values(column, rows, seed)
    new, patches = _values(column, len(places), seed + 1)
    found = overlay(values, np.array(places, np.int64), patches)
    expected = old.copy()
    for place, row in zip(places, new, strict=True):
        expected[place] = row
    assert all(map(equal, presented(column, found), expected))


@given(st.sampled_from(COLUMNS), st.lists(st.integers(0, 30), max_size=4), st.integers(0, 2**32))
def test_rows_of_many_pages_are_collected_in_any_order(
    column: Column, counts: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    places = rng.permutation(sum(counts) + 1)
    expected = [None] * len(places)
    pieces = []
    for count in [*counts, 1]:
        rows, values = _values(column, 5, int(rng.integers(1 << 30)))
        chosen, places_of, places = rng.integers(0, 5, count), places[:count], places[count:]
        pieces.append(RowPiece(values, chosen, places_of))
        for place, row in zip(places_of.tolist(), chosen.tolist(), strict=True):
            expected[place] = rows[row]
    found = collect(pieces, len(expected))
    assert all(map(equal, presented(column, found), expected))


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("given_row", ["value", "null"])
def test_a_repeated_row_is_that_row_everywhere(column: Column, given_row: str) -> None:
    rng = np.random.default_rng(5)
    row = (
        None
        if given_row == "null" and column.nullable
        else value(replace(column, nullable=False), rng)
    )
    found = repeated(coerce_column(column, [row]), 7)
    assert found.rows == 7
    assert all(equal(one, row) for one in presented(column, found))


def test_a_mapped_view_is_copied_before_patches_are_laid_over_it() -> None:
    column = COLUMNS[1]
    _, values = _values(column, 3, 1)
    _, patch = _values(column, 1, 2)
    before = values.values.copy()
    values.values.flags.writeable = False
    found: Any = overlay(values, np.array([1]), patch)
    assert found.values.flags.writeable
    assert np.array_equal(values.values, before, equal_nan=True)

"""Ragged rows stacked into one array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Column, Tensor
from tensorrepo.formats.dataset.schema.values import RaggedValues
from tensorrepo.formats.dataset.streaming.collate.batch import pad_rows

SHAPES = [(None,), (None, 3), (None, 0), (2, None), (None, None)]


def ragged(shape: tuple[int | None, ...], dims: list[tuple[int, int]]) -> RaggedValues:
    """Rows of a column of this shape, whose open dimensions are `dims`."""
    rows = []
    for number, pair in enumerate(dims):
        own = iter(pair)
        full = [next(own) if dim is None else dim for dim in shape]
        rows.append(np.full(full, number + 1, np.int32))
    values = coerce_column(Column("r", Tensor("int32", shape)), rows)
    assert isinstance(values, RaggedValues)
    return values


@given(
    st.sampled_from(SHAPES), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=6)
)
def test_every_row_stands_at_the_corner_of_its_place(
    shape: tuple[int | None, ...], dims: list[tuple[int, int]]
) -> None:
    values = ragged(shape, dims)
    padded, lengths = pad_rows(values, -1, Pool())
    assert len(padded) == len(lengths) == len(dims)
    for at in range(len(dims)):
        row = values.row(at)
        corner = padded[at][tuple(slice(0, dim) for dim in row.shape)]
        assert np.array_equal(corner, row)
        assert int((padded[at] != -1).sum()) == row.size


@pytest.mark.parametrize("lengths", [[300, 700, 0, 512], [1000] * 3])
def test_long_rows_are_padded_alike(lengths: list[int]) -> None:
    padded, found = pad_rows(ragged((None,), [(each, 0) for each in lengths]), 0, Pool())
    assert found.tolist() == lengths
    assert padded.shape == (len(lengths), max(lengths))
    assert (padded > 0).sum(axis=1).tolist() == lengths

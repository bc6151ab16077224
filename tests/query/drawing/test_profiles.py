"""Profiles of columns of tensors: of all their numbers, whatever their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.query.drawing.profiles import ColumnProfile, profile

HALF = np.ones((10, 2), np.float16)
RAGGED = [np.arange(at, dtype=np.float32) for at in range(5)]


def profile_of(values: Any, kind: Any) -> ColumnProfile:
    repo = tr.init(f"memory://profiles-{id(values)}", author="Ada <ada@example.org>")
    with repo.transaction() as tx:
        tx.create_dataset("d", {"x": values}, columns={"x": kind})
    stored = repo.dataset("d").stored
    return profile(stored, stored.schema.column("x"))


@pytest.mark.parametrize(
    ("values", "kind", "numbers", "nulls"),
    [
        (np.random.default_rng(0).random((10, 4), np.float32), tr.Tensor("float32", (4,)), 40, 0),
        (
            [np.arange(at, dtype=np.float32) for at in range(5)],
            tr.Tensor("float32", (None,)),
            10,
            0,
        ),
        (
            [None if at % 2 else np.ones(3, np.float32) for at in range(10)],
            tr.Column("x", tr.Tensor("float32", (3,)), nullable=True),
            15,
            5,
        ),
        (HALF, tr.Tensor("float16", (2,)), 20, 0),
        (np.zeros((3, 2), np.uint8), tr.Tensor("uint8", (2,)), 6, 0),
        (np.full((3, 2), np.nan, np.float32), tr.Tensor("float32", (2,)), 0, 0),
        (np.ones((3, 2), np.complex64), tr.Tensor("complex64", (2,)), 0, 0),
        ([[], []], tr.Tensor("float32", (None,)), 0, 0),
    ],
    ids=["fixed", "ragged", "nullable", "half", "whole", "nan", "complex", "empty"],
)
def test_a_histogram_of_tensors_counts_all_their_finite_numbers(
    values: Any, kind: Any, numbers: int, nulls: int
) -> None:
    found = profile_of(values, kind)
    assert (sum(found.counts), found.nulls, found.rows) == (numbers, nulls, len(values))

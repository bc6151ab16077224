"""Moments of numpy in units that columns have: exact, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.numpy_moments import whole_units
from tensorrepo.repo.errors import InvalidInputError

FURTHEST = (1 << 63) - 1
FURTHEST_DAY = (1 << 31) - 1


@pytest.mark.parametrize(
    ("given", "counts"),
    [
        (np.array([FURTHEST // 3600, 1 - FURTHEST // 3600, "NaT"], "M8[h]"), "M8[s]"),
        (np.array([FURTHEST // 604800, 1 - FURTHEST // 604800, "NaT"], "m8[W]"), "m8[s]"),
        (np.array([FURTHEST_DAY, -FURTHEST_DAY - 1, "NaT"], "M8[D]"), "M8[D]"),
        (np.array([FURTHEST, -FURTHEST, "NaT"], "M8[ns]"), "M8[ns]"),
    ],
)
def test_the_furthest_moments_are_kept(given: Any, counts: str) -> None:
    whole = whole_units(given)
    assert whole.dtype == counts
    np.testing.assert_array_equal(whole.astype(given.dtype), given)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    ("unit", "furthest"),
    [
        ("M8[h]", FURTHEST // 3600), ("M8[m]", FURTHEST // 60), ("m8[W]", FURTHEST // 604800),
        ("m8[D]", FURTHEST // 86400), ("M8[D]", FURTHEST_DAY), ("M8[Y]", 5_881_580 - 1970),
        ("M8[10s]", FURTHEST // 10),
    ],
)  # fmt: skip
def test_moments_further_away_than_a_column_counts_are_refused(
    unit: str, furthest: int, row: int
) -> None:
    counts = np.array([1, "NaT"], unit)
    counts[row] = np.array(furthest + 1, unit)
    whole_units(np.array([furthest], unit))
    with pytest.raises(InvalidInputError, match="further away than a column"):
        whole_units(counts)


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (tr.Date(), np.array([1 << 40], "M8[D]")),
        (tr.Date(), [np.datetime64(1 << 40, "D")]),
        (tr.Duration("us"), [np.timedelta64(1 << 62, "W")]),
        (tr.Duration("s"), np.array([1 << 62], "m8[W]")),
        (tr.Timestamp("ns"), np.array([20_000], "M8[Y]")),
    ],
)
def test_columns_that_are_there_refuse_them_by_row(kind: Any, given: Any) -> None:
    with pytest.raises(InvalidInputError, match="row 7, column 'when': expected a"):
        coerce_column(tr.Column("when", kind), given, first_row=7)


@pytest.mark.parametrize(
    ("given", "day"),
    [
        (np.datetime64("2020", "Y"), "2020-01-01"),
        (np.datetime64(20_000, "Y"), "21970-01-01"),
        (np.datetime64("2020-01-02T00", "h"), "2020-01-02"),
    ],
)
def test_days_are_taken_of_any_unit(given: np.datetime64, day: str) -> None:
    (count,) = coerce_column(tr.Column("when", tr.Date()), [given]).values
    assert np.datetime64(int(count), "D") == np.datetime64(day)

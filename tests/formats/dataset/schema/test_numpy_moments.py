"""Moments of numpy in units that columns have: exact, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
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


# How moments lie inside a row, and the type of such a row.
INSIDE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "values": (list, tr.List),
    "array": (lambda array: array, tr.List),
    "masked array": (lambda array: np.ma.masked_array(array, np.isnat(array)), tr.List),
    "lists of values": (lambda array: [list(array)], lambda kind: tr.List(tr.List(kind))),
    "list of arrays": (lambda array: [array], lambda kind: tr.List(tr.List(kind))),
    "struct of an array": (lambda a: {"a": a}, lambda kind: tr.Struct({"a": tr.List(kind)})),
    "map to arrays": (lambda a: {"a": a}, lambda kind: tr.Map(tr.Text(), tr.List(kind))),
}


def _inside(found: Any) -> Any:
    while isinstance(found[0] if isinstance(found, list) else found, list | tuple | dict):
        found = found["a"] if isinstance(found, dict) else found[0]
        found = found[1] if isinstance(found, tuple) else found
    return found


FIXED_UNITS = ["W", "D", "h", "m", "s", "ms", "us", "ns"]
COUNTS: list[tuple[Any, Any]] = [
    (kind, np.array([24 * 365, "NaT"], "M8[h]").astype(f"M8[{unit}]"))
    for kind in (tr.Timestamp("us"), tr.Date())
    for unit in ("Y", "M", *FIXED_UNITS)
] + [
    (kind, np.array([0, "NaT"], f"m8[{unit}]"))
    for kind in (tr.Duration("us"), tr.Time("us"))
    for unit in FIXED_UNITS
]


@pytest.mark.parametrize(("kind", "given"), COUNTS)
@pytest.mark.parametrize("form", INSIDE)
def test_counts_of_any_unit_are_the_same_inside_lists(kind: Any, given: Any, form: str) -> None:
    make, nested = INSIDE[form]
    alone = coerce_column(tr.Column("x", kind, nullable=True), list(given))
    rows = coerce_column(tr.Column("x", nested(kind)), [make(given)])
    (found,) = to_arrow_array(nested(kind), rows).to_pylist()
    assert _inside(found) == to_arrow_array(kind, alone).to_pylist()


@pytest.mark.parametrize("form", INSIDE)
def test_counts_that_a_type_does_not_hold_are_refused_inside_lists(form: str) -> None:
    make, nested = INSIDE[form]
    column, row = tr.Column("x", nested(tr.Date())), make(np.array([1], "M8[h]"))
    with pytest.raises(InvalidInputError, match="row 7, column 'x'"):
        coerce_column(column, [row], first_row=7)


@pytest.mark.parametrize("form", ["values", "array", "lists of values", "list of arrays"])
def test_a_list_of_numpy_moments_tells_its_type_in_any_unit(form: str) -> None:
    make, _ = INSIDE[form]
    repo = tr.init(f"memory://units-{form}", author="Ada <ada@example.org>")
    given = {"x": [make(np.array(["2020-01", "2020-02"], "M8[M]"))]}
    with repo.transaction("main") as tx:
        made = tx.create_dataset("d", given)
        assert "date" in str(made.schema.column("x").type).lower()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64", 1), (tr.Text(), "a"), (tr.Bytes(), b"a"), (tr.Json(), {"a": 1}),
        (tr.Date(), np.datetime64("2020-01-01")), (tr.List("int64"), [1]),
        (tr.Tensor("int64", (None,)), [1]), (tr.Timestamp("us"), pd.Timestamp(0)),
    ],
)  # fmt: skip
def test_pandas_na_is_null(kind: Any, value: Any) -> None:
    column = tr.Column("x", kind, nullable=True)
    valid = coerce_column(column, [value, pd.NA]).valid
    assert valid is not None
    assert valid.tolist() == [True, False]


@pytest.mark.parametrize("kind", ["int64", "float32", tr.Text(), tr.Bytes(), tr.Date()])
def test_pandas_na_in_lists_is_none_in_lists(kind: Any) -> None:
    given = coerce_column(tr.Column("x", tr.List(kind)), [[pd.NA], [pd.NaT, None]])
    assert to_arrow_array(tr.List(kind), given).to_pylist() == [[None], [None, None]]


def test_types_of_lists_with_pandas_na_are_those_of_the_other_values() -> None:
    repo = tr.init("memory://with-na", author="Ada <ada@example.org>")
    given = pd.DataFrame({"n": [[1, pd.NA], [2]], "t": [["a", pd.NA], pd.NA], "d": [1, pd.NA]})
    with repo.transaction("main") as tx:
        tx.create_dataset("d", given)
    batch = next(iter(repo.dataset("d").to_batches()))
    assert batch.to_pydict() == {
        "n": [[1, None], [2]], "t": [["a", None], None], "d": [1, None]
    }  # fmt: skip

"""A wider type holds every value of the narrower one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.dtypes import element_dtype
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import present, present_row
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Decimal,
    Embedding,
    Image,
    Json,
    List,
    Null,
    Scalar,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import storage_of
from tensorrepo.formats.dataset.schema.values import range_of, value_of_key
from tensorrepo.formats.dataset.schema.widen import WIDER, can_widen, convert_values, widen_range
from tensorrepo.repo.errors import UnsupportedError
from tests.support.builders.column_types import DIMS, elements, equal, value

PAIRS = sorted((narrow, wide) for narrow, wides in WIDER.items() for wide in wides)


def _refusal(old: ColumnType, new: ColumnType) -> str | None:
    return can_widen(Column("a", old), Column("b", new))


@pytest.mark.parametrize(("narrow", "wide"), PAIRS)
@pytest.mark.filterwarnings("ignore:invalid value")  # NaNs that signal
def test_every_value_of_a_narrower_type_comes_back_from_the_wider_one(
    narrow: str, wide: str
) -> None:
    assert _refusal(Scalar(narrow), Scalar(wide)) is None
    given = elements(element_dtype(narrow), (4096,), np.random.default_rng(0))
    stored, wanted = storage_of(Scalar(narrow)), storage_of(Scalar(wide))
    found = convert_values(coerce_column(Column("c", Scalar(narrow)), given), stored, wanted)
    assert found.values.dtype == element_dtype(wide)  # type: ignore[union-attr]  # a scalar's values are fixed
    back = found.values.astype(given.dtype)  # type: ignore[union-attr]  # as above
    np.testing.assert_array_equal(np.isnan(back), np.isnan(given))
    assert back[~np.isnan(given)].tobytes() == given[~np.isnan(given)].tobytes()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int16", "int8"),
        ("int8", "uint16"),
        ("uint8", "int8"),
        ("uint64", "int64"),
        ("int64", "float64"),
        ("int16", "float16"),
        ("uint32", "float32"),
        ("int16", "bfloat16"),
        ("int8", "bool"),
        ("bool", "float32"),
        ("float64", "float32"),
        ("float32", "int64"),
        ("float16", "bfloat16"),
        ("bfloat16", "float16"),
        ("float32", "complex64"),
        ("complex128", "complex64"),
    ],
)
def test_a_type_that_does_not_hold_every_value_is_refused(old: str, new: str) -> None:
    assert _refusal(Scalar(old), Scalar(new)) == (
        f"{new} does not hold every {old}: write a new column"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Tensor("int8", (2, 3)), Tensor("int8", (None, 3))),
        (Tensor("int8", (2, None)), Tensor("float32", (None, None))),
        (Tensor("int8", (2, 3), (1, 1)), Tensor("int16", (2, None), (1, 1))),
        (Embedding("float16", 3), Embedding("float32", 3)),
        (ClassLabel(("cat", "dog")), ClassLabel(("cat", "hound", "cow"))),
        (Image("png"), Image()),
        (Json(), Json()),
        (Timestamp("s", "UTC"), Timestamp("s", "UTC")),
        (Decimal(9, 2), Decimal(18, 2)),
        (Bytes(4), Bytes()),
    ],
)
def test_what_may_be_widened(old: ColumnType, new: ColumnType) -> None:
    assert _refusal(old, new) is None


def test_nulls_alone_become_values_of_any_type() -> None:
    wide = Column("c", List(Text()), nullable=True)
    assert can_widen(Column("c", Null()), wide) is None
    nulls = coerce_column(Column("c", Null()), [None, None])
    found = convert_values(nulls, storage_of(Null()), wide.storage)
    assert present(wide, found) == [None, None]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (Tensor("int8", (None, 3)), Tensor("int8", (2, 3)), "dimensions may become None"),
        (Decimal(9, 2), Decimal(19, 2), "up to 18, 38 or 76"),
        (Decimal(9, 2), Decimal(18, 4), "before the point"),
        (Tensor("int8", (2, 3)), Tensor("int8", (2, 4)), "dimensions may become None"),
        (Tensor("int8", (2, 3)), Tensor("int8", (None,)), "dimensions may become None"),
        (Tensor("int8", (2,)), Tensor("int8", (2,), (1,)), "tiles of None"),
        (Tensor("float32", (2,)), Tensor("int8", (2,)), "does not hold every float32"),
        (Embedding("int8", 2), Embedding("int8", 3), "of 2 dimensions"),
        (ClassLabel(("a", "b")), ClassLabel(("a",)), "2 classes cannot become 1"),
        (ClassLabel(("a", "b")), ClassLabel(("b", "a")), "class 'a' would move from 0 to 1"),
        (Image(), Image("png"), "images of any format cannot become png"),
        (Image("png"), Image("png", progressive="beside"), "a column of their own"),
        (Bytes(), Text(), "bytes cannot become text"),
        (Text(), Json(), "text cannot become json"),
        (Timestamp("s"), Timestamp("ms"), "timestamp cannot become"),
        (Scalar("int64"), ClassLabel(("a",)), "scalar cannot become class_label"),
    ],
)
def test_anything_else_is_refused_with_its_reason(
    old: ColumnType, new: ColumnType, reason: str
) -> None:
    assert reason in (_refusal(old, new) or "")


def test_nulls_may_be_allowed_but_not_forbidden() -> None:
    plain, nullable = Column("c", Text()), Column("c", Text(), nullable=True)
    assert can_widen(plain, nullable) is None
    assert "fill its nulls" in (can_widen(nullable, plain) or "")


@st.composite
def loosened(draw: st.DrawFn) -> tuple[Column, ColumnType, list[Any]]:
    """A column of tensors, its rows, and a type in which fewer dimensions are known."""
    shape = tuple(draw(st.lists(DIMS, max_size=3)))
    looser = tuple(None if draw(st.booleans()) else dim for dim in shape)
    narrow, wide = draw(st.sampled_from([*PAIRS, ("int8", "int8")]))
    tile = (2,) * len(shape) if shape and draw(st.booleans()) else None
    column = Column("c", Tensor(narrow, shape, tile), draw(st.booleans()))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = [value(column, rng) for _ in range(draw(st.integers(0, 8)))]
    return column, Tensor(wide, looser, tile), rows


@given(loosened(), st.data())
def test_widened_rows_are_what_writing_them_as_the_wider_type_gives(
    case: tuple[Column, ColumnType, list[Any]], data: st.DataObject
) -> None:
    column, wider, rows = case
    new = Column("c", wider, column.nullable)
    assert can_widen(column, new) is None
    start = data.draw(st.integers(0, len(rows)))
    values = coerce_column(column, rows).slice(start, len(rows))
    found = convert_values(values, column.storage, new.storage)
    expected = coerce_column(new, rows[start:])
    assert type(found) is type(expected)
    for at in range(expected.rows):
        assert equal(present_row(new, found, at), present_row(new, expected, at))


def test_values_of_the_same_form_are_given_back_as_they_are() -> None:
    column = Column("c", ClassLabel(("a",)))
    values = coerce_column(column, ["a"])
    assert convert_values(values, column.storage, column.storage) is values


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Scalar("int16"), Scalar("int8")),
        (Scalar("int8"), Text()),
        (Tensor("int8", (2,)), Tensor("int8", (3,))),
        (Tensor("int8", (2,)), Tensor("int8", (None, None))),
    ],
)
def test_values_are_not_converted_to_what_cannot_hold_them(
    old: ColumnType, new: ColumnType
) -> None:
    values = coerce_column(Column("c", old), np.zeros((1, *storage_of(old).row_shape), np.int8))
    with pytest.raises(UnsupportedError, match="cannot be read as"):
        convert_values(values, storage_of(old), storage_of(new))


@pytest.mark.parametrize(("narrow", "wide"), [pair for pair in PAIRS if "complex" not in pair[0]])
@pytest.mark.filterwarnings("ignore:invalid value")  # NaNs that signal
def test_a_range_covers_the_same_values_in_a_wider_type(narrow: str, wide: str) -> None:
    given = elements(element_dtype(narrow), (64,), np.random.default_rng(1))
    old = range_of(given, None)
    new = range_of(given.astype(element_dtype(wide)), None)
    found = widen_range(old.smallest, old.largest, narrow, wide)
    assert found == (new.smallest, new.largest)


@pytest.mark.parametrize("dtype", sorted(set(WIDER) - {"complex64"}))
def test_a_key_tells_its_value(dtype: str) -> None:
    given = elements(element_dtype(dtype), (64,), np.random.default_rng(2))
    found = range_of(given, None)
    assert found.smallest is not None
    assert found.largest is not None
    assert value_of_key(found.smallest, dtype) == np.fmin.reduce(given)
    assert value_of_key(found.largest, dtype) == np.fmax.reduce(given)

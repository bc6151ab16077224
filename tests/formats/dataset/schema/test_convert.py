"""Numbers are converted where nothing is lost but what rounding takes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.dtypes import CODES, SMALL_FLOATS, element_dtype
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import as_array, as_torch, convert, present
from tensorrepo.formats.dataset.schema.schema import Column, ColumnType, Embedding, Scalar, Tensor
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.column_types import DTYPES, elements


@given(DTYPES, st.integers(0, 2**32))
def test_arrays_of_either_byte_order_hold_the_same_values(dtype: str, seed: int) -> None:
    given = elements(element_dtype(dtype), (5, 2), np.random.default_rng(seed))
    swapped = given.byteswap().view(given.dtype.newbyteorder(">"))
    found = convert(swapped, element_dtype(dtype), "c", 0)
    assert found.dtype == element_dtype(dtype)
    assert found.tobytes() == given.tobytes()


@given(DTYPES, st.integers(0, 2**32))
def test_big_endian_rows_are_taken_as_arrays_and_one_by_one(dtype: str, seed: int) -> None:
    given = elements(element_dtype(dtype), (3, 2), np.random.default_rng(seed))
    swapped = given.byteswap().view(given.dtype.newbyteorder(">"))
    fixed, ragged = Column("c", Tensor(dtype, (2,))), Column("c", Tensor(dtype, (None,)))
    stacked: Any = present(fixed, coerce_column(fixed, swapped))
    rows: Any = present(ragged, coerce_column(ragged, list(swapped)))
    assert stacked.tobytes() == given.tobytes()
    assert b"".join(row.tobytes() for row in rows) == given.tobytes()


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (300, "int64", "int8"),
        (-1, "int8", "uint64"),
        (2**63, "uint64", "int64"),
        (2**63 - 1, "int64", "float64"),
        (2**64 - 1, "uint64", "float64"),
        (2**24 + 1, "int32", "float32"),
        (257, "int16", "bfloat16"),
        (255, "uint8", "float8_e4m3fn"),
        (17, "uint8", "float8_e4m3fn"),
        (100_000, "int32", "float8_e5m2"),
        (-(2**63), "int64", "float8_e4m3fn"),
        (-(2**63), "int64", "float16"),
        (0.5, "float32", "int8"),
        (float("nan"), "float32", "int8"),
        (2.0**63, "float64", "int64"),
        (1e39, "float64", "float32"),
        (1e39, "float64", "bfloat16"),
        (500.0, "float32", "float8_e4m3fn"),
        (float("inf"), "bfloat16", "float8_e4m3fn"),
        (1e6, "bfloat16", "float8_e5m2"),
        (0.5, "float8_e5m2", "int8"),
        (1j, "complex64", "float32"),
        (1j, "complex64", "bfloat16"),
        (1e39, "complex128", "complex64"),
        (2, "uint8", "bool"),
    ],
)
def test_what_a_type_cannot_hold_is_refused_by_its_row(
    value: Any, source: str, target: str
) -> None:
    array = np.array([0, value], element_dtype(source))
    with pytest.raises(InvalidInputError, match=f"row 8, column 'c': expected {target}, found"):
        convert(array, element_dtype(target), "c", 7)


@pytest.mark.parametrize(
    ("value", "source", "target"),
    [
        (1, "int64", "bool"),
        (2**62, "int64", "float64"),
        (256, "int16", "bfloat16"),
        (True, "bool", "float8_e4m3fn"),
        (-(2**15), "int16", "float8_e5m2"),
        (3.0, "float8_e5m2", "int8"),
        (3.0, "complex64", "bfloat16"),
        (7, "uint64", "complex64"),
        (float("nan"), "float64", "float8_e4m3fn"),
        (float("-inf"), "float64", "float8_e5m2"),
        (1.5, "float8_e5m2", "float8_e4m3fn"),
        (1.5, "bfloat16", "complex64"),
    ],
)
def test_what_a_type_holds_is_converted(value: Any, source: str, target: str) -> None:
    found = convert(np.array([value], element_dtype(source)), element_dtype(target), "c", 0)
    assert found.dtype == element_dtype(target)
    np.testing.assert_array_equal(
        found.astype(np.complex128), np.array([value]).astype(np.complex128)
    )


def test_floats_are_rounded_to_narrower_ones() -> None:
    assert convert(np.array([0.1]), element_dtype("bfloat16"), "c", 0) == ml_dtypes.bfloat16(0.1)
    assert convert(np.array([0.1]), element_dtype("float16"), "c", 0) == np.float16(0.1)


@pytest.mark.parametrize("given", [np.array([b"a"]), np.array([(1,)], "i4,"), np.zeros(1, "V2")])
def test_what_is_no_number_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="row 0, column 'c': expected int8, found"):
        convert(given, np.dtype("int8"), "c", 0)


@pytest.mark.parametrize("name", ["float32", "int64", *SMALL_FLOATS])
def test_torch_tensors_are_taken_with_their_bits(name: str) -> None:
    given = torch.arange(6).reshape(3, 2).to(getattr(torch, name))
    expected = np.arange(6).reshape(3, 2).astype(element_dtype(name))
    assert as_array(given).dtype == expected.dtype
    assert as_array(given).tobytes() == expected.tobytes()
    assert as_array(list(given)).tobytes() == expected.tobytes()
    assert as_array(given.T).tobytes() == expected.T.tobytes()


@pytest.mark.parametrize("name", sorted(CODES))
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_arrays_become_torch_tensors_of_the_same_memory(name: str, shape: tuple[int, ...]) -> None:
    array = np.array(elements(element_dtype(name), shape, np.random.default_rng(0)))
    found = as_torch(array)
    assert (str(found.dtype), tuple(found.shape)) == (f"torch.{name}", shape)
    assert found.data_ptr() == array.ctypes.data or not array.size
    assert as_array(found).tobytes() == array.tobytes()


@pytest.mark.parametrize("kind", [Tensor("bfloat16", (2,)), Embedding("bfloat16", 2)])
def test_torch_tensors_become_a_column(kind: ColumnType) -> None:
    given = torch.tensor([[0.5, -2], [1, 3]], dtype=torch.bfloat16)
    column = Column("c", kind)
    found: Any = present(column, coerce_column(column, given))
    assert found.dtype == element_dtype("bfloat16")
    assert found.tolist() == [[0.5, -2], [1, 3]]


def test_masked_small_floats_are_null_where_masked() -> None:
    column = Column("c", Scalar("bfloat16"), nullable=True)
    given = np.ma.MaskedArray(np.array([1, 2], element_dtype("bfloat16")), [False, True])
    values = coerce_column(column, given)
    assert values.valid is not None
    assert values.valid.tolist() == [True, False]
    assert np.ma.getmaskarray(present(column, values)).tolist() == [False, True]


def test_values_of_types_that_do_not_mix_are_refused() -> None:
    given = [ml_dtypes.bfloat16(1), ml_dtypes.float8_e5m2(1), "a"]
    with pytest.raises(InvalidInputError, match="row 2, column 'c'"):
        coerce_column(Column("c", Scalar("float32")), given)


@pytest.mark.parametrize(
    "kind", [Scalar("uint64"), Tensor("uint64", (1,)), Tensor("uint64", (None,))]
)
def test_integers_of_64_bits_are_taken_from_lists_as_they_are(kind: ColumnType) -> None:
    numbers = [2**63 + 1, 2**53 + 1, 2**64 - 1]
    column = Column("c", kind)
    rows = numbers if isinstance(kind, Scalar) else [[n] for n in numbers]
    found: Any = present(column, coerce_column(column, rows))
    assert [int(np.asarray(row).item()) for row in found] == numbers


@pytest.mark.parametrize("odd", [-1, 2**64, 0.5])
def test_what_is_no_integer_of_64_bits_is_refused_beside_those_that_are(odd: Any) -> None:
    with pytest.raises(InvalidInputError, match="column 'c': expected uint64"):
        coerce_column(Column("c", Scalar("uint64")), [2**63 + 1, odd])

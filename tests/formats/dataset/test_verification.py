"""What an index says of pages is compared with what is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from tensorrepo.formats.dataset.pages.page import HAS_NAN, HAS_ROW_SUMS, IS_SORTED, MAX_INEXACT
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.schema.schema import Scalar, Schema, Tensor
from tensorrepo.formats.dataset.verification import verify_dataset
from tests.support.builders.datasets import Rows, datasets, stored
from tests.support.builders.objects import MemoryObjects

ROWS = 40


@pytest.fixture
def dataset() -> StoredDataset:
    """Ascending numbers, descending ones with a NaN, and rows with sums of their own."""
    schema = Schema.of(
        {"up": Scalar("int64"), "down": Scalar("float64"), "wide": Tensor("float32", (100,))}
    )
    down = np.arange(ROWS, 0, -1, dtype=np.float64)
    down[7] = np.nan
    wide = np.random.default_rng(0).random((ROWS, 100), np.float32)
    batch = {"up": np.arange(ROWS), "down": down, "wide": wide}
    return stored(MemoryObjects(), schema, [batch])


def lie(dataset: StoredDataset, column: str, change: Callable[[NDArray[Any]], None]) -> list[str]:
    """What is told when an entry of a column's only page is changed."""
    index = page_reader(dataset, column).index
    entries = index.entries.copy()
    change(entries)
    object.__setattr__(index, "entries", entries)
    return list(verify_dataset(dataset))


def add(field: str, number: int) -> Callable[[NDArray[Any]], None]:
    def change(entries: NDArray[Any]) -> None:
        entries[field] += np.array(number).astype(entries[field].dtype)

    return change


def flag(bit: int) -> Callable[[NDArray[Any]], None]:
    def change(entries: NDArray[Any]) -> None:
        entries["flags"] ^= bit

    return change


@given(datasets(max_rows=8))
def test_whatever_is_written_is_as_its_index_says(made: tuple[Schema, Rows]) -> None:
    schema, rows = made
    assert list(verify_dataset(stored(MemoryObjects(), schema, [rows]))) == []


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("up", add("min", 1), "its bounds are said to be"),
        ("up", add("max", -1), "its bounds are said to be"),
        ("down", flag(HAS_NAN), "no NaN, and has one"),
        ("down", flag(IS_SORTED), "said to ascend"),
        ("up", add("nulls", 1), "raw_bytes|promises|validity"),
        ("wide", flag(HAS_ROW_SUMS), "promises"),
    ],
)
def test_a_page_that_is_not_what_is_said_of_it_is_told(
    dataset: StoredDataset, column: str, change: Callable[[NDArray[Any]], None], says: str
) -> None:
    assert list(verify_dataset(dataset)) == []
    told = lie(dataset, column, change)
    assert told
    assert any(part in told[0] for part in says.split("|"))
    assert f"column {column!r}" in told[0]


def test_an_inexact_bound_need_not_be_reached(dataset: StoredDataset) -> None:
    def widen(entries: NDArray[Any]) -> None:
        entries["max"] += np.uint64(5)
        entries["flags"] |= MAX_INEXACT

    told = lie(dataset, "up", widen)
    assert told == ["column 'up': its bounds do not bound those of its pages"]


def test_pages_that_were_verified_before_are_passed_over() -> None:
    many = {"up": np.arange(4000)}  # too many to stand in the metadata
    made = stored(MemoryObjects(), Schema.of({"up": Scalar("int64")}), [many])
    assert lie(made, "up", add("min", 1))
    assert list(verify_dataset(made, lambda _: False)) == []

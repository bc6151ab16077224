"""What a predicate compares: columns of every kind with literals of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.columns.schema import (
    ClassLabel,
    Json,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.editing.predicate import parse_where
from tensorrepo.formats.dataset.editing.where import find_rows
from tensorrepo.repo.errors import InvalidInputError
from tests.support.datasets import stored
from tests.support.objects import MemoryObjects

SCHEMA = Schema.of(
    {
        "n": "int32",
        "u": "uint64",
        "f": "float32",
        "h": "float16",
        "ok": "bool",
        "c": "complex64",
        "t": Text(),
        "j": Json(),
        "kind": ClassLabel(("cat", "dog")),
        "when": Timestamp(),
        "x": Tensor("float32", (2,)),
    }
)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        (
            "n == 'x'",
            6,
            r"a number to compare with 'n' \(int32\), found \"'x'\"",
        ),
        ("f > 'x'", 5, r"a number to compare with 'f' \(float32\)"),
        ("t == 3", 6, r"text in quotes to compare with 't' \(text\), found '3'"),
        ("3 < t", 1, r"text in quotes to compare with 't'"),
        ("ok == 1", 7, r"true or false to compare with 'ok' \(bool\)"),
        (
            "n == true",
            6,
            r"a number to compare with 'n'",
        ),
        (
            "kind == true",
            9,
            r"a class in quotes or its number to compare with 'kind' \(class label",
        ),
        ("when > 3", 8, "a moment such as '2026-01-31 12:00:00'"),
        (
            "n in (1, 'x')",
            10,
            r"a number to compare with 'n'",
        ),
        ("x == 3", 1, r"a column whose values have an order, not 'x' \(float32\)"),
        ("c == 3", 1, r"a column whose values have an order, not 'c'"),
        ("n == t", 6, r"a column that can be compared with 'n' \(int32\), found 't'"),
        ("n", 2, r"an operator such as ==, as 'n' \(int32\) is not of bools"),
        ("not t", 6, "an operator such as =="),
        ("n == 9223372036854775808", 6, "a number from -9223372036854775808 to"),
        ("u > -1", 5, "a number from 0 to"),
        ("u == 18446744073709551616", 6, "a number from 0 to"),
    ],
)
def test_what_cannot_be_compared_is_pointed_at_in_our_words(
    text: str, place: int, says: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"character {place}: expected {says}"):
        parse_where(text, SCHEMA)


HIGH = 2**64 - 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"u == {HIGH}", [2]),
        ("u > 3", [2]),
        ("u >= 9223372036854775808", [2]),
        ("h > 1", [2]),
        ("h == 0.5", [1]),
        ("f < 1" + "0" * 5000, [0, 1, 2]),
        ("f < 100000000000000000000", [0, 1, 2]),
        ("u in (0, 18446744073709551615)", [0, 2]),
    ],
)
def test_numbers_beyond_what_arrow_converts_are_compared_exactly(
    text: str, found: list[int]
) -> None:
    batch: dict[str, Any] = {"u": np.array([0, 1, HIGH], np.uint64)}
    batch |= {"h": np.array([0, 0.5, 2], "f2"), "f": np.arange(3, dtype="f4")}
    schema = Schema.of({"u": "uint64", "h": "float16", "f": "float32"})
    assert find_rows(stored(MemoryObjects(), schema, [batch]), text).tolist() == found


def test_numbers_that_arrow_does_not_convert_are_an_error_and_no_bug() -> None:
    batch = {"u": np.array([0, 1, HIGH], np.uint64)}
    dataset = stored(MemoryObjects(), Schema.of({"u": "uint64"}), [batch])
    with pytest.raises(InvalidInputError, match=r"predicate \(u > 1.5\).*not in range"):
        find_rows(dataset, "u > 1.5")

"""Tests of `repo.json_rules`: what is kept as JSON, exactly or not, and how deep."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
import pytest

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.json_rules import check_json


class Color(StrEnum):
    RED = "red"


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "value", [None, True, 1.5, "é", -(1 << 63), (1 << 64) - 1, {"a": [{}, (1, "b")]}, nested(3)]
)
def test_json_is_kept(value: Any, *, exact: bool) -> None:
    check_json(value, "x", 3, exact=exact)


@pytest.mark.parametrize(
    "value", [float("nan"), float("-inf"), Color.RED, np.float64(1), {Color.RED: 1}]
)
def test_what_languages_differ_in_is_kept_where_it_need_not_be_exact(value: Any) -> None:
    check_json([value], "x")
    with pytest.raises(InvalidInputError, match=r"^x"):
        check_json([value], "x", exact=True)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "bytes is not JSON"),
        ({1: 2}, "key 1 is not text"),
        (1 << 64, "65 bits"),
        (-(1 << 63) - 1, "at most 64 are"),
        ("\ud800", "half a surrogate pair"),
        ({"\ud800": 1}, "half a surrogate pair"),
        (nested(3), "nested deeper than 3"),
    ],
)
def test_no_json_is_refused_and_its_place_is_named(value: Any, reason: str, *, exact: bool) -> None:
    with pytest.raises(InvalidInputError, match=rf"^x\.a[.0]*: .*{reason}"):
        check_json({"a": value}, "x", 3, exact=exact)

"""Values are shown to people as text and to programs as JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.cells import value_text
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.formats.dataset.schema.types import LinkValue


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float32("nan"), "NaN"),
        (ml_dtypes.bfloat16(0.5), 0.5),
        (np.array([[1, np.inf]], ml_dtypes.bfloat16), [[1.0, "Infinity"]]),
        (np.array([0.25, 2], ml_dtypes.float8_e5m2), [0.25, 2.0]),
        (np.complex64(1 - 2j), [1.0, -2.0]),
        (np.array([1j]), [[0.0, 1.0]]),
        (LinkValue("s3://b", 3), {"url": "s3://b", "start": 3}),
        (b"\0\xff", {"bytes": 2, "base64": "AP8="}),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.datetime64("2024-01-01T00:00:00.000000001"), "2024-01-01T00:00:00.000000001"),
        (np.datetime64("NaT"), None),
        (np.array(["2024", "NaT"], "M8[D]"), ["2024-01-01", None]),
        (Decimal("0.10"), "0.10"),
        ({"a": [None]}, {"a": [None]}),
        (None, None),
    ],
)
def test_a_value_is_json_for_programs(value: Any, expected: Any) -> None:
    assert json.loads(json.dumps(value_json(value), allow_nan=False)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (ml_dtypes.bfloat16(0.5), "0.5"),
        (np.array([0.5, 1], ml_dtypes.bfloat16), "bfloat16[2] 0.5 1"),
        (LinkValue("s3://b", 3), "s3://b"),
    ],
)
def test_a_value_is_a_short_text_for_people(value: Any, expected: str) -> None:
    assert value_text(value) == expected

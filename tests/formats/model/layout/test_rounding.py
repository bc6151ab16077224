from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.model.layout.number_values import ROUNDABLE, numbers, rounded

SMALL = ["F8_E5M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2FNUZ"]


@pytest.mark.parametrize("name", sorted(ROUNDABLE))
def test_every_number_of_a_type_comes_back_with_its_bits(name: str) -> None:
    element = TYPES[name]
    random = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8)
    values = numbers(random.data, element)
    assert values is not None
    again = numbers(rounded(values, element).data, element)
    np.testing.assert_array_equal(again, values)
    finite = np.isfinite(values)
    size = element.block_bytes
    before, after = random.reshape(-1, size), rounded(values, element).reshape(-1, size)
    np.testing.assert_array_equal(before[finite], after[finite])


@pytest.mark.parametrize("name", [*SMALL, "BF16"])
@given(value=st.floats(-400, 400))
def test_the_nearest_number_is_found_and_of_two_the_even_one(name: str, value: float) -> None:
    element = TYPES[name]
    codes = np.arange(1 << 8 * element.block_bytes, dtype=f"<u{element.block_bytes}")
    every = numbers(codes.view(np.uint8).data, element)
    assert every is not None
    near = codes[np.argsort(np.abs(every - value), kind="stable")[:4]]
    found = rounded(np.array([value]), element).view(codes.dtype)[0]
    distances = {
        int(code): abs(Fraction(float(every[code])) - Fraction(value))
        for code in {*near.tolist(), int(found)}
        if np.isfinite(every[code])
    }
    least = min(distances.values())
    best = [code for code, distance in distances.items() if distance == least]
    assert int(found) in best
    assert float(every[found]) == value or len(best) < 2 or int(found) % 2 == 0


def test_bfloat_is_not_rounded_twice() -> None:
    just_above = 1 + 2**-8 + 2**-40  # the middle of two neighbours, and a little more
    assert rounded(np.array([just_above]), TYPES["BF16"]).view("<u2")[0] == 0x3F81
    assert np.float64(just_above).astype(ml_dtypes.bfloat16).view("<u2") in {0x3F80, 0x3F81}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("F32", 1e300, np.inf), ("BF16", 1e300, np.inf), ("F16", -1e6, -np.inf),
        ("F8_E4M3", 1e9, 448), ("F8_E5M2", -1e9, -57344), ("F8_E4M3FNUZ", np.inf, 240),
        ("BF16", np.inf, np.inf), ("F8_E4M3FNUZ", -0.0, 0.0),
    ],
)  # fmt: skip
def test_what_is_too_large_has_its_place(name: str, value: float, expected: float) -> None:
    found = numbers(rounded(np.array([value]), TYPES[name]).data, TYPES[name])
    assert found is not None
    assert found[0] == expected


@pytest.mark.parametrize("name", sorted(ROUNDABLE - {"C32", "C64", "C128"}))
def test_what_is_no_number_stays_none(name: str) -> None:
    found = numbers(rounded(np.array([np.nan]), TYPES[name]).data, TYPES[name])
    assert found is not None
    assert np.isnan(found[0])


def test_a_type_without_numbers_is_refused() -> None:
    with pytest.raises(KeyError):
        rounded(np.zeros(2), TYPES["OPAQUE"])

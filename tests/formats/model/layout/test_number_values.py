from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TORCH_NAMES, TYPES
from tensorrepo.formats.model.layout.number_values import numbers


@pytest.mark.parametrize(
    ("name", "code", "value"),
    [
        ("F8_E4M3", 0x7E, 448),
        ("F8_E4M3", 0x01, 2**-9),
        ("F8_E4M3", 0x7F, np.nan),
        ("F8_E4M3", 0xFF, np.nan),
        ("F8_E5M2", 0x7B, 57_344),
        ("F8_E5M2", 0x7C, np.inf),
        ("F8_E5M2", 0xFC, -np.inf),
        ("F8_E5M2", 0x7D, np.nan),
        ("F8_E4M3FNUZ", 0x7F, 240),
        ("F8_E4M3FNUZ", 0x80, np.nan),
        ("F8_E5M2FNUZ", 0x7F, 57_344),
        ("F8_E8M0", 127, 1),
        ("F8_E8M0", 255, np.nan),
    ],
)
def test_small_floats_mean_what_their_specs_say(name: str, code: int, value: float) -> None:
    found = numbers(memoryview(bytes([code])), TYPES[name])
    assert np.array_equal(found, [value], equal_nan=True)


def test_four_bit_floats_lie_low_half_first() -> None:
    found = numbers(memoryview(bytes([0x21, 0xF7])), TYPES["F4"])
    assert np.array_equal(found, [0.5, 1, 6, -6])


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    data = np.array([1.5, -0.0, np.inf], "<f4").view("<u4") >> 16
    found = numbers(memoryview(data.astype("<u2").tobytes()), TYPES["BF16"])
    assert np.array_equal(found, [1.5, -0.0, np.inf])


def test_half_complex_numbers_are_pairs_of_halves() -> None:
    found = numbers(memoryview(np.array([1, -2], "<f2").tobytes()), TYPES["C32"])
    assert np.array_equal(found, [1 - 2j])


@pytest.mark.parametrize("name", ["OPAQUE", "F6_E2M3"])
def test_some_types_are_no_numbers(name: str) -> None:
    assert numbers(memoryview(bytes(3)), TYPES[name]) is None


@pytest.mark.parametrize("name", [name for name in TYPES if name.startswith("F8")] + ["BF16"])
def test_every_bit_pattern_means_what_it_means_to_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    codes = np.arange(1 << 8 * TYPES[name].block_bytes, dtype=TYPES[name].units)
    theirs = torch.from_numpy(codes.view(np.uint8)).view(getattr(torch, TORCH_NAMES[name]))
    found = numbers(codes.view(np.uint8).data, TYPES[name])
    assert np.array_equal(found, theirs.double().numpy(), equal_nan=True)

from __future__ import annotations

import pytest
from blake3 import blake3

from tensorrepo.formats.common.tensors import TYPES, TensorType
from tensorrepo.formats.model.layout.fingerprints import (
    FRAME_ELEMENTS,
    fingerprint,
    frame_bytes,
    frame_digest,
)

F32 = TYPES["F32"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("F32", 2 << 20), ("BF16", 1 << 20), ("F4", 1 << 18), ("F6_E2M3", 393_216), ("C128", 8 << 20)],
)
def test_a_frame_has_two_to_the_nineteen_elements(name: str, expected: int) -> None:
    assert frame_bytes(TYPES[name]) == expected


def test_the_fingerprint_is_what_the_spec_says() -> None:
    digest = blake3(b"12345678", derive_key_context="tensorrepo frame v1").digest()
    spelled = (
        b"\x03F32" + bytes(29)
        + b"\x01\0\0\0" + b"\x04\0\0\0" + b"\x02\0\0\0"
        + b"\x02" + bytes(7) + b"\x01" + bytes(7)
        + b"\x01" + bytes(7) + digest
    )  # fmt: skip
    expected = blake3(spelled, derive_key_context="tensorrepo tensor v1").digest()
    assert fingerprint(F32, (2, 1), frame_digest(b"12345678")) == expected


@pytest.mark.parametrize(
    ("element", "shape", "frame"),
    [
        (TYPES["I32"], (2, 1), b"12345678"),
        (F32, (1, 2), b"12345678"),
        (F32, (2,), b"12345678"),
        (F32, (2, 1), b"12345679"),
        (TensorType("F32", 2, 8), (2, 1), b"12345678"),
    ],
)
def test_type_shape_and_bytes_all_count(
    element: TensorType, shape: tuple[int, ...], frame: bytes
) -> None:
    before = fingerprint(F32, (2, 1), frame_digest(b"12345678"))
    assert fingerprint(element, shape, frame_digest(frame)) != before


def test_a_frame_is_a_whole_number_of_blocks() -> None:
    assert all(FRAME_ELEMENTS % element.block_elements == 0 for element in TYPES.values())

"""Digests as text and as bytes, and buffers as bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import byte_view, digest_bytes, digest_from_bytes, parse_digest


@given(st.binary(min_size=32, max_size=32))
def test_a_digest_survives_its_binary_form(raw: bytes) -> None:
    digest = digest_from_bytes(raw)
    assert digest_bytes(digest) == raw
    assert parse_digest(digest) == digest


@pytest.mark.parametrize(
    "text",
    ["", "ab", "A" * 64, "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63, "0" * 64 + "\n", "٠" * 64],
)
def test_what_is_not_64_lower_case_hex_digits_is_no_digest(text: str) -> None:
    with pytest.raises(InvalidInputError, match="64 lower-case hex digits"):
        parse_digest(text)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_binary_digest_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(InvalidInputError, match="32 bytes"):
        digest_from_bytes(bytes(size))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (4,), (2, 3)])
def test_a_buffer_of_any_shape_is_its_bytes(shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape), dtype=np.int16).reshape(shape)
    assert bytes(byte_view(values.data)) == values.tobytes()

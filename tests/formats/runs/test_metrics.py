"""Points of metrics come back bit for bit, and damage is told."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorrepo.formats.runs.metrics import (
    MetricPoints,
    cut,
    decode_points,
    encode_points,
    join_points,
    joined,
)
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import Digest

HERE = Digest("0" * 64)
NAMES = st.sampled_from(["acc", "loss", "lr"])


@st.composite
def points(draw: st.DrawFn, most: int = 40) -> MetricPoints:
    count = draw(st.integers(1, most))
    return MetricPoints(
        draw(npst.arrays(np.int64, count)),
        draw(npst.arrays(np.uint64, count)).view(np.float64),
        draw(npst.arrays(np.int64, count)),
    )


def bits(by_name: dict[str, MetricPoints]) -> dict[str, list[list[int]]]:
    return {
        name: [one.steps.tolist(), one.values.view(np.int64).tolist(), one.times_ms.tolist()]
        for name, one in by_name.items()
    }


@given(st.dictionaries(NAMES, points()))
def test_all_steps_times_and_bits_of_values_come_back(by_name: dict[str, MetricPoints]) -> None:
    assert bits(decode_points(encode_points(by_name), HERE)) == bits(by_name)


@given(st.dictionaries(NAMES, points()), st.integers(1, 30))
def test_cut_into_parts_nothing_is_lost_and_all_but_the_last_are_full(
    by_name: dict[str, MetricPoints], most: int
) -> None:
    parts = list(cut(by_name, most))
    sizes = [sum(map(len, part.values())) for part in parts]
    again: dict[str, MetricPoints] = {}
    for part in parts:
        again = joined(again, part)
    assert bits(again) == bits(by_name)
    assert all(size == most for size in sizes[:-1])
    assert all(0 < size <= most for size in sizes)


def test_a_million_even_points_take_no_more_than_their_values() -> None:
    steps = np.arange(100_000)
    encoded = encode_points(
        {"loss": MetricPoints(steps, steps / 3, 1_700_000_000_000 + steps * 100)}
    )
    planes = np.frombuffer(encoded, np.uint8)
    assert np.count_nonzero(planes) < 100_000 * 11  # values, and a byte of step and time each


def test_nothing_joined_is_nothing() -> None:
    assert len(join_points([])) == 0


@pytest.mark.parametrize(
    ("series", "told"),
    [
        ([["a", 2, b"", b"", b""]], "2 points"),
        ([["a", 1, bytes(8), bytes(8), bytes(16)]], "1 points"),
        ([["a", 0, b"", b"", b""]], "0 points"),
        ([["b", 1, bytes(8), bytes(8), bytes(8)], ["a", 1, bytes(8), bytes(8), bytes(8)]], "order"),
        ("nonsense", "not well-formed"),
    ],
)
def test_what_is_not_well_formed_is_refused(series: object, told: str) -> None:
    payload = msgspec.msgpack.encode({"series": series, "version": 1})
    with pytest.raises(CorruptError, match=told):
        decode_points(payload, HERE)


def test_another_version_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="version 2"):
        decode_points(msgspec.msgpack.encode({"series": [], "version": 2}), HERE)

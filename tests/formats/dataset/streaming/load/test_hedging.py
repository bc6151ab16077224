"""A second request is for reads that are late compared to others like them, and costs little."""

from __future__ import annotations

import pytest

from tensorrepo.formats.dataset.streaming.load.requests import HedgedRequests

MIB = 1 << 20


def told(durations: list[float], size_bytes: int = MIB) -> HedgedRequests:
    hedging = HedgedRequests()
    for seconds in durations:
        hedging.asked(size_bytes)
        hedging.answered(size_bytes, seconds)
    return hedging


def test_nothing_is_late_before_others_were_seen() -> None:
    assert told([0.1] * 31).patience_seconds(MIB, needed=True) is None


def test_a_read_is_late_beyond_the_95th_percentile() -> None:
    assert told([0.1] * 90 + [0.5] * 10).patience_seconds(MIB, needed=True) == 0.5


def test_a_read_is_not_late_when_all_take_about_as_long() -> None:
    assert told([0.1] * 90 + [0.11] * 10).patience_seconds(MIB, needed=True) == 0.2


def test_a_read_that_nobody_waits_for_has_twice_as_long() -> None:
    assert told([0.1] * 100).patience_seconds(MIB, needed=False) == 0.4


def test_answers_of_a_moment_are_not_worth_a_second_request() -> None:
    assert told([0.0001] * 100).patience_seconds(MIB, needed=True) == 0.01


def test_reads_of_other_sizes_do_not_count() -> None:
    hedging = told([0.1] * 100)
    assert hedging.patience_seconds(8 * MIB, needed=True) is None
    assert hedging.patience_seconds(MIB + MIB // 2, needed=True) == 0.2


def test_old_durations_are_forgotten() -> None:
    assert told([9.0] * 100 + [0.1] * 300).patience_seconds(MIB, needed=True) == 0.2


@pytest.mark.parametrize("size_bytes", [1000, MIB, 50 * MIB])
def test_second_requests_are_a_small_share_of_all_bytes(size_bytes: int) -> None:
    hedging = told([0.1] * 1000, size_bytes)
    hedged = 0
    while hedging.patience_seconds(size_bytes, needed=True) is not None:
        hedging.hedged(size_bytes)
        hedged += 1
    assert hedged == 50

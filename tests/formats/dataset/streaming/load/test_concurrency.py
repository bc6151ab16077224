"""The number of requests in flight finds the link's capacity, and heeds a store that is busy."""

from __future__ import annotations

from itertools import product

import pytest

from tensorrepo.formats.dataset.streaming.load.requests import Concurrency, RequestLimits
from tests.support.effort import sampled
from tests.support.faults.slow_links import Link, simulate

MB = 1_000_000


@pytest.mark.parametrize(
    ("latency_ms", "mb_per_s", "noise"),
    sampled(list(product([1, 20, 50, 100], [10, 100, 500, 1000], [0.0, 0.5])), 9),
)
def test_the_link_is_used(latency_ms: int, mb_per_s: int, noise: float) -> None:
    link = Link(mb_per_s * MB, latency_ms / 1000, noise=noise)
    found = simulate(link, Concurrency(), seconds=30)
    most = 128 * (1 << 20) / (link.latency_seconds * (1 + noise))
    assert found.goodput > 0.9 * min(link.bytes_per_second, most)


@pytest.mark.parametrize("mb_per_s", [10, 100, 500])
def test_no_more_wait_for_each_other_than_the_link_needs(mb_per_s: int) -> None:
    link = Link(mb_per_s * MB, 0.02)
    found = simulate(link, Concurrency(), seconds=60)
    assert found.limit < 3 * link.bytes_per_second * link.latency_seconds / (1 << 20) + 20


def test_twice_as_many_are_tried_as_long_as_that_pays() -> None:
    concurrency = Concurrency()
    simulate(Link(1000 * MB, 0.1), concurrency, seconds=1.5)
    assert concurrency.reached == 128


def test_no_more_are_tried_once_requests_take_twice_as_long_as_the_first_ones() -> None:
    concurrency = Concurrency(RequestLimits(start=32))
    simulate(Link(125 * MB, 0.02), concurrency, seconds=1, size_bytes=1 << 18)
    assert concurrency.reached < 64
    assert 10 <= concurrency.filling <= 30  # of 256 KiB in 20 ms and what the first ones waited


def test_requests_that_take_alike_are_doubled_although_some_are_slow() -> None:
    concurrency = Concurrency(RequestLimits(start=32))
    simulate(Link(100_000 * MB, 0.02, noise=3.0), concurrency, seconds=1, size_bytes=1 << 18)
    assert concurrency.reached == 128


def test_fewer_are_tried_no_further_than_to_what_covers_a_pause() -> None:
    concurrency = Concurrency(RequestLimits(start=32))
    found = simulate(Link(125 * MB, 0.02), concurrency, seconds=60, size_bytes=1 << 18)
    assert found.limit * (1 << 18) / (125 * MB) >= 0.02 + 0.05


def test_more_follow_the_first_requests_until_something_is_heard() -> None:
    concurrency = Concurrency(RequestLimits(start=32))
    assert concurrency.pace(5.0) is None  # before the first one
    concurrency.sent(5.0)
    assert concurrency.pace(5.0) == pytest.approx(0.002)
    concurrency.pace(5.021)
    assert concurrency.limit == 42
    concurrency.answered(1 << 20, 5.0, 5.03, binding=True)
    assert concurrency.pace(5.06) is None
    assert concurrency.limit == 42


def test_no_more_follow_the_first_requests_over_a_slow_link() -> None:
    concurrency = Concurrency(RequestLimits(start=32))
    concurrency.sent(5.0)
    assert concurrency.pace(60.0) is None
    assert concurrency.limit == 82


def test_a_busy_store_is_asked_for_less() -> None:
    link = Link(1000 * MB, 0.05, refuses_above=20)
    found = simulate(link, Concurrency(), seconds=60)
    assert found.limit <= 20
    assert found.refused < 300  # of some 10,000 answers
    assert found.goodput > 0.7 * 20 * (1 << 20) / 0.05


def test_answers_of_one_moment_lower_the_limit_once() -> None:
    concurrency = Concurrency(RequestLimits(start=100))
    for _ in range(50):
        concurrency.slowed_down(1.0, 2.0)
    assert concurrency.limit == 60


def test_the_limit_stays_within_its_bounds() -> None:
    concurrency = Concurrency(RequestLimits(start=4, least=3, most=5))
    simulate(Link(1000 * MB, 0.1), concurrency, seconds=10)
    assert concurrency.reached == 5
    for at in range(10):
        concurrency.slowed_down(at + 100.0, at + 100.5)
    assert concurrency.limit == 3


def test_answers_that_nobody_waited_for_tell_nothing() -> None:
    concurrency = Concurrency()
    for at in range(10_000):
        concurrency.answered(1 << 20, at, at + 0.5, binding=False)
    assert concurrency.limit == concurrency.bounds.start


def test_bounds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="least <= start"):
        RequestLimits(start=1, least=2)

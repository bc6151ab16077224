"""Token buckets."""

from __future__ import annotations

import pytest

from tensorrepo.api.limits.buckets import Rate, TokenBuckets


def test_a_burst_is_given_and_then_the_rate() -> None:
    buckets = TokenBuckets(Rate(per_second=2, burst=3))
    assert [buckets.wait(b"a", 1, now=0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert buckets.wait(b"a", 1, now=0.5) == 0
    assert buckets.wait(b"a", 1, now=0.5) == 0.5


def test_keys_do_not_share() -> None:
    buckets = TokenBuckets(Rate(per_second=1, burst=1))
    assert [buckets.wait(key, 1, now=0) for key in (b"a", b"b")] == [0, 0]


def test_who_was_given_much_makes_up_for_it() -> None:
    buckets = TokenBuckets(Rate(per_second=100, burst=100))
    buckets.charge(b"a", 1000, now=0)
    assert buckets.wait(b"a", 1, now=0) == pytest.approx(9.01)
    assert buckets.wait(b"a", 1, now=9.1) == 0


def test_more_than_a_burst_at_once_is_given_to_a_full_bucket() -> None:
    assert TokenBuckets(Rate(per_second=1, burst=2)).wait(b"a", 5, now=0) == 0


def test_what_was_used_least_lately_is_forgotten() -> None:
    buckets = TokenBuckets(Rate(per_second=1, burst=1), most=2)
    for key in (b"a", b"b", b"c"):
        buckets.wait(key, 1, now=0)
    assert [buckets.wait(key, 1, now=0) for key in (b"c", b"a")] == [1, 0]

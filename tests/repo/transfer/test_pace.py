"""Rates of transfers, by a clock of the tests."""

from __future__ import annotations

import itertools

from tensorrepo.repo.transfer.pace import RateLimit


class Clock:
    """Time passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_so_many_bytes_pass_in_a_second() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock=clock, sleep=clock.sleep)
    for _ in range(11):
        limit.take(500)
    assert round(clock.now - 100.0, 6) == 5.0


def test_what_was_not_used_is_not_saved_up() -> None:
    clock = Clock()
    limit = RateLimit(1000, clock=clock, sleep=clock.sleep)
    limit.take(1)
    clock.now += 60
    for _ in range(3):
        limit.take(1000)
    assert round(clock.now - 160.0, 6) == 2.0


def test_who_stops_waits_no_longer() -> None:
    clock = Clock()
    limit = RateLimit(1, clock=clock, sleep=clock.sleep)
    asked = itertools.count()
    limit.take(1000)
    limit.take(1000, lambda: next(asked) >= 2)
    assert clock.now < 101


def test_without_a_limit_nobody_waits() -> None:
    clock = Clock()
    RateLimit(None, clock=clock, sleep=clock.sleep).take(1 << 40)
    assert clock.now == 100.0

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine

import pytest

from tensorrepo.repo.backends.cloud import LoopFlights
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.threads import ThreadFlights

NAME = "tensorrepo-test"


class Threads:
    """Functions on threads, through the same four calls as `Loop`."""

    def __init__(self, calls: int, limit_bytes: int) -> None:
        self.flights = ThreadFlights(calls, limit_bytes, NAME)
        self.drain, self.stop = self.flights.drain, self.flights.stop

    def submit(self, call: Callable[[], None], size_bytes: int) -> None:
        self.flights.submit(call, size_bytes)


class Loop:
    def __init__(self, calls: int, limit_bytes: int) -> None:
        self.flights = LoopFlights(calls, limit_bytes, NAME)
        self.drain, self.stop = self.flights.drain, self.flights.stop

    def submit(self, call: Callable[[], None], size_bytes: int) -> None:
        def start() -> Coroutine[object, object, None]:
            async def run() -> None:
                call()

            return run()

        self.flights.submit(start, size_bytes)


@pytest.fixture(params=[Threads, Loop])
def make(request: pytest.FixtureRequest) -> type[Threads | Loop]:
    kind: type[Threads | Loop] = request.param
    return kind


def threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(NAME)]


def fail() -> None:
    raise StorageError("the first")


def test_every_call_is_made(make: type[Threads | Loop]) -> None:
    flights, done = make(3, 10), list[int]()
    for number in range(50):
        flights.submit(lambda number=number: done.append(number), 4)  # type: ignore[misc]  # mypy takes no defaults in lambdas
    flights.drain()
    assert sorted(done) == list(range(50))


def test_no_thread_exists_before_the_first_call_and_after_the_last(
    make: type[Threads | Loop],
) -> None:
    flights = make(3, 10)
    before = threads()
    flights.submit(lambda: None, 1)
    during = threads()
    flights.drain()
    assert (before, len(during), threads()) == ([], 1, [])


def test_flights_can_be_used_again_after_drain(make: type[Threads | Loop]) -> None:
    flights, done = make(3, 10), list[int]()
    flights.submit(lambda: done.append(1), 1)
    flights.drain()
    flights.submit(lambda: done.append(2), 1)
    flights.drain()
    assert done == [1, 2]


def test_the_first_failure_is_raised_by_drain_and_by_later_submits(
    make: type[Threads | Loop],
) -> None:
    flights = make(1, 10)
    flights.submit(fail, 1)
    with pytest.raises(StorageError, match="the first"):
        flights.drain()
    with pytest.raises(StorageError, match="the first"):
        flights.submit(lambda: None, 1)
    assert threads() == []


def test_after_stop_nothing_is_taken(make: type[Threads | Loop]) -> None:
    flights = make(1, 10)
    flights.submit(lambda: None, 1)
    flights.stop()
    with pytest.raises(StorageError, match="aborted"):
        flights.submit(lambda: None, 1)
    assert threads() == []


def test_a_call_larger_than_the_limit_runs_alone(make: type[Threads | Loop]) -> None:
    flights, done = make(3, 10), list[int]()
    flights.submit(lambda: done.append(1), 1)
    flights.submit(lambda: done.append(2), 1000)
    flights.submit(lambda: done.append(3), 1)
    flights.drain()
    assert sorted(done) == [1, 2, 3]


def test_submit_waits_while_too_many_bytes_are_under_way() -> None:
    flights, gate, entered = Threads(8, 10), threading.Event(), threading.Event()
    flights.submit(gate.wait, 8)  # type: ignore[arg-type]  # what it returns is not looked at

    def push() -> None:
        flights.submit(lambda: None, 8)
        entered.set()

    pusher = threading.Thread(target=push)
    pusher.start()
    waited = not entered.wait(0.05)
    gate.set()
    pusher.join()
    flights.drain()
    assert waited
    assert entered.is_set()


def test_stop_cancels_a_coroutine_that_waits_for_ever() -> None:
    flights, started = LoopFlights(2, 10, NAME), threading.Event()

    async def wait_for_ever() -> None:
        started.set()
        await asyncio.Event().wait()

    flights.submit(wait_for_ever, 1)
    started.wait()
    flights.stop()
    assert threads() == []

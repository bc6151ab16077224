"""Jobs begin in the order of need; the first step comes early, and the link is busy afterwards."""

from __future__ import annotations

import pytest

from tensorrepo.formats.dataset.streaming.load.requests import (
    Job,
    Look,
    PieceRequest,
    Read,
    RequestLimits,
    RequestQueue,
    RunJob,
)
from tensorrepo.formats.dataset.streaming.stats import FetchStats
from tests.support.effort import sampled_product
from tests.support.faults.scripted import CHUNK
from tests.support.faults.slow_links import Link, cold_start

PAGE = 1 << 18


def read(order: int) -> Read:
    return Read(order, PieceRequest(CHUNK, 0, PAGE, ()))


def jobs(*, reads: int = 0, start: int = 4, local_threads: int = 2) -> RequestQueue:
    found = RequestQueue(RequestLimits(start, 1, 64), local_threads, FetchStats())
    for order in range(reads):
        found.read(read(order))
    return found


def begun(found: RequestQueue, now: float = 0.0) -> list[Job]:
    return list(iter(lambda: found.next(now), None))


def orders(found: list[Job]) -> list[int]:
    return [job.order for job in found]


# ------------------------------------------------------------------------------ a cold start


@sampled_product("latency_ms,shared", [20, 50], [True, False], dev=2)
def test_a_cold_start_hands_out_early_and_then_uses_the_link(latency_ms: int, shared: bool) -> None:
    link = Link(125e6, latency_ms / 1000, noise=0.1)
    first = 129  # half of 256 lanes, and one
    found = cold_start(
        link,
        bounds=RequestLimits(32, 2, 128),
        first=first,
        total=1200,
        size_bytes=PAGE,
        shared=shared,
    )
    round_trips = 3 * link.latency_seconds
    assert found.first_seconds <= round_trips + first * PAGE / link.bytes_per_second
    assert found.goodput > 0.92 * link.bytes_per_second


# ------------------------------------------------------------------------------ what begins


def test_jobs_begin_in_the_order_of_need() -> None:
    found = jobs(start=64)
    for order in (5, 3, 9, 1):
        found.read(read(order))
    assert orders(begun(found)) == [1, 3, 5, 9]


def test_no_more_work_at_once_than_there_are_threads_for() -> None:
    found = jobs(local_threads=2)
    for order in range(5):
        found.work(Look(order, []))
    assert orders(begun(found)) == [0, 1]
    found.worked()
    assert orders(begun(found)) == [2]


def test_runs_that_read_count_like_requests() -> None:
    found = jobs(reads=3, start=4)
    found.read(RunJob(3, 3, 1, reads=True))
    found.read(read(4))
    assert orders(begun(found)) == [0, 1, 2, 3]
    found.landed(1.0)
    assert orders(begun(found)) == [4]


def test_what_was_answered_meanwhile_is_not_asked_for() -> None:
    found = jobs(reads=1)
    late = read(1)
    found.read(late)
    late.answered = True
    assert orders(begun(found)) == [0]


@pytest.mark.parametrize("reads", [0, 1, 3, 4, 30])
@pytest.mark.parametrize("first", [1, 2, 30])
def test_as_many_begin_as_were_said_to(reads: int, first: int) -> None:
    found = jobs(reads=reads)
    found.await_next(first)
    found.work(Look(0, []))
    startable = found.startable
    assert len(begun(found)) == startable
    assert found.startable == 0


def test_others_wait_while_the_first_step_has_the_link() -> None:
    found = jobs(reads=40, start=4)
    found.await_next(10)
    assert orders(begun(found, 0.0)) == [0, 1, 2, 3]
    found.due(0.1)  # nothing was heard for long: more may follow, but none that nobody waits for
    assert orders(begun(found, 0.1)) == [4, 5, 6, 7, 8, 9]


def test_others_begin_when_the_first_step_is_there() -> None:
    found = jobs(reads=40, start=4)
    found.await_next(4)
    first = begun(found)
    for each in first:
        assert isinstance(each, Read)
        found.answered(each, 0.0, 1.0)
    found.calm()
    assert orders(begun(found, 1.0)) == [4, 5, 6, 7]


# ------------------------------------------------------------------------------ what is late


def known(*, start: int = 32) -> RequestQueue:
    """Forty requests took 0.1 s each."""
    found = jobs(start=start)
    for order in range(40):
        one = read(order)
        found.read(one)
        found.next(0.0)
        found.answered(one, 0.0, 0.1)
    return found


def sent(found: RequestQueue, order: int, now: float) -> Read:
    one = read(order)
    found.read(one)
    assert found.next(now) is one
    return one


def test_a_late_request_is_made_again_once() -> None:
    found = known()
    found.await_next(41)
    late = sent(found, 40, 1.0)
    found.due(1.19)
    assert begun(found, 1.19) == []
    found.due(1.21)
    assert begun(found, 1.21) == [late]
    found.due(9.0)
    assert begun(found, 9.0) == []


def test_a_request_that_nobody_waits_for_has_twice_as_long() -> None:
    found = known()
    found.await_next(40)
    late = sent(found, 40, 1.0)
    found.due(1.39)
    assert begun(found, 1.39) == []
    found.due(1.41)
    assert begun(found, 1.41) == [late]


def test_requests_that_all_wait_for_the_link_are_not_late() -> None:
    found = known()
    found.await_next(60)
    some = [sent(found, order, 1.0) for order in range(40, 60)]
    found.due(9.0)
    assert begun(found, 9.0) == []
    for each in some[1:8]:
        found.answered(each, 1.0, 9.0)
    found.due(9.0)
    assert begun(found, 9.0) == []
    found.answered(some[8], 1.0, 9.0)  # the eighth that overtook the first one
    found.due(9.0)
    assert begun(found, 9.0) == some[:1]


def test_many_that_are_late_at_one_moment_wait_for_the_link() -> None:
    found = known()
    found.await_next(80)
    some = [sent(found, order, 1.0) for order in range(40, 60)]
    for order in range(60, 68):
        found.answered(sent(found, order, 1.0), 1.0, 1.1)
    found.due(1.25)
    assert begun(found, 1.25) == []
    for each in some[2:]:
        found.answered(each, 1.0, 1.25)
    found.due(1.26)
    assert begun(found, 1.26) == some[:2]


def test_those_that_are_very_late_are_made_again_however_many() -> None:
    found = known()
    found.await_next(80)
    some = [sent(found, order, 1.0) for order in range(40, 60)]
    for order in range(60, 68):
        found.answered(sent(found, order, 1.0), 1.0, 1.1)
    found.due(1.45)
    assert begun(found, 1.45) == some[:12]  # up to the limit of 32


def test_what_failed_is_repeated_when_it_is_time() -> None:
    found = jobs(reads=1)
    (failed,) = begun(found)
    assert isinstance(failed, Read)
    found.failed(failed, 0.0, 1.0, busy=False)
    found.read_later(failed, 1.5)
    assert found.due(1.0) == pytest.approx(0.5)
    assert begun(found, 1.0) == []
    assert found.due(1.5) is None
    assert begun(found, 1.5) == [failed]


def test_nothing_is_watched_while_nothing_is_on_its_way() -> None:
    assert jobs(reads=3).due(0.0) is None

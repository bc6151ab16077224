"""Work on several threads, handed over in order, and threads that end."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from tensorrepo.formats.dataset.streaming.batching.stages import Stages
from tests.support.streams import stream_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = [1, 2, 5]


@pytest.mark.parametrize("threads", THREADS)
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    found = Stages(iter(range(200)), str, threads=threads, most=7, name="tensorrepo-x")
    assert list(found) == [str(at) for at in range(200)]
    found.close()
    assert stream_threads() == []


def test_a_slow_item_does_not_let_others_overtake_it() -> None:
    third_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert third_is_done.wait(30)
        if item == 3:
            third_is_done.set()
        return item

    found = Stages(iter(range(10)), work, threads=2, most=8, name="tensorrepo-x")
    assert list(found) == list(range(10))
    found.close()


def test_no_more_items_are_drawn_than_may_wait() -> None:
    drawn: list[int] = []
    full = threading.Event()

    def items() -> Iterator[int]:
        for item in range(50):
            drawn.append(item)
            if item == 4:
                full.set()
            yield item

    found = Stages(items(), str, threads=3, most=4, name="tensorrepo-x")
    assert next(found) == "0"
    assert full.wait(30)
    found.close()
    assert drawn == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("threads", THREADS)
def test_a_failure_of_the_work_comes_after_the_results_before_it(threads: int) -> None:
    def work(item: int) -> int:
        if item == 5:
            raise KeyError("five")
        return item

    found = Stages(iter(range(20)), work, threads=threads, most=3, name="tensorrepo-x")
    assert [next(found) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five"):
        next(found)
    found.close()
    assert stream_threads() == []


@pytest.mark.parametrize("threads", THREADS)
def test_a_failure_of_the_items_comes_after_those_before_it(threads: int) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("two")

    found = Stages(items(), str, threads=threads, most=3, name="tensorrepo-x")
    assert next(found) == "1"
    with pytest.raises(KeyError, match="two"):
        next(found)
    found.close()
    assert list(found) == []


@pytest.mark.parametrize("threads", THREADS)
def test_closing_early_closes_the_generator_and_ends_the_threads(threads: int) -> None:
    closed: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.append(threading.current_thread().name)

    found = Stages(items(), str, threads=threads, most=3, name="tensorrepo-x")
    next(found)
    found.close()
    found.close()
    assert len(closed) == 1
    assert closed[0].startswith("tensorrepo-x")
    assert stream_threads() == []


@pytest.mark.parametrize("threads", THREADS)
def test_closing_ends_what_the_items_wait_for_before_it_waits_for_them(threads: int) -> None:
    let_go = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        assert let_go.wait(60)

    found = Stages(items(), str, threads=threads, most=9, name="tensorrepo-x", stop=let_go.set)
    next(found)
    found.close()
    assert stream_threads() == []


def test_nothing_begins_before_it_is_asked_for() -> None:
    found = Stages(iter([1]), str, threads=2, most=2, name="tensorrepo-x")
    assert stream_threads() == []
    found.close()
    assert list(found) == []


def test_work_that_raises_stop_iteration_does_not_end_the_loop_unseen() -> None:
    def stop(item: int) -> int:
        raise StopIteration(item)

    results = Stages(iter(range(5)), stop, threads=1, most=2, name="tensorrepo-test")
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(results)
    results.close()

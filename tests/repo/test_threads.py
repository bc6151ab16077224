"""Results in the order of their items, worked on ahead within bounds, and threads that end."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tensorrepo.repo.threads import OrderedMap, StandingThreads, ordered_map

THREADS = [1, 2, 5]


def own_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("tensorrepo-x")]


@pytest.mark.parametrize("threads", THREADS)
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    results = OrderedMap(iter(range(200)), str, threads=threads, ahead=7, name="x")
    assert list(results) == [str(at) for at in range(200)]
    results.close()
    assert own_threads() == []


def test_a_slow_item_does_not_let_others_overtake_it() -> None:
    third_is_done = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert third_is_done.wait(30)
        if item == 3:
            third_is_done.set()
        return item

    results = OrderedMap(iter(range(10)), work, threads=2, ahead=8, name="x")
    assert list(results) == list(range(10))
    results.close()


def test_no_more_items_are_drawn_than_may_wait() -> None:
    drawn: list[int] = []
    full = threading.Event()

    def items() -> Iterator[int]:
        for item in range(50):
            drawn.append(item)
            if item == 4:
                full.set()
            yield item

    results = OrderedMap(items(), str, threads=3, ahead=4, name="x")
    assert next(results) == "0"
    assert full.wait(30)
    results.close()
    assert drawn == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("threads", THREADS)
def test_a_failure_of_the_work_comes_after_the_results_before_it(threads: int) -> None:
    def work(item: int) -> int:
        if item == 5:
            raise KeyError("five")
        return item

    results = OrderedMap(iter(range(20)), work, threads=threads, ahead=3, name="x")
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(KeyError, match="five"):
        next(results)
    results.close()
    assert own_threads() == []


@pytest.mark.parametrize("threads", THREADS)
def test_a_failure_of_the_items_comes_after_those_before_it(threads: int) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("two")

    results = OrderedMap(items(), str, threads=threads, ahead=3, name="x")
    assert next(results) == "1"
    with pytest.raises(KeyError, match="two"):
        next(results)
    results.close()
    assert list(results) == []


@pytest.mark.parametrize("threads", THREADS)
def test_closing_early_closes_the_generator_and_ends_the_threads(threads: int) -> None:
    closed: list[str] = []

    def items() -> Iterator[int]:
        try:
            while True:
                yield 0
        finally:
            closed.append(threading.current_thread().name)

    results = OrderedMap(items(), str, threads=threads, ahead=3, name="x")
    next(results)
    results.close()
    results.close()
    assert len(closed) == 1
    assert closed[0].startswith("tensorrepo-x")
    assert own_threads() == []


@pytest.mark.parametrize("threads", THREADS)
def test_closing_ends_what_the_items_wait_for_before_it_waits_for_them(threads: int) -> None:
    let_go = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        assert let_go.wait(60)

    results = OrderedMap(items(), str, threads=threads, ahead=9, name="x", stop=let_go.set)
    next(results)
    results.close()
    assert own_threads() == []


def test_nothing_begins_before_it_is_asked_for() -> None:
    results = OrderedMap(iter([1]), str, threads=2, ahead=2, name="x")
    assert own_threads() == []
    results.close()
    assert list(results) == []


def test_work_that_raises_stop_iteration_does_not_end_the_loop_unseen() -> None:
    def stop(item: int) -> int:
        raise StopIteration(item)

    results = OrderedMap(iter(range(5)), stop, threads=1, ahead=2, name="x")
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        next(results)
    results.close()


@pytest.mark.parametrize("threads", [0, *THREADS])
def test_the_function_gives_the_same_in_the_same_order(threads: int) -> None:
    assert list(ordered_map(range(50), str, threads=threads)) == [str(at) for at in range(50)]


def test_no_more_bytes_are_begun_than_fit_beside_each_other() -> None:
    begun: list[int] = []
    let_go, second_is_done = threading.Event(), threading.Event()

    def work(size: int) -> int:
        begun.append(size)
        if size == 40:
            second_is_done.set()
        if size == 60:
            assert let_go.wait(30)
        return size

    results = ordered_map(
        [60, 40, 1], work, threads=3, bytes_ahead=100, size_of=lambda size: size, name="x"
    )
    reader = threading.Thread(target=lambda: taken.extend(results))
    taken: list[int] = []
    reader.start()
    assert second_is_done.wait(30)
    assert sorted(begun) == [40, 60]
    let_go.set()
    reader.join()
    assert taken == [60, 40, 1]


def test_an_item_larger_than_all_room_goes_alone() -> None:
    sizes = [500, 1, 700]
    assert list(ordered_map(sizes, str, threads=2, bytes_ahead=100, size_of=lambda size: size)) == [
        "500",
        "1",
        "700",
    ]


def test_a_generator_that_is_dropped_ends_its_threads() -> None:
    results = ordered_map(iter(int, 1), str, threads=3, name="x")
    next(results)
    del results
    assert own_threads() == []


def test_one_item_does_not_start_all_threads() -> None:
    results = OrderedMap([1], str, threads=64, name="x")
    assert list(results) == ["1"]
    assert len(results._threads) <= 2
    results.close()


def test_many_threads_draw_each_item_once() -> None:
    results = ordered_map(iter(range(3000)), abs, threads=8, ahead=50, name="x")
    assert list(results) == list(range(3000))


@pytest.mark.parametrize("threads", THREADS)
def test_shared_work_is_done_once_by_whoever_is_free(threads: int) -> None:
    standing, done = StandingThreads(4, "y"), list[int]()
    for _ in range(3):
        standing.each(done.append, range(100), threads=threads)
    assert sorted(done) == sorted([*range(100)] * 3)


def test_a_failure_is_told_when_nothing_is_under_way_and_ends_the_work() -> None:
    both_are_here, under_way, begun = threading.Barrier(2), list[int](), list[int]()

    def work(item: int) -> None:
        begun.append(item)
        under_way.append(item)
        both_are_here.wait(30)
        under_way.remove(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"[01]"):
        StandingThreads(1, "y").each(work, range(9), threads=2)
    assert (under_way, sorted(begun)) == ([], [0, 1])


def test_threads_that_have_nothing_to_do_go_and_others_come() -> None:
    standing, numbers = StandingThreads(1, "y-idle", idle_seconds=0.01), set[int]()
    both_are_here = threading.Barrier(2)

    def work(_: int) -> None:
        both_are_here.wait(30)
        numbers.add(threading.get_ident())

    standing.each(work, range(2), threads=2)
    for thread in [each for each in threading.enumerate() if each.name.startswith("y-idle")]:
        thread.join(30)
        assert not thread.is_alive()
    standing.each(work, range(2), threads=2)
    assert threading.get_ident() in numbers

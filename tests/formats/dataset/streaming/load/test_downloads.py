"""Runs come in order whatever the store does; requests are few, and made again when due."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.formats.dataset.streaming.load.downloads import Downloads, FetchConfig, means_of
from tensorrepo.formats.dataset.streaming.load.requests import RequestLimits
from tensorrepo.formats.dataset.streaming.stats import FetchStats
from tensorrepo.repo.errors import CorruptError, PermissionDenied, StorageError
from tensorrepo.repo.objects.cache import PageDiskCache
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import stream_threads
from tests.support.faults.scripted import PIECE, ScriptedRuns


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def downloads(
    runs: ScriptedRuns, *, ahead_bytes: int = 1 << 20, **means: Any
) -> Iterator[tuple[Downloads[list[bytes]], FetchStats]]:
    stats = FetchStats()
    chosen = {"read": runs.read, "clock": Clock(), "chance": lambda: 0.0} | means
    found = Downloads(runs, FetchConfig(**chosen), stats, ahead_bytes=ahead_bytes)
    try:
        yield found, stats
    finally:
        found.close()


def taken(found: Downloads[list[bytes]], count: int) -> list[list[bytes]]:
    found.expect(range(count))
    return [
        run
        for start in range(0, count, 7)
        for run in found.take(range(start, min(count, start + 7)))
    ]


def expected(runs: ScriptedRuns, count: int) -> list[list[bytes]]:
    return [[runs.data(at) for at in runs.needs.get(run, [run])] for run in range(count)]


def fails(pieces: dict[int, int], error: StorageError | PermissionDenied) -> Any:
    """Of these pieces the first so many requests fail."""

    def script(piece: int, before: int) -> None:
        if before < pieces.get(piece, 0):
            raise error

    return script


# ------------------------------------------------------------------------------ order and bytes


@pytest.mark.parametrize("most", [1, 3, 64])
def test_runs_are_taken_in_the_order_expected(most: int) -> None:
    runs = ScriptedRuns()
    with downloads(runs, bounds=RequestLimits(min(most, 2), 1, most)) as (found, stats):
        assert taken(found, 100) == expected(runs, 100)
    assert (stats.requests, stats.fetched_bytes) == (100, 100 * PIECE)


def test_one_request_after_another_asks_in_the_order_of_need() -> None:
    runs = ScriptedRuns()
    with downloads(runs, bounds=RequestLimits(1, 1, 1)) as (found, _):
        taken(found, 50)
    assert runs.order == list(range(50))


def test_threads_look_for_jobs_about_as_often_as_there_are_some() -> None:
    runs, looks = ScriptedRuns(lambda *_: time.sleep(0.0005)), []
    with downloads(runs, bounds=RequestLimits(8, 1, 64)) as (found, _):
        begin = found._jobs.next
        found._jobs.next = lambda now: looks.append(job := begin(now)) or job  # type: ignore[method-assign]
        assert taken(found, 150) == expected(runs, 150)
    # 150 requests and 150 runs to decode; whoever finds nothing was called, or had a job before.
    assert len(looks) <= 3 * 300 + 64


def test_all_pieces_of_a_run_are_asked_for_side_by_side() -> None:
    together = threading.Barrier(5)
    runs = ScriptedRuns(lambda *_: together.wait(30) and None, needs={0: [10, 11, 12, 13, 14]})
    with downloads(runs) as (found, _):
        assert taken(found, 1) == expected(runs, 1)


def test_a_piece_that_several_runs_need_is_read_once_while_they_wait() -> None:
    let_go = threading.Event()
    runs = ScriptedRuns(lambda *_: let_go.wait(30) and None, needs={0: [5], 1: [5, 6], 2: [5]})
    with downloads(runs) as (found, _):
        found.expect(range(3))
        let_go.set()
        assert found.take(range(3)) == expected(runs, 3)
    assert runs.asked == {5: 1, 6: 1}
    assert sorted(runs.told) == [5, 6]


def test_no_more_is_loaded_than_the_limit_says() -> None:
    runs = ScriptedRuns()
    with downloads(runs, ahead_bytes=4 * PIECE) as (found, _):
        found.expect(range(20))
        found.take([0, 1])
    assert len(runs.asked) <= 6


def test_a_run_larger_than_the_limit_is_loaded_alone() -> None:
    runs = ScriptedRuns(run_bytes=100 * PIECE)
    with downloads(runs, ahead_bytes=PIECE) as (found, _):
        assert taken(found, 5) == expected(runs, 5)


def test_no_more_requests_are_in_flight_than_the_bounds_allow() -> None:
    flying, most, lock = [0], [0], threading.Lock()

    def script(_piece: int, _before: int) -> None:
        with lock:
            flying[0] += 1
            most[0] = max(most[0], flying[0])
        threading.Event().wait(0.001)
        with lock:
            flying[0] -= 1

    runs = ScriptedRuns(script)
    with downloads(runs, bounds=RequestLimits(3, 1, 3)) as (found, stats):
        taken(found, 60)
    assert most[0] <= 3
    assert stats.concurrency_reached == 3


def test_runs_that_read_by_themselves_take_the_place_of_a_request() -> None:
    runs = ScriptedRuns(odd=frozenset({1, 3}))
    with downloads(runs, bounds=RequestLimits(1, 1, 1)) as (found, _):
        assert taken(found, 5) == expected(runs, 5)


# ------------------------------------------------------------------------------ failures


def test_a_request_that_fails_for_a_moment_is_made_again() -> None:
    clock = Clock()
    runs = ScriptedRuns(fails({3: 2, 7: 1}, StorageError("reset", transient=True)))
    with downloads(runs, clock=clock) as (found, stats), ticking(clock):
        assert taken(found, 10) == expected(runs, 10)
    assert stats.repeated_requests == 3
    assert stats.requests == 13


@contextmanager
def ticking(clock: Clock) -> Iterator[None]:
    """Let time pass, so that pauses end."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(0.001):
            clock.now += 0.1

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("tries", [1, 4])
def test_a_store_that_keeps_failing_is_given_up(tries: int) -> None:
    clock = Clock()
    runs = ScriptedRuns(fails({3: 99}, StorageError("no answer", transient=True)))
    with downloads(runs, clock=clock, tries=tries) as (found, _), ticking(clock):
        found.expect(range(6))
        assert found.take([0, 1, 2]) == expected(runs, 3)
        with pytest.raises(StorageError, match="no answer"):
            found.take([3])
        assert found.take([4]) == [[runs.data(4)]]
    assert runs.asked[3] == tries


def test_what_will_not_pass_is_not_tried_again() -> None:
    runs = ScriptedRuns(fails({0: 99}, PermissionDenied("no key")))
    with downloads(runs) as (found, _):
        found.expect([0])
        with pytest.raises(PermissionDenied):
            found.take([0])
    assert runs.asked[0] == 1


def test_a_busy_store_gets_fewer_requests_at_once() -> None:
    clock = Clock()
    refused = StorageError("503", transient=True, busy=True)
    runs = ScriptedRuns(fails(dict.fromkeys(range(10), 1), refused))
    with (
        downloads(runs, clock=clock, bounds=RequestLimits(10, 2, 10)) as (found, stats),
        ticking(clock),
    ):
        assert taken(found, 10) == expected(runs, 10)
    assert stats.refused_requests == 10
    assert stats.concurrency < 10


def test_a_damaged_answer_is_asked_for_once_more() -> None:
    runs = ScriptedRuns(damage={2: 1})
    with downloads(runs) as (found, stats):
        assert taken(found, 4) == expected(runs, 4)
    assert (runs.asked[2], stats.refetched_requests) == (2, 1)


def test_an_answer_that_stays_damaged_is_an_error_that_names_page_and_object() -> None:
    runs = ScriptedRuns(damage={2: 99})
    with downloads(runs) as (found, _):
        found.expect(range(4))
        with pytest.raises(CorruptError, match=r"column 'x', page 2: chunk abababababab, payload"):
            found.take(range(3))
    assert runs.asked[2] == 2


def test_an_answer_that_is_cut_short_is_asked_for_again() -> None:
    clock = Clock()
    runs = ScriptedRuns()

    def read(link: Any, start: int, stop: int) -> bytes:
        data = runs.read(link, start, stop)
        return data[:-1] if runs.asked[0] == 1 else data

    with downloads(runs, read=read, clock=clock) as (found, _), ticking(clock):
        assert taken(found, 1) == expected(runs, 1)


# ------------------------------------------------------------------------------ late answers


def test_of_a_late_request_the_first_answer_wins() -> None:
    clock = Clock()
    asked, asked_again, let_go = (threading.Event() for _ in range(3))

    def script(piece: int, before: int) -> None:
        if piece == 100 and before == 0:
            asked.set()
            assert let_go.wait(30)
        if piece == 100 and before == 1:
            asked_again.set()

    runs = ScriptedRuns(script)
    with downloads(runs, clock=clock) as (found, stats):
        taken(found, 100)
        found.expect([100])
        assert asked.wait(30)
        clock.now += 50
        assert found.take([100]) == [[runs.data(100)]]
        assert asked_again.is_set()
        let_go.set()
    assert (runs.asked[100], stats.hedged_requests, stats.hedged_bytes) == (2, 1, PIECE)
    assert stats.fetched_bytes == 102 * PIECE


def test_a_late_request_that_fails_leaves_it_to_the_other_one() -> None:
    clock = Clock()
    asked, again, failed = (threading.Event() for _ in range(3))

    def script(piece: int, before: int) -> None:
        if piece == 100 and before == 0:
            asked.set()
            assert again.wait(30)
            failed.set()
            raise StorageError("reset")
        if piece == 100:
            again.set()
            assert failed.wait(30)

    runs = ScriptedRuns(script)
    with downloads(runs, clock=clock) as (found, stats):
        taken(found, 100)
        found.expect([100])
        assert asked.wait(30)
        clock.now += 50
        assert found.take([100]) == [[runs.data(100)]]
    assert stats.hedged_bytes == 0


# ------------------------------------------------------------------------------ cache


def cache(tmp_path: Path, limit: int = 1 << 30) -> PageDiskCache:
    return PageDiskCache(tmp_path / "pages", limit, chance=random.Random(7).random, spare=0)


def test_a_second_pass_asks_the_cache(tmp_path: Path) -> None:
    runs = ScriptedRuns()
    for passes in range(2):
        with downloads(runs, cache=cache(tmp_path)) as (found, stats):
            assert taken(found, 30) == expected(runs, 30)
        assert (stats.cache_hits, stats.cache_misses) == ((0, 30), (30, 0))[passes]
    assert (stats.requests, stats.cache_hit_bytes, stats.cache_hit_rate) == (0, 30 * PIECE, 1.0)


def test_what_the_cache_has_damaged_is_read_from_the_store(tmp_path: Path) -> None:
    runs = ScriptedRuns()
    with downloads(runs, cache=cache(tmp_path)) as (found, _):
        taken(found, 10)
    for path in (tmp_path / "pages").rglob("*.*-*"):
        path.write_bytes(b"x" + path.read_bytes()[1:])
    with downloads(runs, cache=cache(tmp_path)) as (found, stats):
        assert taken(found, 10) == expected(runs, 10)
    assert (stats.cache_hits, stats.requests) == (0, 10)


def test_damaged_answers_do_not_reach_the_cache(tmp_path: Path) -> None:
    runs = ScriptedRuns(damage={3: 99})
    with downloads(runs, cache=cache(tmp_path)) as (found, _):
        found.expect([3])
        with pytest.raises(CorruptError):
            found.take([3])
    assert list((tmp_path / "pages").rglob("*.*-*")) == []


# ------------------------------------------------------------------------------ ending


def test_closed_downloads_give_nothing_and_can_be_closed_again() -> None:
    with downloads(ScriptedRuns()) as (found, _):
        found.close()
        with pytest.raises(RuntimeError, match="closed"):
            found.take([1])


def test_nothing_begins_before_it_is_asked_for() -> None:
    with downloads(ScriptedRuns()):
        assert stream_threads() == []


def test_closing_in_the_middle_of_requests_waits_for_them() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def script(_piece: int, _before: int) -> None:
        begun.set()
        assert let_go.wait(30)

    with downloads(ScriptedRuns(script)) as (found, _):
        found.expect(range(50))
        assert begun.wait(30)
        threading.Timer(0.05, let_go.set).start()
    assert stream_threads() == []


def test_stopping_lets_whoever_takes_go_though_the_store_hangs() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def script(_piece: int, _before: int) -> None:
        begun.set()
        assert let_go.wait(60)

    with downloads(ScriptedRuns(script)) as (found, _):
        found.expect(range(50))
        threading.Thread(target=lambda: (begun.wait(60), found.stop())).start()
        with pytest.raises(RuntimeError, match="closed"):
            found.take([0])
        let_go.set()


def test_a_mistake_in_a_thread_does_not_leave_others_waiting(tmp_path: Path) -> None:
    class Mistaken(PageDiskCache):
        def get(self, name: str) -> memoryview | None:
            raise KeyError(name)

    runs = ScriptedRuns()
    with downloads(runs, cache=Mistaken(tmp_path, 1 << 20)) as (found, _):
        found.expect([0])
        with pytest.raises(KeyError):
            found.take([0])


def test_a_source_that_repeats_by_itself_is_asked_once() -> None:
    means = means_of(MemoryObjects(), clock=Clock(), threads=3)
    assert means.tries == 1
    assert means.bounds == RequestLimits(3, 2, 3)

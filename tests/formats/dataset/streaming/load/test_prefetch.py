"""Threads that work ahead: in order, bounded, and always ending."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tensorrepo.formats.dataset.streaming.load.prefetch import LocalPrefetch
from tests.support.builders.streams import stream_threads


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


def fetcher(load: Any, **options: Any) -> LocalPrefetch[Any]:
    return LocalPrefetch(load, lambda _: 10, **({"threads": 2, "ahead_bytes": 30} | options))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("group_bytes", [0, 25, 1000])
def test_runs_are_taken_in_the_order_expected(threads: int, group_bytes: int) -> None:
    found = fetcher(list, threads=threads, group_bytes=group_bytes)
    found.expect(range(50))
    found.expect(range(50, 100))
    there: list[int] = []
    for run in range(0, 100, 4):
        there += [one for group in found.take(range(run, run + 4)) for one in group]
        assert there[: run + 4] == list(range(run + 4))
    found.close()
    assert there == list(range(100))


def test_a_run_larger_than_the_limit_is_loaded_alone() -> None:
    found = LocalPrefetch(str, lambda run: run, threads=3, ahead_bytes=5)
    found.expect([100, 200, 300])
    assert found.take([100, 200, 300]) == ["[100]", "[200]", "[300]"]
    found.close()


def test_no_more_is_loaded_than_the_limit_says() -> None:
    loaded: list[int] = []
    enough = threading.Event()

    def load(runs: list[int]) -> list[int]:
        loaded.extend(runs)
        if len(loaded) == 4:
            enough.set()
        return runs

    found = fetcher(load, threads=1)
    found.expect(range(20))
    assert enough.wait(30)  # 30 bytes ahead, and the run that reaches the limit
    assert found.take([0]) == [[0]]
    found.close()
    assert len(loaded) <= 5


def test_what_loading_raised_is_raised_where_it_is_taken() -> None:
    def load(runs: list[int]) -> list[int]:
        if runs == [2]:
            raise KeyError(runs)
        return runs

    found = fetcher(load)
    found.expect(range(5))
    assert found.take([0, 1]) == [[0], [1]]
    with pytest.raises(KeyError):
        found.take([2])
    found.close()


def test_a_closed_fetcher_gives_nothing_and_can_be_closed_again() -> None:
    found = fetcher(str)
    found.close()
    found.close()
    with pytest.raises(RuntimeError, match="closed"):
        found.take([1])


def test_nothing_begins_before_it_is_asked_for() -> None:
    found = fetcher(str)
    assert stream_threads() == []
    found.close()


def test_stopping_lets_whoever_takes_go_though_loading_hangs() -> None:
    begun, let_go = threading.Event(), threading.Event()

    def load(runs: list[int]) -> list[int]:
        begun.set()
        assert let_go.wait(60)
        return runs

    found = fetcher(load, threads=1)
    found.expect([0])
    threading.Thread(target=lambda: (begun.wait(60), found.stop())).start()
    with pytest.raises(RuntimeError, match="closed"):
        found.take([0])
    let_go.set()
    found.close()

"""A cache keeps what was used last, and everybody gets one answer or one failure."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.objects.cache import LimitedCache


def test_a_failed_load_is_tried_again() -> None:
    cache: LimitedCache[int] = LimitedCache(100)
    with pytest.raises(ZeroDivisionError):
        cache.get_or_load("a", lambda: (1 // 0, 1))
    assert cache.get_or_load("a", lambda: (7, 1)) == 7


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=40))
def test_a_cache_keeps_the_last_used_within_its_limit(uses: list[tuple[int, int]]) -> None:
    cache: LimitedCache[tuple[int, int]] = LimitedCache(100)
    for key, size in uses:
        cache.put(key, (key, size), size)
    kept = [found for key in range(10) if (found := cache.get(key)) is not None]
    assert sum(size for _, size in kept) <= 100
    assert not uses or cache.get(uses[-1][0]) is not None


def test_a_forked_process_loads_what_a_thread_it_lacks_was_loading() -> None:
    cache: LimitedCache[int] = LimitedCache(100)
    begun, forked = threading.Event(), threading.Event()

    def load() -> tuple[int, int]:
        begun.set()
        forked.wait()
        return 7, 1

    thread = threading.Thread(target=cache.get_or_load, args=("a", load))
    thread.start()
    begun.wait()
    child = os.fork()
    if not child:
        os._exit(cache.get_or_load("a", lambda: (9, 1)))
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    finally:
        forked.set()
        thread.join()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3000)), max_size=40), st.integers(0, 9))
def test_what_is_kept_stays_within_its_limit(puts: list[tuple[int, int]], used: int) -> None:
    cache: LimitedCache[int] = LimitedCache(8000)
    for key, size in puts:
        cache.put(key, size, size)
        cache.get(used)
    assert cache._bytes == sum(size for size, _ in cache._items.values()) <= 8000


def test_what_was_used_last_is_kept_longest() -> None:
    cache: LimitedCache[str] = LimitedCache(3)
    cache.put(1, "a", 1)
    cache.put(2, "b", 1)
    cache.get(1)
    cache.put(3, "c", 1)
    cache.put(4, "d", 1)
    assert [cache.get(key) is not None for key in (1, 2, 3, 4)] == [True, False, True, True]

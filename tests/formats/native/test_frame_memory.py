"""Memory that is given back is used again, as far as it is bounded."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tensorrepo.formats.native.frame_memory import (
    IDLE,
    LEAST_KEPT_BYTES,
    FrameMemory,
)
from tensorrepo.formats.native.thread_buffers import buffer_for

SIZE = 2 * LEAST_KEPT_BYTES


def test_what_is_given_back_is_taken_again() -> None:
    memory = FrameMemory(SIZE)
    taken = memory.take(SIZE - 5)
    memory.give(taken)
    again, other = memory.take(SIZE - 9), memory.take(SIZE)
    assert (taken.size, again.size, other.size) == (SIZE - 5, SIZE - 9, SIZE)
    assert np.shares_memory(taken, again)
    assert not np.shares_memory(again, other)


def test_no_more_is_kept_than_it_may() -> None:
    memory = FrameMemory(SIZE)
    one, two = memory.take(SIZE), memory.take(SIZE)
    memory.give(one)
    memory.give(two)
    found = memory.take(SIZE), memory.take(SIZE)
    assert np.shares_memory(found[0], one)
    assert not any(np.shares_memory(each, two) for each in found)


def test_memory_of_others_is_never_given_out() -> None:
    memory = FrameMemory(SIZE)
    whole = np.empty(SIZE, np.uint8)
    memory.give(whole)
    assert not np.shares_memory(memory.take(SIZE), whole)


def test_a_thread_begins_with_what_one_that_ended_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IDLE, "_free", defaultdict(list))  # others here may have filled it
    sizes = [SIZE, 1 << 20, 5]

    def taken() -> list[int]:
        buffers = [buffer_for(f"{at}", size, np.dtype(np.uint8)) for at, size in enumerate(sizes)]
        return [one.__array_interface__["data"][0] for one in buffers]

    def in_a_thread() -> list[int]:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(taken).result()

    first, second = in_a_thread(), in_a_thread()
    assert first[:2] == second[:2]

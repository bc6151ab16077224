"""So many queries run at once, so many of one caller; others wait, or are told to ask again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tensorrepo.api.content.query_gate import QueryGate
from tensorrepo.repo.errors import RateLimitedError


def test_one_caller_has_so_many_and_others_have_room_beside() -> None:
    gate = QueryGate(3, 2, wait_seconds=0.01)
    with ExitStack() as stack:
        stack.enter_context(gate.entered("ann"))
        stack.enter_context(gate.entered("ann"))
        with pytest.raises(RateLimitedError):
            stack.enter_context(gate.entered("ann"))
        stack.enter_context(gate.entered("bob"))
        with pytest.raises(RateLimitedError) as refused:
            stack.enter_context(gate.entered("carl"))
    assert refused.value.retry_seconds >= 1


def test_who_waits_goes_on_when_another_has_ended() -> None:
    gate = QueryGate(1, 1, wait_seconds=60)
    with ThreadPoolExecutor(1) as threads:
        with gate.entered("ann"):
            waiting = threads.submit(gate.entered("bob").__enter__)
            while not gate._waiting:
                threading.Event().wait(0.001)
        assert waiting.result() is None


def test_a_full_queue_lets_nobody_wait() -> None:
    gate = QueryGate(1, 1, waiting=0, wait_seconds=3600)
    with gate.entered("ann"), pytest.raises(RateLimitedError), gate.entered("bob"):
        pass


def test_a_query_that_fails_leaves_its_room() -> None:
    gate = QueryGate(1, 1, waiting=0)
    with pytest.raises(ZeroDivisionError), gate.entered("ann"):
        raise ZeroDivisionError
    with gate.entered("bob"):
        pass

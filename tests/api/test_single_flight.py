"""What is opened once is shared, and holds up nobody who asks for something else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tensorrepo.api.single_flight import OpenedByKey


class Opening:
    """Opens nothing until it may, and counts how often it was asked to."""

    def __init__(self) -> None:
        self.calls = 0
        self.has_begun, self.may_end = Event(), Event()

    def __call__(self) -> object:
        self.calls += 1
        self.has_begun.set()
        assert self.may_end.wait(20)
        return object()


def _refused() -> object:
    raise OSError("no answer")


def test_all_who_ask_at_once_share_a_call_and_others_wait_for_nothing() -> None:
    opened, slow = OpenedByKey[str, object](), Opening()
    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(opened.get, "slow", slow) for _ in range(2)]
        try:
            assert slow.has_begun.wait(20)
            quick = threads.submit(opened.get, "quick", object).result(10)
            assert opened.values() == [quick]
        finally:
            slow.may_end.set()
        found = [each.result(20) for each in asking]
    assert found[0] is found[1] is opened.get("slow", _refused)
    assert slow.calls == 1


def test_a_failure_is_not_kept() -> None:
    opened = OpenedByKey[str, int]()
    with pytest.raises(OSError, match="no answer"):
        opened.get("key", _refused)  # type: ignore[arg-type]
    assert opened.get("key", lambda: 1) == 1


def test_what_was_taken_out_is_opened_anew() -> None:
    opened = OpenedByKey[str, int]()
    opened.get("one", lambda: 1)
    opened.get("two", lambda: 2)
    assert (opened.drop("one"), opened.drop("one")) == (1, None)
    assert opened.get("one", lambda: 3) == 3
    assert sorted(opened.clear()) == [2, 3]
    assert opened.values() == []

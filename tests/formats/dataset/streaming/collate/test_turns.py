"""Workers that make steps in turn: whichever die or are slow, each step comes once, in order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.collate.turns import (
    MOST_DEATHS,
    ItemsInTurn,
    OvertakenItems,
    Pace,
    RemadeItems,
    WorkerDied,
)
from tensorrepo.repo.errors import Error

STEPS = 23


@dataclass
class Steps:
    """Steps of one turn in this process, as far as it lives; late from some step on."""

    turn: int
    turns: int
    made: int
    life: int = STEPS
    late: float = 0.0
    closed: bool = False
    begun: bool = False
    step_seconds: float = 0.001
    until: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        if not self.begun:
            self.until = time.monotonic() + self.late
        self.begun = True

    def wait(self, seconds: float) -> bool:
        self.start()
        time.sleep(max(0.0, min(seconds, self.until - time.monotonic())))
        return time.monotonic() >= self.until

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        self.start()
        assert self.wait(10)
        if self.life == 0:
            raise WorkerDied("it died.")
        step = self.turn + self.made * self.turns
        if self.closed or step >= STEPS:
            raise StopIteration
        self.life, self.made, self.until = self.life - 1, self.made + 1, 0.0
        return [(step, f"step {step}")]

    def close(self) -> None:
        self.closed = True


class Fates:
    """Makes workers; each lives as long as the next number says."""

    def __init__(self, turn: int, turns: int, lives: list[int]) -> None:
        self.turn, self.turns, self.lives = turn, turns, list(lives)
        self.begun: list[Steps] = []

    def __call__(self, made: int) -> Steps:
        life = self.lives.pop(0) if self.lives else STEPS
        self.begun.append(Steps(self.turn, self.turns, made, life))
        return self.begun[-1]


@given(st.integers(1, 5), st.data())
def test_workers_that_die_anywhere_are_followed_by_others(turns: int, data: st.DataObject) -> None:
    # Two workers that follow each other may die of one step, and never one more.
    fates = [
        Fates(turn, turns, data.draw(st.lists(st.integers(1, 4), max_size=6)))
        for turn in range(turns)
    ]
    items = [RemadeItems(each) for each in fates]
    found = list(items[0] if turns == 1 else ItemsInTurn(items))
    assert found == [[(step, f"step {step}")] for step in range(STEPS)]
    assert all(each.closed for fate in fates for each in fate.begun[:-1])


def test_a_step_that_every_worker_dies_of_is_an_error() -> None:
    fate = Fates(0, 1, [2, *[0] * 9])
    items = RemadeItems(fate)
    assert [next(items), next(items)] == [[(0, "step 0")], [(1, "step 1")]]
    with pytest.raises(Error, match=f"it died. {MOST_DEATHS + 1} workers died of this step"):
        next(items)
    assert len(fate.begun) == MOST_DEATHS + 1
    assert list(items) == []


def _pace() -> Pace:
    """Of workers that began long ago: a step is late after some milliseconds."""
    pace = Pace(least_seconds=0.05, begin_seconds=0.05)
    pace.times.extend([0.001] * 10)
    return pace


def test_a_late_worker_is_overtaken_and_ended() -> None:
    slow, fast = Steps(0, 1, 0, late=60), Steps(0, 1, 0)
    workers = iter([slow, fast])
    items = OvertakenItems(lambda _made: next(workers), _pace())
    began = time.monotonic()
    assert [step for each in items for step, _ in each] == list(range(STEPS))
    assert time.monotonic() - began < 5
    assert slow.closed


def test_a_late_worker_that_is_first_after_all_stays() -> None:
    first, second = Steps(0, 1, 0, late=0.3), Steps(0, 1, 0, late=60)
    workers = iter([first, second])
    items = OvertakenItems(lambda _made: next(workers), _pace())
    assert [step for each in items for step, _ in each] == list(range(STEPS))
    assert second.closed
    assert not second.made


def test_patience_grows_with_what_steps_take_and_with_what_was_wrong() -> None:
    pace = Pace()
    least = pace.patience(is_first=False, lost=0)
    assert pace.patience(is_first=True, lost=0) > least
    assert pace.patience(is_first=False, lost=2) == 4 * least
    pace.times.extend([10.0] * 9)
    assert pace.patience(is_first=False, lost=0) == 30.0

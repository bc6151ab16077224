"""Workers that make the steps of a stream in turn: one of N makes every N-th step.

    worker i: steps i, i + N, i + 2N, ...  ->  the consumer takes one of each in turn

Steps are a pure function of the order, so whoever makes a step makes the same one. A worker that
died is followed by another, which begins with the first step that nobody took over; one that keeps
everybody waiting is overtaken: another begins with the step that is awaited, and whichever of both
has it first stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from statistics import median
from typing import Any, Final, Generic, Protocol, TypeVar

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import WorkerLostError

MOST_DEATHS: Final = 3  # of workers that follow each other, at one step
_LATE: Final = 3.0  # times as long as others
_POLL_SECONDS: Final = 0.05
_TIMES: Final = 64  # of steps that are remembered


class WorkerDied(Exception):  # no error of a caller: another one goes on
    """A worker is gone and took no leave: killed, or its machine is gone."""


class TurnWorker(Protocol):
    """What makes the steps of one turn, from some step on."""

    def start(self) -> None:
        """Begin, if it has not begun."""

    def __next__(self) -> list[tuple[int, Any]]:
        """The next step, as soon as it is there. Raises WorkerDied."""

    def close(self) -> None:
        """Stop. What was handed out stays valid."""


class WatchedWorker(TurnWorker, Protocol):
    """One that tells whether a step is there, and how long those took."""

    def wait(self, seconds: float) -> bool:
        """Whether the next step, or its death, is there within so many seconds."""

    @property
    def step_seconds(self) -> float:
        """What it took to make the last step."""


@dataclass(slots=True)
class Pace:
    """How long steps take, over all workers: tells when one is late."""

    times: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMES))
    least_seconds: float = 2.0  # that a step may take before it is late
    begin_seconds: float = 60.0  # that a worker's first step may take: it imports, opens its data

    def patience(self, *, is_first: bool, lost: int) -> float:
        """Seconds after which a step is late; `lost`: how often that was wrong of this turn."""
        usual = median(self.times) if self.times else 0.0
        least = self.begin_seconds if is_first else self.least_seconds
        return max(least, _LATE * usual) * float(2**lost)


W = TypeVar("W", bound=TurnWorker)


class RemadeItems(Generic[W]):
    """Items (see `ItemSource`) of one turn, whoever makes them."""

    def __init__(self, begin: Callable[[int], W]) -> None:
        """Prepare. ``begin(n)`` gives a worker that begins behind the first n items of the turn."""
        self._begin = begin
        self._made = self._deaths = 0
        self._closed = False
        self._worker = begin(0)

    def __iter__(self) -> RemadeItems[W]:
        return self

    def start(self) -> None:
        """Let the first worker begin, if it has not."""
        self._worker.start()

    def __next__(self) -> list[tuple[int, Any]]:
        while not self._closed:
            try:
                items = self._awaited()
            except WorkerDied as died:
                self._follow(died)
            else:
                self._made += len(items)
                self._deaths = 0
                return items
        raise StopIteration

    def close(self) -> None:
        """End the worker. Safe to call more than once."""
        self._closed = True
        self._worker.close()

    def _awaited(self) -> list[tuple[int, Any]]:
        return next(self._worker)

    def _follow(self, died: WorkerDied) -> None:
        """Let another worker begin where the one before was."""
        self._worker.close()
        self._deaths += 1
        if self._deaths > MOST_DEATHS:
            self._closed = True
            raise WorkerLostError(
                f"{died} {MOST_DEATHS + 1} workers died of this step, one after the other."
            ) from None
        if not self._closed:
            self._worker = self._begin(self._made)


class OvertakenItems(RemadeItems[WatchedWorker]):
    """The same of workers on other machines, which may be slower than the others."""

    def __init__(self, begin: Callable[[int], WatchedWorker], pace: Pace) -> None:
        """Prepare; `pace` is that of all turns together."""
        super().__init__(begin)
        self._pace = pace
        self._second: WatchedWorker | None = None
        self._begun_at = self._lost = 0

    def close(self) -> None:
        super().close()
        self._leave(self._second)

    def _awaited(self) -> list[tuple[int, Any]]:
        is_first = self._made == self._begun_at
        if not self._worker.wait(self._pace.patience(is_first=is_first, lost=self._lost)):
            self._race()
        items = next(self._worker)
        self._pace.times.append(self._worker.step_seconds)
        return items

    def _follow(self, died: WorkerDied) -> None:
        super()._follow(died)
        self._begun_at = self._made

    def _race(self) -> None:
        """Let a second worker make what is awaited too; whichever has it first is the worker."""
        second = self._second = self._begin(self._made)
        second.start()
        while not self._closed:
            if self._worker.wait(_POLL_SECONDS):
                self._lost += 1
                break
            if second.wait(_POLL_SECONDS):
                self._worker, second = second, self._worker
                self._begun_at, self._lost = self._made, 0
                break
        self._second = None
        self._leave(second)

    @staticmethod
    def _leave(worker: WatchedWorker | None) -> None:
        if worker is not None:
            worker.close()


class ItemsInTurn:
    """Items of several turns: one of each. All workers begin with the first item."""

    def __init__(self, turns: Sequence[RemadeItems[Any]]) -> None:
        self._turns = turns
        self._next = 0

    def __iter__(self) -> ItemsInTurn:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        for turn in self._turns:
            turn.start()
        turn = self._turns[self._next]
        self._next = (self._next + 1) % len(self._turns)
        try:
            return next(turn)
        except StopIteration:
            # No step is left. The others say so as well, and then wait for the next epoch.
            for each in self._turns:
                for _ in each:
                    raise AssertionError("steps were made out of turn") from None
            raise

    def close(self) -> None:
        """End all workers."""
        for turn in self._turns:
            turn.close()

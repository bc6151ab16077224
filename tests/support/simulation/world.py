"""Scheduler and virtual clock of a simulation: one seed gives one order of everything.

Each client is a thread, of which exactly one runs. Before every operation of its store it hands
control to whom the seed chooses. Time passes only here: by operations, and when all sleep.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tensorrepo.formats.dataset import parts
from tensorrepo.repo.changes import (
    fsck,
    gc_collect,
    gc_marks,
    gc_packs,
    leases,
    purge,
    refs,
    rules,
    shallow,
)
from tensorrepo.repo.changes.transaction import CommitTransaction
from tensorrepo.repo.log import append as appending
from tensorrepo.repo.log import log_slots
from tensorrepo.repo.threads import ordered_map
from tensorrepo.repo.transfer import difference, receive, ref_rules
from tensorrepo.workspace import staged_lease, stash

BEGINNING_SECONDS = 1_700_000_000.0
STEP_SECONDS = 0.01  # that an operation takes, on average
LEASE_SECONDS = 0.2  # a transfer that takes longer has a lease
STAGED_SECONDS, RENEWED_SECONDS = 20, 5  # of a lease on what is staged; of one that is not renewed
MOST_TABLES = 2  # of graves, before some are merged
SWITCHING = 0.3  # chance of another client's turn before an operation


class Over(BaseException):
    """The simulation has failed, and ends for everybody."""


@dataclass(eq=False)
class Actor:
    """A client as the scheduler sees it; `skew_seconds` is how wrong its clock is."""

    name: str
    skew_seconds: float = 0.0
    wakes_at: float = 0.0
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    tokens: list[str] = field(default_factory=list)


@dataclass(eq=False)
class World:
    """Who runs, what time it is, what is under way, and all that happened."""

    seed: int
    now: float = BEGINNING_SECONDS
    trace: list[tuple[object, ...]] = field(default_factory=list)
    chance: random.Random = field(init=False)
    actors: list[Actor] = field(default_factory=list)
    current: Actor | None = None
    failure: BaseException | None = None
    flying: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    secrets: list[bytes] = field(default_factory=list)  # contents that somebody may want erased

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self._over = threading.Semaphore(0)

    def run(self, works: list[tuple[Actor, Callable[[], None]]]) -> None:
        """Let all work until they are done; raises what went wrong in any of them."""
        self.actors = [actor for actor, _ in works]
        threads = [
            threading.Thread(target=self._live, args=work, name=f"sim-{work[0].name}", daemon=True)
            for work in works
        ]
        for thread in threads:
            thread.start()
        with simulated(self):
            self._hand_on(None)
            self._over.acquire()
            for actor in [*self.actors]:  # where one failed, the others still wait for their turn
                actor.turn.release()
            for thread in threads:
                thread.join(10)
        if self.failure is not None:
            raise self.failure

    def pause(self) -> None:
        """An operation is about to be done: somebody else's turn, perhaps."""
        if self.failure is not None:
            raise Over
        self.now += self.chance.expovariate(1 / STEP_SECONDS)
        self.land()
        if self.chance.random() < SWITCHING:
            self._hand_on(self.current)

    def sleep(self, seconds: float) -> None:
        me = self.current
        if me is None:
            self.now += seconds
            return
        me.wakes_at = self.now + seconds
        self._hand_on(me)

    def land(self, *, all_of_them: bool = False) -> None:
        """Let what was under way arrive."""
        due = [each for each in self.flying if all_of_them or each[0] <= self.now]
        self.flying = [each for each in self.flying if each not in due]
        for _, work in due:
            work()

    def token(self, count: int = 16) -> str:
        made = self.chance.randbytes(count).hex()
        if self.current is not None:
            self.current.tokens.append(made)
        return made

    def told_seconds(self) -> float:
        """What the clock of the client that runs says."""
        return self.now + (self.current.skew_seconds if self.current else 0.0)

    def _live(self, actor: Actor, work: Callable[[], None]) -> None:
        actor.turn.acquire()
        try:
            work()
        except BaseException as error:  # noqa: BLE001  the simulation raises it
            self.failure = self.failure or error
        self.actors.remove(actor)
        self._hand_on(None)

    def _hand_on(self, me: Actor | None) -> None:
        if not self.actors or (self.failure is not None and me is None):
            self._over.release()
            return
        awake = [actor for actor in self.actors if actor.wakes_at <= self.now]
        if not awake:
            self.now = min(actor.wakes_at for actor in self.actors)
            self.land()
            awake = [actor for actor in self.actors if actor.wakes_at <= self.now]
        chosen = self.chance.choice(awake)
        if chosen is not me:
            self.current = chosen
            chosen.turn.release()
            if me is not None:
                me.turn.acquire()
                if self.failure is not None:
                    raise Over


class _Clock:
    """What modules see instead of `time`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sleep = world.sleep

    def time(self) -> float:
        return self._world.told_seconds()

    def time_ns(self) -> int:
        return int(self._world.told_seconds() * 1e9)

    def monotonic(self) -> float:
        return self._world.now


def _one_by_one(items: Any, work: Any, **options: Any) -> Iterator[Any]:
    return ordered_map(items, work, **{**options, "threads": 0})


class _MapInOrder:
    """`OrderedMap` on the thread of whoever asks."""

    def __init__(self, items: Any, work: Any, **_: object) -> None:
        self._results = map(work, items)

    def __iter__(self) -> Iterator[Any]:
        return self._results

    def close(self) -> None:
        """There is nothing to stop."""


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Chance, time and threads of the product are those of `world`."""
    clock = _Clock(world)
    defaults = appending.append.__kwdefaults__
    waits = {"sleep": world.sleep, "clock": clock.monotonic, "rng": world.chance}
    with ExitStack() as stack:
        for module in (refs, rules, shallow, purge, gc_collect, appending, receive, ref_rules,
                       staged_lease, stash):  # fmt: skip
            stack.enter_context(patch.object(module, "time", clock))
        for function in (CommitTransaction.commit, leases.open_lease, leases.close_leases):
            told = {"clock": clock.time_ns}
            stack.enter_context(patch.dict(function.__kwdefaults__, told))
        for module in (log_slots, gc_marks, gc_collect, gc_packs, fsck, difference, receive, parts):
            stack.enter_context(patch.object(module, "ordered_map", _one_by_one))
        stack.enter_context(patch.object(receive, "OrderedMap", _MapInOrder))
        # Operations take 10 ms here: so some transfers are long enough for a lease.
        stack.enter_context(patch.object(receive, "_LEASE_SECONDS", LEASE_SECONDS))
        stack.enter_context(patch.object(staged_lease, "LEASE_SECONDS", STAGED_SECONDS))
        stack.enter_context(patch.object(staged_lease, "RENEW_SECONDS", RENEWED_SECONDS))
        stack.enter_context(patch.object(gc_collect, "MOST_TABLES", MOST_TABLES))
        stack.enter_context(patch.object(secrets, "token_hex", world.token))
        stack.enter_context(patch.dict(defaults, waits))
        yield

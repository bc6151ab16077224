"""A client's way to a store, on which everything goes wrong that can."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, cast

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.errors import Error, StorageError
from tests.support.faults.backends import Crash, WrappedBackend
from tests.support.simulation.world import World

T = TypeVar("T")
WRITES = frozenset({"create", "upload", "overwrite", "delete"})
LONGEST_DELAY_SECONDS = 300.0


@dataclass(frozen=True)
class Rates:
    """Chances of each fault, for one operation."""

    fault: float = 0.03
    silence: float = 0.001  # the store answers nothing for a while
    death: float = 0.001  # of the client


@dataclass(eq=False)
class Life:
    """Whether a client lives; its ways to all stores end with it."""

    dead: bool = False


# 409, 429 and 503 are answered without doing anything, 500 after doing it or not. 412 is what a
# client hears whose first request landed while its reply was lost: it is there already.
WRITE_FAULTS = ("before", "after", "later", "twice", "copy", "409", "412", "429", "500", "503")
READ_FAULTS = ("before", "cut", "429", "500", "503", "403")


class FaultyStore(WrappedBackend):
    """Operations of one client, each of which is a step of the world."""

    def __init__(
        self, inner: Backend, world: World, name: str, rates: Rates, life: Life | None = None
    ) -> None:
        super().__init__(inner)
        self.world = world
        self.name = name
        self.rates = rates
        self.life = life or Life()
        self.silent = 0

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        if self.life.dead:
            raise Crash("nothing is done by the dead")
        world = self.world
        world.pause()
        fault = self._fault(verb)
        world.trace.append((self.name, verb, key, fault))
        if fault == "":
            return work()
        if fault == "death":
            self.life.dead = True
            if world.chance.random() < 0.5:
                work()
            raise Crash(f"died at {verb} {key}")
        return self._fail(fault, verb, key, work)

    def _fault(self, verb: str) -> str:
        chance, rates = self.world.chance, self.rates
        if self.silent:
            self.silent -= 1
            return "before"
        drawn = chance.random()
        if drawn < rates.death:
            return "death"
        if drawn < rates.death + rates.silence:
            self.silent = chance.choice([3, 30, 200])
            return "before"
        if drawn < rates.death + rates.silence + rates.fault:
            return chance.choice(WRITE_FAULTS if verb in WRITES else READ_FAULTS)
        return ""

    def _fail(self, fault: str, verb: str, key: str, work: Callable[[], T]) -> T:
        chance = self.world.chance
        if fault == "cut":
            found = work()
            if isinstance(found, bytes) and verb == "read":
                return cast(T, found[: chance.randrange(len(found) + 1)])
            raise StorageError(f"{key} was cut short", transient=True)
        if fault in {"twice", "412"}:
            work()
            return work()
        if fault == "copy":  # the network doubles the request, and the copy takes its time
            self._fly(work)
            return work()
        if fault == "later":
            self._fly(work)
        elif fault == "after" or (fault == "500" and chance.random() < 0.5):
            work()
        raise StorageError(f"{verb} {key} failed ({fault})", transient=fault != "403")

    def _fly(self, work: Callable[[], object]) -> None:
        def arrive() -> None:
            with suppress(Error):  # nobody is left to tell
                work()

        delay = self.world.chance.choice([0.05, 1.0, LONGEST_DELAY_SECONDS])
        self.world.flying.append((self.world.now + self.world.chance.uniform(0, delay), arrive))

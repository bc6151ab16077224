"""Clients that move refs, and the history of what each called and was told.

Every ref is a register: made, moved, deleted and read. The stamps of a history are the order in
which calls began and ended, whoever made them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitOutcomeUnknown, ConflictError, Error, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tests.support.builders.repositories import ADA, new_repository, stage_files
from tests.support.faults.backends import Crash
from tests.support.reference.linearizable import (
    ANYTHING,
    SOMETHING,
    RegisterOperation,
    linearize,
)
from tests.support.simulation.store import FaultyStore, Life, Rates
from tests.support.simulation.world import Actor, World, simulated

REFS = ("heads/main", "heads/main", "heads/a", "heads/b", "tags/t")
RATES = Rates(fault=0.03, silence=0.002, death=0.004)
RULES = CollectionRules(grace_seconds=0, retention_seconds=0)


@dataclass
class History:
    """What was called and told so far. Stamps are drawn by all clients, in one order."""

    stamps: Callable[[], int] = field(default_factory=lambda: count(1).__next__)
    by_ref: dict[str, list[RegisterOperation]] = field(default_factory=dict)
    unknown: dict[str, tuple[str, int]] = field(default_factory=dict)  # commits, by message

    def note(self, ref: str, operation: RegisterOperation) -> None:
        self.by_ref.setdefault(ref, []).append(operation)

    def explain(self, repository: RepositoryCore) -> None:
        """Add the commits of which nobody was told, where somebody has seen them.

        Of one that is collected by now only its digest is known.
        """
        waiting = [(ref, value) for ref in sorted(self.by_ref) for value in self._values(ref)]
        seen = set(waiting)
        while waiting:
            ref, digest = waiting.pop()
            try:
                commit = read_commit(repository.objects, digest)
            except NotFoundError:
                started = [began for one, began in self.unknown.values() if one == ref]
                if started:  # one of these made it
                    change = RegisterOperation(min(started), inf, ANYTHING, True, digest, "gone")
                    self.note(ref, change)
                continue
            made_on, began = self.unknown.get(commit.message, ("", 0))
            if made_on == ref:
                parent = next(iter(commit.parents), None)
                told = f"unknown commit {commit.message}"
                self.note(ref, RegisterOperation(began, inf, parent, True, digest, told))
                if parent is not None and (ref, parent) not in seen:
                    seen.add((ref, parent))
                    waiting.append((ref, parent))

    def _values(self, ref: str) -> list[str]:
        """All that somebody saw at a ref, or set it to."""
        told = self.by_ref[ref]
        return sorted(
            {value for one in told for value in (one.before, one.after) if value is not None}
            - {ANYTHING, SOMETHING}
        )

    def impossible(self) -> list[str]:
        """Refs whose histories no order explains."""
        return [ref for ref, told in sorted(self.by_ref.items()) if linearize(told) is None]


class RefClient:
    """Moves and reads refs, one call after another."""

    def __init__(
        self,
        name: str,
        opener: Callable[[], RepositoryCore],
        history: History,
        chance: random.Random,
    ) -> None:
        self.name, self.opener, self.history, self.chance = name, opener, history, chance
        self.repository: RepositoryCore | None = None
        self.number = 0

    def live(self, calls: int, life: Life) -> None:
        for _ in range(calls):
            self.number += 1
            act = self.chance.choice(
                [self.commit] * 3
                + [self.read] * 4
                + [self.create, self.create, self.move, self.delete, self.collect]
            )
            try:
                act(self.chance.choice(REFS))
            except (Error, Crash):  # without an effect, or noted as unknown
                if life.dead:  # somebody else takes its place
                    life.dead, self.repository = False, None

    @property
    def opened(self) -> RepositoryCore:
        if self.repository is None or self.chance.random() < 0.1:
            self.repository = self.opener()
        return self.repository

    def read(self, ref: str) -> None:
        began = self.history.stamps()
        value = self.opened.log.refresh().state.refs.get(ref)
        self._note(ref, "read", began, RegisterOperation(began, self.history.stamps(), value))

    def commit(self, ref: str) -> None:
        if not ref.startswith("heads/"):
            return
        repository, began = self.opened, self.history.stamps()
        message = f"{self.name} {self.number}"
        self.history.unknown[message] = ref, began
        with begin(repository, ref.removeprefix("heads/")) as transaction:
            stage_files(transaction, {f"files/{self.name}": message.encode()})
            made = transaction.commit(message, author=ADA, clock=lambda: self.number)
        assert made is not None
        del self.history.unknown[message]
        parent = next(iter(made.commit.parents), None)
        ended = self.history.stamps()
        self._note(ref, "commit", began, RegisterOperation(began, ended, parent, True, made.digest))

    def create(self, ref: str) -> None:
        repository, commit = self.opened, self._some()
        make = refs.create_tag if ref.startswith("tags/") else refs.create_branch
        self._change(
            ref,
            "create",
            RegisterOperation(0, 0, None, True, commit),
            lambda: make(repository, ref.partition("/")[2], commit, actor=ADA),
        )

    def move(self, ref: str) -> None:
        repository, commit = self.opened, self._some()
        name = ref.removeprefix("heads/")
        if name == ref:
            return
        change = RegisterOperation(0, 0, ANYTHING, True, commit)
        self._change(
            ref,
            "move",
            change,
            lambda: refs.reset_branch(repository, name, commit, actor=ADA).update.old,
        )

    def delete(self, ref: str) -> None:
        repository = self.opened
        change = RegisterOperation(0, 0, SOMETHING, True, None)
        self._change(ref, "delete", change, lambda: refs.delete_ref(repository, ref, actor=ADA))

    def collect(self, _: str) -> None:
        collect_garbage(self.opened, actor=ADA, rules=RULES)

    def _change(
        self, ref: str, verb: str, change: RegisterOperation, work: Callable[[], str | None]
    ) -> None:
        """Call `work`, which gives the value that it found, and note what it told."""
        began = self.history.stamps()
        try:
            found = work()
        except (CommitOutcomeUnknown, Crash):
            self._note(ref, f"{verb} (unknown)", began, replace(change, ended=inf))
            raise
        except (ConflictError, NotFoundError) as refused:
            ended = self.history.stamps()
            if verb == "create" and "exists already" in str(refused):
                self._note(ref, "taken", began, RegisterOperation(began, ended, SOMETHING))
            if verb == "delete" and isinstance(refused, NotFoundError):
                self._note(ref, "not there", began, RegisterOperation(began, ended, None))
            raise
        ended = self.history.stamps()
        before = change.before if verb == "create" else found
        self._note(ref, verb, began, replace(change, before=before, ended=ended))

    def _note(self, ref: str, verb: str, began: int, operation: RegisterOperation) -> None:
        told = f"{self.name} {verb} {ref}"
        self.history.note(ref, replace(operation, began=began, told=told))

    def _some(self) -> str:
        state = self.opened.log.refresh().state
        seen = sorted({*state.refs.values(), *state.retained})
        if not seen:
            raise NotFoundError("nothing is there yet")
        return self.chance.choice(seen)


def simulated_history(seed: int, *, clients: int = 8, calls: int = 12) -> History:
    """Clients over a store that fails, in an order that the seed chooses."""
    world, history, backend = World(seed), History(), MemoryBackend()
    with simulated(world):
        _begin(history, backend)
    works = []
    for number in range(clients):
        store = FaultyStore(backend, world, f"c{number}", RATES)
        client = RefClient(store.name, partial(_opened, store), history, world.chance)
        works.append((Actor(store.name), partial(client.live, calls, store.life)))
    world.run(works)
    with simulated(world):
        world.current = None
        world.land(all_of_them=True)
        _end(history, backend)
    return history


def _opened(backend: Backend) -> RepositoryCore:
    return open_repository(backend, drivers={})


def _begin(history: History, backend: Backend) -> None:
    """A first commit, as the first operation."""
    with begin(new_repository(backend), "main") as transaction:
        stage_files(transaction, {"files/first": b"first"})
        made = transaction.commit("first", author=ADA, clock=lambda: 0)
    assert made is not None
    began, ended = history.stamps(), history.stamps()
    history.note("heads/main", RegisterOperation(began, ended, None, True, made.digest, "first"))


def _end(history: History, backend: Backend) -> None:
    """What is there in the end, as the last operations; and what nobody was told of."""
    repository = _opened(backend)
    state = repository.log.refresh().state
    for ref in sorted(set(REFS)):
        began, ended = history.stamps(), history.stamps()
        history.note(ref, RegisterOperation(began, ended, state.refs.get(ref), told="last read"))
    history.explain(repository)


def threaded_history(open_backend: Callable[[], Backend], seed: int, *, calls: int = 10) -> History:
    """Eight threads at once, each with its own handle."""
    history = History()
    backend = open_backend()
    _begin(history, backend)
    people = [
        RefClient(f"c{n}", lambda: _opened(open_backend()), history, random.Random(seed * 100 + n))
        for n in range(8)
    ]
    threads = [threading.Thread(target=one.live, args=(calls, Life())) for one in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _end(history, backend)
    return history

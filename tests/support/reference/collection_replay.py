"""Plays the events of `collection` to the real code.

The model says what happens when; here it happens to transactions, a log and a collector. What a
writer does at once between reading the head and creating its record, another may interrupt: the
race is lost then, and the fence is passed anew.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import cast

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_fence, refs
from tensorrepo.repo.changes.leases import close_leases, open_lease
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.changes.transaction import LandedCommit, begin
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectSink
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.staged_lease import LEASE_SECONDS, hold
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, new_repository
from tests.support.faults.backends import WrappedBackend
from tests.support.reference.collection import LEASING, Event, Setting
from tests.support.reference.collector import collect_late, delete

TRIES = 4
RACES = 0.4  # share of commits whose first record comes too late


def put_content(objects: ObjectSink) -> Digest:
    return objects.put(Kind.BLOB, b"X" * 100).digest


def put_page(objects: ObjectSink, manifest: Digest) -> Digest:
    return objects.put(Kind.MODEL, b"T" * 100, [manifest]).digest


def put_manifest(objects: ObjectSink, content: Digest) -> Digest:
    return objects.put(Kind.MODEL, b"M" * 100, [content]).digest


class Interrupted(WrappedBackend):
    """Lets something happen right before the next record of the log is created."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.before_record: Callable[[], None] | None = None

    def create(self, key: str, parts: object) -> bool:  # type: ignore[override]
        act, self.before_record = self.before_record, None
        if act is not None and key.startswith("log/0"):
            act()
        return super().create(key, parts)  # type: ignore[arg-type]


class RealWriter:
    """Wants to commit M to a path of its own. `has_bytes` tells S from D."""

    def __init__(self, world: Replay, number: int, *, has_bytes: bool) -> None:
        self.world = world
        self.path = f"models/m{number}"
        self.branch = world.chance.choice(["main", f"own-{number}"])
        self.has_bytes = has_bytes
        self.backend = Interrupted(world.backend)
        self.handle = open_repository(self.backend, drivers={})

    def play(self, event: Event) -> None:
        match event.kind:
            case "pin":
                self.pin()
            case "reuse" | "adopt" | "put":
                try:
                    self.put(reuse=event.kind == "reuse")
                except CommitExpired:
                    assert not self.world.is_whole()
            case "commit" | "expire":
                if self.world.chance.random() < RACES:
                    self.backend.before_record = self.world.collect
                self.commit()
                verify(self.world.backend)

    def pin(self) -> None:
        self.view = self.handle.log.refresh()
        self._begin()

    def put(self, *, reuse: bool) -> None:
        """The next object: content first, then the manifest, which is staged."""
        names = self.world.wanted
        reachable = reuse and "heads/main" in self.transaction.pin.state.refs
        if self.put_so_far < len(names) and not reachable:
            self._put(names[self.put_so_far])
        self.put_so_far += 1
        if self.put_so_far == len(names):
            since = None if self.has_bytes else self.view.generation
            self.transaction.stage(self.path, Entry(Kind.MODEL, names[-1]), since=since)

    def _put(self, name: Digest) -> None:
        objects = self.transaction.objects
        if not self.has_bytes:
            gc_fence.store_again(objects, [name], self.view.state.graves, self.path)
        elif self.put_so_far == 0:
            put_content(objects)
        else:
            put_manifest(objects, self.world.wanted[0])

    def commit(self) -> None:
        """Until it is done, beginning anew where a user would."""
        for _ in range(TRIES):
            try:
                while self.put_so_far < len(self.world.wanted):
                    self.put(reuse=False)
                assert self.transaction.commit("commit", author=ADA, clock=self.world.tick)
            except (ConflictError, CommitExpired):
                if not self.has_bytes and not self.world.is_whole():
                    return  # refused for good: nobody has the bytes
                self.view = self.handle.log.refresh()
                self._begin()
            else:
                return
        raise AssertionError(f"{self.path} is refused although the bytes are there")

    def _begin(self) -> None:
        self.put_so_far = 0
        self.transaction = begin(self.handle, self.branch, pin=self.view)


class RealHolder:
    """L, P and T of the model: holds a lease on what it put, and commits by that alone.

    What it is refused, it adds again, as a user would.
    """

    def __init__(self, world: Replay, number: int, kind: str) -> None:
        self.world = world
        self.kind = kind
        self.path = f"models/m{number}"
        self.lease = f"lease-{number}"
        self.branch = world.chance.choice(["main", f"own-{number}"])
        self.backend = Interrupted(world.backend)
        self.handle = open_repository(self.backend, drivers={})
        # To hold a lease no more is asked of a session.
        session = SimpleNamespace(repository=self.handle, author=lambda: ADA)
        self.session = cast(WorkspaceSession, session)
        self.unsure: list[Digest] = []  # what a commit has yet to adopt

    def play(self, event: Event) -> None:
        match event.kind:
            case "pin":
                self.pin()
            case "reuse" | "adopt" | "put":
                self.put(reuse=event.kind == "reuse")
            case "page":
                self.page()
            case "open":
                self._race()
                self.keep()
                verify(self.world.backend)
            case "begin":
                self.begin()
            case "secure":
                self.secure()
            case "commit":
                self._race()
                self.commit()
                verify(self.world.backend)
            case "close":
                close_leases(self.handle, [self.lease], holder=ADA)

    def _race(self) -> None:
        if self.world.chance.random() < RACES:
            self.backend.before_record = self.world.collect

    def pin(self) -> None:
        self.view = self.handle.log.refresh()
        self.writer = ObjectWriter(self.handle.objects, self.view.state.graves)
        self.put_so_far = 0

    def put(self, *, reuse: bool) -> None:
        """The next object: content first, then the manifest."""
        if not (reuse and "heads/main" in self.view.state.refs):
            if self.put_so_far:
                put_manifest(self.writer, self.world.wanted[0])
            else:
                put_content(self.writer)
            self.writer.flush()
        self.put_so_far += 1
        self.named = self.world.wanted[-1]

    def page(self) -> None:
        """What the lease will name instead, put under the label of now."""
        writer = ObjectWriter(self.handle.objects, self.handle.log.refresh().state.graves)
        try:
            self.named = put_page(writer, self.world.wanted[-1])
        except NotFoundError:
            assert not self.world.is_whole()
            self._add()
        writer.flush()

    def keep(self) -> None:
        """Open the lease, or renew it."""
        for _ in range(TRIES):
            try:
                self._keep()
            except CommitExpired:
                self._add()
            else:
                return
        raise AssertionError(f"{self.lease} is refused although the bytes are there")

    def _keep(self) -> None:
        since = self.view.generation
        if self.kind == "P":
            told = partial(open_lease, holder=ADA, note="part", seconds=60)
            told(self.handle, self.lease, [self.named], since=since)
        else:
            hold(self.session, self.lease, [self.named], since, 0.0)

    def _add(self) -> None:
        """Put all of it, once more."""
        self.pin()
        for _ in self.world.wanted:
            self.put(reuse=False)
        if self.kind == "T":
            self.page()

    def begin(self) -> None:
        """Another process, which has no bytes."""
        self.transaction = begin(self.handle, self.branch)
        self.unsure = [*self.world.wanted] if self.kind == "P" else []

    def secure(self) -> None:
        """Adopt the next object of a part. What is gone is told of when it is committed."""
        with suppress(CommitExpired):
            self._secure(1)

    def _secure(self, count: int) -> None:
        for name in self.unsure[:count]:
            tx = self.transaction
            gc_fence.store_again(tx.objects, [name], tx.pin.state.graves, self.path)
            self.unsure.remove(name)

    def commit(self) -> None:
        """Until it is done: who holds a lease that did not run out is never refused."""
        for _ in range(TRIES):
            try:
                self._secure(len(self.unsure))
                assert self._commit()
            except ConflictError:  # the branch is gone
                self.begin()
            except CommitExpired:
                assert self.world.lapsed, f"{self.path} is refused although a lease keeps it"
                self._add()
                self.keep()
                self.begin()
            else:
                return
        raise AssertionError(f"{self.path} is refused although the bytes are there")

    def _commit(self) -> LandedCommit | None:
        closes, since = (None, None) if self.kind == "P" else (self.lease, self.view.generation)
        self.transaction.stage(self.path, Entry(Kind.MODEL, self.world.wanted[-1]), since=since)
        clock = self.world.tick
        return self.transaction.commit("commit", author=ADA, closes_lease=closes, clock=clock)


class Replay:
    """The real world, as far as the events have brought it."""

    def __init__(self, setting: Setting, chance: random.Random) -> None:
        self.chance = chance
        # To the store every lease has run out: those are closed that the model says.
        self.backend = MemoryBackend(clock=lambda: time.time() + 2 * LEASE_SECONDS)
        self.repository = new_repository(self.backend)
        self.now = 0
        self.lapsed = False
        self.condemned: list[str] = []
        self.listed: list[str] = []
        first = begin(self.repository, "main")
        content = put_content(first.objects)
        self.manifest = put_manifest(first.objects, content)
        self.wanted = (content, self.manifest)
        if setting.begins_live:
            first.stage("models/first", Entry(Kind.MODEL, self.manifest))
            first.commit("first", author=ADA, clock=self.tick)
        else:
            first.objects.flush()
        self.writers = [
            RealHolder(self, number, kind)
            if kind in LEASING
            else RealWriter(self, number, has_bytes=kind == "S")
            for number, kind in enumerate(setting.writers)
        ]

    def tick(self) -> int:
        """Times are in the names of commits: the same ones in every run."""
        self.now += 1
        return self.now

    def play(self, event: Event) -> None:
        match event.kind:
            case "list":
                self.listed = self._objects()
            case "condemn":
                self._condemn(self.listed)
            case "delete":
                delete(self.repository, self.condemned[self.chance.randrange(2) :: 2])
                verify(self.backend)
            case "drop":
                for ref in self.repository.log.refresh().state.refs:
                    refs.delete_ref(self.repository, ref, actor=ADA)
            case "lapse":
                self.lapsed = True
                collect_late(self.backend, [], close_leases=True)
            case _ if event.who >= 0:
                self.writers[event.who].play(event)

    def finish(self) -> None:
        """Every deletion that was ever allowed lands, once more."""
        delete(self.repository, self.condemned)
        verify(self.backend)

    def collect(self) -> None:
        """A whole collection at once, and some of its deletions."""
        self._condemn(self._objects())
        delete(self.repository, [key for key in self.condemned if self.chance.random() < 0.7])

    def is_whole(self) -> bool:
        """Whether somebody could still commit M who has only its digest."""
        keys = self._objects()
        return all(any(name[2:] in key for key in keys) for name in self.wanted)

    def _condemn(self, listed: list[str]) -> None:
        """Part of what is dead, as far as `listed` has it; nothing is retained."""
        part = [key for key in listed if self.chance.random() < 0.8]
        self.condemned += collect_late(self.backend, part)

    def _objects(self) -> list[str]:
        return [stored.key for stored in self.backend.list("objects/")]

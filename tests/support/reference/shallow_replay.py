"""Plays the events of the model `shallow` to the real code.

The model says what happens when; here it happens to transactions, refs, a log and a collector. A
commit's record may come too late, after a collection that ran to its end meanwhile.
"""

from __future__ import annotations

import random

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_fence, refs
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.shallow import end_history
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Envelope, Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.histories import extend_history, verify
from tests.support.builders.repositories import ADA, commit_files, new_repository
from tests.support.reference.collection_replay import Interrupted
from tests.support.reference.collector import collect_late, delete
from tests.support.reference.shallow import Event, Setting

RACES = 0.5  # share of appends whose first record comes too late
X = b"content that A alone has"


class Replay:
    """The real world, as far as the events have brought it."""

    def __init__(self, setting: Setting, chance: random.Random) -> None:
        self.chance = chance
        self.setting = setting
        self.backend = MemoryBackend()
        self.repository = new_repository(self.backend)
        self.a = commit_files(self.repository, {"files/x": X}).digest
        self.b = commit_files(self.repository, {"files/x": None, "files/y": b"y"}).digest
        self.content = next(
            link.digest for link in self.repository.objects.get(self.a).links if link.leaf
        )
        # What a remote has: the bytes of all that lies before B.
        self.remote: list[Envelope] = [
            self.repository.objects.get(each) for each in (self.content, self.a)
        ]
        self.condemned: list[str] = []
        self.listed: list[str] = []
        self.backends = [Interrupted(self.backend) for _ in setting.writers]
        self.handles = [open_repository(each, drivers={}) for each in self.backends]
        self.pinned = [self.repository.log.refresh()] * len(self.handles)
        if setting.begins_shallow:
            end_history(self.repository, [self.b], actor=ADA)

    def play(self, event: Event) -> None:
        handle = self.handles[event.who]
        match event.kind:
            case "give up":
                end_history(self.repository, [self.b], actor=ADA)
            case "pin":
                self.pinned[event.who] = handle.log.refresh()
            case "restore" | "ref" | "deepen":
                if self.chance.random() < RACES:
                    self.backends[event.who].before_record = self.collect
                self._write(event.kind, handle, event.who)
            case "list":
                self.listed = self._objects()
            case "condemn":
                self._condemn(self.listed)
            case "delete":
                delete(self.repository, self.condemned[self.chance.randrange(2) :: 2])
            case "drop" if "heads/old" in self.repository.log.refresh().state.refs:
                refs.delete_ref(self.repository, "heads/old", actor=ADA)
        verify(self.backend)

    def finish(self) -> None:
        """Every deletion that was ever allowed lands, once more."""
        delete(self.repository, self.condemned)
        verify(self.backend)

    def collect(self) -> None:
        """History is given up and collected at once, with some of the deletions."""
        if self.chance.random() < 0.5:
            end_history(self.repository, [self.b], actor=ADA)
        self._condemn(self._objects())
        delete(self.repository, [key for key in self.condemned if self.chance.random() < 0.7])

    def _write(self, kind: str, handle: RepositoryCore, who: int) -> None:
        try:
            if kind == "restore":
                self._restore(handle, who)
            elif kind == "ref":
                refs.create_branch(handle, "old", self.a, actor=ADA)
            else:
                self._deepen(handle)
        except ConflictError:
            pass  # the ref is there already
        except (CommitExpired, NotFoundError):
            assert kind != "deepen", "who has the bytes is never refused"

    def _restore(self, handle: RepositoryCore, who: int) -> None:
        pin = self.pinned[who]
        with begin(handle, "main", pin=pin) as transaction:
            gc_fence.store_again(transaction.objects, [self.content], pin.state.graves, "files/x")
            transaction.stage(f"files/x{who}", Entry(Kind.BLOB, self.content))
            transaction.commit("restore", author=ADA)

    def _deepen(self, handle: RepositoryCore) -> None:
        for _ in range(4):
            writer = ObjectWriter(handle.objects, handle.log.refresh().state.graves)
            for envelope in self.remote:
                writer.put_again(envelope)
            writer.flush()
            try:
                extend_history(handle, [self.b], actor=ADA)
            except CommitExpired:
                continue  # collected between the two: fetched again
            return
        raise AssertionError("who has the bytes is never refused")

    def _condemn(self, listed: list[str]) -> None:
        part = [key for key in listed if self.chance.random() < 0.8]
        self.condemned += collect_late(self.backend, part)

    def _objects(self) -> list[str]:
        return [stored.key for stored in self.backend.list("objects/")]

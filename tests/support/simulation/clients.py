"""Clients of a simulated repository, and what each of them was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import LandedCommit, begin
from tensorrepo.repo.errors import (
    CommitExpired,
    CommitOutcomeUnknown,
    Error,
    NotFoundError,
)
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import resolve
from tests.support.builders.repositories import files_at, stage_files
from tests.support.faults.backends import Crash
from tests.support.simulation.store import FaultyStore
from tests.support.simulation.world import Actor

BRANCHES = ("main", "main", "main", "a", "b")
CONTENTS = 8  # that everybody writes again and again


@dataclass(frozen=True)
class Told:
    """How an action ended: "done", "refused", "unknown" or "died".

    Attributes:
        what: name of the action.
        outcome: how it ended.
        txns: transactions that it may have made.
        commit: the commit that it was told of.
        files: what that commit wrote.
        generation: of the slot whose content is unknown.
        unknown: transaction that slot may hold, of several that an action made.
    """

    what: str
    outcome: str
    txns: tuple[str, ...]
    commit: LandedCommit | None = None
    files: dict[str, bytes] | None = None
    generation: int = 0
    unknown: str = ""


class Client:
    """Does one thing after another; whatever fails, it goes on."""

    def __init__(self, actor: Actor, store: FaultyStore, actions: int) -> None:
        self.actor = actor
        self.store = store
        self.actions = actions
        self.told: list[Told] = []
        self.resolved: list[tuple[str, str]] = []  # transaction, what became of it
        self.repository: RepositoryCore | None = None
        self.files: dict[str, bytes] = {}
        self.chance = store.world.chance

    def live(self) -> None:
        acts: list[Callable[[], LandedCommit | None]] = [self.commit] * 6 + [self.read] * 2
        acts += [self.late_commit, self.merge, self.revert, self.branch, self.tag, self.reset]
        acts += [self.undo, self.redo, self.delete, self.collect, self.settle]
        for _ in range(self.actions):
            self.act(self.chance.choice(acts))

    def act(self, action: Callable[[], LandedCommit | None]) -> None:
        first, self.files = len(self.actor.tokens), {}
        made, outcome, generation, txn = None, "done", 0, ""
        try:
            made = action()
        except CommitOutcomeUnknown as unknown:
            outcome, generation, txn = "unknown", unknown.generation, unknown.txn
        except Crash:
            outcome = "died"
        except Error as error:
            outcome = f"refused: {error.kind}"
        if self.store.dead:  # somebody else is born in its place
            self.store.dead, self.repository = False, None
            self.store.silent = 0
            outcome = "died" if outcome != "unknown" else outcome
        name = action.__name__
        self.store.world.trace.append((self.store.name, name, outcome))
        txns = tuple(self.actor.tokens[first:])
        self.told.append(Told(name, outcome, txns, made, self.files, generation, txn))

    @property
    def opened(self) -> RepositoryCore:
        if self.repository is None or self.chance.random() < 0.05:
            self.repository = open_repository(self.store, drivers={})
        return self.repository

    def clock(self) -> int:
        return int(self.store.world.told_seconds() * 1e9)

    def seen(self) -> list[Digest]:
        """Commits that refs name, or named: those may be collected by now."""
        state = self.opened.log.refresh().state
        return sorted({*state.refs.values(), *state.retained})

    def commit(self, *, late: bool = False) -> LandedCommit | None:
        number, chance = self.store.name, self.chance
        self.files = {
            f"files/{number}/{name}": b"%d" % chance.randrange(CONTENTS) * 50
            for name in chance.sample("abcd", 2)
        }
        with begin(self.opened, chance.choice(BRANCHES)) as transaction:
            before = {path: transaction.entry(path) for path in self.files}
            stage_files(transaction, self.files)
            # What it writes as it was is no change, and the merge keeps what others made of it.
            changed = {path for path in before if transaction.entry(path) != before[path]}
            self.files = {path: self.files[path] for path in changed}
            if late:
                transaction.objects.flush()
                self.store.world.sleep(chance.choice([1.0, 60.0]))
            return transaction.commit("change", author=self._author(), clock=self.clock)

    def late_commit(self) -> LandedCommit | None:
        """What it stores lies about for a while."""
        return self.commit(late=True)

    def read(self) -> None:
        """Everything at a ref is there, as long as the ref names it."""
        state = self.opened.log.refresh().state
        if not state.refs:
            return
        ref = self.chance.choice(sorted(state.refs))
        fresh = open_repository(self.store.inner, drivers={})
        try:
            files_at(self.opened, state.refs[ref])
        except (NotFoundError, CommitExpired):
            now = fresh.log.refresh().state.refs
            assert now.get(ref) != state.refs[ref], f"{ref} leads to what is gone"
            raise

    def merge(self) -> LandedCommit | None:
        into, other = self.chance.sample(["main", "a", "b"], 2)
        tip = self.opened.log.refresh().state.refs.get(f"heads/{other}")
        if tip is None:
            return None
        return merge_branches.merge(
            self.opened,
            into,
            tip,
            author=self._author(),
            message="merge",
            strategy="theirs",
            clock=self.clock,
        ).committed

    def revert(self) -> LandedCommit | None:
        tip = self.opened.log.refresh().state.refs.get("heads/main")
        commits = [*islice(walk(self.opened.objects, [tip] if tip else []), 4)]
        if not commits:
            return None
        digest, commit = self.chance.choice(commits)
        side = 1 if len(commit.parents) > 1 else None
        return merge_branches.revert(
            self.opened,
            "main",
            digest,
            author=self._author(),
            mainline=side,
            strategy="theirs",
            clock=self.clock,
        )

    def branch(self) -> None:
        name = self.chance.choice(["a", "b", "c"])
        refs.create_branch(self.opened, name, self._some(), actor=self._author())

    def tag(self) -> None:
        name = f"t{self.chance.randrange(6)}"
        refs.create_tag(self.opened, name, self._some(), actor=self._author())

    def reset(self) -> None:
        name = self.chance.choice(BRANCHES)
        refs.reset_branch(self.opened, name, self._some(), actor=self._author())

    def undo(self) -> None:
        refs.undo(self.opened, self.chance.choice(BRANCHES), actor=self._author())

    def redo(self) -> None:
        refs.redo(self.opened, self.chance.choice(BRANCHES), actor=self._author())

    def delete(self) -> None:
        names = ["heads/a", "heads/b", "heads/c", "tags/t1", "tags/t2"]
        refs.delete_ref(self.opened, self.chance.choice(names), actor=self._author())

    def collect(self) -> None:
        spared = self.chance.choice([0.0, 0.0, 20.0])
        rules = CollectionRules(grace_seconds=spared, retention_seconds=spared)
        collect_garbage(self.opened, actor=self._author(), rules=rules)

    def settle(self) -> None:
        """Ask what became of an action of its own whose outcome is unknown."""
        asked = [told for told in self.told if told.outcome == "unknown"]
        if asked:
            self.ask(self.chance.choice(asked), self.opened)

    def ask(self, told: Told, repository: RepositoryCore) -> None:
        outcome = resolve(repository.log, told.unknown, told.generation, settle=True)
        if outcome != "unknown":
            self.resolved.append((told.unknown, outcome))

    def _some(self) -> Digest:
        seen = self.seen()
        if not seen:
            raise NotFoundError("nothing is there yet")
        return self.chance.choice(seen)

    def _author(self) -> str:
        return self.chance.choice([f"{self.actor.name} <a@example.org>", "All <b@example.org>"])

"""Clients of a simulated repository, and what each of them was told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.expire import KeepRule, expire
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.gc_packs import pack_history
from tensorrepo.repo.changes.purge import Twins, append_purge, held_entries
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.shallow import end_history
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
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.exchange import TransferReport, clone, fetch, push
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import extend_history, verify
from tests.support.builders.repositories import files_at, new_repository, stage_files
from tests.support.faults.backends import Crash
from tests.support.simulation.desks import Desk
from tests.support.simulation.store import FaultyStore
from tests.support.simulation.world import Actor

BRANCHES = ("main", "main", "main", "a", "b")
ERASED = b"erased"  # what stands for a secret that was purged
AT_HOME = frozenset(
    ["commit_at_home", "fetch", "clone", "collect_at_home"]
)  # these change the client's copy alone

ACTIONS = {  # and how often each is chosen
    "commit": 6, "late_commit": 1, "read": 2, "merge": 1, "revert": 1, "branch": 1, "tag": 1,
    "reset": 1, "undo": 1, "redo": 1, "delete": 1, "collect": 1, "settle": 1, "expire": 1, "end": 1,
    "commit_secret": 2, "purge": 1, "extend": 1, "clone": 1, "commit_at_home": 2, "push": 2,
    "fetch": 2, "collect_at_home": 1, "pack": 2, "stage": 2, "commit_staged": 2, "unstage": 2,
    "stash": 1, "unstash": 1, "drop_stash": 1, "write_part": 2, "commit_part": 2,
    "release_parts": 1,
}  # fmt: skip


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
        moved: refs of the shared repository that were set, and to what.
        purged: contents that were purged.
    """

    what: str
    outcome: str
    txns: tuple[str, ...]
    commit: LandedCommit | None = None
    files: dict[str, bytes] | None = None
    generation: int = 0
    unknown: str = ""
    moved: tuple[tuple[str, Digest | None], ...] = ()
    purged: tuple[Digest, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the shared repository can tell what became of it."""
        return self.outcome == "unknown" and self.what not in AT_HOME


class Client:
    """Does one thing after another; whatever fails, it goes on.

    It has a repository of its own, too: a copy, from which it pushes and into which it fetches; and
    a desk in `folder`, for what leases keep.
    """

    def __init__(self, actor: Actor, store: FaultyStore, actions: int, folder: Path) -> None:
        self.actor = actor
        self.desk = Desk(folder, store, f"{actor.name} <a@example.org>")
        self.store = store
        self.actions = actions
        self.told: list[Told] = []
        self.resolved: list[tuple[str, str]] = []  # transaction, what became of it
        self.repository: RepositoryCore | None = None
        self.files: dict[str, bytes] = {}
        self.chance = store.world.chance
        self.moved: tuple[tuple[str, Digest | None], ...] = ()
        self.purged: tuple[Digest, ...] = ()
        self.homes: list[FaultyStore] = []
        self._new_home()

    def _new_home(self) -> None:
        """A new repository of its own, in which everything fails from then on, as well."""
        backend, store = MemoryBackend(clock=self.store.world.told_seconds), self.store
        new_repository(backend)
        home = FaultyStore(backend, store.world, f"{store.name} home", store.rates, store.life)
        self.homes.append(home)

    def live(self) -> None:
        names = [name for name, share in ACTIONS.items() for _ in range(share)]
        for _ in range(self.actions):
            self.act(getattr(self, self.chance.choice(names)))

    def act(self, action: Callable[[], LandedCommit | None]) -> None:
        first, self.files, self.moved, self.purged = len(self.actor.tokens), {}, (), ()
        made, outcome, generation, txn = None, "done", 0, ""
        try:
            made = action()
        except CommitOutcomeUnknown as unknown:
            outcome, generation, txn = "unknown", unknown.generation, unknown.txn
        except Crash:
            outcome = "died"
        except Error as error:
            outcome = f"refused: {error.kind}"
            if isinstance(error, CommitExpired):
                self.desk.check(open_repository(self.store.inner, drivers={}))
        if self.store.life.dead:  # somebody else is born in its place
            self.store.life.dead, self.repository, self.desk.repository = False, None, None
            self.store.silent = 0
            outcome = "died" if outcome != "unknown" else outcome
        name = action.__name__
        self.store.world.trace.append((self.store.name, name, outcome))
        txns = tuple(self.actor.tokens[first:])
        told = Told(name, outcome, txns, made, self.files, generation, txn, self.moved, self.purged)
        self.told.append(told)

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
            f"files/{number}/{name}": self.desk.content() for name in chance.sample("abcd", 2)
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

    def commit_secret(self) -> LandedCommit | None:
        """A content that nobody writes again."""
        secret = b"secret " + self.chance.randbytes(8).hex().encode()
        self.store.world.secrets.append(secret)
        self.files = {f"files/{self.store.name}/secret": secret}
        with begin(self.opened, self.chance.choice(BRANCHES)) as transaction:
            stage_files(transaction, self.files)
            return transaction.commit("secret", author=self._author(), clock=self.clock)

    def purge(self) -> None:
        """Erase a secret from all history, and collect what held it."""
        if not self.store.world.secrets:
            return
        old = content_digest(self.chance.choice(self.store.world.secrets))
        repository = self.opened

        def rewrite(view: LogView, writer: ObjectWriter) -> Twins:
            held = [each.path for each in held_entries(repository, view.state)
                    if each.entry.digest == old and old not in view.state.purges]  # fmt: skip
            if not held:
                return Twins({}, {}, frozenset())
            twin = writer.put(Kind.BLOB, ERASED).digest
            return Twins({old: twin}, {old: held[0]}, frozenset())

        record = append_purge(repository, rewrite, actor=self._author(), reason="asked")
        self.purged = () if record is None else (old,)
        rules = CollectionRules(grace_seconds=0.0)
        collect_garbage(repository, actor=self._author(), rules=rules)

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
        rules = CollectionRules(spared, spared, close_leases=self.chance.random() < 0.5)
        try:
            collect_garbage(self.opened, actor=self._author(), rules=rules)
        except NotFoundError as error:
            try:
                verify(self.store.inner)
            except NotFoundError as gone:
                raise AssertionError(f"a root leads to what is gone: {gone}") from error
            raise

    def pack(self) -> None:
        """History goes into packs, also what was committed a moment ago."""
        rules = CollectionRules(grace_seconds=self.chance.choice([0.0, 0.0, 20.0]))
        pack_history(
            self.opened, actor=self._author(), rules=rules, least=self.chance.choice([1, 4])
        )

    def expire(self) -> None:
        rule = KeepRule(self.chance.randrange(1, 6), self.chance.choice([0.0, 0.0, 5.0]))
        branch = self.chance.choice(BRANCHES)
        expire(self.opened, branch, rule, actor=self._author(), now_ns=self.clock())

    def end(self) -> None:
        """History ends at some commit, which need not be on any branch."""
        end_history(self.opened, [self._some()], actor=self._author())

    def extend(self) -> None:
        """History goes on where it ended: whoever asks too late is refused."""
        ended = sorted(self.opened.log.refresh().state.shallow)
        if ended:
            extend_history(self.opened, [self.chance.choice(ended)], actor=self._author())

    def commit_at_home(self) -> None:
        chance, home = self.chance, self.home
        files = {f"files/home/{chance.choice('abc')}": self.desk.content()}
        with begin(home, "main") as transaction:
            stage_files(transaction, {**files, f"files/{self.store.name}": chance.randbytes(4)})
            transaction.commit("change", author=self._author(), clock=self.clock)

    def push(self) -> None:
        target = self.chance.choice(["a", "b", f"of-{self.store.name}"])
        spec = self.chance.choice([f"main:{target}", f"main:{target}", f"+main:{target}"])
        options = self._options()
        self._moved(push(self.home, self.opened, [spec], options))

    def fetch(self) -> None:
        home, options = self.home, self._options()
        prune = self.chance.random() < 0.3
        fetch(HistorySource.of(self.opened), home, "origin", options, prune=prune)

    def collect_at_home(self) -> None:
        rules = CollectionRules(grace_seconds=0.0, retention_seconds=0.0)
        collect_garbage(self.home, actor=self._author(), rules=rules)

    def clone(self) -> None:
        depth = self.chance.choice([None, None, 1, 3])
        self._new_home()
        source, options = HistorySource.of(self.opened), self._options()
        clone(source, self.home, "origin", options, depth=depth)

    @property
    def home(self) -> RepositoryCore:
        return open_repository(self.homes[-1], drivers={})

    def _options(self) -> TransferOptions:
        world = self.store.world
        return TransferOptions(self._author(), Path("parts"), clock=lambda: world.now)

    def _moved(self, report: TransferReport) -> None:
        self.moved = tuple((move.ref, move.new) for move in report.moves)

    def settle(self) -> None:
        """Ask what became of an action of its own whose outcome is unknown."""
        asked = [told for told in self.told if told.is_open]
        if asked:
            self.ask(self.chance.choice(asked), self.opened)

    def ask(self, told: Told, repository: RepositoryCore) -> None:
        outcome = resolve(repository.log, told.unknown, told.generation, settle=True)
        if outcome != "unknown":
            self.resolved.append((told.unknown, outcome))

    def stage(self) -> None:
        self.desk.stage()

    def commit_staged(self) -> LandedCommit | None:
        made, self.files = self.desk.commit_staged()
        return made

    def unstage(self) -> None:
        self.desk.unstage()

    def stash(self) -> None:
        self.desk.stash()

    def unstash(self) -> None:
        self.desk.unstash()

    def drop_stash(self) -> None:
        self.desk.drop_stash()

    def write_part(self) -> None:
        self.desk.write_part()

    def commit_part(self) -> LandedCommit | None:
        made, self.files = self.desk.commit_part(self.chance.choice(BRANCHES))
        return made

    def release_parts(self) -> None:
        self.desk.release_parts()

    def _some(self) -> Digest:
        seen = self.seen()
        if not seen:
            raise NotFoundError("nothing is there yet")
        return self.chance.choice(seen)

    def _author(self) -> str:
        return self.chance.choice([f"{self.actor.name} <a@example.org>", "All <b@example.org>"])


def content_digest(content: bytes) -> Digest:
    """The name of a file of this content."""
    return encode_object(Kind.BLOB, content).link.digest

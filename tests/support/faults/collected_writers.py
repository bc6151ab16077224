"""Writers that reuse content, branch, merge, undo, expire and drop checkpoints, beside collectors.

Run as ``python -m tests.support.faults.collected_writers FOLDER SECONDS SEED WRITERS``: so many
processes write to the repository in FOLDER, and two collect in a loop without any grace. Prints
what each did, as JSON, and the errors of those that failed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import TypeVar

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.expire import expire
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.leases import close_leases, open_lease
from tensorrepo.repo.changes.repository import LocalState, RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin, begin_beside, commit_beside
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import KeepRule
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.repositories import ADA, commit_files, files_at, stage_files
from tests.support.faults.backends import WrappedBackend
from tests.support.servers.sql_logs import backend_at

PATIENT_SECONDS = 60  # who goes on for less takes what others leave of the processor
NICENESS = 10
POOL = 12  # contents that everybody writes again and again
NAMES = ("main", "main", "a", "b")
AT_ONCE = CollectionRules(grace_seconds=0, retention_seconds=0)


T = TypeVar("T")


class CollectingBackend(WrappedBackend):
    """Somebody else collects, now and then, right before an operation is done."""

    def __init__(self, inner: Backend, chance: random.Random, share: float) -> None:
        super().__init__(inner)
        self.chance = chance
        self.share = share
        self.collections = 0

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        if self.chance.random() < self.share:
            self.collections += 1
            collect(self.inner)
        return super().step(verb, key, work)


class CollectedWriter:
    """Does one thing after another, each of which may be refused, and none of which may be lost."""

    def __init__(self, repository: RepositoryCore, number: int, chance: random.Random) -> None:
        self.repository = repository
        self.number = number
        self.chance = chance
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        """One thing. What is refused changes nothing; what is acknowledged is whole at once."""
        act = self.chance.choice(
            [self.commit] * 5
            + [self.slow_commit, self.branch, self.merge, self.undo, self.redo, self.delete]
            + [self.checkpoint, self.revert, self.expire, self.stage]
        )
        try:
            act()
        except (ConflictError, CommitExpired):
            self.done["refused"] += 1
        except NotFoundError as error:
            if "object" in str(error):  # what a root leads to is gone, and nobody condemned it
                raise
            self.done["refused"] += 1
        else:
            self.done[act.__name__] += 1

    def files(self) -> dict[str, bytes | None]:
        names = self.chance.sample(range(POOL), 2)
        return {
            f"files/{self.number}/{name}": self.chance.choice([b"%d" % name * 200, None])
            if self.chance.random() < 0.2
            else b"%d" % self.chance.randrange(POOL) * 200
            for name in names
        }

    def commit(self) -> None:
        self._commit(self.chance.choice(NAMES))

    def slow_commit(self) -> None:
        """What it stores lies about for a while before it is committed."""
        with begin(self.repository, "main") as transaction:
            stage_files(transaction, {f"files/{self.number}/slow": b"slow%d" % self.number * 50})
            transaction.objects.flush()
            for _ in range(3):
                self.repository.log.refresh()
                time.sleep(0)
            transaction.commit("slow", author=ADA)

    def _commit(self, branch: str) -> None:
        files = {path: data for path, data in self.files().items() if data is not None}
        files["files/each"] = b"%d %d" % (self.number, self.chance.randrange(10**9))
        made = commit_files(self.repository, files, branch=branch)
        found = open_repository(self.repository.backend, drivers={})
        state = found.log.refresh().state
        if state.refs.get(f"heads/{branch}") == made.digest:
            self._read(found, f"heads/{branch}", made.digest)

    def _read(self, found: RepositoryCore, ref: str, commit: Digest) -> None:
        """All of a commit is there, as long as a ref names it."""
        try:
            files_at(found, commit)
        except (NotFoundError, CommitExpired):
            if found.log.refresh().state.refs.get(ref) == commit:
                raise AssertionError(f"{commit:.12} is not whole at {ref}") from None

    def branch(self) -> None:
        """At a commit that somebody saw once: perhaps of a ref that is gone by now."""
        state = self.repository.log.refresh().state
        seen = sorted({*state.refs.values(), *state.retained})
        if seen:
            name = self.chance.choice(["a", "b", "c"])
            refs.create_branch(self.repository, name, self.chance.choice(seen), actor=ADA)

    def merge(self) -> None:
        state = self.repository.log.refresh().state
        into, other = self.chance.sample(["main", "a", "b"], 2)
        tip = state.refs.get(f"heads/{other}")
        if tip is not None:
            merge_branches.merge(
                self.repository, into, tip, author=ADA, message="merge", strategy="theirs"
            )

    def revert(self) -> None:
        tip = self.repository.log.refresh().state.refs.get("heads/main")
        history = walk(self.repository.objects, [tip] if tip else [])
        commits = [*islice(history, 4)]
        if commits:
            chosen, commit = self.chance.choice(commits)
            side = 1 if len(commit.parents) > 1 else None
            merge_branches.revert(
                self.repository, "main", chosen, author=ADA, mainline=side, strategy="theirs"
            )

    def undo(self) -> None:
        refs.undo(self.repository, self.chance.choice(NAMES), actor=ADA)

    def redo(self) -> None:
        refs.redo(self.repository, self.chance.choice(NAMES), actor=ADA)

    def stage(self) -> None:
        """Put something, promise to keep it, and commit it with what others did meanwhile."""
        since = self.repository.log.refresh()
        data = b"%d" % self.chance.randrange(POOL) * 200
        with begin(self.repository, "main", pin=since) as transaction:
            link = transaction.objects.put(Kind.BLOB, data)
            transaction.objects.flush()
        lease = f"stage-{self.number}-{since.generation}-{self.chance.randrange(10**9)}"
        open_lease(
            self.repository,
            lease,
            [link.digest],
            since=since.generation,
            holder=ADA,
            note="staged",
            seconds=3600,
        )
        try:
            time.sleep(0)
            with begin(self.repository, "main") as transaction:
                entry = Entry(Kind.BLOB, link.digest)
                path = f"files/{self.number}/staged"
                transaction.stage(path, entry, since=since.generation)
                transaction.commit("staged", author=ADA)
        finally:
            close_leases(self.repository, [lease], holder=ADA)

    def delete(self) -> None:
        refs.delete_ref(self.repository, f"heads/{self.chance.choice('abc')}", actor=ADA)

    def checkpoint(self) -> None:
        """The two newest stay."""
        step = sum(1 for _ in range(self.done["checkpoint"])) + 1
        prefix = f"runs/r{self.number}/"
        transaction = begin_beside(self.repository, f"{prefix}{step:04}")
        with transaction:
            stage_files(transaction, {"files/w": b"%d" % self.chance.randrange(POOL) * 200})
            commit_beside(
                transaction,
                self.repository.log.refresh().state.refs.get("heads/main"),
                "checkpoint",
                author=ADA,
                drops=lambda view: sorted(ref for ref in view.state.refs if ref.startswith(prefix))[
                    :-1
                ],
            )

    def expire(self) -> None:
        rule = KeepRule(newest=self.chance.choice([1, 3, 8]))
        branch = self.chance.choice(NAMES)
        expire(self.repository, branch, rule, actor=ADA, now_ns=time.time_ns())


def collect(backend: Backend) -> None:
    """One collection that spares nothing, by somebody who remembers nothing."""
    collect_garbage(open_repository(backend, drivers={}), actor=ADA, rules=AT_ONCE)


def write(folder: Path, number: int, seed: int, until: float) -> Counter[str]:
    local = LocalState(pending=folder / "pending" / str(number))
    repository = open_repository(backend_at(folder), drivers={}, local=local)
    writer = CollectedWriter(repository, number, random.Random(f"{seed} {number}"))
    while time.monotonic() < until:
        writer.step()
    return writer.done


def collect_until(folder: Path, until: float) -> Counter[str]:
    """Collect until then, and until one collection came to its end."""
    done: Counter[str] = Counter()
    while time.monotonic() < until or not done["collected"]:
        try:
            collect(backend_at(folder))
        except (NotFoundError, CommitExpired):
            # A root was dropped, and another collection took what it led to. Whether anything
            # that is needed is gone is seen by the writers, and at the end.
            done["began anew"] += 1
        else:
            done["collected"] += 1
    return done


def main(folder: str, seconds: str, seed: str, writers: str) -> None:
    until = time.monotonic() + float(seconds)
    place = Path(folder)
    # A race needs time by the clock, and ten processes would take most of what the tests beside
    # them need: a fifth of it, and all that is idle, is enough to meet each other.
    os.nice(NICENESS if float(seconds) < PATIENT_SECONDS else 0)
    # Collectors first: on a busy machine the last one forked has little time beside the others.
    works: list[Callable[[], Counter[str]]] = [lambda: collect_until(place, until)] * 2
    works += [
        lambda number=number: write(place, number, int(seed), until)  # type: ignore[misc]
        for number in range(int(writers))
    ]
    children = []
    for number, work in enumerate(works):
        child = os.fork()
        if child == 0:
            try:
                (place / f"done-{number}").write_text(json.dumps(work()))
            except BaseException:  # noqa: BLE001  whatever it is, the parent tells it
                (place / f"failed-{number}").write_text(traceback.format_exc())
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    told = [json.loads(path.read_text()) for path in sorted(place.glob("done-*"))]
    failed = [path.read_text() for path in sorted(place.glob("failed-*"))]
    sys.stdout.write(json.dumps({"done": told, "failed": failed}))


if __name__ == "__main__":
    main(*sys.argv[1:])

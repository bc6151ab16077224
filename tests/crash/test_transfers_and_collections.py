"""Pushes and fetches beside a collector without grace: nothing that a ref names is ever missing."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import CommitExpired, NotFoundError
from tensorrepo.repo.transfer.exchange import fetch, push
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, files_at, new_repository, tip_of
from tests.support.effort import soaking

PEOPLE = 3
ROUNDS = 30 if soaking() else 3
WITHOUT_GRACE = CollectionRules(grace_seconds=0, retention_seconds=0)


class Team:
    """People who push to one repository, and its collector, each on a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.target = LocalBackend(folder / "target")
        self.failures: list[BaseException] = []
        self.pushed = self.collected = 0
        self.over = threading.Event()
        new_repository(self.target)

    def run(self) -> None:
        people = [
            threading.Thread(target=self._guarded, args=(self.work, n)) for n in range(PEOPLE)
        ]
        collector = threading.Thread(target=self._guarded, args=(self.collect, 0))
        for thread in (*people, collector):
            thread.start()
        for thread in people:
            thread.join()
        self.over.set()
        collector.join()

    def work(self, number: int) -> None:
        """Push what shares content with others, read it back, drop it again."""
        chance, branch = random.Random(number), f"b{number}"
        here = new_repository(LocalBackend(self.folder / branch))
        options = TransferOptions(f"P{number} <p@example.org>", self.folder / "parts")
        for at in range(ROUNDS):
            there = open_repository(self.target, drivers={})
            files = {f"files/{chance.randrange(6)}": b"%d" % chance.randrange(8) for _ in "abc"}
            commit_files(here, files | {"files/at": b"%d" % at})
            try:
                push(here, there, [f"main:{branch}"], options)
            except CommitExpired:  # collected again and again: nothing was pushed
                continue
            self.pushed += 1
            assert files_at(there, tip_of(there, branch)) == files_at(here, tip_of(here))
            if chance.random() < 0.3:
                self.bring(HistorySource.of(there), here, options)
            if chance.random() < 0.5:
                push(here, there, [f":{branch}"], options)

    def bring(self, source: HistorySource, here: RepositoryCore, options: TransferOptions) -> None:
        """Fetch all; others may drop, and the collector take, what is being fetched."""
        try:
            fetch(source, here, "team", options, prune=True)
        except (CommitExpired, NotFoundError):
            return

    def collect(self, _: int) -> None:
        while not self.over.is_set():
            repository = open_repository(self.target, drivers={})
            collect_garbage(repository, actor="G <g@example.org>", rules=WITHOUT_GRACE)
            self.collected += 1

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as failure:  # noqa: BLE001  told by the test
            self.failures.append(failure)
            self.over.set()


def test_what_was_pushed_is_whole_whatever_is_collected_meanwhile(tmp_path: Path) -> None:
    team = Team(tmp_path)
    team.run()
    assert team.failures == []
    assert team.pushed
    assert team.collected
    verify(team.target)

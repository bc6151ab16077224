"""Writers that are killed lose nothing that they called done, and are in nobody's way."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorrepo.repo.backends.disk import TEMPORARY, Disk
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import resolve
from tensorrepo.repo.log.rewind_guard import Pending
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, files_at, new_repository, tip_of
from tests.support.effort import soaking
from tests.support.processes.forked_python import run_python
from tests.support.servers.sql_logs import backend_at, note_log

ROOT = Path(__file__).parents[2]
ROUNDS = 200 if soaking() else 6


@dataclass(frozen=True)
class Aftermath:
    """What is there when all writers are dead, and what each of them called done."""

    folder: Path
    repository: RepositoryCore
    history: dict[Digest, Commit]
    told: list[list[Digest]]

    def unsaid(self) -> list[Commit]:
        """Commits that nobody lived to tell of."""
        said = {digest for each in self.told for digest in each}
        found = self.history.items()
        return [commit for digest, commit in found if digest not in said and commit.parents]


def kill_writers(folder: Path, rounds: int) -> Aftermath:
    backend = backend_at(folder)
    commit_files(new_repository(backend), {"files/first": b"first"})
    module = "tests.support.faults.killed_writers"
    done = run_python("-m", module, folder, str(rounds), "1", timeout_seconds=7200)
    repository = open_repository(backend, drivers={})
    tip = tip_of(repository)
    assert tip is not None
    history = dict(walk(repository.objects, [tip]))
    return Aftermath(folder, repository, history, json.loads(done.stdout))


@pytest.mark.parametrize(
    ("log", "rounds"),
    [
        ("store", ROUNDS),
        ("sqlite", ROUNDS // 3),
        pytest.param("postgresql", ROUNDS, marks=pytest.mark.soak),
    ],
)
def test_what_a_killed_writer_called_done_is_there_whole(
    tmp_path: Path, log: str, rounds: int, log_at: Callable[[str], str | None]
) -> None:
    note_log(tmp_path, log_at(log))
    after = kill_writers(tmp_path, rounds)
    said = [digest for each in after.told for digest in each]
    assert said  # else they were killed before they did anything
    assert set(said) <= after.history.keys()
    verify(after.repository.backend)
    check_files(after)
    check_unsaid(after)
    check_notes(after)
    check_temporaries(after)


def check_files(after: Aftermath) -> None:
    """Every commit that is there has all of its files, and there are no others."""
    expected = {"files/first"}
    for commit in after.history.values():
        if commit.parents:
            number, at = map(int, commit.message.split())
            names = ("a", "b", "c", "large") if at % 3 == 2 else ("a", "b", "c")
            expected |= {f"files/{number}/{at}-{name}" for name in names}
    assert files_at(after.repository, tip_of(after.repository)).keys() == expected


def check_unsaid(after: Aftermath) -> None:
    """Of each writer at most the commit that it was at is there without its saying so."""
    writers = Counter(commit.message.split()[0] for commit in after.unsaid())
    assert set(writers.values()) <= {1}


def check_notes(after: Aftermath) -> None:
    """What a writer left a note about can be resolved; what landed is among the unsaid."""
    landed = 0
    for number in range(ROUNDS):
        notes = Pending(after.folder / "pending" / str(number)).unresolved()
        assert len(notes) <= 1
        for note in notes:
            outcome = resolve(after.repository.log, note.txn, note.generation, settle=True)
            assert outcome in ("landed", "lost")
            landed += outcome == "landed"
    # Not each: a writer may also die between removing its note and saying so.
    assert landed <= len(after.unsaid())


def check_temporaries(after: Aftermath) -> None:
    """What they left half-written is no key of the store, and a later writer sweeps it."""
    backend = after.repository.backend
    root = after.folder / "store"
    assert not [stored for stored in backend.list("") if stored.key.startswith(TEMPORARY)]
    tomorrow = Disk(root, clock=lambda: time.time() + 86_400)
    LocalBackend(root, disk=tomorrow).create("probe", (b"",))
    assert list((root / TEMPORARY).iterdir()) == []

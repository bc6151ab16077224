"""Whenever a writer dies, readers see the state before or after, whole, and others go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tensorrepo.repo.append import resolve
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.repo.repository import open_repository
from tests.support.faults import Crash, CrashBackend, WrappedBackend
from tests.support.histories import CHANGES, copied, history, snapshot, verify
from tests.support.repositories import BOB, commit_files

if TYPE_CHECKING:
    from pathlib import Path

    from tensorrepo.repo.backends.base import Backend
    from tensorrepo.repo.repository import Repository

MEMORY = MemoryBackend()
history(MEMORY)
BEFORE = snapshot(MEMORY)


def warm(backend: WrappedBackend) -> Repository:
    """A repository that has read the log; its backend counts operations from here."""
    repository = open_repository(backend, drivers={})
    repository.log.refresh()
    backend.operations.clear()
    return repository


def operations_of(change: str, *, late: bool) -> int:
    backend = WrappedBackend(copied(MEMORY), late=late)
    CHANGES[change](warm(backend))
    return len(backend.operations)


def places(*changes: str, late: tuple[bool, ...] = (False, True)) -> list[tuple[str, bool, int]]:
    """Changes with the number of every operation of theirs (of many, some), 0 for before it."""
    found = []
    for change in changes:
        for each in late:
            count = operations_of(change, late=each)
            found += [(change, each, at) for at in range(0, count + 1, 1 + count // 40)]
    return found


def after(change: str) -> dict[str, dict[str, bytes]]:
    """What the change makes of the history, when nothing goes wrong."""
    backend = copied(MEMORY)
    CHANGES[change](open_repository(backend, drivers={}))
    return snapshot(backend)


AFTER = {change: after(change) for change in CHANGES}


def crash(backend: Backend, change: str, at: int, *, late: bool) -> CommitOutcomeUnknown | None:
    """Die after operation `at`; what the writer would have said, had it been asked."""
    dying = CrashBackend(backend, 10**9, late=late)
    repository = warm(dying)
    dying.die_after = at
    with pytest.raises((Crash, CommitOutcomeUnknown)) as died:
        CHANGES[change](repository)
    return died.value if isinstance(died.value, CommitOutcomeUnknown) else None


def check(backend: Backend, change: str, at: int, *, late: bool) -> None:
    unknown = crash(backend, change, at, late=late)
    verify(backend)
    seen = snapshot(backend)
    assert seen in (BEFORE, AFTER[change])
    if unknown is not None:
        log = open_repository(backend, drivers={}).log
        outcome = resolve(log, unknown.txn, unknown.generation, settle=True)
        assert outcome == ("landed" if seen == AFTER[change] else "lost")
    if seen == BEFORE:
        CHANGES[change](open_repository(backend, drivers={}))
    other = open_repository(backend, drivers={})
    commit_files(other, {"files/other": b"other"}, author=BOB)
    main = AFTER[change]["heads/main"] | {"files/other": b"other"}
    assert snapshot(backend) == AFTER[change] | {"heads/main": main}
    verify(backend)


@pytest.mark.parametrize(("change", "late", "at"), places(*CHANGES))
def test_a_writer_that_dies_leaves_the_old_state_or_the_new(
    change: str, at: int, *, late: bool
) -> None:
    check(copied(MEMORY), change, at, late=late)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    folder = tmp_path_factory.mktemp("history") / "store"
    for stored in MEMORY.list(""):
        (folder / stored.key).parent.mkdir(parents=True, exist_ok=True)
        (folder / stored.key).write_bytes(MEMORY.read(stored.key))
    return LocalBackend(folder)


@pytest.mark.parametrize(("change", "late", "at"), places("commit", "merge", "branch"))
def test_so_it_is_on_a_disk(
    on_disk: LocalBackend, tmp_path: Path, change: str, at: int, *, late: bool
) -> None:
    check(copied(on_disk, tmp_path / "store"), change, at, late=late)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_acknowledged_stays_whatever_dies_later(change: str) -> None:
    """The next writer dies right after its record, with no hint and no checkpoint written."""
    backend = copied(MEMORY)
    CHANGES[change](open_repository(backend, drivers={}))
    whole = WrappedBackend(copied(backend))
    commit_files(warm(whole), {"files/z": b"z"}, branch="other")
    dying = CrashBackend(backend, 10**9)
    repository = warm(dying)
    dying.die_after = 1 + [verb for verb, _ in whole.operations].index("create")
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        commit_files(repository, {"files/z": b"z"}, branch="other")
    assert snapshot(backend) == AFTER[change] | {"heads/other": {"files/z": b"z"}}

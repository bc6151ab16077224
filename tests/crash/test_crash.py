"""Whenever a writer dies, readers see the state before or after, whole, and others go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import CommitOutcomeUnknown
from tensorrepo.repo.log.append import resolve
from tests.support.builders.histories import CHANGES, copied, harm, snapshot, to_disk, verify, warm
from tests.support.builders.repositories import BOB, commit_files
from tests.support.effort import check_each, sampled
from tests.support.faults.backends import Crash, CrashBackend, WrappedBackend


def with_none(places: list[tuple[str, bool, int]]) -> list[tuple[str, bool, int]]:
    """Also before the first operation."""
    return sorted({(change, late, 0) for change, late, _ in places}) + places


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
    assert seen in (harm().before, harm().after[change])
    if unknown is not None:
        log = open_repository(backend, drivers={}).log
        outcome = resolve(log, unknown.txn, unknown.generation, settle=True)
        assert outcome == ("landed" if seen == harm().after[change] else "lost")
    if seen == harm().before:
        CHANGES[change](open_repository(backend, drivers={}))
    other = open_repository(backend, drivers={})
    commit_files(other, {"files/other": b"other"}, author=BOB)
    main = harm().after[change]["heads/main"] | {"files/other": b"other"}
    assert snapshot(backend) == harm().after[change] | {"heads/main": main}
    verify(backend)


@pytest.mark.parametrize("change", sampled(list(CHANGES), 6))
def test_a_writer_that_dies_leaves_the_old_state_or_the_new(change: str) -> None:
    def dies(place: tuple[str, bool, int]) -> None:
        check(copied(harm().backend), change, place[2], late=place[1])

    check_each(with_none(harm().places(change)), dies)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    return to_disk(harm().backend, tmp_path_factory.mktemp("history"))


@pytest.mark.soak
def test_so_it_is_on_a_disk(on_disk: LocalBackend, tmp_path: Path) -> None:
    def dies(place: tuple[str, bool, int]) -> None:
        change, late, at = place
        check(copied(on_disk, tmp_path / f"{change} {late} {at}"), change, at, late=late)

    places = with_none(harm().places("commit", "merge", "branch", disk=True))
    check_each(sampled(places, 5), dies)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_was_acknowledged_stays_whatever_dies_later(change: str) -> None:
    """The next writer dies right after its record, with no hint and no checkpoint written."""
    backend = copied(harm().backend)
    CHANGES[change](open_repository(backend, drivers={}))
    whole = WrappedBackend(copied(backend))
    commit_files(warm(whole), {"files/z": b"z"}, branch="other")
    dying = CrashBackend(backend, 10**9)
    repository = warm(dying)
    dying.die_after = 1 + [verb for verb, _ in whole.operations].index("create")
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        commit_files(repository, {"files/z": b"z"}, branch="other")
    assert snapshot(backend) == harm().after[change] | {"heads/other": {"files/z": b"z"}}

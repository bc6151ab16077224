"""A request whose reply is lost makes no commit twice, and none that was not acknowledged so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitOutcomeUnknown, Error, StorageError
from tensorrepo.repo.log.append import resolve
from tests.support.builders.histories import CHANGES, copied, harm, snapshot, to_disk, verify, warm
from tests.support.builders.repositories import ADA, stage_files
from tests.support.effort import check_each, sampled, sampled_product
from tests.support.faults.backends import Loss, LostReplyBackend, WrappedBackend

LOSSES: tuple[Loss, ...] = ("before", "after", "later", "twice")
TRIED = ("commit", "commit on a branch that moved", "merge", "branch")


def records(backend: Backend) -> int:
    """How many records the log has got since the history was made, noops apart."""
    log = open_repository(backend, drivers={}).log
    head = open_repository(harm().backend, drivers={}).log.refresh().generation
    found = list(log.records(head + 1, log.refresh().generation + 1))
    return sum(any(entry.kind != "noop" for entry in record.entries) for record in found)


def attempt(
    act: Callable[[RepositoryCore], None], failing: LostReplyBackend, at: int
) -> Error | None:
    """What the client is told when reply `at` is lost."""
    repository = warm(failing)
    failing.at = at
    try:
        act(repository)
    except Error as error:
        return error
    return None


def settle(backend: Backend, error: Error | None) -> str:
    """What became of it: told, or resolved."""
    if error is None:
        return "landed"
    if not isinstance(error, CommitOutcomeUnknown):
        assert isinstance(error, StorageError), "a lost reply is no conflict"
        return "lost"
    log = open_repository(backend, drivers={}).log
    return resolve(log, error.txn, error.generation, settle=True)


def check(backend: Backend, change: str, at: int, loss: Loss, *, late: bool) -> None:
    failing = LostReplyBackend(backend, 10**9, loss, late=late)
    error = attempt(CHANGES[change], failing, at)
    outcome = settle(backend, error)
    failing.settle()  # what was still on its way arrives now
    landed = outcome == "landed"
    assert outcome in ("landed", "lost")
    assert snapshot(backend) == (harm().after[change] if landed else harm().before)
    assert records(backend) == landed
    verify(backend)
    if not landed:
        CHANGES[change](open_repository(backend, drivers={}))
    assert snapshot(backend) == harm().after[change]
    assert records(backend) == 1


@sampled_product("change,loss", TRIED, LOSSES, dev=8)
def test_no_commit_is_made_twice_and_none_is_lost_that_was_acknowledged(
    change: str, loss: Loss
) -> None:
    def loses(place: tuple[str, bool, int]) -> None:
        check(copied(harm().backend), change, place[2], loss, late=place[1])

    check_each(harm().places(change), loses)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    return to_disk(harm().backend, tmp_path_factory.mktemp("history"))


@pytest.mark.soak
@pytest.mark.parametrize("loss", sampled(LOSSES, 2))
def test_so_it_is_on_a_disk(on_disk: LocalBackend, tmp_path: Path, loss: Loss) -> None:
    def loses(place: tuple[str, bool, int]) -> None:
        change, late, at = place
        check(copied(on_disk, tmp_path / f"{late} {at}"), change, at, loss, late=late)

    check_each(sampled(harm().places("commit", disk=True), 4), loses)


@pytest.mark.parametrize("loss", sampled(LOSSES, 2))
def test_a_transaction_that_is_committed_again_is_whole_or_refused(loss: Loss) -> None:
    """Nobody should, after an error; who does must not get a commit that lacks an object."""

    def act(repository: RepositoryCore) -> None:
        transaction = begin(repository, "main")
        for _ in range(2):
            try:
                stage_files(transaction, {"files/new": b"new", "files/b": None})
                transaction.commit("change", author=ADA)
            except StorageError:
                continue
            return

    def loses(place: tuple[str, bool, int]) -> None:
        change, late, at = place
        backend = copied(harm().backend)
        failing = LostReplyBackend(backend, 10**9, loss, late=late)
        attempt(act, failing, at)
        failing.settle()
        assert snapshot(backend) in (harm().before, harm().after[change])
        verify(backend)

    check_each(harm().places("commit"), loses)


def test_a_store_that_never_answers_again_leaves_the_outcome_unknown() -> None:
    """Not a conflict: the record may be on its way."""
    backend = copied(harm().backend)

    class Silent(WrappedBackend):
        deaf = False

        def step(self, verb: str, key: str, work: Callable[[], object]) -> object:  # type: ignore[override]
            self.deaf = self.deaf or (verb == "create" and key.startswith("log/0"))
            if self.deaf:
                raise StorageError("no route to host")
            return super().step(verb, key, work)

    repository = warm(Silent(backend))
    with pytest.raises(CommitOutcomeUnknown) as caught:
        CHANGES["commit"](repository)
    log = open_repository(backend, drivers={}).log
    assert resolve(log, caught.value.txn, caught.value.generation, settle=False) == "unknown"
    assert resolve(log, caught.value.txn, caught.value.generation, settle=True) == "lost"
    assert snapshot(backend) == harm().before

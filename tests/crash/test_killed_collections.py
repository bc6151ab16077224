"""Collections that are killed, interrupted or answered wrongly take nothing; others end them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.gc_collect import (
    CollectionRules,
    collect_garbage,
    plan_collection,
)
from tensorrepo.repo.changes.repository import LocalState, RepositoryCore, open_repository
from tensorrepo.repo.errors import CommitOutcomeUnknown, Error
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of
from tests.support.effort import sampled, soaking
from tests.support.faults.backends import ActedOnBackend, Loss, LostReplyBackend
from tests.support.processes.forked_python import run_python
from tests.support.servers.object_stores import Bucket, s3_on_ours

AT_ONCE = CollectionRules(grace_seconds=0, retention_seconds=0)
LOSSES: tuple[Loss, ...] = ("before", "after", "later", "twice")
MOST_OPERATIONS = 60
ROUNDS = 300 if soaking() else 6


def interrupt(_: Backend) -> None:
    raise KeyboardInterrupt


def litter(backend: Backend) -> Backend:
    """A repository with one commit that is kept, three that nothing leads to, and leftovers."""
    repository = new_repository(backend)
    commit_files(repository, {"files/a": b"kept"})
    for at in range(3):
        commit_files(repository, {"files/dropped": b"%d" % at}, branch="dead")
        refs.delete_ref(repository, "heads/dead", actor=ADA)
    return backend


@cache
def _littered() -> MemoryBackend:
    made = MemoryBackend()
    litter(made)
    return made


def collect(repository: RepositoryCore) -> None:
    collect_garbage(repository, actor=ADA, rules=AT_ONCE)


def check_next(backend: Backend) -> None:
    """What is needed is there; the next collection ends all, and nothing is left over."""
    verify(backend)
    repository = open_repository(backend, drivers={})
    collect(repository)
    verify(backend)
    assert all(grave.ended for grave in repository.log.refresh().state.graves)
    assert plan_collection(repository, rules=AT_ONCE).dead_objects == 0
    tip = tip_of(repository)
    assert tip is not None
    assert files_at(repository, tip)["files/a"] == b"kept"


@pytest.mark.parametrize("at", sampled(range(1, MOST_OPERATIONS), 4))
def test_ctrl_c_at_any_operation_leaves_a_handle_that_collects_the_rest(
    at: int, tmp_path: Path
) -> None:
    backend = copied(_littered())
    interrupted = ActedOnBackend(backend, at, interrupt)
    with suppress(KeyboardInterrupt, CommitOutcomeUnknown):
        local = LocalState(pending=tmp_path / "pending")
        repository = open_repository(interrupted, drivers={}, local=local)
        try:
            collect(repository)
        finally:
            notes = {note.name for note in (tmp_path / "pending").glob("*")}
            assert notes <= {"blank"}, "there is nothing to resolve"  # what notes are links to
            collect(repository)
    check_next(backend)


@pytest.mark.parametrize("mode", LOSSES)
@pytest.mark.parametrize("at", sampled(range(1, MOST_OPERATIONS), 3))
def test_an_answer_that_is_lost_at_any_operation_costs_a_repetition_at_most(
    at: int, mode: Loss
) -> None:
    backend = copied(_littered())
    failing = LostReplyBackend(backend, at, mode)
    with suppress(Error):
        collect(open_repository(failing, drivers={}))
    failing.settle()
    check_next(backend)


@pytest.mark.soak
def test_collectors_that_are_killed_beside_a_writer_take_nothing(tmp_path: Path) -> None:
    store = LocalBackend(tmp_path / "store")
    commit_files(new_repository(store), {"files/a": b"kept"})
    module = "tests.support.faults.killed_collectors"
    told = run_python("-m", module, tmp_path, str(ROUNDS), "1", timeout_seconds=7200)
    ends = json.loads(told.stdout)
    assert set(ends) == {"killed", "interrupted"}, told.stderr
    verify(store)
    repository = open_repository(store, drivers={})
    collect(repository)
    verify(store)
    assert all(grave.ended for grave in repository.log.refresh().state.graves)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_on_ours(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.mark.parametrize("seed", sampled(range(40), 2))
def test_a_bucket_that_fails_now_and_then_loses_nothing_by_collections(
    bucket: Bucket, seed: int
) -> None:
    server, chance = bucket.server, random.Random(seed)
    assert server is not None
    store = litter(open_backend(f"{bucket.url}/{seed}", environment=bucket.environment))
    told: list[tuple[str, int, int]] = []

    def fault(*_: str) -> str | None:
        if chance.random() > 0.15:
            return None
        what = chance.choice(["500", "503", "429", "drop"])
        return f"{what} {chance.choice(['before', 'after'])}"

    server.fault = fault
    try:
        with suppress(Error):
            collect_garbage(
                open_repository(store, drivers={}),
                actor=ADA,
                rules=AT_ONCE,
                progress=lambda *each: told.append(each),
            )
    finally:
        server.fault = lambda *_: None
    check_next(store)
    assert told, "a collection of a bucket tells how far it is"

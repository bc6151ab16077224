"""Clocks that are wrong by a day lose nothing: no decision hangs on them."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.objects.incarnations import parse_object_key
from tests.support.architecture.sources import ROOT
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, commit_files, new_repository, stage_files
from tests.support.effort import soaking

DAY_SECONDS = 86_400
WRITERS = 8 if soaking() else 2
SECONDS = 60 if soaking() else 1


def test_processes_whose_clocks_differ_by_days_lose_nothing(tmp_path: Path) -> None:
    """Writers a day late and early beside collectors without grace; the store's own is right."""
    commit_files(new_repository(LocalBackend(tmp_path / "store")), {"files/first": b"first"})
    roles = ["write"] * WRITERS + ["collect"] * 2
    module = "tests.support.faults.skewed_clocks"
    command = [sys.executable, "-m", module, str(tmp_path), str(SECONDS), str(DAY_SECONDS), *roles]
    told = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout.split()
    assert len(told) == len(roles)
    assert all(int(done) for done in told)
    verify(LocalBackend(tmp_path / "store"))


def collect_by_age(backend: Backend, clock: float) -> None:
    """What others do: delete what nothing leads to, and what is older than an hour."""
    repository = open_repository(backend, drivers={})
    state = repository.log.refresh().state
    reached = set(gc_fence.closure(repository.objects, state.roots(), state.supersedes))
    for stored in [*backend.list("objects/")]:
        parsed, modified = parse_object_key(stored.key), stored.modified_seconds or 0
        if parsed is not None and parsed[0] not in reached and modified < clock - 3600:
            backend.delete(stored.key)


def commit_beside_collection(clock: float) -> Backend:
    """A commit whose objects lay about while such a collector came by."""
    backend = MemoryBackend()
    with begin(new_repository(backend), "main") as transaction:
        stage_files(transaction, {"files/a": b"one"})
        transaction.objects.flush()
        collect_by_age(backend, clock)
        transaction.commit("change", author=ADA)
    return backend


def test_a_collector_that_trusts_its_clock_is_caught() -> None:
    verify(commit_beside_collection(time.time()))
    with pytest.raises(NotFoundError):
        verify(commit_beside_collection(time.time() + DAY_SECONDS))

"""Writers beside collections without any grace: nothing that a ref leads to is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.gc_collect import plan_collection
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import CommitExpired, NotFoundError
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, new_repository
from tests.support.effort import sampled, soaking
from tests.support.faults.collected_writers import (
    AT_ONCE,
    CollectedWriter,
    CollectingBackend,
    collect,
)
from tests.support.processes.forked_python import run_python
from tests.support.servers.sql_logs import backend_at, note_log

SECONDS = 600 if soaking() else 1
STEPS = 25 if soaking() else 12  # after each of them all is read


@pytest.mark.parametrize("seed", sampled(range(40), 1))
def test_a_collection_between_any_two_operations_of_writers_takes_nothing(seed: int) -> None:
    backend, chance = MemoryBackend(), random.Random(seed)
    commit_files(new_repository(backend), {"files/first": b"first"})
    collecting = CollectingBackend(backend, chance, share=0.1)
    writers = [
        CollectedWriter(open_repository(collecting, drivers={}), number, chance)
        for number in range(3)
    ]
    for _ in range(STEPS):
        chance.choice(writers).step()
        verify(backend)
    assert collecting.collections > STEPS / 3


def test_collections_beside_writers_at_once_take_nothing() -> None:
    backend = MemoryBackend()
    commit_files(new_repository(backend), {"files/first": b"first"})
    writers = [
        CollectedWriter(open_repository(backend, drivers={}), number, random.Random(number))
        for number in range(4)
    ]

    def work(writer: CollectedWriter) -> None:
        for at in range(12):
            writer.step()
            if at % 4 == writer.number:
                # A root may be dropped, and another collection take what it led to.
                with suppress(NotFoundError, CommitExpired):
                    collect(backend)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, writers))
    verify(backend)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "log",
    [
        "store",
        pytest.param("sqlite", marks=pytest.mark.soak),
        pytest.param("postgresql", marks=pytest.mark.soak),
    ],
)
def test_eight_processes_write_while_two_collect_and_nothing_dangles(
    tmp_path: Path, log: str, log_at: Callable[[str], str | None]
) -> None:
    note_log(tmp_path, log_at(log))
    store = backend_at(tmp_path)
    commit_files(new_repository(store), {"files/first": b"first"})
    module = "tests.support.faults.collected_writers"
    told = run_python("-m", module, tmp_path, str(SECONDS), "1", "8", timeout_seconds=900)
    report = json.loads(told.stdout)
    assert report["failed"] == []
    assert sum(done.get("collected", 0) for done in report["done"]) >= SECONDS / 6
    verify(store)
    collect(store)
    collect(store)  # what the first one replaced, where it merged tables of graves
    verify(store)
    left = plan_collection(open_repository(store, drivers={}), rules=AT_ONCE)
    assert (left.dead_objects, left.young_objects, left.foreign_count) == (0, 0, 0)

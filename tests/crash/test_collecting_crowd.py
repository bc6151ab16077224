"""Processes that write beside others that collect without any grace: nothing dangles."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tensorrepo.repo.changes.gc_collect import plan_collection
from tensorrepo.repo.changes.repository import open_repository
from tests.support.builders.histories import verify
from tests.support.builders.repositories import commit_files, new_repository
from tests.support.effort import soaking
from tests.support.faults.collected_writers import AT_ONCE, collect
from tests.support.processes.forked_python import run_python
from tests.support.servers.sql_logs import backend_at, note_log

pytestmark = pytest.mark.long

SECONDS = 600 if soaking() else 20  # a race needs time by the clock, and workers wait for nobody
WRITERS, COLLECTORS = 8, 2


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
    told = run_python("-m", module, tmp_path, str(SECONDS), "1", str(WRITERS), timeout_seconds=900)
    report = json.loads(told.stdout)
    assert report["failed"] == []
    assert len(report["done"]) == WRITERS + COLLECTORS  # one that crashed says nothing
    assert sum(done.get("collected", 0) for done in report["done"]) >= 1
    verify(store)
    collect(store)
    collect(store)  # what the first one replaced, where it merged tables of graves
    verify(store)
    left = plan_collection(open_repository(store, drivers={}), rules=AT_ONCE)
    assert (left.dead_objects, left.young_objects, left.foreign_count) == (0, 0, 0)

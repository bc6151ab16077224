"""Processes that commit to one folder at the same time lose nothing and do not starve."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tensorrepo.repo.history.commits import walk
from tests.support.builders.histories import verify
from tests.support.builders.repositories import (
    again,
    commit_files,
    files_at,
    new_repository,
    tip_of,
)
from tests.support.effort import soaking
from tests.support.processes.forked_python import start_python
from tests.support.servers.sql_logs import backend_at, note_log

ROOT = Path(__file__).parents[2]
COMMITS = 24 if soaking() else 4


def race(folder: Path, writers: int) -> list[list[int]]:
    """Let so many processes commit at once; for each, how often it tried each commit."""
    module = "tests.support.faults.racing_writers"
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                start_python("-m", module, folder, str(number), str(COMMITS), takes_input=True)
            )
            for number in range(writers)
        ]
        for process in running:
            assert process.stdout.readline() == "ready\n"
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        return [json.loads(process.communicate()[0])[0] for process in running]


@pytest.mark.parametrize(
    ("writers", "log"),
    [
        (2, "postgresql"),
        pytest.param(2, "store", marks=pytest.mark.soak),
        pytest.param(8, "store", marks=pytest.mark.soak),
        pytest.param(8, "sqlite", marks=pytest.mark.soak),
        pytest.param(8, "postgresql", marks=pytest.mark.soak),
    ],
)
def test_writers_of_disjoint_paths_lose_nothing(
    tmp_path: Path,
    writers: int,
    log: str,
    log_at: Callable[[str], str | None],
    record_property: Callable[[str, object], None],
) -> None:
    note_log(tmp_path, log_at(log))
    repository = new_repository(backend_at(tmp_path))
    commit_files(repository, {"files/first": b"first"})
    attempts = race(tmp_path, writers)
    reader = again(repository)
    tip = tip_of(reader)
    assert tip is not None
    assert files_at(reader, tip) == {"files/first": b"first"} | {
        f"files/{number}/{at}": f"{number} {at}".encode()
        for number in range(writers)
        for at in range(COMMITS)
    }
    assert len(list(walk(reader.objects, [tip]))) == 1 + writers * COMMITS
    verify(repository.backend)
    tried = [each for writer in attempts for each in writer]
    average = sum(tried) / len(tried)
    record_property("attempts_per_commit", average)
    record_property("most_attempts", max(tried))

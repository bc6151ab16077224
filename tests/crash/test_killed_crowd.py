"""Processes that write, collect, push and fetch are killed: what they called done is there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.architecture.sources import ROOT
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, commit_files, new_repository
from tests.support.effort import soaking

KILLS = 2000 if soaking() else 20


@dataclass(frozen=True)
class Ended:
    """What the dead had called done, how they failed, and the commits that are there."""

    told: list[str]
    failed: list[str]
    there: set[str]


def kill_crowd(place: Path, kills: int, mode: str) -> Ended:
    store = new_repository(LocalBackend(place / "store"))
    commit_files(store, {"files/first": b"first"})
    options = TransferOptions(ADA, place / "parts")
    for name in ("here", "copy"):
        copy = new_repository(LocalBackend(place / name))
        clone(HistorySource.of(store), copy, "origin", options)
    module = "tests.support.faults.killed_crowd"
    command = [sys.executable, "-m", module, str(place), str(kills), "1", mode]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    report = json.loads(done.stdout)
    state = store.log.refresh().state
    tips = [commit for ref, commit in state.refs.items() if ref in ("heads/main", "heads/pushed")]
    there = {commit.message for _, commit in walk(store.objects, tips)}
    return Ended(report["told"], report["failed"], there)


@pytest.mark.timeout(7200)
def test_what_the_killed_called_done_is_there_and_all_is_whole(tmp_path: Path) -> None:
    ended = kill_crowd(tmp_path, KILLS, "")
    assert ended.failed == []
    counts = Counter(ended.told)
    assert counts.pop("collected")
    assert counts.pop("fetched")
    assert counts
    assert counts.keys() <= ended.there
    for name in ("store", "here", "copy"):
        backend = LocalBackend(tmp_path / name)
        verify(backend)
        repository = open_repository(backend, drivers={})
        state = repository.log.refresh().state
        assert list(check_objects(repository.objects, state, ObjectTotals(), deep=True)) == []


def test_who_calls_done_what_is_not_is_caught(tmp_path: Path) -> None:
    ended = kill_crowd(tmp_path, 12, "early")
    assert not set(ended.told) - {"collected", "fetched"} <= ended.there

"""Stores for benchmarks, and processes that begin at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.this_machine import machine
from tensorrepo.workloads.place import BenchPlace, bench_place
from tests.support.processes.forked import fork_streams


@pytest.fixture
def place(tmp_path: Path) -> BenchPlace:
    """Where benchmarks of a folder keep their data."""
    return bench_place(str(tmp_path / "store"), machine())


@pytest.fixture
def fast_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are forked from a process that has imported what they need."""
    fork_streams(monkeypatch)

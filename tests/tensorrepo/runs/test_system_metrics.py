"""A run knows what its machine did, without being asked and without being disturbed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo.runs.system_metrics import MachineUse, SystemSampler, busy_share, memory_bytes

FRESH = iter(range(1000))


@pytest.fixture
def repository() -> tr.Repository:
    return tr.init(f"memory://system-{os.getpid()}-{next(FRESH)}", author="Ada <ada@example.org>")


def sampler_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "tensorrepo-system"]


def wait_until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        time.sleep(0.005)


@pytest.mark.timeout(120)
def test_a_run_samples_its_machine_beside_what_it_logs(repository: tr.Repository) -> None:
    with repository.run("exp1", system_seconds=0.01) as run:
        run.log_metric("loss", 1.0, 0)
        assert run._writer is not None
        book = run._writer.logbook
        wait_until(lambda: book.waiting > 10)
    found = repository.runs()["exp1"].metrics
    names = {"cpu_percent", "memory_gib", "process_cpu_percent", "process_memory_gib"}
    assert {f"system/{name}" for name in names} | {"loss"} <= found.keys()
    assert 0 <= found["system/cpu_percent"] <= 100
    assert 0 < found["system/process_memory_gib"] <= found["system/memory_gib"]


def test_steps_are_seconds_since_the_run_began() -> None:
    told: list[int] = []
    now = iter(range(15 * 10**9, 10**12, 10**9))
    sampler = SystemSampler(
        lambda _, step: told.append(step), 5 * 10**9, every_seconds=0.01, clock=lambda: next(now)
    )
    sampler.start()
    wait_until(lambda: len(told) > 2)
    sampler.stop()
    assert told[:3] == [10, 11, 12]


def test_a_run_that_asks_for_none_has_none_and_no_thread(repository: tr.Repository) -> None:
    with repository.run("exp1", system_seconds=None) as run:
        assert sampler_threads() == []
        run.log_metric("loss", 1.0)
    assert [*repository.runs()["exp1"].metrics] == ["loss"]


def test_no_thread_is_left_when_a_run_ends(repository: tr.Repository) -> None:
    with repository.run("exp1", system_seconds=0.01):
        assert len(sampler_threads()) == 1
    assert sampler_threads() == []


@pytest.mark.parametrize("seconds", [0, -1, True, "10", float("nan"), float("inf")])
def test_a_pause_that_is_none_is_refused(repository: tr.Repository, seconds: float) -> None:
    with pytest.raises(tr.InvalidInputError, match="system_seconds"):
        repository.run("exp1", system_seconds=seconds)


def test_a_machine_that_tells_nothing_is_told_by_nothing_but_its_process(tmp_path: Path) -> None:
    assert {name for name, _ in MachineUse(tmp_path).sample()} == {"process_cpu_percent"}


def test_files_of_the_kernel_that_are_not_as_expected_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  one two\n")
    (tmp_path / "meminfo").write_text("MemTotal: many kB\n")
    assert {name for name, _ in MachineUse(tmp_path).sample()} == {"process_cpu_percent"}


def test_the_busy_share_counts_neither_idling_nor_waiting_for_a_disk() -> None:
    assert busy_share([0] * 8, [10, 0, 10, 50, 30, 0, 0, 0]) == pytest.approx(0.2)
    assert busy_share([5] * 8, [5] * 8) is None


@given(
    st.lists(st.integers(0, 2**60), min_size=8, max_size=8),
    st.lists(st.integers(0, 2**60), min_size=8, max_size=8),
)
def test_the_busy_share_is_a_share_whatever_the_kernel_counts(
    before: list[int], after: list[int]
) -> None:
    share = busy_share(before, after)
    assert share is None or 0 <= share <= 1


def test_memory_is_told_in_bytes() -> None:
    text = "MemTotal:       2048 kB\nHugePages_Total:       0\nMemAvailable:   1024 kB\n"
    assert memory_bytes(text) == {"MemTotal": 2 << 20, "MemAvailable": 1 << 20}


def test_plots_and_tables_of_runs_are_about_the_training(repository: tr.Repository) -> None:
    with repository.run("exp1", system_seconds=None) as run:
        run.log_metrics({"loss": 1.0, "system/cpu_percent": 50.0}, 0)
    assert [panel.get_title() for panel in repository.runs()["exp1"].plot().axes] == ["loss"]
    assert "system/" not in str(repository.runs())

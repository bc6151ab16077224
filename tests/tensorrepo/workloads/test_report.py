"""Utilisation and throughput, by hand and against DLIO's formula."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.workloads.accelerators import EpochTimes
from tensorrepo.workloads.report import (
    CheckpointReport,
    epoch_report,
    samples_per_second,
    spread,
    utilization,
)

TIMES = EpochTimes(
    began=100.0, seconds=10.0, loads=[3.0, 0.5, 0.5], computes=[1.0, 2.0, 2.0], cpu_seconds=0.5
)
STEP = 2.0


def test_the_first_step_is_left_out() -> None:
    # Of 10 s the first step took 4; of the other 6 s 4 were computed.
    assert utilization(TIMES, STEP) == pytest.approx(100 * 4 / 6)
    assert samples_per_second(TIMES, 30) == pytest.approx(2 * 30 / 6)


def test_who_never_waits_is_used_fully() -> None:
    busy = EpochTimes(0.0, 7.0, [1.0, 0.0, 0.0], [2.0, 2.0, 2.0], 0.0)
    assert utilization(busy, STEP) == pytest.approx(100)


def test_a_sleep_that_takes_longer_is_a_wait() -> None:
    slow = EpochTimes(0.0, 9.0, [1.0, 0.0, 0.0], [2.0, 3.0, 3.0], 0.0)
    assert utilization(slow, STEP) == pytest.approx(100 * 4 / 6)
    quick = EpochTimes(0.0, 6.9, [1.0, 0.0, 0.0], [2.0, 1.95, 1.95], 0.0)
    assert utilization(quick, STEP) == 100


def test_a_single_step_measures_nothing() -> None:
    one = EpochTimes(0.0, 3.0, [1.0], [2.0], 0.0)
    assert (utilization(one, STEP), samples_per_second(one, 8)) == (0, 0)


def test_ranks_are_averaged_and_their_samples_added_up() -> None:
    other = EpochTimes(101.0, 9.0, [2.0, 0.0, 1.0], [2.0, 2.0, 2.0], 1.0)
    report = epoch_report(
        2,
        [TIMES, other],
        batch_size=30,
        step_seconds=STEP,
        sample_bytes=1 << 20,
        cache="dropped",
        cached_share=0.25,
    )
    assert report.utilization == pytest.approx((100 * 4 / 6 + 100 * 4 / 5) / 2)
    assert report.samples_per_second == pytest.approx(60 / 6 + 60 / 5)
    assert report.mib_per_second == pytest.approx(report.samples_per_second)
    assert (report.began, report.seconds, report.steps, report.epoch) == (100.0, 10.0, 3, 2)
    assert (report.first_batch_seconds, report.slowest_load_seconds) == (3.0, 1.0)
    assert report.cpu_seconds == 1.5
    assert report.step_seconds == pytest.approx(11 / 6)
    assert (report.cache, report.cached_share) == ("dropped", 0.25)


_SECONDS = st.floats(0.001, 10)


@given(loads=st.lists(_SECONDS, min_size=2, max_size=20), waits=_SECONDS, step=_SECONDS)
def test_utilisation_is_what_dlio_computes_where_sleeps_are_exact(
    loads: list[float], waits: float, step: float
) -> None:
    computes = [step] * len(loads)
    elapsed = sum(loads) + sum(computes) + waits
    # statscounter.py, compute_metrics_train, with metric_exclude_start_steps=1 and ..._end_steps=0
    proc = [load + step for load in loads]
    first, last = 1, len(loads) - 1
    total_time = elapsed - sum(proc[:first]) - sum(proc[last + 1 :])
    theirs = 100 * sum(computes[first : last + 1]) / total_time
    ours = utilization(EpochTimes(0.0, elapsed, loads, computes, 0.0), step)
    assert ours == pytest.approx(theirs)
    assert 0 < ours <= 100


def test_a_spread_is_that_of_all_values() -> None:
    assert spread([2.0, 4.0]).mean == 3.0
    assert spread([2.0, 4.0]).stdev == 1.0
    assert spread([5.0]).stdev == 0.0


def test_a_checkpoint_has_gib_of_tensors_by_the_time() -> None:
    report = CheckpointReport(1, 1 << 30, 2.0, 0.5, "dropped", None)
    assert (report.save_gib_per_second, report.load_gib_per_second) == (0.5, 2.0)

"""Reports of emulated workloads: utilisation of accelerators and throughput, as DLIO computes them.

    AU = steps * computation / elapsed         in percent, of each rank, without its first step

The computation of a step is the published time, as the rules of MLPerf Storage have it. DLIO takes
what its sleep took: where a busy machine, or threads that hold the interpreter, let a sleep take
longer, its accelerators are used more. Here that is a wait. DLIO also counts one step less than it
timed in its throughput (`compute_metrics_train`); here samples per second are the samples of the
steps that were timed, by their time.

Source:
    argonne-lcf/dlio_benchmark, commit e1919d7, dlio_benchmark/utils/statscounter.py; MLPerf Storage
    v2.0, Submission_guidelines.md, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.workloads.accelerators import EpochTimes

MIB: Final = 1 << 20
GIB: Final = 1 << 30
PUBLISHED_STEPS: Final = 500  # of an epoch at least, by the rules of MLPerf Storage
PUBLISHED_MEMORY: Final = 5  # times the memory of a machine, that a dataset has at least


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch of all accelerators.

    Attributes:
        epoch: number of the epoch, from 1 as DLIO counts.
        began: UTC in seconds.
        seconds: seconds of the epoch.
        steps: steps of each accelerator.
        utilization: accelerator utilisation in percent, the mean of all accelerators.
        step_seconds: seconds that the sleep of a step took, the mean of all.
        samples_per_second: samples of all accelerators together.
        mib_per_second: MiB of their data.
        first_batch_seconds: seconds until the last accelerator had its first batch.
        slowest_load_seconds: longest wait for a later batch.
        cpu_seconds: processor time of all accelerators' processes.
        cache: what the system's cache of files held when it began: "dropped", "warm", or "unknown"
            where that is another machine's.
        cached_share: share of the data that it held by a sample, in [0, 1]; None: not told.
    """

    epoch: int
    began: float
    seconds: float
    steps: int
    utilization: float
    step_seconds: float
    samples_per_second: float
    mib_per_second: float
    first_batch_seconds: float
    slowest_load_seconds: float
    cpu_seconds: float
    cache: str
    cached_share: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of some measurements, as DLIO tells them."""

    mean: float
    stdev: float


def spread(values: Sequence[float]) -> Spread:
    """Mean and population standard deviation of at least one value."""
    return Spread(fmean(values), pstdev(values))


def utilization(times: EpochTimes, step_seconds: float) -> float:
    """Accelerator utilisation of a rank in an epoch, in percent; 0 of a single step.

    Args:
        times: what was measured.
        step_seconds: seconds that a step computes.
    """
    timed = len(times.computes) - 1
    rest = times.seconds - times.loads[0] - times.computes[0]
    # Never over 100: a step that slept for less than it was to is none that computed more.
    return 100 * min(1.0, timed * step_seconds / rest) if timed and rest > 0 else 0.0


def samples_per_second(times: EpochTimes, batch_size: int) -> float:
    """Samples of a rank by the time of all steps but the first; 0 of a single step."""
    timed = len(times.computes) - 1
    rest = times.seconds - times.loads[0] - times.computes[0]
    return timed * batch_size / rest if timed and rest > 0 else 0.0


def epoch_report(
    epoch: int,
    ranks: Sequence[EpochTimes],
    *,
    batch_size: int,
    step_seconds: float,
    sample_bytes: float,
    cache: str,
    cached_share: float | None,
) -> EpochReport:
    """What all ranks together did in an epoch.

    Args:
        epoch: number of the epoch, from 1.
        ranks: times of each rank.
        batch_size: samples that one rank took in a step.
        step_seconds: seconds that a step computes.
        sample_bytes: mean bytes of a sample.
        cache: what the system's cache held, see `EpochReport`.
        cached_share: likewise.
    """
    samples = sum(samples_per_second(each, batch_size) for each in ranks)
    return EpochReport(
        epoch=epoch,
        began=min(each.began for each in ranks),
        seconds=max(each.seconds for each in ranks),
        steps=len(ranks[0].computes),
        utilization=fmean(utilization(each, step_seconds) for each in ranks),
        step_seconds=fmean(one for each in ranks for one in each.computes),
        samples_per_second=samples,
        mib_per_second=samples * sample_bytes / MIB,
        first_batch_seconds=max(each.loads[0] for each in ranks),
        slowest_load_seconds=max(max(each.loads[1:], default=0.0) for each in ranks),
        cpu_seconds=sum(each.cpu_seconds for each in ranks),
        cache=cache,
        cached_share=cached_share,
    )


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """One checkpoint, saved and loaded by all ranks.

    Attributes:
        number: number of the checkpoint, from 1.
        size_bytes: bytes of its tensors.
        save_seconds: seconds until it was committed, durably.
        load_seconds: seconds of the slowest rank.
        cache: what the system's cache of files held before it was loaded, see `EpochReport`.
        cached_share: likewise.
    """

    number: int
    size_bytes: int
    save_seconds: float
    load_seconds: float
    cache: str
    cached_share: float | None

    @property
    def save_gib_per_second(self) -> float:
        """GiB of its tensors by the time of the save."""
        return self.size_bytes / GIB / self.save_seconds

    @property
    def load_gib_per_second(self) -> float:
        """GiB of its tensors by the time of the load."""
        return self.size_bytes / GIB / self.load_seconds

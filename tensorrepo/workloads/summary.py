"""Summaries of emulated workloads in the form of DLIO's ``summary.json``.

Keys and units are those that DLIO writes, and that MLPerf Storage's reports read: "MB" are MiB
there and "GB" are GiB. A sample here is a file of one sample there.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from tensorrepo.workloads.bench import CheckpointResult, TrainingResult
from tensorrepo.workloads.machine import (
    core_count,
    host_name,
    proc_table,
    processor,
    total_memory,
)
from tensorrepo.workloads.report import GIB, Spread

_STAMP: Final = "%Y-%m-%dT%H:%M:%S.%f"


def dlio_summary(result: TrainingResult | CheckpointResult) -> dict[str, Any]:
    """A result as the object that DLIO writes to ``summary.json``."""
    if isinstance(result, TrainingResult):
        return _of_training(result)
    return _of_checkpoints(result)


def _of_training(result: TrainingResult) -> dict[str, Any]:
    metric = {
        "train_au_percentage": [each.utilization for each in result.epochs],
        **_spread("train_au_{}_percentage", result.utilization),
        "train_au_meet_expectation": "success" if result.passed else "fail",
        "train_throughput_samples_per_second": [each.samples_per_second for each in result.epochs],
        **_spread("train_throughput_{}_samples_per_second", result.samples_per_second),
        **_spread("train_io_{}_MB_per_second", result.mib_per_second),
    }
    memory = total_memory() or 0
    return {
        **_about(result, result.plan.accelerators, metric),
        "num_files_train": result.plan.shape.samples,
        "num_samples_per_file": 1,
        "data_size_per_host_GB": result.data_bytes / GIB,
        "potential_caching": [int(result.data_bytes < memory)],
        "epochs": len(result.epochs),
    }


def _of_checkpoints(result: CheckpointResult) -> dict[str, Any]:
    metric = {
        **_spread("save_checkpoint_io_{}_GB_per_second", result.save_gib_per_second),
        **_spread("save_checkpoint_duration_{}_seconds", result.save_seconds),
        **_spread("load_checkpoint_io_{}_GB_per_second", result.load_gib_per_second),
        **_spread("load_checkpoint_duration_{}_seconds", result.load_seconds),
        "checkpoint_size_GB": result.plan.checkpoint_bytes / GIB,
    }
    return {
        **_about(result, result.plan.ranks, metric),
        "num_files_train": 0,
        "num_samples_per_file": 1,
        "data_size_per_host_GB": 0.0,
        "potential_caching": [1],
        "epochs": 0,
    }


def _about(
    result: TrainingResult | CheckpointResult, accelerators: int, metric: dict[str, Any]
) -> dict[str, Any]:
    return {
        "start": _stamp(result.began),
        "num_accelerators": accelerators,
        "num_hosts": 1,
        "hostname": host_name(),
        "metric": metric,
        "num_files_eval": 0,
        "host_cpu_count": [core_count()],
        "host_processor_name": processor(),
        "host_cpuinfo": proc_table("cpuinfo"),
        "host_meminfo": proc_table("meminfo"),
        "host_memory_GB": [(total_memory() or 0) / GIB],
        "end": _stamp(result.ended),
    }


def _spread(key: str, values: Spread) -> dict[str, float]:
    return {key.format("mean"): values.mean, key.format("stdev"): values.stdev}


def _stamp(seconds: float) -> str:
    """A moment by the clock on the wall, as DLIO writes it."""
    return datetime.fromtimestamp(seconds).strftime(_STAMP)  # noqa: DTZ006  as DLIO has it

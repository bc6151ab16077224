"""Benchmarks of a store, as somebody types them."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes.forked import fork_streams
from tests.support.processes.shell import Shell

QUICK = ("--batch-size", "2", "--size", "2MB", "--step-seconds", "0.01")
RESNET = ("bench", "store", "--workload", "resnet50", *QUICK, "--epochs", "2")
# What DLIO writes to summary.json (statscounter.py at commit e1919d7), where it trains.
SUMMARY = {
    "start", "num_accelerators", "num_hosts", "hostname", "metric", "num_files_train",
    "num_files_eval", "num_samples_per_file", "host_cpu_count", "host_processor_name",
    "potential_caching", "host_cpuinfo", "host_meminfo", "host_memory_GB",
    "data_size_per_host_GB", "epochs", "end",
}  # fmt: skip
METRIC = {
    "train_au_percentage", "train_au_mean_percentage", "train_au_stdev_percentage",
    "train_au_meet_expectation", "train_throughput_samples_per_second",
    "train_throughput_mean_samples_per_second", "train_throughput_stdev_samples_per_second",
    "train_io_mean_MB_per_second", "train_io_stdev_MB_per_second",
}  # fmt: skip
CHECKPOINT_METRIC = {
    f"{what}_checkpoint_{each}"
    for what in ("save", "load")
    for each in (
        "io_mean_GB_per_second", "io_stdev_GB_per_second", "duration_mean_seconds",
        "duration_stdev_seconds",
    )
} | {"checkpoint_size_GB"}  # fmt: skip


@pytest.fixture
def bench(empty: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A folder that is no workspace; processes begin at once."""
    fork_streams(monkeypatch)
    return empty


def test_a_training_is_reported_for_people_and_in_dlios_form(bench: Shell) -> None:
    told = bench(*RESNET, "--to", "summary.json")
    assert "resnet50 on 1 emulated h100 accelerator: 8 steps of 2 samples" in told
    assert "AU %" in told
    assert "the published least is AU 90 %" in told
    assert "MLPerf Storage v2.0" in told
    assert "not as published: samples 16 (published: 1,281,024)" in told
    summary = json.loads((bench.folder / "summary.json").read_text())
    assert summary.keys() == SUMMARY
    assert summary["metric"].keys() == METRIC
    assert len(summary["metric"]["train_au_percentage"]) == summary["epochs"] == 2
    assert summary["metric"]["train_au_meet_expectation"] in ("success", "fail")
    assert not (bench.folder / "store/tensorrepo-bench").exists()


def test_a_program_is_told_everything(bench: Shell) -> None:
    told: dict[str, Any] = bench.json(*RESNET, "--accelerator", "a100", "--accelerators", "2")
    assert (told["workload"], told["accelerator"], told["accelerators"]) == ("resnet50", "a100", 2)
    assert told["samples"] == 16
    assert told["data_bytes"] == 16 * 114_660
    assert [each["epoch"] for each in told["epochs"]] == [1, 2]
    assert told["passed"] is (told["utilization"]["mean"] >= told["least_utilization"] == 90)


@pytest.mark.soak
def test_checkpoints_are_reported_likewise(bench: Shell) -> None:
    words = ("--checkpoints", "1", "--size", "20MB", "--step-seconds", "0")
    told = bench.json("bench", "store", "--workload", "checkpoint", *words, "--to", "s.json")
    assert told["model"] == "Llama 3 8B"
    assert told["accelerators"] == 1
    assert told["of_ranks"] > 8
    assert told["checkpoint_bytes"] <= 20_000_000
    assert len(told["checkpoints"]) == 1
    summary = json.loads((bench.folder / "s.json").read_text())
    assert summary.keys() == SUMMARY
    assert summary["metric"].keys() == CHECKPOINT_METRIC
    text = bench("bench", "store", "--workload", "checkpoint", *words)
    assert "checkpoints of Llama 3 8B: 1 rank of a job of" in text
    assert "GiB/s" in text


@pytest.mark.soak
def test_who_waits_too_long_fails_where_that_is_asked(bench: Shell) -> None:
    words = ("bench", "store", "--workload", "resnet50", "--batch-size", "2", "--size", "1MB")
    words = (*words, "--step-seconds", "0", "--epochs", "1")
    assert "failed: the published least" in bench(*words)
    done = bench.run(*words, "--must-pass")
    assert done.exit_code == 1
    assert "failed: the published least" in done.stdout


@pytest.mark.soak
def test_kept_data_are_found_again_and_cleaned(bench: Shell) -> None:
    first = bench.json(*RESNET, "--keep-data")
    second = bench.json(*RESNET)
    assert first["made_seconds"] > 0
    assert (second["made_seconds"], second["url"]) == (None, first["url"])
    cleaned = bench.json("bench", "store", "--clean")
    assert cleaned["removed"] == [Path(first["url"]).name]
    assert cleaned["bytes"] > first["data_bytes"]
    assert bench("bench", "store", "--clean") == "removed 0 benchmarks, 0 B\n"


def test_a_workload_for_dlio_is_written_and_nothing_is_run(bench: Shell) -> None:
    told = bench.json(*RESNET, "--dlio", "job")
    assert told["command"].startswith("dlio_benchmark --config-dir ")
    assert told["command"].endswith(" workload=resnet50")
    assert len(list((bench.folder / "job/data/resnet50/train").iterdir())) == 16
    assert Path(told["config"]).is_file()
    bench("bench", "store", "--clean")


@pytest.mark.together
@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (2, (), "say which --workload: one of resnet50, unet3d, dlrm, llm, checkpoint"),
        (2, ("--workload", "bert"), "no workload 'bert'"),
        (2, ("--workload", "resnet50", "--size", "much"), "--size"),
        (2, ("--workload", "resnet50", "--size", "1MB"), "give more, fewer --accelerators"),
        (2, ("--workload", "resnet50", "--accelerator", "v100"), "there are h100, a100"),
        (2, ("--workload", "llm", "--accelerator", "h100"), "leave --accelerator out"),
        (2, ("--workload", "checkpoint", "--epochs", "2"), "--epochs is not of the workload"),
        (2, ("--workload", "checkpoint", "--dlio", "job"), "DLIO reads datasets by the plug-in"),
        (2, ("--workload", "resnet50", "--to", "no/such.json"), "there is no folder"),
        (2, ("--workload", "resnet50", "--clean"), "leave --workload out"),
        (2, ("--workload", "resnet50", "--accelerators", "0"), "accelerators"),
    ],
)
def test_what_cannot_be_emulated_is_refused(
    empty: Shell, code: int, words: tuple[str, ...], told: str
) -> None:
    assert told in " ".join(empty.fails(code, "bench", "store", *words).split())
    assert not (empty.folder / "store").exists()


def test_a_repository_is_refused(shell: Shell) -> None:
    told = " ".join(shell.fails(2, "bench", ".tensorrepo/store", "--workload", "llm").split())
    assert "is a repository, in which nothing else may lie" in told


def test_ctrl_c_ends_all_processes_and_removes_the_data(empty: Shell) -> None:
    words = ("bench", "store", "--workload", "resnet50", "--batch-size", "2", "--size", "2MB")
    running = empty.start(*words, "--step-seconds", "600")
    data = empty.folder / "store/tensorrepo-bench"
    end = time.monotonic() + 60
    while not list(data.glob("*/log/*")) and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(1)  # data are made by now, or nearly: either way nothing may stay
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "Traceback" not in errors
    assert "interrupted. nothing half made is left in" in errors
    assert not data.exists()

"""Emulated workloads from end to end, on a few samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tensorrepo as tr
from tensorrepo.repo.errors import InvalidInputError, StorageError
from tensorrepo.this_machine import machine
from tensorrepo.workloads import bench, plans
from tensorrepo.workloads.bench import run_checkpoints, run_training
from tensorrepo.workloads.checkpoints import RUN
from tensorrepo.workloads.data import DATASET
from tensorrepo.workloads.place import BenchPlace, bench_place
from tensorrepo.workloads.plans import BenchOptions, plan_checkpoints, plan_training
from tensorrepo.workloads.published import (
    CheckpointWorkload,
    TrainingWorkload,
    workload_named,
)
from tests.support.servers.object_stores import s3_on_ours

pytestmark = pytest.mark.long

SMALL = BenchOptions(
    accelerators=2, size_bytes=2_000_000, epochs=2, batch_size=2, step_seconds=0.01, seed=7
)
SAVES = BenchOptions(
    accelerators=2, size_bytes=80 << 20, checkpoints=2, step_seconds=0.0, seed=7, keep_data=True
)


def training(name: str) -> TrainingWorkload:
    found = workload_named(name)
    assert isinstance(found, TrainingWorkload)
    return found


def checkpointing() -> CheckpointWorkload:
    found = workload_named("checkpoint")
    assert isinstance(found, CheckpointWorkload)
    return found


class Told:
    """Progress as it was told: the last of each unit."""

    def __init__(self) -> None:
        self.last: dict[str, tuple[int, int]] = {}

    def __call__(self, done: int, total: int, unit: str) -> None:
        self.last[unit] = done, total


@pytest.fixture(params=["folder", "s3"])
def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[BenchPlace]:
    if request.param == "folder":
        request.getfixturevalue("fast_ranks")
        yield bench_place(str(tmp_path / "store"), machine())
        return
    with s3_on_ours(tmp_path / "s3") as bucket:
        for key, value in bucket.environment.items():
            monkeypatch.setenv(key, value)
        yield bench_place(bucket.url, machine())


# A warm run has a folder.
@pytest.mark.parametrize(
    "anywhere", [pytest.param("folder", marks=pytest.mark.soak), "s3"], indirect=True
)
def test_accelerators_stream_all_samples_in_each_epoch_and_leave_nothing(
    anywhere: BenchPlace,
) -> None:
    plan, told = plan_training(training("resnet50"), SMALL), Told()
    assert (plan.shape.samples, plan.steps) == (16, 4)
    result = run_training(anywhere, plan, SMALL, told)
    assert [each.epoch for each in result.epochs] == [1, 2]
    for each in result.epochs:
        assert each.steps == 4
        assert 0 < each.utilization <= 100
        # No rank can be faster than it sleeps.
        assert 0 < each.samples_per_second <= 2 * 2 / 0.01
        assert each.seconds >= 4 * 0.01
        assert each.mib_per_second == pytest.approx(
            each.samples_per_second * 114_660 / (1 << 20), rel=1e-6
        )
    assert result.utilization.mean == pytest.approx(
        sum(each.utilization for each in result.epochs) / 2
    )
    assert result.passed is (result.utilization.mean >= 90)
    assert told.last["bytes"] == (16 * 114_660, 16 * 114_660)
    assert told.last["steps of epoch 2 of 2"] == (4, 4)
    assert anywhere.there() == []
    said = " ".join(result.caveats)
    assert "not as published: samples 16 (published: 1,281,024), batch size 2" in said
    assert "MLPerf Storage asks for 500 steps an epoch: this is 4" in said
    assert "5 times the memory" in said
    is_local = anywhere.backend.local_root is not None
    assert ("what the store itself holds in memory is not known" in said) is not is_local
    assert {each.cache for each in result.epochs} == {"dropped" if is_local else "unknown"}


@pytest.mark.soak
@pytest.mark.usefixtures("fast_ranks")
def test_a_warm_run_says_so_and_holds_its_data(place: BenchPlace) -> None:
    options = replace(SMALL, warm=True)
    result = run_training(place, plan_training(training("resnet50"), options), options, Told())
    assert {each.cache for each in result.epochs} == {"warm"}
    assert {each.cached_share for each in result.epochs} <= {1.0, None}
    assert "no disk was measured" in " ".join(result.caveats)


@pytest.mark.soak
@pytest.mark.usefixtures("fast_ranks")
def test_kept_data_are_read_again_and_stay(place: BenchPlace) -> None:
    keeping = replace(SMALL, keep_data=True)
    plan = plan_training(training("resnet50"), SMALL)
    first = run_training(place, plan, keeping, Told())
    second = run_training(place, plan, SMALL, Told())
    assert first.made_seconds is not None
    assert (second.made_seconds, second.url) == (None, first.url)
    assert tr.open(first.url).dataset(DATASET).shape[0] == 16


@pytest.mark.usefixtures("fast_ranks")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            "unet3d",
            BenchOptions(size_bytes=600 << 20, batch_size=1, epochs=1, seed=1),
            marks=pytest.mark.soak,  # its smallest data are hundreds of megabytes
        ),
        ("llm", BenchOptions(size_bytes=200_000, epochs=1, most_steps=3, seed=1)),
    ],
)
def test_other_workloads_run_likewise(place: BenchPlace, name: str, options: BenchOptions) -> None:
    quick = replace(options, step_seconds=0.0)
    result = run_training(place, plan_training(training(name), quick), quick, Told())
    (epoch,) = result.epochs
    assert epoch.steps >= 2
    assert epoch.samples_per_second > 0
    assert result.passed is False  # who computes nothing only waits
    assert place.there() == []


def test_a_step_of_click_logs_is_many_rows() -> None:
    plan = plan_training(training("dlrm"), BenchOptions(size_bytes=2 << 30, seed=1))
    assert plan.shape.rows_of_sample == 4_194_304
    assert (plan.shape.samples, plan.steps, plan.epochs) == (3, 3, 1)


@pytest.mark.usefixtures("fast_ranks")
def test_an_interrupt_while_data_are_made_leaves_nothing(place: BenchPlace) -> None:
    def stop(_done: int, _total: int, _unit: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(place, plan_training(training("resnet50"), SMALL), SMALL, stop)
    assert place.there() == []


@pytest.mark.soak
@pytest.mark.usefixtures("fast_ranks")
def test_an_interrupt_while_they_are_read_removes_what_was_not_to_be_kept(
    place: BenchPlace,
) -> None:
    def stop(_done: int, _total: int, unit: str) -> None:
        if unit.startswith("steps"):
            raise KeyboardInterrupt

    plan = plan_training(training("resnet50"), SMALL)
    with pytest.raises(KeyboardInterrupt):
        run_training(place, plan, replace(SMALL, keep_data=True), stop)
    assert [each.is_whole for each in place.there()] == [True]
    with pytest.raises(KeyboardInterrupt):  # they were there, and stay
        run_training(place, plan, SMALL, stop)
    assert [each.is_whole for each in place.there()] == [True]
    place.remove(place.there()[0].name)
    with pytest.raises(KeyboardInterrupt):
        run_training(place, plan, SMALL, stop)
    assert place.there() == []


@pytest.mark.parametrize(
    ("workload", "options", "told"),
    [
        ("resnet50", {"size_bytes": 1000}, "2 steps of 1 x 400 samples take 87.5 MiB"),
        ("unet3d", {"size_bytes": 1 << 30, "accelerators": 8}, "fewer --accelerators"),
        ("resnet50", {"checkpoints": 3}, "--checkpoints is not of the workload resnet50"),
        ("resnet50", {"most_steps": 1}, "the first step is left out"),
    ],
)
def test_a_training_that_cannot_be_measured_is_refused(
    workload: str, options: dict[str, Any], told: str
) -> None:
    asked = {"size_bytes": 1 << 30, "seed": 1} | options
    with pytest.raises(InvalidInputError, match=told):
        plan_training(training(workload), BenchOptions(**asked))


@pytest.mark.parametrize("name", ["accelerator", "epochs", "most_steps", "batch_size"])
def test_checkpoints_have_no_options_of_trainings(name: str) -> None:
    value: Any = "h100" if name == "accelerator" else 2
    with pytest.raises(InvalidInputError, match=f"--{name.replace('_', '-')} is not of"):
        plan_checkpoints(checkpointing(), replace(SAVES, **{name: value}))


@pytest.mark.usefixtures("fast_ranks")
def test_too_little_memory_or_disk_is_told_before_anything_is_written(
    place: BenchPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_training(training("resnet50"), SMALL)
    monkeypatch.setattr(plans, "available_memory", lambda: 100 << 20)
    with pytest.raises(InvalidInputError, match=r"expected to take .* of memory"):
        run_training(place, plan, SMALL, Told())
    monkeypatch.setattr(plans, "available_memory", lambda: None)
    huge = replace(plan, shape=replace(plan.shape, samples=10**12))
    with pytest.raises(StorageError, match="free, and the benchmark writes"):
        run_training(place, huge, SMALL, Told())
    assert place.there() == []


@pytest.mark.parametrize(
    "anywhere", ["folder", pytest.param("s3", marks=pytest.mark.soak)], indirect=True
)
def test_shards_of_all_ranks_are_saved_in_one_commit_and_loaded(anywhere: BenchPlace) -> None:
    plan, told = plan_checkpoints(checkpointing(), SAVES), Told()
    assert 2 * plan.checkpoint_bytes <= SAVES.size_bytes
    result = run_checkpoints(anywhere, plan, SAVES, told)
    assert [each.number for each in result.checkpoints] == [1, 2]
    for each in result.checkpoints:
        assert each.size_bytes == plan.checkpoint_bytes
        assert each.save_gib_per_second > 0
        assert each.load_gib_per_second > 0
    # Random numbers of both checkpoints are stored, in fewer bits where these allow it.
    assert plan.checkpoint_bytes < result.stored_bytes < 2.2 * plan.checkpoint_bytes
    assert told.last["checkpoints loaded"] == (2, 2)
    repo = tr.open(result.url)
    with repo.checkpointer(RUN) as checkpointer:
        assert checkpointer.steps() == [0, 1]
    (saved,) = anywhere.there()
    anywhere.remove(saved.name)


@pytest.mark.soak
@pytest.mark.usefixtures("fast_ranks")
def test_interrupted_checkpoints_leave_nothing(place: BenchPlace) -> None:
    def stop(_done: int, _total: int, _unit: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_checkpoints(place, plan_checkpoints(checkpointing(), SAVES), SAVES, stop)
    assert place.there() == []


@pytest.mark.soak
@pytest.mark.usefixtures("fast_ranks")
def test_the_system_is_asked_to_drop_what_it_holds_before_each_epoch(
    place: BenchPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[Path] = []
    monkeypatch.setattr(bench.system_cache, "drop", dropped.append)
    run_training(place, plan_training(training("resnet50"), SMALL), SMALL, Told())
    assert 2 <= len(dropped) <= 2 * 4
    assert {each.parent.name for each in dropped} == {"tensorrepo-bench"}

"""Runs of emulated workloads: data made or found, accelerators started, epochs measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final, Literal

import msgspec

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.tables import bytes_text
from tensorrepo.sdk import init
from tensorrepo.workloads import system_cache
from tensorrepo.workloads.accelerators import TrainingJob, epoch_order, epoch_times, train
from tensorrepo.workloads.checkpoints import (
    CheckpointJob,
    CheckpointOrder,
    RankSaved,
    checkpoint_rank,
    commit_shards,
    rank_saved,
)
from tensorrepo.workloads.data import AUTHOR, DATASET, DataShape, find_data, make_data
from tensorrepo.workloads.machine import total_memory
from tensorrepo.workloads.place import BenchPlace
from tensorrepo.workloads.plans import BenchOptions, CheckpointPlan, TrainingPlan, check_memory
from tensorrepo.workloads.ranks import RankProcesses
from tensorrepo.workloads.report import (
    PUBLISHED_MEMORY,
    PUBLISHED_STEPS,
    CheckpointReport,
    EpochReport,
    Spread,
    epoch_report,
    spread,
)

_DROPS: Final = 4  # times that the system is asked to give up pages, at most
_LATE: Final = 1.05  # of a sleep: what goes beyond is told
Tell = Callable[[int, int, str], None]  # how much is done, of how much, and its unit


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What an emulated training measured.

    Attributes:
        plan: what was emulated.
        url: repository of the data.
        made_seconds: seconds that making the data took; None: it was there.
        data_bytes: bytes of all samples.
        epochs: epochs, in order.
        utilization: accelerator utilisation of the epochs, in percent.
        samples_per_second: likewise.
        mib_per_second: likewise.
        passed: whether the mean utilisation is what the publication asks for.
        caveats: what keeps the figures from being comparable to published ones, in words.
        began: UTC in seconds.
        ended: UTC in seconds.
    """

    plan: TrainingPlan
    url: str
    made_seconds: float | None
    data_bytes: int
    epochs: tuple[EpochReport, ...]
    utilization: Spread
    samples_per_second: Spread
    mib_per_second: Spread
    passed: bool
    caveats: tuple[str, ...]
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class CheckpointResult:
    """What emulated checkpoints measured.

    Attributes:
        plan: what was emulated.
        url: repository that they were saved to.
        checkpoints: each of them.
        stored_bytes: bytes that the repository took in the end.
        caveats: what keeps the figures from being comparable to published ones, in words.
        began: UTC in seconds.
        ended: UTC in seconds.
    """

    plan: CheckpointPlan
    url: str
    checkpoints: tuple[CheckpointReport, ...]
    stored_bytes: int
    caveats: tuple[str, ...]
    began: float
    ended: float

    @property
    def save_seconds(self) -> Spread:
        return spread([each.save_seconds for each in self.checkpoints])

    @property
    def save_gib_per_second(self) -> Spread:
        return spread([each.save_gib_per_second for each in self.checkpoints])

    @property
    def load_seconds(self) -> Spread:
        return spread([each.load_seconds for each in self.checkpoints])

    @property
    def load_gib_per_second(self) -> Spread:
        return spread([each.load_gib_per_second for each in self.checkpoints])


# ------------------------------------------------------------------------------ trainings


def run_training(
    place: BenchPlace, plan: TrainingPlan, options: BenchOptions, tell: Tell
) -> TrainingResult:
    """Emulate a training; its data is made where it is not there yet."""
    check_memory(plan)
    name, made_seconds = data_for(place, plan.shape, tell)
    keep = options.keep_data or made_seconds is None
    with place.lent(name, keep=keep):
        began = time.time()
        epochs = tuple(_epochs(place, name, plan, options, tell))
        data_bytes = plan.shape.data_bytes
        reached = spread([each.utilization for each in epochs])
        return TrainingResult(
            plan=plan,
            url=place.url_of(name),
            made_seconds=made_seconds,
            data_bytes=data_bytes,
            epochs=epochs,
            utilization=reached,
            samples_per_second=spread([each.samples_per_second for each in epochs]),
            mib_per_second=spread([each.mib_per_second for each in epochs]),
            passed=reached.mean >= 100 * plan.workload.least_utilization,
            caveats=(
                *_training_caveats(plan, data_bytes),
                *_sleep_caveats(plan, epochs),
                *_cache_caveats(place, options),
            ),
            began=began,
            ended=time.time(),
        )


def data_for(place: BenchPlace, shape: DataShape, tell: Tell) -> tuple[str, float | None]:
    """Name of a repository with such data, and seconds that making it took; None: it was there."""
    found = find_data(place, shape)
    if found is not None:
        return found, None
    place.check_room(shape.data_bytes)
    begun = time.perf_counter()
    with place.new(shape.name) as name:
        make_data(place, name, shape, lambda done, total: tell(done, total, "bytes"))
    return name, time.perf_counter() - begun


def _epochs(
    place: BenchPlace, name: str, plan: TrainingPlan, options: BenchOptions, tell: Tell
) -> Iterator[EpochReport]:
    job = TrainingJob(
        url=place.url_of(name),
        dataset=DATASET,
        batch_rows=plan.batch_size * plan.shape.rows_of_sample,
        steps=plan.steps,
        step_seconds=plan.step_seconds,
        read_threads=plan.read_threads,
        seed=options.seed,
    )
    folder = place.folder_of(name)
    sample_bytes = plan.shape.data_bytes / plan.shape.samples
    with ExitStack() as stack:
        ranks = None
        for epoch in range(plan.epochs):
            if _begins_cold(folder, options):
                stack.close()
                ranks = None
            cache, share = _prepared_cache(folder, warm=options.warm)
            ranks = ranks or stack.enter_context(RankProcesses(train, job, plan.accelerators))
            answers = ranks.ask(epoch_order(epoch), partial(_tell_step, tell, plan, epoch))
            yield epoch_report(
                epoch + 1,
                [epoch_times(each) for each in answers],
                batch_size=plan.batch_size,
                step_seconds=plan.step_seconds,
                sample_bytes=sample_bytes,
                cache=cache,
                cached_share=share,
            )


def _begins_cold(folder: Path | None, options: BenchOptions) -> bool:
    """Whether each epoch, and each load of a checkpoint, has processes of its own.

    The system keeps what a process has mapped. They begin, and open the repository, before the time
    of the epoch does.
    """
    return folder is not None and not options.warm


def _tell_step(tell: Tell, plan: TrainingPlan, epoch: int, done: int) -> None:
    tell(done, plan.steps, f"steps of epoch {epoch + 1} of {plan.epochs}")


def _prepared_cache(folder: Path | None, *, warm: bool) -> tuple[str, float | None]:
    """Drop or fill the system's cache of files; what it is then, and the share that it holds."""
    if folder is None:
        return "unknown", None
    if warm:
        system_cache.warm(folder)
        return "warm", system_cache.held_share(folder)
    for _ in range(_DROPS):  # what was being read just now stays
        system_cache.drop(folder)
        share = system_cache.held_share(folder)
        if not share:
            break
    return "dropped", share


def _training_caveats(plan: TrainingPlan, data_bytes: int) -> Iterator[str]:
    if plan.changed:
        yield f"not as published: {', '.join(plan.changed)}"
    memory = total_memory()
    if memory is not None and data_bytes < PUBLISHED_MEMORY * memory:
        yield (
            f"MLPerf Storage asks for data of {PUBLISHED_MEMORY} times the memory, which is "
            f"{bytes_text(memory)}: this is {bytes_text(data_bytes)}"
        )
    if plan.steps < PUBLISHED_STEPS:
        yield f"MLPerf Storage asks for {PUBLISHED_STEPS} steps an epoch: this is {plan.steps}"


def _sleep_caveats(plan: TrainingPlan, epochs: Sequence[EpochReport]) -> Iterator[str]:
    slept = fmean(each.step_seconds for each in epochs)
    if slept > _LATE * plan.step_seconds > 0:
        yield (
            f"a step slept for {slept:.3f} s instead of {plan.step_seconds:g} s: this machine was "
            "busy with more than the store, and what went beyond counts as a wait"
        )


def _cache_caveats(place: BenchPlace, options: BenchOptions) -> Iterator[str]:
    if place.backend.local_root is None:
        yield "what the store itself holds in memory is not known, and cannot be dropped from here"
    elif options.warm:
        yield "the system held the data in memory as far as it has room: no disk was measured"


# ------------------------------------------------------------------------------ checkpoints


def run_checkpoints(
    place: BenchPlace, plan: CheckpointPlan, options: BenchOptions, tell: Tell
) -> CheckpointResult:
    """Emulate checkpoints: all are saved, then all are loaded, as MLPerf Storage has it."""
    check_memory(plan)
    place.check_room(plan.checkpoints * plan.checkpoint_bytes)
    shape = f"{plan.workload.name}-{plan.ranks}of{plan.of_ranks}"
    with place.new(shape) as name:
        began = time.time()
        reports = _checkpoints(place, name, plan, options, tell)
        stored = next((each.stored_bytes for each in place.there() if each.name == name), 0)
        ended = time.time()
    with place.lent(name, keep=options.keep_data):
        changed = f"not as published: {', '.join(plan.changed)}"
        return CheckpointResult(
            plan=plan,
            url=place.url_of(name),
            checkpoints=tuple(reports),
            stored_bytes=stored,
            caveats=(*([changed] if plan.changed else []), *_cache_caveats(place, options)),
            began=began,
            ended=ended,
        )


def _checkpoints(
    place: BenchPlace, name: str, plan: CheckpointPlan, options: BenchOptions, tell: Tell
) -> list[CheckpointReport]:
    repository = init(place.url_of(name), author=AUTHOR)
    shard = plan.workload.shard(plan.of_ranks)
    job = CheckpointJob(url=place.url_of(name), shard=shard, seed=options.seed)
    saves: list[float] = []
    reports: list[CheckpointReport] = []
    folder = place.folder_of(name)
    with ExitStack() as stack:
        ranks = stack.enter_context(RankProcesses(checkpoint_rank, job, plan.ranks))
        for step in range(plan.checkpoints):
            time.sleep(plan.pause_seconds)
            saved = _asked(ranks, "save", step)
            commit_shards(repository, step, saved, AUTHOR)
            saves.append(time.monotonic() - min(each.began for each in saved))
            tell(step + 1, plan.checkpoints, "checkpoints saved")
        for step in range(plan.checkpoints):
            time.sleep(plan.pause_seconds)
            if _begins_cold(folder, options):
                stack.close()
            cache, share = _prepared_cache(folder, warm=options.warm)
            if _begins_cold(folder, options):
                ranks = stack.enter_context(RankProcesses(checkpoint_rank, job, plan.ranks))
            loaded = _asked(ranks, "load", step)
            size = sum(each.loaded_bytes for each in loaded)
            assert size == plan.checkpoint_bytes, "each rank loads what it saved"
            reports.append(
                CheckpointReport(
                    number=step + 1,
                    size_bytes=size,
                    save_seconds=saves[step],
                    load_seconds=max(each.seconds for each in loaded),
                    cache=cache,
                    cached_share=share,
                )
            )
            tell(step + 1, plan.checkpoints, "checkpoints loaded")
    return reports


def _asked(ranks: RankProcesses, what: Literal["save", "load"], step: int) -> list[RankSaved]:
    order = msgspec.json.encode(CheckpointOrder(what, step))
    return [rank_saved(answer) for answer in ranks.ask(order)]

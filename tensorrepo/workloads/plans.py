"""Plans of emulated workloads: published parameters, what a caller wants otherwise, what fits.

A plan is made of arguments alone, before anything is written; its `changed` says what keeps it from
being the published workload.
"""

from __future__ import annotations

from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import bytes_text
from tensorrepo.workloads.data import DataShape, shape_within
from tensorrepo.workloads.machine import available_memory
from tensorrepo.workloads.published import CheckpointWorkload, TrainingWorkload, accelerator_of

_HELD_BATCHES: Final = 3  # of each rank: in use, being made, and ahead
_HELD_SHARDS: Final = 5  # of each rank: tensors, what is made of them and of the ones before
_RANK_BYTES: Final = 256 << 20  # of a process and what it has fetched


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What a caller asks for; None: as published.

    Attributes:
        accelerator: accelerator that is emulated.
        accelerators: how many, each a process.
        size_bytes: bytes of data at most.
        epochs: passes over the data.
        most_steps: steps of an epoch at most.
        batch_size: samples of a step of one accelerator.
        read_threads: threads that fetch for one accelerator.
        step_seconds: seconds that a step computes, or that lie before each checkpoint.
        checkpoints: how many are saved, and then loaded.
        seed: seed of the order of samples, and of checkpoints' numbers.
        warm: read data once before, instead of dropping what the system holds of it.
        keep_data: leave the data there for the next benchmark.
    """

    accelerator: str | None = None
    accelerators: int = 1
    size_bytes: int
    epochs: int | None = None
    most_steps: int | None = None
    batch_size: int | None = None
    read_threads: int | None = None
    step_seconds: float | None = None
    checkpoints: int | None = None
    seed: int
    warm: bool = False
    keep_data: bool = False


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """A training as it will be emulated: published parameters, and what takes their place.

    Attributes:
        workload: published parameters.
        accelerator: accelerator that is emulated.
        accelerators: how many.
        batch_size: samples of a step of one accelerator.
        read_threads: threads that fetch for one accelerator.
        epochs: passes over the data.
        steps: steps of an epoch.
        step_seconds: seconds that a step computes.
        shape: data that is read.
        changed: parameters that are not the published ones, in words.
    """

    workload: TrainingWorkload
    accelerator: str
    accelerators: int
    batch_size: int
    read_threads: int
    epochs: int
    steps: int
    step_seconds: float
    shape: DataShape
    changed: tuple[str, ...]

    @property
    def least_seconds(self) -> float:
        """Seconds that the emulated computation takes alone."""
        return self.epochs * self.steps * self.step_seconds

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that all accelerators' processes are expected to take."""
        batch = self.batch_size * self.shape.sample_bytes
        return self.accelerators * (_HELD_BATCHES * batch + _RANK_BYTES)


@dataclass(frozen=True, slots=True)
class CheckpointPlan:
    """Checkpoints as they will be emulated.

    Attributes:
        workload: published parameters.
        ranks: ranks that save, each a process.
        of_ranks: ranks of the job whose shards these are.
        checkpoints: how many are saved, and then loaded.
        pause_seconds: seconds before each.
        shard_bytes: bytes of one rank's shard.
        changed: parameters that are not the published ones, in words.
    """

    workload: CheckpointWorkload
    ranks: int
    of_ranks: int
    checkpoints: int
    pause_seconds: float
    shard_bytes: int
    changed: tuple[str, ...]

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint."""
        return self.ranks * self.shard_bytes

    @property
    def least_seconds(self) -> float:
        """Seconds of all pauses."""
        return 2 * self.checkpoints * self.pause_seconds

    @property
    def held_bytes(self) -> int:
        """Bytes of memory that all ranks are expected to take."""
        return self.ranks * (_HELD_SHARDS * self.shard_bytes + _RANK_BYTES)


def plan_training(workload: TrainingWorkload, options: BenchOptions) -> TrainingPlan:
    """What would be emulated.

    Raises:
        InvalidInputError: too little data for two steps, or no such accelerator.
    """
    _refuse(workload.name, checkpoints=options.checkpoints)
    accelerator = accelerator_of(workload, options.accelerator)
    batch_size = options.batch_size or workload.batch_size
    shape = shape_within(workload, options.size_bytes, options.accelerators, batch_size)
    steps = shape.samples // (batch_size * options.accelerators)
    most = options.most_steps or workload.most_steps or steps
    if most < 2:
        raise InvalidInputError(
            f"--most-steps {most}: the first step is left out of what is measured, so give 2 or "
            "more"
        )
    step_seconds = workload.step_seconds[accelerator]
    return TrainingPlan(
        workload=workload,
        accelerator=accelerator,
        accelerators=options.accelerators,
        batch_size=batch_size,
        read_threads=options.read_threads or workload.read_threads,
        epochs=options.epochs or workload.epochs,
        steps=min(steps, most),
        step_seconds=step_seconds if options.step_seconds is None else options.step_seconds,
        shape=shape,
        changed=_changed(
            ("samples", workload.samples, shape.samples),
            ("batch size", workload.batch_size, options.batch_size),
            ("threads that read", workload.read_threads, options.read_threads),
            ("epochs", workload.epochs, options.epochs),
            ("steps of an epoch", workload.most_steps, options.most_steps),
            ("seconds of a step", step_seconds, options.step_seconds),
        ),
    )


def plan_checkpoints(workload: CheckpointWorkload, options: BenchOptions) -> CheckpointPlan:
    """What would be emulated.

    Raises:
        InvalidInputError: too few bytes for all checkpoints.
    """
    _refuse(
        workload.name,
        accelerator=options.accelerator,
        epochs=options.epochs,
        most_steps=options.most_steps,
        batch_size=options.batch_size,
        read_threads=options.read_threads,
    )
    count = options.checkpoints or workload.checkpoints
    of_ranks = workload.ranks_within(options.accelerators, options.size_bytes // count)
    pause = workload.pause_seconds
    return CheckpointPlan(
        workload=workload,
        ranks=options.accelerators,
        of_ranks=of_ranks,
        checkpoints=count,
        pause_seconds=pause if options.step_seconds is None else options.step_seconds,
        shard_bytes=workload.shard_bytes(of_ranks),
        changed=_changed(
            ("ranks of the job", workload.ranks, of_ranks),
            ("ranks that save", workload.ranks, options.accelerators),
            ("checkpoints", workload.checkpoints, options.checkpoints),
            ("seconds before each", pause, options.step_seconds),
        ),
    )


def check_memory(plan: TrainingPlan | CheckpointPlan) -> None:
    """See that the processes fit into memory.

    Raises:
        InvalidInputError: they are expected to take more than is available.
    """
    available = available_memory()
    if available is not None and plan.held_bytes > available:
        raise InvalidInputError(
            f"{plan.workload.name}: the processes are expected to take "
            f"{bytes_text(plan.held_bytes)} of memory, and {bytes_text(available)} are available. "
            "Emulate fewer --accelerators, or less data at a time: a smaller --batch-size, of "
            "checkpoints a smaller --size"
        )


def _refuse(workload: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            option = "--" + name.replace("_", "-")
            raise InvalidInputError(f"{option} is not of the workload {workload}: leave it out")


def _changed(*parameters: tuple[str, object, object | None]) -> tuple[str, ...]:
    """What is not as published: name, published value and the one in its place, None for none."""
    return tuple(
        f"{name} {value:,} (published: {'no limit' if published is None else f'{published:,}'})"
        for name, published, value in parameters
        if value is not None and value != published
    )

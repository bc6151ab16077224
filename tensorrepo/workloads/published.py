"""Published workloads: what accelerators ask of storage, as DLIO and MLPerf Storage give it.

Each workload has the parameters of configuration files that its `source` names. MLPerf Storage v2.0
and v1.0 agree on what stands here of ResNet-50 and 3D U-Net. They have no recommender and no
language model that reads data: those are DLIO's alone, which names no accelerator for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

_MLPERF = "MLPerf Storage v2.0 (mlcommons/storage, commit caa90c9)"
_DLIO = "DLIO (argonne-lcf/dlio_benchmark, commit e1919d7)"
UNNAMED: Final = "unnamed"  # the accelerator of a source that says no more
_DTYPE_BYTES: Final = {"float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class TrainingWorkload:
    """A training as storage sees it.

    Attributes:
        name: name of the workload.
        samples: samples of the published dataset.
        sample_bytes: mean bytes of a sample.
        sample_bytes_stdev: standard deviation of these.
        batch_size: samples that one accelerator takes in a step.
        read_threads: threads, or processes, that read for one accelerator.
        epochs: passes over the data.
        most_steps: steps after which an epoch ends; None: with the data.
        least_utilization: share of the time, in [0, 1], that accelerators have to compute.
        step_seconds: seconds that a step computes, by accelerator; the first one is the usual one.
        source: file that has these numbers.
    """

    name: str
    samples: int
    sample_bytes: int
    sample_bytes_stdev: int
    batch_size: int
    read_threads: int
    epochs: int
    most_steps: int | None
    least_utilization: float
    step_seconds: Mapping[str, float]
    source: str

    @property
    def accelerators(self) -> tuple[str, ...]:
        """Accelerators that have a published time, the usual one first."""
        return tuple(self.step_seconds)


@dataclass(frozen=True, slots=True)
class CheckpointWorkload:
    """Checkpoints of a transformer whose ranks hold a shard each of all tensors (ZeRO 3).

    Attributes:
        name: name of the workload.
        model: name of the model.
        layers: transformer layers.
        vocabulary: rows of the embedding, and of the head.
        hidden: length of a hidden state.
        feed_forward: length of what is between the two halves of a feed-forward layer.
        heads: attention heads.
        key_value_heads: heads of keys and values.
        ranks: ranks of the published job, each of which holds one shard.
        checkpoints: checkpoints that are saved, and then loaded.
        pause_seconds: seconds that are computed before each.
        source: file that has these numbers.
    """

    name: str
    model: str
    layers: int
    vocabulary: int
    hidden: int
    feed_forward: int
    heads: int
    key_value_heads: int
    ranks: int
    checkpoints: int
    pause_seconds: float
    source: str

    @property
    def parameters(self) -> int:
        """Parameters of the model, as DLIO counts them (`get_num_parameters`)."""
        return sum(sum(layer) for layer in self._layers())

    def shard(self, ranks: int) -> dict[str, tuple[str, int]]:
        """Tensors that one of so many ranks holds: name to numpy dtype and elements.

        Weights in float16, and three groups of the optimizer in float32, each with a small tensor
        beside it, as in DLIO's `get_layer_parameters` and `get_optimization_groups`.
        """
        tensors: dict[str, tuple[str, int]] = {}
        for number, layer in enumerate(self._layers()):
            for at, elements in enumerate(layer):
                if elements // ranks:
                    tensors[f"layer{number}.{at}"] = "float16", elements // ranks
        for group in range(3):
            tensors[f"optimizer.{2 * group}"] = "float32", self.parameters // ranks
            tensors[f"optimizer.{2 * group + 1}"] = "float32", self.hidden * 5
        return tensors

    def shard_bytes(self, ranks: int) -> int:
        """Bytes of what one of so many ranks holds."""
        return sum(_DTYPE_BYTES[dtype] * count for dtype, count in self.shard(ranks).values())

    def ranks_within(self, held: int, budget_bytes: int) -> int:
        """Ranks of a job of which `held` ranks together save no more than so many bytes.

        The published number, where that is little enough, or more.

        Raises:
            InvalidInputError: no number of ranks makes shards so small.
        """
        ranks = max(self.ranks, held)
        while held * self.shard_bytes(ranks) > budget_bytes:
            if ranks > self.parameters:
                raise InvalidInputError(
                    f"{self.name}: a checkpoint of {held} shards takes at least "
                    f"{held * self.shard_bytes(ranks):,} bytes, and {budget_bytes:,} are left for "
                    "each one: give a larger --size, or fewer --checkpoints"
                )
            ranks = max(ranks + 1, -(-ranks * held * self.shard_bytes(ranks) // budget_bytes))
        return ranks

    def _layers(self) -> list[list[int]]:
        """Elements of the tensors of each layer: embedding, transformer layers, head, last norm."""
        width = self.hidden // self.heads * self.key_value_heads
        layer = [
            self.hidden,
            self.hidden * (self.hidden + 2 * width),
            self.hidden * self.hidden,
            self.hidden,
            self.hidden * 2 * self.feed_forward,
            self.hidden * self.feed_forward,
        ]
        embedding = [self.hidden * self.vocabulary]
        return [embedding, *[layer] * self.layers, embedding, [self.hidden]]


Workload = TrainingWorkload | CheckpointWorkload

WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {
        each.name: each
        for each in (
            TrainingWorkload(
                name="resnet50",
                samples=1024 * 1251,
                sample_bytes=114_660,
                sample_bytes_stdev=0,
                batch_size=400,
                read_threads=8,
                epochs=5,
                most_steps=None,
                least_utilization=0.90,
                step_seconds=MappingProxyType({"h100": 0.224, "a100": 0.435}),
                source=f"{_MLPERF}, configs/dlio/workload/resnet50_h100.yaml, resnet50_a100.yaml",
            ),
            TrainingWorkload(
                name="unet3d",
                samples=168,
                sample_bytes=146_600_628,
                sample_bytes_stdev=68_341_808,
                batch_size=7,
                read_threads=4,
                epochs=5,
                most_steps=None,
                least_utilization=0.90,
                step_seconds=MappingProxyType({"h100": 0.323, "a100": 0.636}),
                source=f"{_MLPERF}, configs/dlio/workload/unet3d_h100.yaml, unet3d_a100.yaml",
            ),
            TrainingWorkload(
                name="dlrm",
                samples=1024,
                sample_bytes=671_088_640,
                sample_bytes_stdev=0,
                batch_size=1,
                read_threads=1,
                epochs=1,
                most_steps=None,
                least_utilization=0.90,  # DLIO's default: its file has none
                step_seconds=MappingProxyType({UNNAMED: 0.064296}),
                source=f"{_DLIO}, configs/workload/dlrm.yaml",
            ),
            TrainingWorkload(
                name="llm",
                samples=277_203_535,
                sample_bytes=2048,
                sample_bytes_stdev=0,
                batch_size=16,
                read_threads=1,
                epochs=3,
                most_steps=1000,
                least_utilization=0.90,  # DLIO's default: its file has none
                step_seconds=MappingProxyType({UNNAMED: 2.44}),
                source=f"{_DLIO}, configs/workload/megatron_deepspeed_LLNL.yaml",
            ),
            CheckpointWorkload(
                name="checkpoint",
                model="Llama 3 8B",
                layers=32,
                vocabulary=128_256,
                hidden=4096,
                feed_forward=14_336,
                heads=32,
                key_value_heads=8,
                ranks=8,
                checkpoints=10,
                pause_seconds=5.0,
                source=f"{_MLPERF}, configs/dlio/workload/llama3_8b.yaml",
            ),
        )
    }
)


def workload_named(name: str) -> Workload:
    """The published workload of a name. Raises InvalidInputError where there is none."""
    if name not in WORKLOADS:
        raise InvalidInputError(f"no workload {name!r}: there are {', '.join(WORKLOADS)}")
    return WORKLOADS[name]


def accelerator_of(workload: TrainingWorkload, name: str | None) -> str:
    """The accelerator that is emulated; without a name the workload's usual one.

    Raises:
        InvalidInputError: none of this name has a published time for the workload.
    """
    if name is None:
        return workload.accelerators[0]
    if name not in workload.accelerators:
        there = ", ".join(each for each in workload.accelerators if each != UNNAMED)
        said = f"there are {there}" if there else "its source names none: leave --accelerator out"
        raise InvalidInputError(f"{workload.name} has no published times of {name!r}: {said}")
    return name

"""Datasets of published workloads: their shape, their bytes, and how many samples fit a budget.

Bytes are random, as those of DLIO are: images, volumes and tokens that were compressed before. They
are stored as they are, so that what is read is what the workload asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import sqrt
from typing import Any, Final

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.types import Bytes, ColumnType, Scalar, Tensor
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import bytes_text
from tensorrepo.sdk import init, open_repository
from tensorrepo.workloads.place import BenchPlace
from tensorrepo.workloads.published import TrainingWorkload

DATASET: Final = "samples"
LEAST_STEPS: Final = 2  # the first one is left out of what is measured, as DLIO does
AUTHOR: Final = "tensorrepo bench <bench@localhost>"
_FORM: Final = 1  # of what is stored; another number where that changes
_BATCH_BYTES: Final = 64 << 20
_SEED: Final = 20_250_613
_CODEC: Final = "none"

_CLICK_BYTES: Final = 160  # a row of Criteo's logs: a label, 13 numbers, 26 categories
_TOKEN_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class DataShape:
    """What a dataset of a workload holds.

    Attributes:
        workload: name of the workload.
        samples: samples, which the published parameters count.
        sample_bytes: mean bytes of one.
        sample_bytes_stdev: standard deviation of these.
    """

    workload: str
    samples: int
    sample_bytes: int
    sample_bytes_stdev: int

    @property
    def rows_of_sample(self) -> int:
        """Rows of the dataset that make a sample: of click logs many, else one."""
        return self.sample_bytes // _CLICK_BYTES if self.workload == "dlrm" else 1

    @property
    def rows(self) -> int:
        """Rows of the dataset."""
        return self.samples * self.rows_of_sample

    @property
    def name(self) -> str:
        """What a repository of such data is called, before what tells it from its equals."""
        return f"{self.workload}-v{_FORM}-{self.samples}x{self.sample_bytes}"

    @property
    def columns(self) -> Mapping[str, ColumnType]:
        """Columns of the dataset."""
        if self.workload == "dlrm":
            return {
                "label": Scalar("int32"),
                "dense": Tensor("float32", (13,)),
                "sparse": Tensor("int32", (26,)),
            }
        if self.workload == "llm":
            return {"tokens": Tensor("uint16", (self.sample_bytes // _TOKEN_BYTES,))}
        return {"sample": Bytes(), "label": Scalar("int64")}

    def sizes(self) -> Ints:
        """Bytes of each sample: sides of a rectangle drawn from a normal distribution, as in DLIO.

        Those of a smaller dataset are the first ones of a larger one.
        """
        if not self.sample_bytes_stdev:
            return np.full(self.samples, self.sample_bytes, np.int64)
        side = sqrt(self.sample_bytes)
        drawn = np.random.default_rng(_SEED).normal(
            side, self.sample_bytes_stdev / 2 / side, (self.samples, 2)
        )
        sizes: Ints = np.maximum(drawn.astype(np.int64), 1).prod(axis=1)
        return sizes

    @property
    def data_bytes(self) -> int:
        """Bytes of all samples."""
        if not self.sample_bytes_stdev:
            return self.samples * self.sample_bytes
        return int(self.sizes().sum())

    def batches(self) -> Iterator[dict[str, Any]]:
        """Columns of a few rows at a time, of random bytes, the same whoever makes them."""
        rng = np.random.Generator(np.random.SFC64(_SEED))
        if self.workload == "dlrm":
            return _clicks(rng, self.rows)
        if self.workload == "llm":
            return _tokens(rng, self.rows, self.sample_bytes)
        return _encoded(rng, self.sizes())


def shape_within(
    workload: TrainingWorkload, budget_bytes: int, accelerators: int, batch_size: int
) -> DataShape:
    """As much of a published dataset as a budget holds, in whole steps of all accelerators.

    Raises:
        InvalidInputError: the budget holds too few steps to measure.
    """
    step = accelerators * batch_size
    least = _shape(workload, LEAST_STEPS * step).data_bytes
    samples = min(workload.samples, budget_bytes // workload.sample_bytes) // step * step
    while samples and _shape(workload, samples).data_bytes > budget_bytes:
        samples -= step
    if samples < LEAST_STEPS * step:
        raise InvalidInputError(
            f"{workload.name}: {LEAST_STEPS} steps of {accelerators} x {batch_size} samples take "
            f"{bytes_text(least)}, and --size allows {bytes_text(budget_bytes)}: give more, fewer "
            "--accelerators, or a smaller --batch-size, which is not what was published then"
        )
    return _shape(workload, samples)


def _shape(workload: TrainingWorkload, samples: int) -> DataShape:
    return DataShape(workload.name, samples, workload.sample_bytes, workload.sample_bytes_stdev)


def find_data(place: BenchPlace, shape: DataShape) -> str | None:
    """Name of a repository that has such data, kept by an earlier benchmark."""
    fitting = (each for each in place.there() if each.name.rpartition("-")[0] == shape.name)
    return next((each.name for each in fitting if each.is_whole), None)


def make_data(
    place: BenchPlace, name: str, shape: DataShape, progress: Callable[[int, int], None]
) -> None:
    """Make a repository with such data, in one commit; `progress` is told bytes, of how many."""
    repository = init(place.url_of(name), author=AUTHOR)
    total = shape.data_bytes

    def told() -> Iterator[dict[str, Any]]:
        done = 0
        for batch in shape.batches():
            yield batch
            done += sum(map(_bytes_of, batch.values()))
            progress(min(done, total), total)

    with repository.transaction(message=f"Data of the workload {shape.workload}") as tx:
        draft = tx.create_dataset(DATASET, columns=shape.columns)
        draft.append(told(), codec=_CODEC)


def stored_bytes(place: BenchPlace, name: str) -> int:
    """Bytes of the chunks of a dataset that was made."""
    return open_repository(place.url_of(name)).dataset(DATASET).stored.stored_bytes


def _bytes_of(column: Any) -> int:
    return sum(map(len, column)) if isinstance(column, list) else int(column.nbytes)


def _encoded(rng: np.random.Generator, sizes: Ints) -> Iterator[dict[str, Any]]:
    """Samples that are bytes, each with a label."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, "right")))
        labels = rng.integers(0, 1000, stop - start)
        yield {"sample": [rng.bytes(int(size)) for size in sizes[start:stop]], "label": labels}
        start = stop


def _tokens(rng: np.random.Generator, rows: int, row_bytes: int) -> Iterator[dict[str, Any]]:
    for count in _portions(rows, row_bytes):
        drawn = np.frombuffer(rng.bytes(count * row_bytes), np.uint16)
        yield {"tokens": drawn.reshape(count, row_bytes // _TOKEN_BYTES)}


def _clicks(rng: np.random.Generator, rows: int) -> Iterator[dict[str, Any]]:
    for count in _portions(rows, _CLICK_BYTES):
        categories = np.frombuffer(rng.bytes(count * 26 * 4), np.int32)
        yield {
            "label": rng.integers(0, 2, count, np.int32),
            "dense": rng.random((count, 13), np.float32),
            "sparse": categories.reshape(count, 26),
        }


def _portions(rows: int, row_bytes: int) -> Iterator[int]:
    step = max(1, _BATCH_BYTES // row_bytes)
    for start in range(0, rows, step):
        yield min(step, rows - start)

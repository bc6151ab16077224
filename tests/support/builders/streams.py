"""Objects and helpers for tests of the streaming reader."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.order.orders import PairedLanes
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.builders.datasets import Rows
from tests.support.builders.objects import MemoryObjects

COUNT = 1000
SCHEMA = Schema(
    (
        Column("x", Tensor("float32", (100,))),
        Column("y", Scalar("int64")),
        Column("t", Text(), nullable=True),
        Column("r", Tensor("int16", (None,))),
        Column("n", Scalar("int32"), nullable=True),
    )
)
ROWS: Rows = [
    {
        "x": np.full(100, at, np.float32),
        "y": np.int64(at),
        "t": None if at % 7 == 0 else f"row {at}",
        "r": np.arange(at % 5, dtype=np.int16),
        "n": None if at % 3 == 0 else np.int32(at),
    }
    for at in range(COUNT)
]
WINDOW = 60_000  # about seven of the 53 runs


class MappedObjects(MemoryObjects):
    """Like a store on a local disk: payloads are in memory."""

    def map(self, link: ObjectLink) -> memoryview | None:
        return self._payload(link)


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a batch of numpy output, None where null."""
    columns = {name: _column(values, batch.valid.get(name)) for name, values in batch.items()}
    return [{name: values[at] for name, values in columns.items()} for at in range(len(batch.rows))]


def _column(values: Any, valid: Any) -> list[Any]:
    every = list(np.ma.getdata(values) if isinstance(values, np.ndarray) else values)
    there = [True] * len(every) if valid is None else valid.tolist()
    return [value if here else None for value, here in zip(every, there, strict=True)]


def row_numbers(batches: Sequence[Batch]) -> list[list[int]]:
    """The rows of each batch."""
    return [batch.rows.tolist() for batch in batches]


def own_threads() -> list[threading.Thread]:
    """The threads that streams have started and not ended."""
    return [each for each in threading.enumerate() if each.name.startswith("tensorrepo-")]


def stream_threads() -> list[str]:
    """Their names."""
    return [thread.name for thread in own_threads()]


def lasting_stream_threads() -> list[str]:
    """Names of those that do not end: each may finish the step that it is in."""
    for thread in own_threads():
        thread.join(30)
    return stream_threads()


def row_at(order: PairedLanes, position: int) -> tuple[int, int]:
    """Run and live row at one position, found without those before it."""
    found = order.locate(position, position + 1)
    run, name = int(found.run[0]), int(order.row_names(found.run)[0])
    key = number(epoch_key(order.seed, order.epoch, Purpose.ROWS), name)
    rows = int((order.locate(0, order.rows).run == run).sum())
    return run, int(permutation(key, rows)[found.place[0]])

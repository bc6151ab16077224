"""Objects and helpers for tests of the streaming reader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.options import (
    Loading,
    Ranks,
    Sampling,
    StreamOptions,
    declared,
)
from tensorrepo.formats.dataset.streaming.order.orders import PairedLanes
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_stream
from tensorrepo.repo.objects.cache import PageDiskCache
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


_GROUPS = {"sampling": Sampling, "ranks": Ranks, "loading": Loading}


def options_of(**words: Any) -> StreamOptions:
    """Options of a stream, those of groups by their own names: ``rank=1, prefetch=0``."""
    for group, record in _GROUPS.items():
        own = {name: words.pop(name) for name in declared(record) if name in words}
        if own:
            words[group] = replace(words.get(group, record()), **own)
    return StreamOptions(**words)


def stream(
    dataset: StoredDataset,
    *,
    epoch: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    page_cache: PageDiskCache | None = None,
    **words: Any,
) -> BatchStream:
    """A stream of `dataset`, with the options that `options_of` takes."""
    opened = open_stream(dataset, options_of(**words), clock=clock, page_cache=page_cache)
    opened.set_epoch(epoch)
    return opened


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

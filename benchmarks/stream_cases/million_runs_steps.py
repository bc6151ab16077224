"""Streams some batches in a process of its own: a line of JSON, see `million_runs_memory`.

python million_runs_steps.py REPOSITORY DATASET HOW

HOW is grouped, view, weighted, buckets, mix, packed, whole or packed_whole. A view is of every
second row. Weights are of one class of rows, which takes no memory. Buckets sort rows by lengths
that take no memory; a mix is of the dataset and a view of it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tensorrepo
from tensorrepo.formats.dataset.read import column_index
from tensorrepo.formats.dataset.selecting.row_bits import bits_of, spans
from tensorrepo.formats.dataset.streaming.feed import DatasetFeed
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.options import Loading, StreamOptions, StreamSetup
from tensorrepo.formats.dataset.streaming.order.items import (
    UNIT_BITS,
    Packing,
    RowLengths,
    RowSelection,
    Weights,
)
from tensorrepo.formats.dataset.streaming.plan.build import group_packing
from tensorrepo.formats.dataset.streaming.plan.grouped import plan_groups
from tensorrepo.formats.dataset.streaming.plan.packed_groups import page_elements
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan, make_plan
from tensorrepo.formats.dataset.streaming.stream import BatchStream

BATCH, STEPS, WINDOW_BYTES = 256, 400, 1 << 20
ITEM = 64  # elements of a packed item


def measured(place: str, name: str, how: str) -> dict[str, float]:
    """Seconds to the first batch, seconds of all of them, and what the peak grew by."""
    dataset = tensorrepo.open(place).dataset(name).stored
    sizes: dict[str, Any] = {"batch_size": BATCH, "window_bytes": WINDOW_BYTES}
    before = _peak_bytes(anew=True)
    begun = time.perf_counter()
    eager = partial(whole_plan, dataset, dict(sizes))
    if how == "whole":
        stream = stream_of(dataset, eager())
    elif how == "packed_whole":
        elements = page_elements(dataset, "x")
        assert elements is not None, "no page is compressed"
        packing = Packing(ITEM, None, elements)
        stream = stream_of(dataset, whole_plan(dataset, sizes | {"packing": packing}))
    else:
        stream = by_groups(dataset, how, eager, sizes)
    batches = iter(stream)
    assert next(batches)["x"].shape == (BATCH, 64)
    first = time.perf_counter()
    for _ in range(STEPS):
        next(batches)
    done = time.perf_counter()
    batches.close()
    return {
        "first_batch_s": round(first - begun, 2),
        "steps_s": round(done - first, 2),
        "peak_mib": round((_peak_bytes() - before) / (1 << 20), 1),
    }


def by_groups(
    dataset: Any, how: str, eager: Callable[[], StreamPlan], sizes: dict[str, Any]
) -> BatchStream:
    """A stream, however few runs there are."""
    sizes = sizes | {"most_runs": 0, "least_bytes": 0}
    if how == "buckets":
        alike = np.broadcast_to(np.uint32(7), dataset.rows)
        sizes |= {"lengths": lambda: RowLengths("x", alike, 0), "bucket_steps": 50}
    if how == "packed":
        sizes["pack"] = partial(group_packing, dataset, "x", ITEM)
    if how in ("view", "mix"):
        sizes["choose"] = partial(every_second, dataset.rows)
    if how == "weighted":
        sizes["choose"] = partial(half_of_all, dataset.rows)
    plan = plan_groups(dataset, ("x",), eager, **sizes)
    assert plan is not None
    stream = stream_of(dataset, plan)
    if how != "mix":
        return stream
    del sizes["choose"]
    every = plan_groups(dataset, ("x",), eager, **sizes)
    assert every is not None
    return mix([stream_of(dataset, every), stream])


def every_second(rows: int) -> RowSelection:
    return RowSelection(bits_of(rows, (np.arange(*each, 2) for each in spans(rows))), None, "")


def half_of_all(rows: int) -> RowSelection:
    """Each row as often as not, drawn anew for each epoch."""
    weights = Weights(np.array([1 << UNIT_BITS - 1], np.uint64), np.broadcast_to(np.uint8(0), rows))
    return RowSelection(weights.positive(), weights, "")


def whole_plan(dataset: Any, sizes: dict[str, Any]) -> StreamPlan:
    return make_plan([("x", column_index(dataset, "x"))], **sizes)


def stream_of(dataset: Any, plan: StreamPlan) -> BatchStream:
    options = StreamOptions(batch_size=BATCH, seed=7, loading=Loading(work_threads=1))
    setup = StreamSetup(options=options, prefetch=4, decodes={}, clock=time.perf_counter)
    return BatchStream(DatasetFeed(dataset, plan, ("x",)), setup)


def _peak_bytes(*, anew: bool = False) -> int:
    """The most memory that was resident, since this was last asked `anew`."""
    if anew:  # or what imports and opening took for a moment hides what is measured
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


if __name__ == "__main__":
    print(json.dumps(measured(*sys.argv[1:])))

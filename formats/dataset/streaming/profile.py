"""Profile of a training loop: time stalled on the step, on preparing batches, on storage.

The same first steps of an epoch are run three times, as the stall analysis of the literature does:

    cold        batches from storage
    cached      the same, but every stored byte is already in memory: what is left is preparing
    synthetic   one batch over and over: what is left is the step itself

The rows of the batches that the transform took longest for are then made once more, one by one:
so the slowest rows have names.

What a phase takes longer than the one below it is time that the loop stalls. It cannot be read from
the times of single parts: those run side by side, and only waiting for the last of them costs.
"""

from __future__ import annotations

import heapq
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, field, replace
from threading import Lock
from typing import Any

import numpy as np

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset, row_id_table
from tensorrepo.formats.dataset.streaming.options import RANKS, Loading, Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_batches
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import Envelope, ObjectLink, ObjectSource

SECONDS = 10.0
KEPT_BYTES = 1 << 30
SLOWEST_ROWS = 5
_BAR = 40  # characters
_NO_READS = {"reads": 0, "read_bytes": 0, "read_seconds": 0.0}


@dataclass(frozen=True, slots=True)
class Phase:
    """What one pass over the profiled steps took.

    Attributes:
        steps: number of steps that were run.
        rows: number of rows in them.
        seconds: time from the first batch asked for to the end of the last step.
        first_batch_seconds: time until the first batch was there.
        step_seconds: time in the step itself.
        reads: number of requests to storage, where data is not mapped.
        read_bytes: bytes that they brought.
        read_seconds: time that they took, added up over all threads.
        parts: seconds of each part of the pipeline, as `StreamStats` has them.
    """

    steps: int
    rows: int
    seconds: float
    first_batch_seconds: float
    step_seconds: float
    reads: int = 0
    read_bytes: int = 0
    read_seconds: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def seconds_a_step(self) -> float:
        return self.seconds / max(1, self.steps)

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class SlowRow:
    """A row that takes long to decode and transform.

    Attributes:
        row: its number in the dataset.
        row_id: its id.
        seconds: time that it took, as a batch of one row.
    """

    row: int
    row_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The three phases, and what follows from them.

    Attributes:
        cold: pass from storage.
        cached: pass from memory.
        synthetic: pass with one batch over and over.
        slowest: slowest rows of the slowest batches, slowest first; none without a transform.
        median_row_seconds: median time of a row of these batches; 0 without a transform.
    """

    cold: Phase
    cached: Phase
    synthetic: Phase
    slowest: tuple[SlowRow, ...] = ()
    median_row_seconds: float = 0.0

    @property
    def stalls(self) -> dict[str, float]:
        """Seconds a step: of the step, of preparing batches, and of storage. Never below zero."""
        step = self.synthetic.seconds_a_step
        cached = max(step, self.cached.seconds_a_step)
        cold = max(cached, self.cold.seconds_a_step)
        return {"step": step, "prepare": cached - step, "storage": cold - cached}

    @property
    def faster(self) -> dict[str, float]:
        """How many times as fast the loop would be if one part took no time."""
        stalls = self.stalls
        total = sum(stalls.values())
        return {name: total / max(total - part, total * 1e-3) for name, part in stalls.items()}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"stalls": self.stalls, "faster": self.faster}

    def __str__(self) -> str:
        return "\n".join([*self._told(), "", *self._bars(), "", *self._parts()])

    def _told(self) -> list[str]:
        lines = [
            f"{name:<10}{phase.seconds_a_step * 1e3:9.2f} ms a step  "
            f"{phase.rows_per_second:12,.0f} rows/s  first batch after "
            f"{phase.first_batch_seconds * 1e3:.0f} ms"
            for name, phase in (("cold", self.cold), ("cached", self.cached))
        ]
        step = self.synthetic.seconds_a_step
        pace = f"{step * 1e3:9.2f} ms a step" if self.cold.step_seconds else "  no step was given"
        return [*lines, f"synthetic {pace}"]

    def _bars(self) -> list[str]:
        stalls, faster = self.stalls, self.faster
        total = sum(stalls.values()) or 1.0
        return [
            f"{name:<10}{'█' * round(seconds / total * _BAR):<{_BAR}} "
            f"{seconds / total:4.0%}  without it {faster[name]:.2f}x as fast"
            for name, seconds in stalls.items()
        ]

    def _parts(self) -> list[str]:
        parts = {name: took for name, took in self.cold.parts.items() if took > 0}
        listed = ", ".join(f"{name} {took:.2f} s" for name, took in parts.items())
        lines = [f"parts of the cold pass, which run side by side: {listed or 'none took time'}"]
        if self.cold.reads:
            lines.append(
                f"{counted(self.cold.reads, 'read')} brought "
                f"{counted(self.cold.read_bytes, 'byte')} in "
                f"{self.cold.read_seconds:.2f} s of all threads together"
            )
        if self.slowest:
            named = (
                f"{each.row} ({each.row_id}) {each.seconds * 1e3:.1f}" for each in self.slowest
            )
            lines.append(
                f"slowest rows, one by one, in ms, beside {self.median_row_seconds * 1e3:.1f} of "
                f"the median: {', '.join(named)}"
            )
        return lines


def profile(
    dataset: StoredDataset,
    open_stream: Callable[[StoredDataset], BatchStream],
    *,
    step: Callable[[Any], object] | None = None,
    seconds: float = SECONDS,
    kept_bytes: int = KEPT_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Run the first steps of an epoch three times and compare.

    Args:
        dataset: dataset that is streamed.
        open_stream: streams a dataset that is equal to it.
        step: work of the loop on a batch; None does nothing with it.
        seconds: time after which the cold pass ends; the others run the same steps.
        kept_bytes: bytes, kept in memory, after which the cold pass ends too.
        clock: clock, in seconds.
    """
    source = Observed(dataset.objects, kept_bytes, clock)
    watched = open_dataset(source, dataset.digest, dataset.outside)
    with open_stream(watched) as stream:
        end = clock() + seconds
        cold, last = _pass(stream, step, clock, lambda _: clock() >= end or source.is_full)
        cold = replace(cold, **source.counts())
        source.answer_from_memory()
        cached, _ = _pass(stream, step, clock, lambda steps: steps >= cold.steps)
        cached = replace(cached, **source.counts())
        slow = stream.stats().slowest
        options = stream.options
    timed = _timed_rows(watched, options, [rows for _, rows in slow], seconds, clock)
    return Profile(
        cold,
        cached,
        _synthetic(last, step, cold, clock),
        tuple(_slow_rows(watched, timed)),
        statistics.median(timed.values()) if timed else 0.0,
    )


def _timed_rows(
    dataset: StoredDataset,
    options: StreamOptions,
    batches: Sequence[Ints],
    seconds: float,
    clock: Callable[[], float],
) -> dict[int, float]:
    """Seconds of decoding and transforming by row, the rows of `batches` one by one.

    Of a transform that does not take a batch of one row, nothing is told.
    """
    if options.sampling.pack is not None or not batches:
        return {}
    rows = np.unique(np.concatenate(list(batches)))
    single = replace(
        options,
        batch_size=1,
        shuffle=False,
        cache=None,
        sampling=Sampling(rows=rows),
        ranks=RANKS,
        loading=Loading(prefetch=0, work_threads=1, on_error=options.loading.on_error, pin=False),
    )
    timed: dict[int, float] = {}
    end, before = clock() + seconds, 0.0
    with open_batches(dataset, single, clock=clock) as stream:
        batches_of_one = iter(stream)
        for row in rows.tolist():
            try:
                next(batches_of_one)
            except Exception:  # noqa: BLE001  it needs whole batches, which the passes gave it
                return {}
            stats = stream.stats()
            now = stats.decode_seconds + stats.transform_seconds
            timed[row] = now - before
            before = now
            if clock() >= end:
                break
    return timed


def _slow_rows(dataset: StoredDataset, timed: dict[int, float]) -> list[SlowRow]:
    slowest = heapq.nlargest(SLOWEST_ROWS, timed, key=timed.__getitem__)
    ids = row_id_table(dataset).of(live_rows(dataset).physical(np.array(slowest, np.int64)))
    return [
        SlowRow(row, format_row_id(row_id), timed[row])
        for row, row_id in zip(slowest, ids, strict=True)
    ]


def _pass(
    stream: BatchStream,
    step: Callable[[Any], object] | None,
    clock: Callable[[], float],
    enough: Callable[[int], bool],
) -> tuple[Phase, Any]:
    """Run steps until it is enough; what was measured, and the last batch."""
    stream.set_epoch(stream.epoch)
    steps = 0
    step_seconds = first = 0.0
    batch = None
    began = clock()
    batches = iter(stream)
    for batch in batches:
        first = first or clock() - began
        if step is not None:
            stepped = clock()
            step(batch)
            step_seconds += clock() - stepped
        steps += 1
        if enough(steps):
            break
    took = clock() - began
    batches.close()
    stats = stream.stats()
    rows = stats.rows * steps // max(1, stats.batches)
    counts, unit = asdict(stats), "_seconds"
    parts = {name.removesuffix(unit): counts[name] for name in counts if name.endswith(unit)}
    return Phase(steps, rows, took, first, step_seconds, parts=parts), batch


def _synthetic(
    batch: Any, step: Callable[[Any], object] | None, like: Phase, clock: Callable[[], float]
) -> Phase:
    began = clock()
    if step is not None and batch is not None:
        for _ in range(like.steps):
            step(batch)
    took = clock() - began
    return Phase(like.steps, like.rows, took, 0.0, took)


class Observed:
    """A source of objects that counts what is read, keeps it, and can answer from what it keeps."""

    def __init__(self, source: ObjectSource, kept_bytes: int, clock: Callable[[], float]) -> None:
        self._source = source
        self._kept_bytes = kept_bytes
        self._clock = clock
        self._kept: dict[tuple[Digest, int, int], Buffer] = {}
        self._from_memory = False
        self._lock = Lock()
        self._counts: dict[str, Any] = dict(_NO_READS)

    @property
    def is_full(self) -> bool:
        """Whether as much has been read as may be kept."""
        with self._lock:
            return bool(self._counts["read_bytes"] >= self._kept_bytes)

    def counts(self) -> dict[str, Any]:
        """Reads, their bytes and seconds since this was asked last, as `Phase` has them."""
        with self._lock:
            counts, self._counts = self._counts, dict(_NO_READS)
        return counts

    def answer_from_memory(self) -> None:
        """From now on what was read before is answered without the source."""
        self._from_memory = True

    @property
    def shallow(self) -> frozenset[Digest]:
        return self._source.shallow

    def get(self, digest: Digest) -> Envelope:
        return self._source.get(digest)

    def describe(self, digest: Digest) -> ObjectLink:
        return self._source.describe(digest)

    def map(self, link: ObjectLink) -> memoryview | None:
        return self._source.map(link)

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        return self._read(link, start, stop, lambda: self._source.read_range(link, start, stop))

    def read_checked(self, link: ObjectLink, start: int, stop: int, tag: bytes) -> Buffer:
        return self._read(
            link, start, stop, lambda: self._source.read_checked(link, start, stop, tag)
        )

    def read_into(self, link: ObjectLink, start: int, buffer: memoryview) -> None:
        stop = start + buffer.nbytes

        def read() -> Buffer:
            self._source.read_into(link, start, buffer)
            return bytes(buffer)

        buffer.cast("B")[:] = memoryview(self._read(link, start, stop, read)).cast("B")

    def _read(self, link: ObjectLink, start: int, stop: int, read: Callable[[], Buffer]) -> Buffer:
        place = link.digest, start, stop
        if self._from_memory and place in self._kept:
            return self._kept[place]
        began = self._clock()
        data = read()
        took = self._clock() - began
        with self._lock:
            if not self._from_memory and self._counts["read_bytes"] < self._kept_bytes:
                self._kept[place] = data
            for name, count in (("reads", 1), ("read_bytes", stop - start), ("read_seconds", took)):
                self._counts[name] += count
        return data

"""Assembler of batches: walks over the stretches of a schedule, opens runs, gathers rows.

It tells the fetcher which runs come next, takes them when a step needs them, gathers rows, and lets
go of runs after their last row. A few steps are gathered at once: numpy works longer without the
interpreter lock, and what a call costs is shared by all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.streaming.collate.batch import Batch, BatchForm
from tensorrepo.formats.dataset.streaming.collate.error_policy import ErrorPolicy
from tensorrepo.formats.dataset.streaming.collate.gather import (
    PackedRuns,
    RunValues,
    WantedRows,
    teach_allocator,
)
from tensorrepo.formats.dataset.streaming.load.downloads import Downloads, means_of
from tensorrepo.formats.dataset.streaming.load.loaders import RoutedLoader, RunLoader
from tensorrepo.formats.dataset.streaming.load.prefetch import (
    Loaded,
    LocalPrefetch,
    LostRuns,
    RunPrefetch,
)
from tensorrepo.formats.dataset.streaming.options import StreamSetup, steps_at_once
from tensorrepo.formats.dataset.streaming.order.items import Items, PackedItems, placed
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key, numbers
from tensorrepo.formats.dataset.streaming.order.schedule import (
    MOST_STRETCH_ROWS,
    STRETCH_ROWS,
    Share,
    StepStretch,
    stretches,
)
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.threads import OrderedMap

Walk = Callable[[Share, int, int, Items], Iterator[StepStretch]]

_LOCAL_GROUP_BYTES = 8 << 20  # local runs load so fast that handing them over counts
_IN_PLACE_GROUP_BYTES = 32 << 20  # of what is only verified, at most half of what may be ahead
FIRST_ROWS = 2048  # of the first stretch
_FIRST_BYTES = 16 << 20  # of the first stretch of what lies in a store


class BatchReading(NamedTuple):
    """Batches, some at a time; closing `groups` ends the threads behind them.

    The first group is empty: with it the first steps are planned, and their runs expected. `stop`
    may be called on any thread: `groups` waits for nothing any more, and raises. A group has up to
    `steps_at_once` batches.
    """

    groups: Generator[list[Batch], None, None]
    stop: Callable[[], None]
    steps_at_once: int


@dataclass(frozen=True, slots=True)
class Assembler:
    """Makes the batches of one iteration; used by one thread.

    Attributes:
        plan: runs of all datasets.
        loader: loader of these runs.
        columns: columns asked for, in that order, with their places in the plan.
        nullable: whether validity is asked for, by column of the plan.
        form: form of the batches.
        setup: setup of the stream.
        stats: statistics of the iteration.
        stretches: walks over the steps of a share, given seed, epoch and items.
        all_loading: callback, once, when the last runs of the epoch are loaded or being loaded.
    """

    plan: StreamPlan
    loader: RunLoader | RoutedLoader
    columns: tuple[tuple[Column, int], ...]
    nullable: tuple[bool, ...]
    form: BatchForm
    setup: StreamSetup
    stats: StreamStats
    stretches: Walk
    all_loading: Callable[[], None] = lambda: None

    def reading(self, share: Share, seed: int, epoch: int) -> BatchReading:
        """Every step of the share. Reading begins with the first one asked for."""
        lost = LostRuns(self.plan, self.nullable)
        fetcher = self._fetcher(lost)
        groups = self._groups(share, seed, epoch, fetcher, lost)
        return BatchReading(groups, fetcher.stop, self.steps_at_once)

    def _groups(
        self, share: Share, seed: int, epoch: int, fetcher: RunPrefetch[Loaded], lost: LostRuns
    ) -> Generator[list[Batch], None, None]:
        teach_allocator()
        items = self.plan.items(seed, epoch)
        walk = _Walk(self, fetcher, items, lost)
        upcoming = self.stretches(share, seed, epoch, items)
        planned = OrderedMap(upcoming, walk.prepared, threads=1, ahead=2, name="plan")
        with closing(fetcher), closing(planned):
            yield from walk.groups(planned)

    def _fetcher(self, lost: LostRuns) -> RunPrefetch[Loaded]:
        loader, setup, loading = self.loader, self.setup, self.setup.options.loading
        ahead_bytes, tolerant = loading.ahead_bytes, loading.on_error != "raise"
        if not loader.is_local:
            means = means_of(
                loader.objects,
                clock=setup.clock,
                cache=setup.page_cache,
                peers=setup.peers,
                threads=loading.fetch_threads,
            )
            instead = lost.add if tolerant else None
            return Downloads(loader, means, self.stats, ahead_bytes=ahead_bytes, instead=instead)
        group_bytes = _LOCAL_GROUP_BYTES
        if loader.is_in_place:
            group_bytes = max(group_bytes, min(_IN_PLACE_GROUP_BYTES, ahead_bytes // 2))
        return LocalPrefetch(
            partial(lost.load, loader.load) if tolerant else loader.load,
            loader.size_of,
            threads=self.fetch_threads or 1,
            ahead_bytes=ahead_bytes,
            group_bytes=group_bytes,
        )

    @property
    def fetch_threads(self) -> int | None:
        """How many threads load runs; None: as many requests as the store bears."""
        if self.setup.options.loading.fetch_threads is not None or not self.loader.is_local:
            return self.setup.options.loading.fetch_threads
        # One thread verifies what lies in place faster than another gathers.
        return 1 if self.loader.is_in_place else 4

    @property
    def steps_at_once(self) -> int:
        """How many steps are gathered together."""
        options = self.setup.options
        return steps_at_once(options.batch_size // options.ranks.count, self.plan.item_bytes)


def plan_stretches(
    plan: StreamPlan,
    is_local: bool,
    ahead_bytes: int,
    share: Share,
    seed: int,
    epoch: int,
    items: Items,
) -> Iterator[StepStretch]:
    """The stretches of an epoch of one dataset; see `Assembler.stretches`.

    `is_local` says whether runs lie in memory or on a local disk; `ahead_bytes`, decoded, may be
    fetched ahead.
    """
    chosen = plan.arrangement
    # With buckets a lane may give its rows of two blocks far apart.
    spread = 2 * (chosen.lanes + chosen.block_rows)
    least = max(FIRST_ROWS, spread, chosen.window_rows // 4)
    most = max(STRETCH_ROWS, least)
    if not is_local:
        # What is known of the future must be enough for all that may be on its way: from the
        # first step on for some requests, later for as much as may be fetched ahead.
        item_bytes = max(1, plan.item_bytes)
        least = max(least, min(_FIRST_BYTES // item_bytes, STRETCH_ROWS))
        known = 2 * ahead_bytes // item_bytes
        most = max(most, min(known, MOST_STRETCH_ROWS))
    if chosen.kind == "global" and not is_local:
        # Rows of a full shuffle share no pages, so what two stretches need is the window.
        run_bytes = int(plan.run_bytes.sum()) // max(1, plan.runs)
        least = most = max(1, plan.window_bytes // max(1, 2 * run_bytes))
    counted = stretches(
        plan.order(seed, epoch, items),
        items.counts,
        share,
        key=epoch_key(seed, epoch, Purpose.ROWS),
        keep=chosen.kind == "resident",
        stretch_rows=most,
        first_rows=least,
    )
    return (placed(stretch, items) for stretch in counted)


class _Prepared(NamedTuple):
    """A stretch, and the numbers of its rows in the dataset."""

    stretch: StepStretch
    numbers: Ints


class _Walk:
    """One pass over the stretches of an epoch. One thread walks, another may prepare."""

    def __init__(
        self, assembler: Assembler, fetcher: RunPrefetch[Loaded], items: Items, lost: LostRuns
    ) -> None:
        self._assembler = assembler
        self._fetcher = fetcher
        self._lost = lost
        self._bad = ErrorPolicy(assembler.setup.options.loading.on_error, assembler.stats)
        self._stats = assembler.stats
        self._clock = assembler.setup.clock
        self._all_loading = assembler.all_loading
        plan, options = assembler.plan, assembler.setup.options
        most_rows = assembler.steps_at_once * (options.batch_size // options.ranks.count)
        self._values: list[RunValues | PackedRuns] = [
            RunValues(plan.live, column.index.storage, nullable=nullable, most_rows=most_rows)
            for column, nullable in zip(plan.columns, assembler.nullable, strict=True)
        ]
        if isinstance(items, PackedItems):
            element = plan.leading.index.storage.element
            self._values = [
                PackedRuns(items, plan.first_row, element, assembler.setup.options.pad, lost)
            ]

    def prepared(self, stretch: StepStretch) -> _Prepared:
        """Work out for all steps of a stretch what does not depend on where runs lie."""
        numbers = self._assembler.plan.first_row[stretch.run] + stretch.row
        return _Prepared(stretch, numbers)

    def groups(self, upcoming: Iterator[_Prepared]) -> Iterator[list[Batch]]:
        """Every step, some at a time."""
        at_once = 1  # so that the first batch is not kept waiting by others
        most_at_once = self._assembler.steps_at_once
        current = self._expected(upcoming)
        yield []
        while current is not None:
            following: _Prepared | None = None
            steps = current.stretch.steps
            half, is_last = steps // 2, False
            if not self._assembler.loader.is_local:
                # Requests for the next runs follow at once, or the link is idle in between.
                following, half = self._expected(upcoming), steps
                is_last = following is None
            step = 0
            while step < steps:
                stop = min(step + at_once, steps)
                yield from self._steps(current, step, stop)
                if step <= half < stop:
                    # Late enough to let the first batches out, early enough for the fetcher.
                    following = self._expected(upcoming)
                    is_last = following is None
                if is_last and 2 * stop >= steps and self._fetcher.all_begun:
                    self._all_loading()
                    is_last = False  # told
                step, at_once = stop, min(2 * at_once, most_at_once)
            current = following

    def _expected(self, upcoming: Iterator[_Prepared]) -> _Prepared | None:
        began = self._clock()
        prepared = next(upcoming, None)
        if prepared is not None:
            self._fetcher.expect(prepared.stretch.opened.tolist())
        self._stats.plan_seconds += self._clock() - began
        return prepared

    def _steps(self, current: _Prepared, start: int, stop: int) -> Iterator[list[Batch]]:
        stretch = current.stretch
        self._open(stretch.opened[_between(stretch.opened_at, start, stop)].tolist())
        batches = self._gathered(current, start, stop)
        closed = stretch.closed[_between(stretch.closed_at, start, stop)]
        for values in self._values:
            values.close(closed)
        for run in closed.tolist() if self._lost else ():
            self._lost.pop(run, None)  # its number may be that of another one later
        began = self._clock()
        yield batches
        self._stats.idle_seconds += self._clock() - began

    def _open(self, runs: list[int]) -> None:
        if not runs:
            return
        began = self._clock()
        loaded = self._fetcher.take(runs)
        self._stats.fetch_seconds += self._clock() - began
        for group in loaded:
            for values, column in zip(self._values, group, strict=True):
                for where in column:
                    values.open(where)
        self._stats.runs += len(runs)
        self._stats.run_bytes += int(self._assembler.plan.run_bytes[runs].sum())

    def _gathered(self, current: _Prepared, start: int, stop: int) -> list[Batch]:
        began = self._clock()
        bounds = current.stretch.bounds[start : stop + 1].tolist()
        first, last = bounds[0], bounds[-1]
        wanted = WantedRows(current.stretch.run[first:last], current.stretch.row[first:last])
        form = self._assembler.form
        found = [
            (column, self._values[place].gather(wanted, form.pool))
            for column, place in self._assembler.columns
        ]
        ends = current.stretch.ends[start:stop].tolist()
        batches = form.batches(
            found, [at - first for at in bounds], ends=ends, rows=current.numbers[first:last]
        )
        if stop == current.stretch.steps:
            batches[-1].repeated = current.stretch.repeated
        if current.stretch.echo is not None:
            for batch, (low, high) in zip(batches, pairwise(bounds), strict=True):
                _mark_echo(batch, current.stretch.echo[low:high])
        if self._lost:
            runs = current.stretch.run
            parts = [runs[low:high] for low, high in pairwise(bounds)]
            batches = list(map(self._without_lost, batches, parts))
        self._stats.batches += len(batches)
        self._stats.rows += sum(len(batch.rows) for batch in batches)
        self._stats.gather_seconds += self._clock() - began
        return batches

    def _without_lost(self, batch: Batch, runs: Ints) -> Batch:
        """The rows whose runs could be loaded."""
        lost = np.isin(runs, list(self._lost))
        if not lost.any():
            return batch
        for at in np.flatnonzero(lost).tolist():
            self._bad.replacement(self._lost[int(runs[at])], batch, at, cause="page")
        kept = np.flatnonzero(~lost)
        self._bad.check_left(len(kept), len(runs), batch.position)
        return batch.part(kept)


def _mark_echo(batch: Batch, echo: Ints) -> None:
    """Note which time each row is given: chance (of boxes and flips) differs from time to time."""
    batch.echo = echo
    again = numbers(echo.view(np.uint64), batch.draws)
    batch.draws = np.where(echo > 0, again, batch.draws)


def _between(steps: np.ndarray[Any, np.dtype[np.int64]], start: int, stop: int) -> slice:
    """Where ascending `steps` are in ``[start, stop)``."""
    return slice(*np.searchsorted(steps, (start, stop)).tolist())

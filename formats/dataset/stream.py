"""How does an epoch reach the training loop: shuffled, whole batches, at the speed of memory?

    runs expected -> fetch threads: read, verify, decode -> batch thread: gather, transform -> user

The batch thread walks over the stretches of the schedule. It tells the fetcher which runs come
next, takes them when a step needs them, gathers the step's rows into pooled arrays, and lets go of
runs after their last row. Without `prefetch` the same happens on the caller's thread.

Source:
    docs/spec/stream-order.md.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.ahead import Ahead, Fetcher
from tensorrepo.formats.dataset.batch import OUTPUTS, Batch, BatchForm, Output
from tensorrepo.formats.dataset.gather import RunValues
from tensorrepo.formats.dataset.keyed import Purpose, epoch_key
from tensorrepo.formats.dataset.plan import Explanation, Plan, Shuffle, explain, make_plan
from tensorrepo.formats.dataset.pool import Pool
from tensorrepo.formats.dataset.read import Dataset, column_index
from tensorrepo.formats.dataset.schedule import STRETCH_ROWS, Share, Stretch, stretches
from tensorrepo.formats.dataset.stream_read import RowIds, RunLoader
from tensorrepo.formats.dataset.stream_state import StreamState, decode_state, encode_state
from tensorrepo.formats.dataset.values import ColumnValues
from tensorrepo.repo.errors import InvalidInputError

WINDOW_BYTES = 512 << 20
_AHEAD_BYTES = 64 << 20
_LOCAL_THREADS, _REMOTE_THREADS = 2, 16
_LOCAL_GROUP_BYTES = 1 << 20  # a local run costs so little that handing it over counts

Last = Literal["short", "drop"]
Transform = Callable[[Batch], Any]


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a dataset is streamed; `stream` says what each of them means."""

    batch_size: int
    rank: int
    world: int
    last: Last
    output: Output
    pad: float | None
    transform: Transform | None
    prefetch: int
    threads: int | None
    ahead_bytes: int
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise InvalidInputError(f"output is one of {', '.join(OUTPUTS)}, got {self.output!r}")
        if self.last not in ("short", "drop"):
            raise InvalidInputError(f"last is 'short' or 'drop', got {self.last!r}")
        if self.prefetch < 0 or self.ahead_bytes < 1 or (self.threads or 1) < 1:
            raise InvalidInputError(
                "prefetch is at least 0, ahead_bytes and threads are at least 1, got "
                f"{self.prefetch}, {self.ahead_bytes}, {self.threads}"
            )

    def share(self, start: int) -> Share:
        return Share(self.batch_size, self.rank, self.world, start, self.last == "drop")


def stream(  # noqa: PLR0913  the one call by which people set a stream up
    dataset: Dataset,
    *,
    batch_size: int,
    columns: Sequence[str] | None = None,
    shuffle: Shuffle = "pages",
    window_bytes: int = WINDOW_BYTES,
    seed: int = 0,
    epoch: int = 0,
    rank: int = 0,
    world: int = 1,
    last: Last = "short",
    output: Output = "numpy",
    pad: float | None = None,
    transform: Transform | None = None,
    prefetch: int = 4,
    threads: int | None = None,
    ahead_bytes: int = _AHEAD_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> Stream:
    """Stream `dataset` in whole batches.

    Args:
        dataset: what to read.
        batch_size: rows of a step, of all ranks together.
        columns: names; None for all.
        shuffle: "pages" (or True) mixes rows of as many pages as fit the window; "global" is a
            full shuffle, cheap for data that fits the window or is local; "buffer" shuffles
            windows of storage order; False is storage order.
        window_bytes: decoded bytes that may be resident, of all ranks together.
        seed: of the shuffling; the same seed and epoch give the same order everywhere.
        epoch: which pass over the data, see `Stream.set_epoch`.
        rank: which part of every step to read, of `world` parts.
        world: how many ranks share every step.
        last: whether a last step of fewer rows is handed out ("short") or left out ("drop").
        output: "numpy" arrays, "torch" tensors of the same memory, or "arrow" arrays.
        pad: stack ragged columns into one array, filled up with this value.
        transform: called with every `Batch`, in order, on the batch thread; what it returns is
            handed out instead.
        prefetch: batches made ahead on a thread; 0 makes them when asked for.
        threads: how many fetch; None chooses by where the data lies.
        ahead_bytes: decoded bytes that may be fetched ahead of their first use.
        clock: seconds, for `Stream.stats`.

    Raises:
        InvalidInputError: an option that makes no sense, or a rank that would get no rows.
        NotFoundError: no such column.
    """
    options = StreamOptions(
        batch_size, rank, world, last, output, pad, transform, prefetch, threads, ahead_bytes, clock
    )
    options.share(0)
    wanted = dataset.schema.select(columns).columns
    by_schema = [column for column in dataset.schema.columns if column in wanted]
    plan = make_plan(
        [(column.name, column_index(dataset, column.name)) for column in by_schema],
        batch_size=batch_size,
        window_bytes=window_bytes,
        shuffle=shuffle,
    )
    return Stream(dataset, options, plan, tuple(column.name for column in wanted), seed, epoch)


class Stream:
    """The batches of one epoch after another: iterate, `set_epoch`, iterate again.

    Iterating begins at the start of the epoch, or once where a loaded state says. Streams may be
    iterated several times, also at the same time; `state_dict` follows the newest iteration.
    """

    def __init__(
        self,
        dataset: Dataset,
        options: StreamOptions,
        plan: Plan,
        names: tuple[str, ...],
        seed: int,
        epoch: int,
    ) -> None:
        """Made by `stream`, which says what the arguments mean."""
        self.dataset = dataset
        self.options = options
        self.plan = plan
        self.columns = names
        self._seed = _word(seed, "seed")
        self._epoch = _word(epoch, "epoch")
        self._start = 0  # where the next iteration begins
        self._position = 0  # where the newest one is
        self._counters = _Counters()
        self.pool = Pool()
        self.row_ids = RowIds(dataset)
        self._open: weakref.WeakSet[StreamIterator] = weakref.WeakSet()

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def epoch(self) -> int:
        return self._epoch

    def __len__(self) -> int:
        """Batches that the next iteration gives."""
        return self.options.share(self._start).steps(self.plan.rows)

    def __iter__(self) -> StreamIterator:
        share = self.options.share(self._start)
        self._check_share(share)
        self._start, self._position = 0, share.start
        self._counters = _Counters()
        items = _Reader(self, self._counters).batches(share, self._seed, self._epoch)
        iterator = StreamIterator(self, items, self.options, self._counters)
        self._open.add(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Which epoch is iterated next. Another one than before begins at its start."""
        if _word(epoch, "epoch") != self._epoch:
            self._start = self._position = 0
        self._epoch = epoch

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where the newest iteration is, as JSON values: the same on every rank.

        Args:
            position: `Batch.position` of the last batch that was used, where somebody else
                prefetches batches of this stream; None for the last batch handed out.
        """
        chosen = self.plan.arrangement
        state = StreamState(
            dataset=self.dataset.digest,
            columns=self.columns,
            order=chosen.kind,
            lanes=chosen.lanes,
            bands=chosen.bands,
            window_rows=chosen.window_rows,
            seed=self._seed,
            epoch=self._epoch,
            position=self._position if position is None else position,
        )
        return encode_state(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was: same order, whatever the batch size and number of ranks are.

        Raises:
            InvalidInputError: not a state of a stream of this dataset and these columns.
        """
        found = decode_state(
            state, dataset=self.dataset.digest, columns=self.columns, rows=self.plan.rows
        )
        self.plan = replace(self.plan, arrangement=found.arrangement)
        self._seed, self._epoch = found.seed, found.epoch
        self._start = self._position = found.position

    def explain(self) -> Explanation:
        """What reading an epoch will mean: order, window, how well it mixes, reads and bytes."""
        share = self.options.share(0)
        return explain(
            self.plan,
            batch_size=share.batch_size,
            steps=share.steps(self.plan.rows),
            seed=self._seed,
            epoch=self._epoch,
        )

    def stats(self) -> StreamStats:
        """What the newest iteration did up to now, and what it waited for."""
        return self._counters.snapshot()

    def close(self) -> None:
        """Stop every iteration that is still going, and its threads."""
        for iterator in list(self._open):
            iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"Stream({self.plan.rows:,} rows, batch_size={self.options.batch_size}, "
            f"order={self.plan.arrangement.kind!r}, epoch={self._epoch}, {len(self)} batches)"
        )

    def moved_to(self, position: int) -> None:
        """Called by its iterators when a batch is handed out."""
        self._position = position

    def _check_share(self, share: Share) -> None:
        steps = share.steps(self.plan.rows)
        if not steps:
            return
        start, stop = share.bounds(steps - 1, self.plan.rows)
        if stop - start < share.world:
            raise InvalidInputError(
                f"the last step has {stop - start} rows for {share.world} ranks, so some would get "
                "none. Use last='drop', another batch_size, or fewer ranks."
                if share.batch_size >= share.world
                else f"batch_size={share.batch_size} rows a step cannot be shared by "
                f"{share.world} ranks: it counts the rows of all ranks together."
            )


class StreamIterator:
    """One pass over an epoch. Dropping it stops its threads."""

    def __init__(
        self,
        owner: Stream,
        items: Iterator[tuple[int, Any]],
        options: StreamOptions,
        counters: _Counters,
    ) -> None:
        """Made by iterating over a `Stream`."""
        self._owner = owner
        self._counters = counters
        self._clock = options.clock
        self._items = Ahead(items, options.prefetch) if options.prefetch else items
        # The threads know nothing of this object, so it can be collected while they run.
        self._finalizer = weakref.finalize(self, _close, self._items)

    def __iter__(self) -> StreamIterator:
        return self

    def __next__(self) -> Any:
        began = self._clock()
        try:
            position, item = next(self._items)
        except BaseException:  # the end, a failure, or Ctrl-C: nothing follows
            self.close()
            raise
        self._counters.waited_seconds += self._clock() - began
        self._owner.moved_to(position)
        return item

    def close(self) -> None:
        """Stop, and wait for the threads. What was handed out stays valid."""
        self._finalizer()


def _close(items: Any) -> None:
    items.close()


def _word(value: int, name: str) -> int:
    if not 0 <= value < 1 << 64:
        raise InvalidInputError(f"{name} is in [0, 2^64), got {value}")
    return value


# ------------------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True)
class StreamStats:
    """What an iteration did. Seconds are of the thread that makes batches, but the last.

    Attributes:
        batches: made.
        rows: in them.
        runs: read, verified and decoded.
        run_bytes: their decoded bytes.
        plan_seconds: working out the order.
        fetch_seconds: waiting for runs.
        gather_seconds: bringing rows together.
        transform_seconds: in the transform.
        idle_seconds: waiting for the consumer, with `prefetch` batches made ahead.
        waited_seconds: that the consumer waited for batches.
    """

    batches: int
    rows: int
    runs: int
    run_bytes: int
    plan_seconds: float
    fetch_seconds: float
    gather_seconds: float
    transform_seconds: float
    idle_seconds: float
    waited_seconds: float


@dataclass(slots=True)
class _Counters:
    batches: int = 0
    rows: int = 0
    runs: int = 0
    run_bytes: int = 0
    plan_seconds: float = 0.0
    fetch_seconds: float = 0.0
    gather_seconds: float = 0.0
    transform_seconds: float = 0.0
    idle_seconds: float = 0.0
    waited_seconds: float = 0.0

    def snapshot(self) -> StreamStats:
        return StreamStats(**{name: getattr(self, name) for name in self.__slots__})


class _Reader:
    """Makes the batches of one iteration. Used by one thread, and refers to no `Stream`."""

    def __init__(self, owner: Stream, counters: _Counters) -> None:
        dataset, plan, options = owner.dataset, owner.plan, owner.options
        self._plan, self._options, self._clock = plan, options, options.clock
        self._counters = counters
        self._pool = owner.pool
        self._form = BatchForm(options.output, options.pad, owner.pool, owner.row_ids.of)
        self._loader = RunLoader(dataset, plan)
        planned = [column.name for column in plan.columns]
        self._columns = [dataset.schema.column(name) for name in owner.columns]
        self._places = [planned.index(name) for name in owner.columns]
        self._values = [
            RunValues(
                plan.runs,
                column.index.storage,
                nullable=dataset.schema.column(column.name).nullable,
            )
            for column in plan.columns
        ]

    def batches(self, share: Share, seed: int, epoch: int) -> Iterator[tuple[int, Any]]:
        """Every batch of the share, with the position after it."""
        local = self._loader.is_local
        fetcher = Fetcher(
            self._loader.load,
            lambda run: int(self._plan.run_bytes[run]),
            threads=self._options.threads or (_LOCAL_THREADS if local else _REMOTE_THREADS),
            ahead_bytes=self._options.ahead_bytes,
            group_bytes=_LOCAL_GROUP_BYTES if local else 0,
        )
        upcoming = self._stretches(share, seed, epoch)
        try:
            stretch = self._expected(upcoming, fetcher)
            while stretch is not None:
                half = stretch.steps // 2
                yield from self._steps(stretch, range(half), fetcher)
                # Late enough to let the first batches out, early enough for the fetcher.
                following = self._expected(upcoming, fetcher)
                yield from self._steps(stretch, range(half, stretch.steps), fetcher)
                stretch = following
        finally:
            fetcher.close()

    def _stretches(self, share: Share, seed: int, epoch: int) -> Iterator[Stretch]:
        plan, kind = self._plan, self._plan.arrangement.kind
        rows = max(STRETCH_ROWS, 2 * plan.arrangement.lanes, plan.arrangement.window_rows // 4)
        if kind == "global" and not self._loader.is_local:
            # Rows of a full shuffle share no pages, so what two stretches need is the window.
            rows = max(1, plan.window_bytes // max(1, 2 * int(plan.run_bytes.mean())))
        return stretches(
            plan.order(seed, epoch),
            plan.live,
            share,
            key=epoch_key(seed, epoch, Purpose.ROWS),
            keep=kind == "resident",
            stretch_rows=rows,
        )

    def _expected(
        self, upcoming: Iterator[Stretch], fetcher: Fetcher[tuple[ColumnValues, ...]]
    ) -> Stretch | None:
        began = self._clock()
        stretch = next(upcoming, None)
        if stretch is not None:
            fetcher.expect(stretch.opened.tolist())
        self._counters.plan_seconds += self._clock() - began
        return stretch

    def _steps(
        self, stretch: Stretch, steps: range, fetcher: Fetcher[tuple[ColumnValues, ...]]
    ) -> Iterator[tuple[int, Any]]:
        every = np.arange(stretch.steps + 1)
        opens = np.searchsorted(stretch.opened_at, every)
        closes = np.searchsorted(stretch.closed_at, every)
        row_number = self._plan.first_row[stretch.run] + stretch.row
        for step in steps:
            for run in stretch.opened[opens[step] : opens[step + 1]].tolist():
                self._open(run, fetcher)
            part = slice(stretch.bounds[step], stretch.bounds[step + 1])
            end = int(stretch.ends[step])
            batch = self._batch(stretch.run[part], stretch.row[part], row_number[part], end)
            for run in stretch.closed[closes[step] : closes[step + 1]].tolist():
                for values in self._values:
                    values.drop(run)
            item = self._transformed(batch)
            began = self._clock()
            yield end, item
            self._counters.idle_seconds += self._clock() - began

    def _open(self, run: int, fetcher: Fetcher[tuple[ColumnValues, ...]]) -> None:
        began = self._clock()
        loaded = fetcher.take(run)
        self._counters.fetch_seconds += self._clock() - began
        self._counters.runs += 1
        self._counters.run_bytes += int(self._plan.run_bytes[run])
        for values, found in zip(self._values, loaded, strict=True):
            values.put(run, found)

    def _batch(
        self,
        run: NDArray[np.int64],
        row: NDArray[np.int64],
        row_number: NDArray[np.int64],
        position: int,
    ) -> Batch:
        began = self._clock()
        found = [
            (column, self._values[place].gather(run, row, self._pool))
            for column, place in zip(self._columns, self._places, strict=True)
        ]
        batch = self._form.batch(found, position=position, rows=row_number)
        self._counters.batches += 1
        self._counters.rows += len(row)
        self._counters.gather_seconds += self._clock() - began
        return batch

    def _transformed(self, batch: Batch) -> Any:
        if self._options.transform is None:
            return batch
        began = self._clock()
        item = self._options.transform(batch)
        self._counters.transform_seconds += self._clock() - began
        return item

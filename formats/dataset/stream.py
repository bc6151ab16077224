"""How does an epoch reach the training loop: shuffled, whole batches, at the speed of memory?

    runs expected -> fetch threads: read, verify, decode -> gather -> decode, transform -> user

One thread at a time walks over the stretches of the schedule. It tells the fetcher which runs come
next, takes them when a step needs them, gathers the step's rows into pooled arrays, and lets go of
runs after their last row. Without `prefetch` all but fetching happens on the caller's thread.

Source:
    docs/spec/stream-order.md.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Self

from tensorrepo.formats import arguments
from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.pages.pool import Pool
from tensorrepo.formats.dataset.read import Dataset, live_rows, row_id_table
from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.formats.dataset.streaming.assemble import Assembler
from tensorrepo.formats.dataset.streaming.batching.badsamples import OnError, report
from tensorrepo.formats.dataset.streaming.batching.batch import BatchForm
from tensorrepo.formats.dataset.streaming.batching.decode import Images, chosen_decodes
from tensorrepo.formats.dataset.streaming.batching.outputs import Output, check_moments
from tensorrepo.formats.dataset.streaming.batching.process import ProcessItems
from tensorrepo.formats.dataset.streaming.errand import Errand
from tensorrepo.formats.dataset.streaming.fetching.group_loader import loader_of
from tensorrepo.formats.dataset.streaming.options import (
    StreamOptions,
    StreamStats,
    Transform,
    Workers,
)
from tensorrepo.formats.dataset.streaming.ordering.explain import Explanation, explain
from tensorrepo.formats.dataset.streaming.ordering.items import items_total
from tensorrepo.formats.dataset.streaming.ordering.keyed import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.ordering.plan import Plan, Shuffle
from tensorrepo.formats.dataset.streaming.ordering.schedule import Last, Share
from tensorrepo.formats.dataset.streaming.pipeline import Items, StreamIterator, items_ahead
from tensorrepo.formats.dataset.streaming.planning import Sampling, plan_stream
from tensorrepo.formats.dataset.streaming.state import (
    ItemsState,
    StreamState,
    decode_state,
    encode_state,
)
from tensorrepo.formats.dataset.streaming.tuning import (
    AHEAD_BATCHES,
    Tuning,
    batches_ahead,
    usual_work_threads,
)
from tensorrepo.formats.dataset.streaming.work import decoder_of, decoding_of, finish_of, work_of
from tensorrepo.formats.native.rows import BEST
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tensorrepo.repo.pagecache import PageCache

WINDOW_BYTES = 512 << 20
AHEAD_BYTES = 64 << 20
EVERY_ROW = Sampling()


def stream(  # noqa: PLR0913  the one call by which people set a stream up
    dataset: Dataset,
    *,
    batch_size: int,
    columns: Sequence[str] | None = None,
    shuffle: Shuffle = "pages",
    window_bytes: int = WINDOW_BYTES,
    sampling: Sampling = EVERY_ROW,
    seed: int = 0,
    epoch: int = 0,
    rank: int = 0,
    world: int = 1,
    replicate: int = 1,
    last: Last = "short",
    output: Output = "numpy",
    pad: float | None = None,
    images: Images = None,
    on_error: OnError = "raise",
    transform: Transform | None = None,
    prefetch: int | None = None,
    threads: int | None = None,
    work_threads: int | None = None,
    ahead_bytes: int = AHEAD_BYTES,
    pin: bool | None = None,
    workers: Workers = "thread",
    remake: Callable[..., Stream] | None = None,
    page_cache: PageCache | None = None,
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
        sampling: which rows come how often, and whether they are packed or put into buckets; then
            `batch_size` counts items, which are rows or packed elements.
        seed: of the shuffling; the same seed and epoch give the same order everywhere.
        epoch: which pass over the data, see `Stream.set_epoch`.
        rank: which part of every step to read, of `world` parts.
        world: how many ranks share every step.
        replicate: so many consecutive ranks get the same share, as parts of one model need.
        last: whether a last step of fewer rows is handed out ("short"), left out ("drop"), or
            filled up by repeating rows of it ("pad"); `Batch.repeated` counts those.
        output: "numpy" arrays, "torch" tensors or "jax" arrays of the same memory where they can
            be, or "arrow" arrays.
        pad: stack ragged columns into one array, filled up with this value.
        images: decode image columns: True or a `Decode` for all of them, or one by column.
        on_error: what happens to rows whose image cannot be decoded or whose page is damaged:
            "raise", "skip" (counted in `Stream.stats` and named in the log), or called with the
            error and the row's id, by several threads: gives encoded bytes or pixels to be used
            instead of an image, or None to skip the row.
        transform: called with every `Batch`, by several threads at once; what it returns is handed
            out instead, in order.
        prefetch: batches made ahead on threads; 0 makes them when asked for, None chooses by bytes.
        threads: how many fetch; None chooses by where the data lies.
        work_threads: how many transform; None: one a core, up to 8. 1 for what is not thread-safe.
        ahead_bytes: decoded bytes that may be fetched ahead of their first use.
        pin: hand tensors out in pinned memory; None: where torch has a GPU to copy them to.
        workers: where batches are made: on threads of this process, or on those of a "process" of
            its own, which pays when the transform holds the interpreter lock for long.
        remake: makes this stream again in another process: called there with `workers`, `output`
            and `pin`, and passed there as `multiprocessing` does.
        page_cache: keeps a part of what is read from a store on this machine's disk.
        clock: seconds, for `Stream.stats`.

    Raises:
        InvalidInputError: an option that makes no sense, or a rank that would get no rows.
        NotFoundError: no such column.
    """
    chosen = dataset.schema.select(checks.column_names(columns))
    check_moments(chosen.columns, output)
    wanted = chosen.names
    if pad is not None:
        checks.padding(pad, _ragged(dataset, wanted))
    batch_size = arguments.whole("batch_size", batch_size, 1)
    window_bytes = arguments.whole("window_bytes", window_bytes, 1)
    options = StreamOptions(
        batch_size=batch_size,
        rank=arguments.whole("rank", rank),
        world=arguments.whole("world", world, 1),
        replicate=arguments.whole("replicate", replicate, 1),
        last=last,
        output=output,
        pad=pad,
        transform=transform,
        prefetch=AHEAD_BATCHES if prefetch is None else prefetch,
        threads=threads,
        work_threads=work_threads or usual_work_threads(os.cpu_count()),
        ahead_bytes=ahead_bytes,
        clock=clock,
        pin=pin,
        workers=workers,
        remake=remake,
        on_error=on_error,
        images=chosen_decodes(images, dataset.schema, wanted),
        page_cache=page_cache,
    )
    if sampling.pack is not None and output == "arrow":
        raise InvalidInputError("packed items are arrays: output is 'numpy', 'torch' or 'jax'")
    plan = plan_stream(
        dataset,
        wanted,
        sampling,
        batch_size=batch_size,
        window_bytes=window_bytes,
        shuffle=shuffle,
    )
    if page_cache is not None:
        wanted_bytes = sum(column.page_bytes for column in plan.columns)
        options = replace(options, page_cache=page_cache.for_stream(wanted_bytes))
    if prefetch is None:
        batch_bytes = _batch_bytes(plan, options)
        options = replace(options, prefetch=batches_ahead(batch_bytes))
    return Stream(dataset, options, plan, wanted, seed, epoch)


class Stream:
    """The batches of one epoch after another: iterate, `set_epoch`, iterate again.

    Iterating begins at the start of the epoch, or once where a loaded state says. Streams may be
    iterated several times, also at the same time; `state_dict` follows the newest iteration. The
    state of a finished epoch has nothing left: go on with `set_epoch(epoch + 1)`.
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
        self._seed = arguments.word("seed", seed)
        self._epoch = arguments.word("epoch", epoch)
        self._start = 0  # where the next iteration begins
        self._position = 0  # where the newest one is
        self._newest: object = None
        self._stats = StreamStats()
        self._pool = Pool()
        self._decoder = decoder_of(options)
        self._open: weakref.WeakSet[StreamIterator] = weakref.WeakSet()

    @property
    def seed(self) -> int:
        return self._seed

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def rows(self) -> int:
        """Rows of this epoch, or packed items: what positions count."""
        return self._length(self._seed, self._epoch)

    def __len__(self) -> int:
        """Batches that the next iteration gives; one that has begun changes nothing of it."""
        return self.options.share(self._start).steps(self.rows)

    def __iter__(self) -> StreamIterator:
        return self.in_turn(0, 1)

    def in_turn(self, turn: int, turns: int, *, quiet: bool = False) -> StreamIterator:
        """Iterate over each `turns`-th step, beginning with number `turn` of those that are left.

        So several workers make all steps together, each as the whole stream would. If `quiet`,
        somebody else reports what became of bad rows.
        """
        share = self.options.share(self._start, turn, turns)
        self._check_share(share)
        self._stats = StreamStats()
        made_there = self.options.workers == "process"
        items = self._items_of_process(share) if made_there else self._items(share)
        self._start, self._position = 0, share.start
        told = f"epoch {self._epoch} of dataset {self.dataset.digest:.12}"
        iterator = StreamIterator(
            items,
            self._moved_to,
            self.options.clock,
            self._stats,
            None if quiet else partial(report, told, self._stats),
        )
        self._newest = iterator.token
        self._open.add(iterator)
        return iterator

    @property
    def tuning(self) -> Tuning:
        """How many threads make batches, and how far ahead."""
        assembler = self.assembler()
        works = self.options.transform is not None or self._decoder is not None
        return Tuning(
            self.options.prefetch,
            self.options.work_threads if works else 0,
            assembler.fetch_threads,
            assembler.steps_at_once,
            BEST.name,
        )

    @property
    def start(self) -> int:
        """Where the next iteration begins."""
        return self._start

    @property
    def position(self) -> int:
        """Rows of the epoch that the newest iteration handed out, to all ranks together."""
        return self._position

    def rewind(self) -> None:
        """Let the next iteration begin at the start of the epoch."""
        self._start = self._position = 0
        self._newest = None

    def set_epoch(self, epoch: int) -> None:
        """Which epoch is iterated next. Another one than before begins at its start."""
        epoch = arguments.word("epoch", epoch)
        if epoch != self._epoch:
            self.rewind()
        self._epoch = epoch

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where the newest iteration is, as JSON values: the same on every rank.

        Args:
            position: `Batch.position` of the last batch that was used, where somebody else
                prefetches batches of this stream; None for the last batch handed out.
        """
        chosen = self.plan.arrangement
        if position:
            position = arguments.whole("position", position, 0, self.rows)
        state = StreamState(
            dataset=self.dataset.digest,
            columns=self.columns,
            order=chosen.kind,
            lanes=chosen.lanes,
            bands=chosen.bands,
            window_rows=chosen.window_rows,
            group_rows=chosen.group_rows,
            run_rows=chosen.run_rows,
            items=self._items_state(),
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
            state,
            dataset=self.dataset.digest,
            columns=self.columns,
            items=self._items_state(),
            length=self._length,
        )
        self.plan = self.plan.arranged_as(found.arrangement)
        self._seed, self._epoch = found.seed, found.epoch
        self._start = self._position = found.position
        self._newest = None

    def explain(self) -> Explanation:
        """What reading an epoch will mean: order, window, how well it mixes, reads and bytes."""
        share = self.options.share(0)
        found = explain(
            self._opened(),
            batch_size=share.batch_size,
            steps=share.steps(self.rows),
            seed=self._seed,
            epoch=self._epoch,
        )
        return replace(found, tuning=str(self.tuning))

    def stats(self) -> StreamStats:
        """What the newest iteration did up to now, and what it waited for."""
        found = self._stats
        return replace(
            found,
            skipped=dict(found.skipped),
            replaced=dict(found.replaced),
            bad=list(found.bad),
        )

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
            f"Stream({self.rows:,} {self._counted()}, batch_size={self.options.batch_size}, "
            f"order={self.plan.arrangement.kind!r}, epoch={self._epoch}, {len(self)} batches)"
        )

    def _opened(self) -> Plan:
        return self.plan.opened(self.options.batch_size, self.options.ahead_bytes)

    def _length(self, seed: int, epoch: int) -> int:
        return items_total(self.plan.items(seed, epoch))

    def _counted(self) -> str:
        """What positions count, in words."""
        plan = self.plan
        what = "rows" if plan.packing is None else f"items of {plan.packing.size:,} elements"
        return what if plan.selection is None else f"{what} ({plan.selection.text})"

    def _items_state(self) -> ItemsState:
        plan, chosen = self.plan, self.plan.arrangement
        return ItemsState(
            selection="" if plan.selection is None else plan.selection.digest,
            pack=0 if plan.packing is None else plan.packing.size,
            bucket=plan.lengths.column if plan.lengths and chosen.bucket_steps else "",
            bucket_rows=chosen.bucket_rows,
            bucket_steps=chosen.bucket_steps,
        )

    def assembler(self, nullable: Collection[str] = ()) -> Assembler:
        """What makes the batches of an iteration; columns in `nullable` are taken for nullable."""
        plan, schema = self._opened(), self.dataset.schema
        planned = [column.name for column in plan.columns]
        with_valid = tuple(schema.column(name).nullable or name in nullable for name in planned)
        return Assembler(
            plan=plan,
            # Whoever goes on without damaged pages learns of them while runs are loaded.
            loader=loader_of(
                self.dataset, plan, with_valid, by_row=self.options.on_error == "raise"
            ),
            columns=tuple((schema.column(name), planned.index(name)) for name in self.columns),
            nullable=with_valid,
            form=BatchForm(
                self.options.output,
                self.options.pad,
                self._pool,
                self._identify,
                frozenset(self.options.images),
            ),
            options=self.options,
            stats=self._stats,
        )

    def _items(self, share: Share) -> Items:
        assembler, options = self.assembler(), self.options
        work, decoding = work_of(options, self._stats), None
        if self._decoder is not None:
            key = epoch_key(self._seed, self._epoch, Purpose.IMAGES)
            decoding = decoding_of(self._decoder, work, options, self._stats, key)
        return items_ahead(
            assembler.reading(share, self._seed, self._epoch),
            work,
            prefetch=options.prefetch,
            steps_at_once=assembler.steps_at_once,
            threads=options.work_threads,
            decoding=decoding,
        )

    def _items_of_process(self, share: Share) -> Items:
        options, stats = self.options, self._stats
        assert options.remake is not None, "options were checked"

        def stats_moved(there: dict[str, Any]) -> None:
            for name in there.keys() - {"waited_seconds"}:
                setattr(stats, name, there[name])

        state = self.state_dict(share.start)
        return ProcessItems(
            Errand(options.remake, options.output, state, share.turn, share.turns),
            identify=self._identify,
            finish=finish_of(options),
            stats_moved=stats_moved,
        )

    def _identify(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        live = live_rows(self.dataset)
        return row_id_table(self.dataset).of(rows if live is None else live.physical(rows))

    def _moved_to(self, position: int, token: object) -> None:
        """Called by an iterator when it hands a batch out; only the newest one counts."""
        if token is self._newest:
            self._position = position

    def _check_share(self, share: Share) -> None:
        steps = share.steps(self.rows)
        if not steps:
            return
        start, stop = share.bounds(steps - 1, self.rows)
        rows = share.batch_size if share.last == "pad" else stop - start
        if rows < share.world:
            raise InvalidInputError(
                f"the last step has {stop - start} rows for {share.world} ranks, so some would get "
                "none. Use last='drop' or 'pad', another batch_size, or fewer ranks."
                if share.batch_size >= share.world
                else f"batch_size={share.batch_size} rows a step cannot be shared by "
                f"{share.world} ranks: it counts the rows of all ranks together."
            )


def _batch_bytes(plan: Plan, options: StreamOptions) -> int:
    """About how many bytes a batch of one rank has."""
    share = options.share(0)
    pixels = sum(prod(decode.row_shape or ()) for decode in options.images.values())
    return -(-share.batch_size // share.world) * (plan.item_bytes + pixels)


def _ragged(dataset: Dataset, names: Sequence[str]) -> Iterator[tuple[str, np.dtype[Any]]]:
    """Ragged ones of these columns, with the types of their elements."""
    for name in names:
        storage = dataset.schema.column(name).storage
        if storage.layout is Layout.RAGGED:
            yield name, storage.element

"""Streams of whole batches, shuffled, at the speed of memory.

    runs expected -> fetch threads: read, verify, decode -> gather -> decode, transform -> user

One thread at a time walks over the stretches of the schedule (`collate.assemble`). Without
`prefetch` all but fetching happens on the caller's thread.

Source:
    docs/spec/stream-order.md.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common import arguments
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.read import StoredDataset, check_absent, previewed
from tensorrepo.formats.dataset.schema.nulls import null_policy
from tensorrepo.formats.dataset.schema.types import Image
from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.formats.dataset.streaming.collate.assemble import Assembler, BatchReading
from tensorrepo.formats.dataset.streaming.collate.batch import Batch, OutputForm, check_moments
from tensorrepo.formats.dataset.streaming.collate.decode import Decode, chosen_decodes
from tensorrepo.formats.dataset.streaming.collate.derived_rows import DerivedRows, maker_digest
from tensorrepo.formats.dataset.streaming.collate.error_policy import report
from tensorrepo.formats.dataset.streaming.collate.next_epoch import EpochReading, NextEpoch
from tensorrepo.formats.dataset.streaming.collate.process import (
    KeptProcess,
    ProcessItems,
    StreamWorker,
)
from tensorrepo.formats.dataset.streaming.collate.ray_worker import RayItems
from tensorrepo.formats.dataset.streaming.collate.transform import (
    ItemSource,
    StreamIterator,
    decoded_at_once,
    decoder_of,
    decoding_of,
    finish_of,
    items_ahead,
    work_of,
)
from tensorrepo.formats.dataset.streaming.collate.turns import (
    ItemsInTurn,
    OvertakenItems,
    Pace,
    RemadeItems,
)
from tensorrepo.formats.dataset.streaming.feed import DatasetFeed, Feed, Pass, tuning_of
from tensorrepo.formats.dataset.streaming.feedback import FeedbackLoop, importance
from tensorrepo.formats.dataset.streaming.load.peers import CachePeers
from tensorrepo.formats.dataset.streaming.options import (
    StreamOptions,
    StreamSetup,
    Tuning,
    batches_ahead,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import Share
from tensorrepo.formats.dataset.streaming.plan.build import plan_stream
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import DiskCache, PageDiskCache


def stream(
    dataset: StoredDataset,
    options: StreamOptions,
    *,
    remake: Callable[[OutputForm], BatchStream] | None = None,
    page_cache: PageDiskCache | None = None,
    derived_cache: DiskCache | None = None,
    peers: CachePeers | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> BatchStream:
    """Stream `dataset` in whole batches.

    Args:
        dataset: dataset to read.
        options: options of the stream.
        remake: maker of this stream in another process; see `StreamSetup`.
        page_cache: keeps a part of what is read from a store on this machine's disk.
        derived_cache: keeps what the transform made, which ``cache="derived"`` needs.
        peers: servers near by that are asked before the store.
        clock: clock in seconds, for `BatchStream.stats`.

    Raises:
        InvalidInputError: an option that makes no sense, or a rank that would get no rows.
        NotFoundError: no such column.
    """
    chosen = dataset.schema.select(options.columns)
    check_moments(chosen.columns, options.output)
    names = chosen.names
    feedback = options.sampling.feedback
    if feedback is not None and feedback.gather is None and options.ranks.count > 1:
        raise InvalidInputError(
            f"{options.ranks.count} ranks report losses of their own rows, and weights follow from "
            "all of them: give Feedback(gather=...), which brings them together"
        )
    if options.pad is not None:
        checks.padding(options.pad, chosen.columns)
    null_policy(chosen, options.nulls)  # refuses what does not fit before anything is read
    decodes = chosen_decodes(options.decode, dataset.schema, names)
    small = {
        name: how.last_band
        for name, how in decodes.items()
        if isinstance((kind := dataset.schema.column(name).type), Image) and kind.progressive
    }
    read = previewed(dataset, small)
    setup = StreamSetup(
        options,
        options.loading.prefetch or 0,
        decodes,
        clock,
        page_cache,
        remake,
        _derived_rows(options, decodes, names, derived_cache),
        peers,
    )
    plan = plan_stream(dataset, names, options, read)
    if page_cache is not None:
        page_bytes = sum(column.page_bytes for column in plan.columns)
        setup = replace(setup, page_cache=page_cache.for_stream(page_bytes))
    _check_absent_batch(plan, setup)
    if options.loading.prefetch is None:
        setup = replace(setup, prefetch=batches_ahead(_batch_bytes(plan, setup)))
    chosen_rows = 0 if plan.selection is None else plan.selection.chosen.total
    rows = options.sampling.epoch_rows or chosen_rows
    return BatchStream(DatasetFeed(read, plan, names, rows), setup)


class BatchStream:
    """The batches of one epoch after another: each iteration reads the next one.

    The first reads epoch 0, or what `set_epoch` or a loaded state says; after either, that is the
    epoch of the next iteration again. An iteration begins at the start of its epoch, or once where
    a loaded state says, and one that was left early is over. Streams may be iterated several times
    at the same time; `state_dict` follows the newest iteration. The state of a finished epoch has
    nothing left, so the iteration after it is empty, and the one after that reads the next epoch.

    Attributes:
        feed: data of the stream, and their order.
        setup: options, and means by which batches are made.
        begun: whether an iteration reads, or has read, this epoch.
    """

    def __init__(self, feed: Feed, setup: StreamSetup) -> None:
        """Made by `stream` and `mix`."""
        self.feed, self.setup = feed, setup
        self._pass = Pass(setup.options.seed, 0)
        self.begun = False
        self._start = 0  # where the next iteration begins
        self._position = 0  # where the newest one is
        self._newest: object = None
        self._stats = StreamStats()
        self._pool = Pool()
        self._decoder = decoder_of(setup)
        self._open: weakref.WeakSet[StreamIterator] = weakref.WeakSet()
        self._kept = KeptProcess(setup.options.loading.processes)
        weakref.finalize(self, self._kept.close)
        self._next_epoch = NextEpoch()
        weakref.finalize(self, self._next_epoch.close)
        self._iterations = 0
        self._feedback: FeedbackLoop | None = None
        how = setup.options.sampling.feedback
        if how is not None and isinstance(feed, DatasetFeed):
            self._feedback = FeedbackLoop.new(how, feed)

    @property
    def options(self) -> StreamOptions:
        """Options as the caller gave them."""
        return self.setup.options

    @property
    def seed(self) -> int:
        return self._pass.seed

    @property
    def epoch(self) -> int:
        """Epoch of the newest iteration; before the first, and once it was set, of the next."""
        return self._pass.epoch

    @property
    def rows(self) -> int:
        """Rows of this epoch, or packed items: what positions count."""
        return self.feed.rows(self._pass)

    def __len__(self) -> int:
        """Batches of an iteration of this epoch; what is left where a state was loaded."""
        return self.options.share(self._start).steps(self.rows)

    def __iter__(self) -> StreamIterator:
        self.set_epoch(self.upcoming.epoch)
        return self.in_turn(0, 1)

    def in_turn(self, turn: int, turns: int, *, quiet: bool = False) -> StreamIterator:
        """Iterate over each `turns`-th step, beginning with number `turn` of those that are left.

        So several workers make all steps of this epoch together, each as the whole stream would.
        If `quiet`, the caller reports what became of bad rows.
        """
        self.begun = True
        share = self.options.share(self._start, turn, turns)
        self._check_share(share)
        self._stats = StreamStats()
        self._iterations += 1
        is_here = self.options.loading.workers == "thread"
        items = self._items(share) if is_here else self._items_of_workers(share)
        self._start, self._position = 0, share.start
        title = f"epoch {self.epoch} of {self.feed.title}"
        iterator = StreamIterator(
            items,
            self._moved_to,
            self.setup.clock,
            self._stats,
            None if quiet else partial(report, title, self._stats),
        )
        self._newest = iterator.token
        self._open.add(iterator)
        return iterator

    @property
    def tuning(self) -> Tuning:
        """How many threads make batches, and how far ahead."""
        return tuning_of(self._assembler())

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
        if epoch != self.epoch:
            self.rewind()
        if self._feedback is not None:
            self.feed = self._feedback.begun(self._own_feed, epoch)
        self._pass, self.begun = Pass(self.seed, epoch), False

    @property
    def upcoming(self) -> Pass:
        """The pass that the next iteration reads."""
        return self._pass._replace(epoch=self.epoch + 1) if self.begun else self._pass

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where the newest iteration is, as JSON values: the same on every rank.

        Args:
            position: `Batch.position` of the last batch that was used, where another thread or
                process prefetches batches of this stream; None for the last batch handed out.
        """
        place = self.place(position)
        return place if self._feedback is None else place | {"feedback": self._feedback.state()}

    def place(self, position: int | None = None) -> dict[str, Any]:
        """The state without what was reported; for one rank, where others do not ask."""
        if position is not None:
            position = arguments.whole("position", position, 0, self.rows)
        return self.feed.state(self._pass, self._position if position is None else position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was: same order, whatever the batch size and number of ranks are.

        Raises:
            InvalidInputError: not a state of a stream, or a mix, of these data and columns.
        """
        loop, feed = self._feedback, self.feed
        if loop is not None and isinstance(state, Mapping):
            state = dict(state)
            form = state.pop("feedback", None)
            loop, feed = loop.loaded(form, state.get("epoch"), self._own_feed)
        elif isinstance(state, Mapping) and "feedback" in state:
            raise InvalidInputError(
                "the state was saved with feedback=, and this stream has none: its positions count "
                "other rows. Give the same Feedback to resume"
            )
        self.feed, self._pass, self._position = feed.resumed(state)
        self._feedback = loop
        self._start, self.begun = self._position, False
        self._newest = None

    def next_state(self) -> dict[str, Any]:
        """Where the next iteration begins, as `state_dict` tells it."""
        place = self.feed.state(self.upcoming, self._start)
        return self._with_scores(place)

    def report(self, batch: Any, losses: Any) -> None:
        """Note the losses of a batch, for the weights of the next epoch.

        Raises:
            InvalidInputError: the stream has no feedback, or these are not its rows' losses.
        """
        if self._feedback is None:
            raise InvalidInputError(
                "this stream has no weights by feedback: make it with "
                "sampling=Sampling(feedback=Feedback())"
            )
        self._feedback.report(batch, losses)

    def importance(self, batch: Batch) -> NDArray[np.float32]:
        """1 / weight of each row of a batch of this epoch."""
        return importance(self._own_feed, batch)

    @property
    def _own_feed(self) -> DatasetFeed:
        """The feed, where it is of one dataset."""
        if not isinstance(self.feed, DatasetFeed):
            raise InvalidInputError("a mix has no weights of rows: ask one of its streams")
        return self.feed

    def _with_scores(self, place: dict[str, Any]) -> dict[str, Any]:
        """A state for another process of this rank."""
        if self._feedback is None:
            return place
        return place | {"feedback": self._feedback.state(gathered=False)}

    def explain(self) -> Any:
        """What reading an epoch will mean: order, window, how well it mixes, reads and bytes."""
        return self.feed.explain(self.setup, self._pass, self.tuning)

    def stats(self) -> StreamStats:
        """What the newest iteration did up to now, and what it waited for."""
        now = self._stats
        return replace(
            now, skipped=dict(now.skipped), replaced=dict(now.replaced), bad=list(now.bad)
        )

    def close(self) -> None:
        """Stop every iteration that is still going, its threads, and a process that is kept."""
        for iterator in list(self._open):
            iterator.close()
        self._next_epoch.close()
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"{self.feed.text(self._pass)}, batch_size={self.options.batch_size}, "
            f"epoch={self.epoch}, {counted(len(self), 'batch', 'batches')})"
        )

    def upcoming_assembler(self) -> Assembler:
        """What would make the batches of the next iteration; its counts are nobody's."""
        return self.feed.assembler(self.setup, self.upcoming, self._pool, StreamStats())

    def _assembler(self) -> Assembler:
        return self.feed.assembler(self.setup, self._pass, self._pool, self._stats)

    def _reading(self, share: Share) -> BatchReading:
        """Batches of this epoch, begun by the one before or from here on."""
        begun = self._next_epoch.take((self.feed, self._pass, share))
        if begun is not None:
            self._stats = begun.stats
            return begun.reading
        return self._assembler_of(self._pass, share, self._stats).reading(share, *self._pass)

    def _assembler_of(self, epoch: Pass, share: Share, stats: StreamStats) -> Assembler:
        """Maker of batches that begins with the epoch after `epoch` when this one is loaded."""
        assembler = self.feed.assembler(self.setup, epoch, self._pool, stats)
        wish = self.options.loading.next_epoch
        if wish is False or (wish is None and self._iterations < 2):
            return assembler
        if self._feedback is not None:  # the rows of the next epoch are not known yet
            return assembler
        # The thread that calls back must not keep alive what nobody else holds.
        following = replace(share, start=0)
        upcoming = epoch._replace(epoch=epoch.epoch + 1)
        prepare = partial(_prepare, weakref.ref(self), self.feed, upcoming, following)
        return replace(assembler, all_loading=prepare)

    def prepare_epoch(self, feed: Feed, epoch: Pass, share: Share) -> None:
        """Plan the next epoch and fetch its first runs, if it is still the next one."""
        if self.feed is not feed or self.upcoming != epoch:
            return

        def make() -> EpochReading:
            stats = StreamStats()
            assembler = self._assembler_of(epoch, share, stats)
            return EpochReading(assembler.reading(share, *epoch), stats)

        self._next_epoch.prepare((feed, epoch, share), make)

    def _items(self, share: Share) -> ItemSource:
        reading, setup = self._reading(share), self.setup
        key, decoding, decoded = epoch_key(*self._pass, Purpose.IMAGES), None, None
        if self._decoder is not None and setup.derived is not None:
            decoded = decoded_at_once(self._decoder, setup, self._stats, key)
        work = work_of(setup, self._stats, decoded)
        if self._decoder is not None and decoded is None:
            decoding = decoding_of(self._decoder, work, setup, self._stats, key)
        return items_ahead(
            reading,
            work,
            prefetch=setup.prefetch,
            threads=setup.options.loading.own_work_threads,
            decoding=decoding,
        )

    def _items_of_workers(self, share: Share) -> ItemSource:
        """Items that other processes make, each its turns of the steps."""
        loading, pace = self.options.loading, Pace()
        count = share.turns * loading.processes
        turns = [
            replace(share, turn=share.turn + number * share.turns, turns=count)
            for number in range(loading.processes)
        ]
        told: list[dict[str, Any]] = []  # by each worker that there was
        worker_of = partial(self._worker, self.feed, self._pass, told)
        items = [
            OvertakenItems(partial(worker_of, turn), pace)
            if loading.workers == "ray"
            else RemadeItems(partial(worker_of, turn))
            for turn in turns
        ]
        return items[0] if len(items) == 1 else ItemsInTurn(items)

    def _worker(
        self,
        feed: Feed,
        epoch: Pass,
        told: list[dict[str, Any]],
        share: Share,
        made: int,
    ) -> Any:
        """What makes the steps of `share` behind the first `made` of them, in another process."""
        remake, options, stats = self.setup.remake, self.options, self._stats
        assert remake is not None, "the setup was checked"
        number = len(told)
        told.append({})

        def stats_moved(there: dict[str, Any]) -> None:
            told[number] = there
            stats.follow(told)

        behind = share.start + made * share.turns * share.batch_size
        state = self._with_scores(feed.state(epoch, min(behind, feed.rows(epoch))))
        errand = StreamWorker(remake, options.output, state, share.turn, share.turns)
        given = {
            "identify": feed.identify,
            "finish": finish_of(options),
            "stats_moved": stats_moved,
        }
        if options.loading.workers == "ray":
            return RayItems(errand, cpus=options.loading.ray_threads, **given)
        return ProcessItems(errand, kept=self._kept, **given)

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


def _derived_rows(
    options: StreamOptions,
    decodes: Mapping[str, Decode],
    names: Sequence[str],
    cache: DiskCache | None,
) -> DerivedRows | None:
    """Rows that are made once, where that was asked for."""
    if options.derived is None:
        return None
    if cache is None:
        raise InvalidInputError(
            "cache='derived' keeps rows in a folder, and this stream has none: its limit is 0. Set "
            "it with `tensorrepo config cache.limit`, or give DerivedCache(limit=...)"
        )
    form = f"{options.output} {list(names)} {options.nulls!r}"
    maker = maker_digest(options.transform, options.derived.version, decodes, form)
    return DerivedRows(cache, maker)


def _prepare(stream: weakref.ref[BatchStream], feed: Feed, epoch: Pass, share: Share) -> None:
    """Prepare the next epoch of a stream that somebody still holds."""
    held = stream()
    if held is not None:
        held.prepare_epoch(feed, epoch, share)


def _batch_rows(setup: StreamSetup) -> int:
    """Rows in a batch of one rank, at most."""
    share = setup.options.share(0)
    return -(-share.batch_size // share.world)


def _batch_bytes(plan: StreamPlan, setup: StreamSetup) -> int:
    """About how many bytes a batch of one rank has."""
    pixels = sum(prod(decode.row_shape or ()) for decode in setup.decodes.values())
    return _batch_rows(setup) * (plan.item_bytes + pixels)


def _check_absent_batch(plan: StreamPlan, setup: StreamSetup) -> None:
    # A dataset of a few KB may say that it has rows of any size: not stored, the default of each.
    indexes = {column.name: column.index for column in plan.columns}
    advice = "Stream smaller batches, or other columns"
    check_absent(indexes, min(_batch_rows(setup), plan.rows), advice=advice)

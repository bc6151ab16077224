"""Mix of streams: several datasets read as one, each as often as it should come.

    mix([stream_a, stream_b], weights=[3, 1])

A mix is a stream whose feed holds the feeds of several others. It does not iterate over them: it
takes their plans, numbers the runs of all of them one source after the other, and reads them as
one. So there is one fetcher with one budget, one state, and a row costs what it costs in a stream.

Source:
    docs/spec/stream-order.md, section "Mix".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate, pairwise
from operator import mul
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.schema.nulls import null_policy
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.streaming.collate.assemble import FIRST_ROWS, Assembler
from tensorrepo.formats.dataset.streaming.collate.batch import Batch, OutputForm
from tensorrepo.formats.dataset.streaming.feed import (
    DatasetFeed,
    Pass,
    Resumed,
    decoded_as,
    encode_state,
    tuning_of,
)
from tensorrepo.formats.dataset.streaming.load.loaders import mix_loader, remote_bytes
from tensorrepo.formats.dataset.streaming.mix.blend import (
    MixSource,
    MixWish,
    SourceBlend,
    blend_of,
    mixed_stretches,
)
from tensorrepo.formats.dataset.streaming.options import (
    Loading,
    Ranks,
    StreamOptions,
    StreamSetup,
    Tuning,
    declared,
)
from tensorrepo.formats.dataset.streaming.order.grouped import TURNS, SlotRooms
from tensorrepo.formats.dataset.streaming.order.items import (
    Items,
    PackedItems,
    Packing,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import numbers
from tensorrepo.formats.dataset.streaming.order.schedule import STRETCH_ROWS, Share, StepStretch
from tensorrepo.formats.dataset.streaming.plan.grouped import GroupedPlan
from tensorrepo.formats.dataset.streaming.plan.pages import Explanation, StreamPlan
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import PageDiskCache


def mix(streams: Sequence[BatchStream], *, seed: int = 0, **wishes: Any) -> BatchStream:
    """A stream of the datasets of `streams`, each as often as it should come.

    `Batch.source` says which source each row is of. Sources repeat on their own, each time in a
    new order, so another epoch of the mix goes on where the one before left every source.

    Args:
        streams: streams of the sources, whose positions mean nothing. The mix has their options,
            which must agree, and divides the largest window.
        seed: seed of the mix; every stream has its own.
        wishes: fields of `MixWish`.

    Raises:
        InvalidInputError: wishes that contradict each other, options or columns that differ, or
            a source that would never come.
    """
    _check_streams(streams)
    first, wish = streams[0], MixWish(**wishes)
    blend = blend_of([stream.rows for stream in streams], first.options.batch_size, wish)
    sources = tuple(_arranged(streams, blend))
    keywords = wishes | {"seed": seed}
    remakes = [each for stream in streams if (each := stream.setup.remake) is not None]
    setup = replace(
        first.setup,
        options=replace(first.options, seed=seed),
        page_cache=_page_cache(streams),
        remake=partial(_remade, remakes, keywords) if len(remakes) == len(streams) else None,
    )
    plan = _joined_plan(sources)
    return BatchStream(MixFeed(sources, blend, wish, plan, sources[0].feed.columns), setup)


def _remade(
    remakes: Sequence[Callable[[OutputForm], BatchStream]],
    keywords: Mapping[str, Any],
    output: OutputForm,
) -> BatchStream:
    """The same mix in another process, of streams that are made again there."""
    return mix([remake(output) for remake in remakes], **keywords)


MIX_FORMAT = "tensorrepo mix state v1"


class MixState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place in an epoch of a mix, how its sources take turns, and the order of each.

    `wish` is what was asked for; shares and slots follow from it, the sources and a batch size.
    """

    sources: tuple[dict[str, Any], ...]
    shares: tuple[int, ...]
    cycle_slots: int
    slot_rows: int
    rows: int
    rest: tuple[int, ...]
    wish: MixWish
    seed: int
    epoch: int
    position: int
    format: str = MIX_FORMAT


@dataclass(frozen=True, slots=True, eq=False)
class MixedSource:
    """One dataset of a mix: its feed, and the epoch that it begins with."""

    feed: DatasetFeed
    first: Pass

    @property
    def rows(self) -> int:
        return self.feed.rows(self.first)

    @property
    def plan(self) -> StreamPlan:
        return self.feed.plan

    def explained(self, setup: StreamSetup) -> Explanation:
        """How it is read."""
        tuning = tuning_of(self.feed.assembler(setup, self.first, Pool(), StreamStats()))
        return self.feed.explain(setup, self.first, tuning)

    @property
    def spaces(self) -> int:
        """How many of its epochs have runs of other numbers: slots are those of an epoch."""
        return 2 if isinstance(self.plan, GroupedPlan) else 1

    def order(self, first_run: int, plans: Sequence[StreamPlan]) -> MixSource:
        """The orders of its epochs, where its runs are numbered from `first_run` on.

        `plans` are read in turn, an epoch each.
        """
        seed, first = self.first

        def plan_of(epoch: int) -> StreamPlan:
            return plans[(epoch - first) % len(plans)]

        return MixSource(
            rows=self.rows,
            runs=len(plans[0].live),
            first_run=first_run,
            seed=seed,
            epoch=first,
            items=lambda epoch: plan_of(epoch).items(seed, epoch),
            order=lambda epoch, items: plan_of(epoch).order(seed, epoch, items),
            keep=self.plan.arrangement.kind == "resident",
            spaces=len(plans),
        )


@dataclass(frozen=True, slots=True, eq=False)
class MixFeed:
    """Several datasets.

    Attributes:
        sources: datasets to mix.
        blend: turns that they take.
        wish: wish of the caller; the blend follows from it, the sources and a batch size.
        plan: runs of all of them, one source after the other.
        columns: names of the columns of a batch.
    """

    sources: tuple[MixedSource, ...]
    blend: SourceBlend
    wish: MixWish
    plan: StreamPlan
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"a mix of {counted(len(self.sources), 'dataset')}"

    def identify(self, rows: Ints, source: Ints) -> NDArray[Any]:
        """The id of each row, which is one of its own source."""
        by_source = {
            each: self.sources[each].feed.identify(rows[source == each])
            for each in np.unique(source).tolist()
        }
        ids = np.empty(len(rows), dtype=next(iter(by_source.values())).dtype)
        for each, own in by_source.items():
            ids[source == each] = own
        return ids

    def rows(self, epoch: Pass) -> int:  # noqa: ARG002  the same in all of them
        return self.blend.rows

    def assembler(
        self, setup: StreamSetup, epoch: Pass, pool: Pool, stats: StreamStats
    ) -> Assembler:
        schema = self.sources[0].feed.dataset.schema
        nullable = {  # a column with nulls anywhere is nullable
            name
            for name in self.columns
            for source in self.sources
            if source.feed.dataset.schema.column(name).nullable
        }
        each_space = [source for source in self.sources for _ in range(source.spaces)]
        # Stretches of a mix are of `STRETCH_ROWS`, whatever is loaded ahead.
        parts = [each.feed.assembler(setup, each.first, pool, stats, nullable, ahead_bytes=0)
                 for each in each_space]  # fmt: skip
        names = [column.name for column in self.plan.columns]
        places = [
            [[column.name for column in source.plan.columns].index(name) for name in names]
            for source in each_space
        ]
        loaders = [part.loader for part in parts]
        plans = [part.plan for part in parts]
        first_runs = _starts(len(plan.live) for plan in plans)
        starts = _starts(source.feed.dataset.rows for source in self.sources)
        plan, first_rows = self.plan, np.array(starts)
        if len(plans) > len(self.sources):
            pairs = zip(self.sources, starts, strict=False)
            rows_before = [start for source, start in pairs for _ in range(source.spaces)]
            plan = _slots_shown(plan, plans, first_runs, rows_before)
        source_rows = np.array([source.rows for source in self.sources])
        mark = partial(self._mark, epoch, first_rows, source_rows)
        columns = [replace(schema.column(name), nullable=name in nullable) for name in self.columns]
        nulls = null_policy(Schema(tuple(columns)), setup.options.nulls)
        return replace(
            parts[0],
            plan=plan,
            loader=mix_loader(loaders, places, first_runs),
            columns=tuple((column, names.index(column.name)) for column in columns),
            nullable=tuple(name in nullable for name in names),
            form=replace(parts[0].form, identify=self.identify, mark=mark, nulls=nulls),
            stretches=partial(self._stretches, plans, first_runs),
        )

    def _stretches(
        self,
        plans: Sequence[StreamPlan],
        first_runs: Sequence[int],
        share: Share,
        seed: int,
        epoch: int,
        items: Items,  # noqa: ARG002  each source has items of its own
    ) -> Iterator[StepStretch]:
        ends = list(accumulate(source.spaces for source in self.sources))
        orders = [
            source.order(first_runs[end - source.spaces], plans[end - source.spaces : end])
            for source, end in zip(self.sources, ends, strict=True)
        ]
        return mixed_stretches(
            orders,
            self.blend,
            share,
            seed=seed,
            epoch=epoch,
            stretch_rows=STRETCH_ROWS,
            first_rows=FIRST_ROWS,
        )

    def _mark(self, epoch: Pass, starts: Ints, source_rows: Ints, batch: Batch) -> None:
        """Note the sources of a batch's rows, which count those of all from `starts` on."""
        # A packed batch has found its rows by itself.
        batch.source = np.searchsorted(starts, batch.rows, side="right") - 1
        batch.rows = batch.rows - starts[batch.source]
        # A source that comes round again in an epoch is not cut and flipped as before.
        earlier = np.array(self.blend.epoch_rows, dtype=np.int64) * epoch.epoch
        before = earlier + self.blend.rows_before(epoch.seed, epoch.epoch, batch.position)
        passes: Ints = np.maximum(before - 1, 0) // source_rows
        own = numbers(passes[batch.source].view(np.uint64), batch.source.astype(np.uint64))
        batch.draws = numbers(own, batch.rows.view(np.uint64))

    def state(self, epoch: Pass, position: int) -> dict[str, Any]:
        return encode_state(
            MixState(
                wish=self.wish,
                sources=tuple(source.feed.state(source.first, 0) for source in self.sources),
                **asdict(self.blend),
                seed=epoch.seed,
                epoch=epoch.epoch,
                position=position,
            )
        )

    def resumed(self, state: dict[str, Any]) -> Resumed:
        saved, sources = decoded_as(state, MixState, MIX_FORMAT), len(self.sources)
        if len(saved.sources) != sources:
            raise InvalidInputError(
                f"the state is of a mix of {len(saved.sources)} sources, this one has {sources}: "
                "mix the same streams, in the same order, to resume"
            )
        words = 0 <= saved.seed < 1 << 64 and 0 <= saved.epoch < 1 << 64
        if len(saved.shares) != sources or not 0 <= saved.position <= saved.rows or not words:
            raise InvalidInputError(f"the state contradicts itself or has no such row: {saved}")
        blend = SourceBlend(
            saved.shares, saved.cycle_slots, saved.slot_rows, saved.rows, saved.rest
        )
        if saved.wish != self.wish and blend != self.blend:
            raise InvalidInputError(
                f"the state was saved for a mix with {saved.wish}, this one has {self.wish}: its "
                "positions count other rows. Mix the same way to resume."
            )
        pairs = zip(self.sources, saved.sources, strict=True)
        resumed = [source.feed.resumed(dict(own)) for source, own in pairs]
        mixed = tuple(_source(each) for each in resumed)
        feed = replace(self, sources=mixed, blend=blend, plan=_joined_plan(mixed))
        return Resumed(feed, Pass(saved.seed, saved.epoch), saved.position)

    def explain(self, setup: StreamSetup, epoch: Pass, tuning: Tuning) -> MixExplanation:  # noqa: ARG002
        explanations = tuple(source.explained(setup) for source in self.sources)
        rows = self.blend.epoch_rows
        return MixExplanation(
            rows=self.blend.rows,
            steps=setup.options.share(0).steps(self.blend.rows),
            slot_rows=self.blend.slot_rows,
            cycle_slots=self.blend.cycle_slots,
            rest_rows=sum(self.blend.rest),
            source_rows=tuple(rows),
            passes=tuple(
                count / source.rows for count, source in zip(rows, self.sources, strict=True)
            ),
            resident_bytes=sum(each.resident_bytes for each in explanations),
            sources=explanations,
        )

    def text(self, epoch: Pass) -> str:  # noqa: ARG002  as `rows`
        return f"Mix({counted(len(self.sources), 'source')}, {counted(self.blend.rows, 'row')}"


@dataclass(frozen=True, slots=True)
class MixExplanation:
    """What an epoch of a mix will do; `passes` says how often it goes through each source."""

    rows: int
    steps: int
    slot_rows: int
    cycle_slots: int
    rest_rows: int
    source_rows: tuple[int, ...]
    passes: tuple[float, ...]
    resident_bytes: int
    sources: tuple[Explanation, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"mix            {counted(self.rows, 'row')} in {counted(self.steps, 'step')} an epoch"
        ]
        if self.slot_rows > 1:
            left = f"; the last {self.rest_rows:,} rows are what is left of all of them"
            lines.append("steps of one source each" + left * bool(self.rest_rows))
        described = zip(self.source_rows, self.passes, self.sources, strict=True)
        for number, (rows, passes, source) in enumerate(described):
            lines.append(
                f"source {number}: {counted(rows, 'row')} an epoch, {passes:.2f} of its own"
            )
            lines += [f"  {line}" for line in str(source).splitlines()]
        return "\n".join(lines)


def _source(resumed: Resumed) -> MixedSource:
    assert isinstance(resumed.feed, DatasetFeed), "sources of a mix are datasets"
    return MixedSource(resumed.feed, resumed.epoch)


def _check_streams(streams: Sequence[BatchStream]) -> None:
    if not streams:
        raise InvalidInputError("a mix needs at least one stream")
    for number, stream in enumerate(streams):
        if not isinstance(stream.feed, DatasetFeed):
            raise InvalidInputError(
                f"source {number} of the mix is a mix itself: give its streams to one mix, with "
                "weights that say how often each of them comes"
            )
    for number, stream in enumerate(streams):
        _check_options(streams[0], stream, number)
        _check_columns(streams[0], stream, number)
        _check_items(streams[0], stream, number)


def _check_options(first: BatchStream, stream: BatchStream, number: int) -> None:
    its = dict(_shared_options(stream.options))
    for name, value in _shared_options(first.options):
        if value != its[name]:
            raise InvalidInputError(
                f"streams of a mix have the same options: {name} is {value!r} in the first "
                f"and {its[name]!r} in source {number}"
            )


def _shared_options(record: StreamOptions | Loading | Ranks) -> Iterator[tuple[str, Any]]:
    """What streams of a mix must share, with what stands in groups."""
    for name, option in declared(record).items():
        value = getattr(record, name)
        if isinstance(value, Loading | Ranks):
            yield from _shared_options(value)
        elif not option.per_source:
            yield name, value


def _check_columns(first: BatchStream, stream: BatchStream, number: int) -> None:
    feed, other = _feed(first), _feed(stream)
    if set(feed.columns) != set(other.columns):
        raise InvalidInputError(
            f"streams of a mix have the same columns: the first has {list(feed.columns)}, source "
            f"{number} {list(other.columns)}. Choose with columns=."
        )
    for name in feed.columns:
        column, its = (each.dataset.schema.column(name) for each in (feed, other))
        if column.type != its.type or column.storage != its.storage:
            raise InvalidInputError(
                f"column {name!r} is {column.type} in the first stream of the mix and {its.type} "
                f"in source {number}: rows of both cannot stand in one batch"
            )


def _check_items(first: BatchStream, stream: BatchStream, number: int) -> None:
    plan = _feed(stream).plan
    if plan.selection is not None and plan.selection.weights is not None:
        raise InvalidInputError(
            f"source {number} of the mix has weights of rows: its epochs differ in length. Weigh "
            "sources with the weights of the mix, or stream it alone."
        )
    if plan.echo > 1:
        raise InvalidInputError(
            f"source {number} of the mix gives each row {plan.echo} times, which is done within "
            "one stream only. repeat= of the mix says how often rows of a source come."
        )
    if plan.packing is not None and plan.lengths is not None and plan.selection is None:
        raise InvalidInputError(
            f"source {number} of the mix packs rows of which some were deleted or changed: their "
            "lengths are known one by one, which is done within one stream only. Compact all of "
            "the dataset (everything=True), or stream it alone."
        )
    if plan.lengths is not None and plan.packing is None:
        raise InvalidInputError(
            f"source {number} of the mix sorts rows by length, which is done within one stream only"
        )
    wanted, size = (each.options.sampling.pack or 0 for each in (first, stream))
    if wanted != size:
        raise InvalidInputError(
            f"streams of a mix have the same pack=: it is {wanted} in the first and {size} in "
            f"source {number} (0: items are rows)"
        )
    if plan.packing is not None and plan.selection is not None:
        raise InvalidInputError(
            f"source {number} of the mix packs chosen rows, which is done within one stream only"
        )
    if not stream.rows:
        raise InvalidInputError(f"source {number} of the mix has no rows")


def _feed(stream: BatchStream) -> DatasetFeed:
    assert isinstance(stream.feed, DatasetFeed), "streams of a mix were checked"
    return stream.feed


def _arranged(streams: Sequence[BatchStream], blend: SourceBlend) -> Iterator[MixedSource]:
    """The sources, each with its part of the window and of a batch."""
    feeds = [_feed(stream) for stream in streams]
    window_bytes = max(feed.plan.window_bytes for feed in feeds)
    row_bytes = [
        max(1, share) * max(1, feed.plan.item_bytes)
        for share, feed in zip(blend.shares, feeds, strict=True)
    ]
    parts = zip(streams, feeds, blend.shares, row_bytes, strict=True)
    for stream, feed, share, own_bytes in parts:
        batch_size = stream.options.batch_size
        if blend.slot_rows == 1:
            batch_size = max(1, round(batch_size * share / sum(blend.shares)))
        own_window = max(1, window_bytes * own_bytes // sum(row_bytes))
        # An epoch's slots are taken again by the one after the next.
        is_long = stream.rows >= TURNS * (STRETCH_ROWS + stream.options.batch_size)
        is_long &= feed.plan.packing is None  # elements of packed sources are known by run
        plan = (feed.plan if is_long else feed.plan.whole()).arranged_for(batch_size, own_window)
        yield MixedSource(replace(feed, plan=plan), Pass(stream.seed, stream.epoch))


def _page_cache(streams: Sequence[BatchStream]) -> PageDiskCache | None:
    """The cache of the first remote source that has one, for what is read of all of them."""
    feeds = [_feed(stream) for stream in streams]
    sizes = [remote_bytes(feed.dataset, feed.plan) for feed in feeds]
    caches = [stream.setup.page_cache for stream, size in zip(streams, sizes, strict=True) if size]
    first = next((cache for cache in caches if cache is not None), None)
    return None if first is None else first.for_stream(sum(sizes))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _JoinedPlan(StreamPlan):
    """Runs of several datasets; `mean_bytes` has an item of theirs, decoded, on average."""

    mean_bytes: int

    @property
    def item_bytes(self) -> int:
        return self.mean_bytes


def _joined_plan(sources: Sequence[MixedSource]) -> StreamPlan:
    """The runs of all sources, one after the other; its columns say how values are stored."""
    plans = [source.plan for source in sources]
    starts = _starts(source.feed.dataset.rows for source in sources)  # a view has some of them
    first_row = [plan.first_row + start for plan, start in zip(plans, starts, strict=False)]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(plan, name) for plan in plans])
        for name in ("live", "start", "stop", "run_bytes")
    }
    by_name = {column.name: column for column in plans[0].columns}
    rows = [max(1, plan.rows) for plan in plans]
    joined = _JoinedPlan(
        tuple(by_name[name] for name in sources[0].feed.columns),
        plans[0].arrangement,
        sum(plan.window_bytes for plan in plans),
        np.concatenate(first_row),
        **arrays,
        packing=plans[0].packing,
        mean_bytes=sum(map(mul, rows, (plan.item_bytes for plan in plans))) // sum(rows),
    )
    if joined.packing is None:
        return joined
    elements = np.concatenate([_elements(source) for source in sources])
    pages = replace(joined.columns[0], first_page=np.arange(len(elements)))
    return replace(joined, columns=(pages,), packing=Packing(joined.packing.size, None, elements))


def _slots_shown(
    joined: StreamPlan,
    plans: Sequence[StreamPlan],
    first_runs: Sequence[int],
    first_rows: Sequence[int],
) -> StreamPlan:
    """The joined plan for one iteration, in which the runs of groups are known by slots.

    Runs of `plans` are numbered from `first_runs` on, rows of their datasets from `first_rows` on.
    """
    first_row, live, run_bytes = (np.zeros(first_runs[-1], np.int64) for _ in range(3))
    bounds = pairwise(first_runs)
    for plan, (begin, end), rows_before in zip(plans, bounds, first_rows, strict=True):
        some = slice(begin, end)
        if isinstance(plan, GroupedPlan):
            rooms = SlotRooms(live[some], first_row[some], run_bytes[some], rows_before)
            plan.slots.show(rooms)
        else:
            live[some], run_bytes[some] = plan.live, plan.run_bytes
            first_row[some] = plan.first_row + rows_before
    return replace(joined, first_row=first_row, live=live, run_bytes=run_bytes)


def _elements(source: MixedSource) -> Ints:
    """Elements of each run of a packed source."""
    items = source.plan.items(*source.first)
    assert isinstance(items, PackedItems), "the source packs"
    return items.elements


def _starts(counts: Iterable[int]) -> list[int]:
    """Where each source begins, and where the last one ends."""
    return list(accumulate(counts, initial=0))

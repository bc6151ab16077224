"""How are several datasets trained on as one, each as often as it should come?

    Mix([stream_a, stream_b], weights=[3, 1])

A mix is a stream whose rows come from several others. It does not iterate over them: it takes their
plans, numbers the runs of all of them one source after the other, and reads them as one. So there
is one fetcher with one budget, one state, and a row costs what it costs in a stream.

Source:
    docs/spec/stream-order.md, section "Mix".
"""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats import arguments
from tensorrepo.formats.dataset.stream import Stream
from tensorrepo.formats.dataset.streaming.assemble import Assembler
from tensorrepo.formats.dataset.streaming.fetching.mix_loader import MixLoader
from tensorrepo.formats.dataset.streaming.fetching.run_loader import remote_bytes
from tensorrepo.formats.dataset.streaming.mixstate import (
    MixState,
    decode_mix_state,
    encode_mix_state,
)
from tensorrepo.formats.dataset.streaming.ordering.items import items_total
from tensorrepo.formats.dataset.streaming.ordering.keyed import numbers
from tensorrepo.formats.dataset.streaming.ordering.mixed import MixSource, mixed_stretches
from tensorrepo.formats.dataset.streaming.ordering.mixing import (
    Batching,
    Blend,
    blend_of,
    wish_of,
)
from tensorrepo.formats.dataset.streaming.ordering.packing import PackedItems, Packing
from tensorrepo.formats.dataset.streaming.ordering.plan import Plan, arranged
from tensorrepo.formats.dataset.streaming.ordering.schedule import STRETCH_ROWS
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.values import ColumnValues
    from tensorrepo.formats.dataset.pages.pool import Pool
    from tensorrepo.formats.dataset.streaming.batching.batch import Batch, BatchForm, Identify
    from tensorrepo.formats.dataset.streaming.batching.packed import PackedValues
    from tensorrepo.formats.dataset.streaming.ordering.explain import Explanation
    from tensorrepo.formats.dataset.streaming.ordering.items import Items
    from tensorrepo.formats.dataset.streaming.ordering.schedule import Share, Stretch
    from tensorrepo.repo.pagecache import PageCache

_FIRST_ROWS = 2048  # of the first stretch
_OWN = frozenset({"remake", "page_cache"})  # options that each stream has for itself


class Mix(Stream):
    """Batches of several datasets. Iterate, `set_epoch`, iterate again: as with one stream.

    `Batch.source` says which source each row is of. Sources repeat on their own, each time in a new
    order, so another epoch of the mix goes on where the one before left every source.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        *,
        weights: Sequence[float] | None = None,
        repeat: Sequence[float] | None = None,
        choose: Sequence[int] | None = None,
        rows: int | None = None,
        steps: int | None = None,
        batching: Batching = "random",
        seed: int = 0,
        epoch: int = 0,
    ) -> None:
        """Mix the datasets of `streams`.

        Without `weights`, `repeat`, `choose`, `rows` and `steps` an epoch has every row of every
        source once.

        Args:
            streams: which datasets and columns, in which orders; where they stand means nothing.
                The mix has their options, which must agree, and divides the largest window.
            weights: how often each source comes. An epoch has `rows`, or those of all sources.
            repeat: how often an epoch goes through each source; 0.5 is half of it.
            choose: rows of each source in an epoch.
            rows: of an epoch, with `weights` or alone: then each comes as often as it is large.
            steps: instead of `rows`, in whole batches.
            batching: "random" shuffles the sources of 4,096 rows at a time; "stratified" gives
                every step as much of each source; "per_source" makes steps of one source, and
                the last ones of what is left of the sources after their whole steps. With
                `weights` or `rows` all are whole, so an epoch's rows are rounded up to them.
            seed: of the mix; every stream has its own.
            epoch: which pass over the mix, see `set_epoch`.

        Raises:
            InvalidInputError: wishes that contradict each other, options or columns that differ, or
                a source that would never come.
        """
        _check_streams(streams)
        first = streams[0]
        self.wish = wish = wish_of(batching, weights, repeat, choose, rows, steps)
        batch_size = first.options.batch_size
        self.blend = blend_of(
            [stream.rows for stream in streams],
            batch_size=batch_size,
            batching=batching,
            weights=wish.weights,
            repeat=wish.repeat,
            choose=wish.choose,
            rows=wish.rows if wish.steps is None else wish.steps * batch_size,
        )
        self.sources = tuple(_arranged(streams, self.blend))
        plan = _joined_plan(self.sources, first.columns)
        remakes = [each for stream in streams if (each := stream.options.remake) is not None]
        asked = {
            "weights": weights, "repeat": repeat, "choose": choose, "rows": rows,
            "steps": steps, "batching": batching, "seed": seed, "epoch": epoch,
        }  # fmt: skip
        options = replace(
            first.options,
            page_cache=_page_cache(streams),
            remake=partial(_remade, remakes, asked) if len(remakes) == len(streams) else None,
        )
        super().__init__(first.dataset, options, plan, first.columns, seed, epoch)

    @property
    def rows(self) -> int:
        """Rows of an epoch, which positions count."""
        return self.blend.rows

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where the newest iteration is, as JSON values: the same on every rank.

        Args:
            position: `Batch.position` of the last batch that was used, where somebody else
                prefetches batches of this mix; None for the last batch handed out.
        """
        if position is not None:
            position = arguments.whole("position", position, 0, self.rows)
        state = MixState(
            wish=self.wish,
            sources=tuple(source.state_dict(position=0) for source in self.sources),
            shares=self.blend.shares,
            cycle_slots=self.blend.cycle_slots,
            slot_rows=self.blend.slot_rows,
            rows=self.blend.rows,
            rest=self.blend.rest,
            seed=self._seed,
            epoch=self._epoch,
            position=self._position if position is None else position,
        )
        return encode_mix_state(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state` was: same order, whatever the batch size and number of ranks are.

        Raises:
            InvalidInputError: not a state of a mix of these datasets and columns, or one that
                was asked for other weights, rows or batching.
        """
        found = decode_mix_state(state, sources=len(self.sources))
        blend = Blend(found.shares, found.cycle_slots, found.slot_rows, found.rows, found.rest)
        if found.wish != self.wish and blend != self.blend:
            raise InvalidInputError(
                f"the state was saved for a mix with {found.wish}, this one has {self.wish}: its "
                "positions count other rows. Mix the same way to resume."
            )
        sources = tuple(copy(source) for source in self.sources)
        for source, own in zip(sources, found.sources, strict=True):
            source.load_state_dict(dict(own))
        self.blend, self.sources = blend, sources
        self.plan = _joined_plan(sources, self.columns)
        self._seed, self._epoch = found.seed, found.epoch
        self._start = self._position = found.position
        self._newest = None

    def explain(self) -> MixExplanation:  # type: ignore[override]  # tells of several streams
        """What an epoch will mean: how much of each source, and how each of them is read."""
        sources = [source.explain() for source in self.sources]
        rows = self.blend.epoch_rows
        return MixExplanation(
            rows=self.rows,
            steps=self.options.share(0).steps(self.rows),
            slot_rows=self.blend.slot_rows,
            cycle_slots=self.blend.cycle_slots,
            rest_rows=sum(self.blend.rest),
            source_rows=tuple(rows),
            passes=tuple(
                count / source.rows for count, source in zip(rows, self.sources, strict=True)
            ),
            resident_bytes=sum(source.resident_bytes for source in sources),
            sources=tuple(sources),
        )

    def _identify(
        self, rows: NDArray[np.int64], source: NDArray[np.int64] | None = None
    ) -> NDArray[Any]:
        assert source is not None, "batches of a mix know the sources of their rows"
        return _identify([each._identify for each in self.sources], rows, source)  # noqa: SLF001  streams too

    def __repr__(self) -> str:
        return (
            f"Mix({len(self.sources)} sources, {self.rows:,} rows, "
            f"batch_size={self.options.batch_size}, epoch={self._epoch}, {len(self)} batches)"
        )

    def assembler(self, nullable: Collection[str] = ()) -> _MixAssembler:
        """What makes the batches of an iteration; a column with nulls anywhere is nullable."""
        nullable = {*nullable, *_nullable(self.sources, self.columns)}
        parts = [source.assembler(nullable) for source in self.sources]
        bounds = _bounds(source.plan.runs for source in self.sources)
        row_bounds = _bounds(source.dataset.rows for source in self.sources)
        source_rows = np.array([source.rows for source in self.sources])
        names = [column.name for column in self.plan.columns]
        places = [
            [[column.name for column in source.plan.columns].index(name) for name in names]
            for source in self.sources
        ]
        schema = self.dataset.schema
        made: dict[str, Any] = {
            "plan": self.plan,
            "loader": MixLoader([part.loader for part in parts], places, bounds),
            "columns": tuple(
                (replace(schema.column(name), nullable=name in nullable), names.index(name))
                for name in self.columns
            ),
            "nullable": tuple(name in nullable for name in names),
            "form": _MixForm(
                replace(parts[0].form, pool=self._pool),
                row_bounds,
                tuple(part.form for part in parts),
                partial(_passes, self.blend, source_rows, self._seed, self._epoch),
            ),
            "options": self.options,
            "stats": self._stats,
            "sources": tuple(map(_mix_source, self.sources, bounds.tolist())),
            "blend": self.blend,
        }
        same = {each.name: getattr(parts[0], each.name) for each in fields(parts[0])}
        return _MixAssembler(**(same | made))


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
        lines = [f"mix            {self.rows:,} rows in {self.steps:,} steps an epoch"]
        if self.slot_rows > 1:
            left = f"; the last {self.rest_rows:,} rows are what is left of all of them"
            lines.append("steps of one source each" + left * bool(self.rest_rows))
        told = zip(self.source_rows, self.passes, self.sources, strict=True)
        for number, (rows, passes, source) in enumerate(told):
            lines.append(f"source {number}: {rows:,} rows an epoch, {passes:.2f} of its own")
            lines += [f"  {line}" for line in str(source).splitlines()]
        return "\n".join(lines)


def _remade(
    remakes: Sequence[Callable[..., Stream]], asked: Mapping[str, Any], **changes: Any
) -> Mix:
    """The same mix in another process, of streams that are made again there."""
    return Mix([remake(**changes) for remake in remakes], **asked)


# ------------------------------------------------------------------------------ sources


def _check_streams(streams: Sequence[Stream]) -> None:
    if not isinstance(streams, list | tuple):
        raise arguments.wrong("a mix", "made of a list of streams", streams)
    if not streams:
        raise InvalidInputError("a mix needs at least one stream")
    for number, stream in enumerate(streams):
        _check_stream(stream, number)
    first = streams[0]
    for number, stream in enumerate(streams):
        _check_options(first, stream, number)
        _check_columns(first, stream, number)
        _check_items(first, stream, number)


def _check_stream(stream: Stream, number: int) -> None:
    if isinstance(stream, Mix):
        raise InvalidInputError(
            f"source {number} of the mix is a mix itself: give its streams to one mix, with "
            "weights that say how often each of them comes"
        )
    if not isinstance(stream, Stream):
        raise arguments.wrong(f"source {number} of the mix", "a stream", stream)


def _check_options(first: Stream, stream: Stream, number: int) -> None:
    for option in fields(first.options):
        one, other = (getattr(each.options, option.name) for each in (first, stream))
        if option.name not in _OWN and one != other:
            raise InvalidInputError(
                f"streams of a mix have the same options: {option.name} is {one!r} in the first "
                f"and {other!r} in source {number}"
            )


def _check_columns(first: Stream, stream: Stream, number: int) -> None:
    if set(first.columns) != set(stream.columns):
        raise InvalidInputError(
            f"streams of a mix have the same columns: the first has {list(first.columns)}, source "
            f"{number} {list(stream.columns)}. Choose with columns=."
        )
    for name in first.columns:
        one, other = (each.dataset.schema.column(name) for each in (first, stream))
        if one.type != other.type or one.storage != other.storage:
            raise InvalidInputError(
                f"column {name!r} is {one.type} in the first stream of the mix and {other.type} in "
                f"source {number}: rows of both cannot stand in one batch"
            )


def _check_items(first: Stream, stream: Stream, number: int) -> None:
    plan = stream.plan
    if plan.selection is not None and plan.selection.weights is not None:
        raise InvalidInputError(
            f"source {number} of the mix has weights of rows: its epochs differ in length. Weigh "
            "sources with the weights of the mix, or stream it alone."
        )
    if plan.lengths is not None:
        raise InvalidInputError(
            f"source {number} of the mix sorts rows by length, which is done within one stream only"
        )
    if _packed_size(stream) != _packed_size(first):
        raise InvalidInputError(
            f"streams of a mix have the same pack=: it is {_packed_size(first)} in the first and "
            f"{_packed_size(stream)} in source {number} (0: items are rows)"
        )
    if plan.packing is not None and plan.selection is not None:
        raise InvalidInputError(
            f"source {number} of the mix packs chosen rows, which is done within one stream only"
        )
    if not stream.rows:
        raise InvalidInputError(f"source {number} of the mix has no rows")


def _packed_size(stream: Stream) -> int:
    return 0 if stream.plan.packing is None else stream.plan.packing.size


def _arranged(streams: Sequence[Stream], blend: Blend) -> Iterator[Stream]:
    """The streams, each with its part of the window and of a batch."""
    window_bytes = max(stream.plan.window_bytes for stream in streams)
    row_bytes = [
        max(1, share) * max(1, stream.plan.item_bytes)
        for share, stream in zip(blend.shares, streams, strict=True)
    ]
    for stream, share, own_bytes in zip(streams, blend.shares, row_bytes, strict=True):
        batch_size = stream.options.batch_size
        if blend.slot_rows == 1:
            batch_size = max(1, round(batch_size * share / sum(blend.shares)))
        own_window = max(1, window_bytes * own_bytes // sum(row_bytes))
        source = copy(stream)
        source.plan = arranged(stream.plan.whole(), batch_size=batch_size, window_bytes=own_window)
        yield source


def _page_cache(streams: Sequence[Stream]) -> PageCache | None:
    """The cache of the first remote source that has one, for what is read of all of them."""
    wanted = [remote_bytes(stream.dataset, stream.plan) for stream in streams]
    caches = [
        stream.options.page_cache for stream, size in zip(streams, wanted, strict=True) if size
    ]
    first = next((cache for cache in caches if cache is not None), None)
    return None if first is None else first.for_stream(sum(wanted))


def _joined_plan(sources: Sequence[Stream], names: tuple[str, ...]) -> Plan:
    """The runs of all sources, one after the other; its columns say how values are stored."""
    plans = [source.plan for source in sources]
    before = _bounds(source.dataset.rows for source in sources)  # a view has some of them
    first_row = [plan.first_row + low for plan, low in zip(plans, before, strict=False)]
    by_name = {column.name: column for column in plans[0].columns}
    joined = replace(
        plans[0],
        columns=tuple(by_name[name] for name in names),
        window_bytes=sum(plan.window_bytes for plan in plans),
        first_row=np.concatenate(first_row),
        live=np.concatenate([plan.live for plan in plans]),
        start=np.concatenate([plan.start for plan in plans]),
        stop=np.concatenate([plan.stop for plan in plans]),
        run_bytes=np.concatenate([plan.run_bytes for plan in plans]),
        selection=None,
    )
    if joined.packing is None:
        return joined
    elements = np.concatenate([_elements(source) for source in sources])
    pages = replace(joined.columns[0], first_page=np.arange(len(elements)))
    return replace(joined, columns=(pages,), packing=Packing(joined.packing.size, None, elements))


def _nullable(sources: Sequence[Stream], names: Iterable[str]) -> Iterator[str]:
    """Columns that are nullable in any of the sources."""
    for name in names:
        if any(source.dataset.schema.column(name).nullable for source in sources):
            yield name


def _elements(stream: Stream) -> NDArray[np.int64]:
    """Elements of each run of a packed stream."""
    items = stream.plan.items(stream.seed, stream.epoch)
    assert isinstance(items, PackedItems), "the stream packs"
    found = np.zeros(stream.plan.runs, dtype=np.int64)
    found[items.runs] = items.elements
    return found


def _mix_source(stream: Stream, first_run: int) -> MixSource:
    plan, seed = stream.plan, stream.seed
    return MixSource(
        rows=items_total(plan.items(seed, stream.epoch)),
        runs=plan.runs,
        first_run=first_run,
        seed=seed,
        epoch=stream.epoch,
        items=partial(plan.items, seed),
        order=partial(plan.order, seed),
        keep=plan.arrangement.kind == "resident",
    )


def _bounds(counts: Iterable[int]) -> NDArray[np.int64]:
    """Where each source begins, and where the last one ends."""
    return np.cumsum([0, *counts])


# ------------------------------------------------------------------------------ reading


@dataclass(frozen=True, slots=True, kw_only=True)
class _MixAssembler(Assembler):
    """Makes the batches of an iteration over a mix."""

    sources: tuple[MixSource, ...]
    blend: Blend

    def _stretches(self, share: Share, seed: int, epoch: int, items: Items) -> Iterator[Stretch]:  # noqa: ARG002  each source has items of its own
        return mixed_stretches(
            self.sources,
            self.blend,
            share,
            seed=seed,
            epoch=epoch,
            stretch_rows=STRETCH_ROWS,
            first_rows=_FIRST_ROWS,
        )


@dataclass(frozen=True, slots=True)
class _MixForm:
    """Makes batches that know the sources of their rows."""

    base: BatchForm
    bounds: NDArray[np.int64]
    forms: tuple[BatchForm, ...]
    passes: Callable[[int], NDArray[np.int64]]

    @property
    def pool(self) -> Pool:
        return self.base.pool

    def batches(
        self,
        columns: Iterable[tuple[Column, ColumnValues | PackedValues]],
        bounds: Sequence[int],
        *,
        ends: Sequence[int],
        rows: NDArray[np.int64],
    ) -> list[Batch]:
        """The batches of these values; `rows` counts those of all sources."""
        identifies = [form.identify for form in self.forms]
        form = replace(self.base, identify=partial(_identify, identifies))
        found = form.batches(columns, bounds, ends=ends, rows=rows)
        for batch in found:
            self._tell_sources(batch)
        return found

    def _tell_sources(self, batch: Batch) -> None:
        # A packed batch has found its rows by itself.
        batch.source = np.searchsorted(self.bounds, batch.rows, side="right") - 1
        batch.rows = batch.rows - self.bounds[batch.source]
        # A source that comes round again in an epoch is not cut and flipped as before.
        passes = self.passes(batch.position)[batch.source]
        own = numbers(passes.view(np.uint64), batch.source.astype(np.uint64))
        batch.draws = numbers(own, batch.rows.view(np.uint64))


def _passes(
    blend: Blend, source_rows: NDArray[np.int64], seed: int, epoch: int, position: int
) -> NDArray[np.int64]:
    """In which of its own epochs each source is before `position`."""
    earlier = np.array(blend.epoch_rows, dtype=np.int64) * epoch
    before = earlier + blend.rows_before(seed, epoch, position)
    found: NDArray[np.int64] = np.maximum(before - 1, 0) // source_rows
    return found


def _identify(
    identifies: Sequence[Identify], rows: NDArray[np.int64], source: NDArray[np.int64]
) -> NDArray[Any]:
    """The id of each row, which is one of its own source."""
    found: Mapping[int, NDArray[Any]] = {
        each: identifies[each](rows[source == each]) for each in np.unique(source).tolist()
    }
    ids = np.empty(len(rows), dtype=next(iter(found.values())).dtype)
    for each, of_source in found.items():
        ids[source == each] = of_source
    return ids

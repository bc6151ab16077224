"""Plan of a stream: the runs of pages that it reads, its order, and what reading will cost.

A plan is a value: made from the page entries of the requested columns without touching storage,
equal on every rank. `order.schedule` turns it into steps. `explain` counts from the same entries
what an epoch will mean.

Source:
    docs/spec/stream-order.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.common.dtypes import Bools, Ints, distinct
from tensorrepo.formats.dataset.metadata.deletions import LiveRows
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import HAS_ROW_SUMS, PAGE_PLAIN
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import offsets_of
from tensorrepo.formats.dataset.streaming.order.buckets import Bucketed, buckets_of
from tensorrepo.formats.dataset.streaming.order.grouped import GROUP_RUNS, grouped_lanes, grouping
from tensorrepo.formats.dataset.streaming.order.items import (
    EchoedRows,
    EveryRow,
    Items,
    PackedItems,
    Packing,
    RowChoice,
    RowLengths,
    RowSelection,
    packed_items,
    row_items,
)
from tensorrepo.formats.dataset.streaming.order.orders import (
    Buffered,
    Order,
    RowOrder,
    Scattered,
    choose_lanes,
    paired_lanes,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ranges import GAP_BYTES

OrderKind = Literal["pages", "resident", "global", "buffer", "storage"]
Shuffle = Literal["pages", "global", "buffer"] | bool
ColumnReading = Literal["leading", "whole", "resident", "rows", "page"]

_MOST_WINDOW_ROWS = 1 << 22  # a window is shuffled in memory, 8 bytes a row
MOST_RUNS = 4 << 20  # that are shuffled one by one
_REQUESTS_OF_ROWS = 2  # for the rows, and for the sums that prove them
_SUM_BYTES = 4
_RESIDENT_SHARE = 4  # columns of up to this part of the window stay loaded


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What an order needs besides data, seed and epoch; chosen once and kept in the state."""

    kind: OrderKind
    lanes: int = 0
    bands: int = 0
    window_rows: int = 0
    bucket_rows: int = 0  # of a step of the stream that chose; 0 without buckets
    bucket_steps: int = 0
    group_rows: int = 0  # rows, deleted ones counted, of a group of runs; 0: runs are not grouped
    run_rows: int = 0  # about how many a run has, where they are grouped

    @property
    def block_rows(self) -> int:
        """So many positions are sorted together; 0 without buckets."""
        return self.bucket_rows * self.bucket_steps


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPlan:
    """How one column is read. The pages of run p are ``[first_page[p], stop_page[p])``.

    Attributes:
        name: name of the column.
        index: its page entries.
        reading: "leading" for the column whose pages are the runs; "whole" when its pages end
            where runs end; "resident" when all of it stays loaded; "page" when a page holds rows
            of several runs and is read for each of them; "rows" when only the rows of a run are.
        first_page: first page of each run.
        stop_page: page behind the last one of each run.
        rows_bytes: bytes that reading by rows costs an epoch.
        sampled: where entries and pages are those of one sampled group of runs: the number of
            groups like it, and the stored bytes of all.
    """

    name: str
    index: ColumnIndex
    reading: ColumnReading
    first_page: Ints
    stop_page: Ints
    rows_bytes: int = 0
    sampled: tuple[float, int] | None = None

    def _of_all(self, count: int) -> int:
        """An estimate for all groups, made from the sampled one."""
        return count if self.sampled is None else round(self.sampled[0] * count)

    @property
    def read_bytes(self) -> int:
        """Stored bytes that an epoch reads of it."""
        if self.reading == "rows":
            return self._of_all(self.rows_bytes)
        stored = offsets_of(self.index.entries["stored_bytes"].astype(np.int64))
        if self.reading == "resident":
            return self._of_all(int(stored[-1]))
        return self._of_all(int((stored[self.stop_page] - stored[self.first_page]).sum()))

    @property
    def pages(self) -> int:
        return self._of_all(self.index.pages)

    @property
    def stored_bytes(self) -> int:
        """Stored bytes of all its pages."""
        if self.sampled is not None:
            return self.sampled[1]
        return int(self.index.entries["stored_bytes"].sum())

    @property
    def requests(self) -> int:
        """Pages that an epoch reads of it, or pieces of them."""
        if self.reading == "resident":
            return self._of_all(self.index.pages)
        each = _REQUESTS_OF_ROWS if self.reading == "rows" else 1
        return self._of_all(each * int((self.stop_page - self.first_page).sum()))

    @property
    def page_bytes(self) -> int:
        """Stored bytes of the pages that are read whole, however often."""
        if self.reading == "rows":
            return 0
        if self.sampled is not None:
            return self.sampled[1]
        used = np.zeros(self.index.pages + 1, np.int64)
        np.add.at(used, self.first_page, 1)
        np.add.at(used, self.stop_page, -1)
        return int(self.index.entries["stored_bytes"][np.cumsum(used)[:-1] > 0].sum())

    def explained(self) -> ColumnExplanation:
        read_bytes = self.read_bytes
        share = read_bytes / max(1, self.stored_bytes)
        return ColumnExplanation(
            self.name, self.reading, self.pages, self.requests, read_bytes, share
        )


@dataclass(frozen=True, slots=True, eq=False)
class StreamPlan:
    """What to read and in which order: columns, runs, and the order's parameters.

    Run p holds the live rows of the dataset from `first_row[p]` on, `live[p]` of them, at least
    one. Deleted ones counted too, these lie in ``[start[p], stop[p])``. `run_bytes` are its decoded
    bytes in all columns. All of these are int64 ``(runs,)``.

    `selection` says which of the rows are items, and how often; None: each once. All of them come
    `echo` times as often. With `packing` an item is so many elements instead. With `lengths`, and
    buckets in the arrangement, items of like length come together.
    """

    columns: tuple[ColumnPlan, ...]
    arrangement: Arrangement
    window_bytes: int
    first_row: Ints
    live: Ints
    start: Ints
    stop: Ints
    run_bytes: Ints
    selection: RowSelection | None = None
    packing: Packing | None = None
    lengths: RowLengths | None = None
    echo: int = 1

    @property
    def rows(self) -> int:
        """Live rows of all runs."""
        return int(self.live.sum())

    @property
    def runs(self) -> int:
        return len(self.first_row)

    @property
    def expected_items(self) -> int:
        """About how long an epoch is; exactly, unless rows have weights."""
        if self.packing is not None:
            return self.items(0, 0).total
        rows = self.rows if self.selection is None else self.selection.expected_rows
        return rows * self.echo

    @property
    def item_bytes(self) -> int:
        """Decoded bytes of an item, on average."""
        if self.packing is not None:
            return self.packing.size * self.leading.index.storage.element.itemsize
        return int(self.run_bytes.sum()) // max(1, self.rows)

    @property
    def mean_run_bytes(self) -> int:
        """Decoded bytes of a run, on average."""
        return int(self.run_bytes.sum()) // max(1, self.runs)

    def of_runs(self, kept: Bools) -> StreamPlan:
        """The plan without the other runs."""
        if kept.all():
            return self
        columns = tuple(
            replace(each, first_page=each.first_page[kept], stop_page=each.stop_page[kept])
            for each in self.columns
        )
        names = ("first_row", "live", "start", "stop", "run_bytes")
        arrays = {name: getattr(self, name)[kept] for name in names}
        return replace(self, columns=columns, **arrays)

    def whole(self) -> StreamPlan:
        """The plan with all runs in it."""
        return self

    def opened(self, batch_size: int, ahead_bytes: int) -> StreamPlan:  # noqa: ARG002
        """The plan for one iteration, in steps of so many rows, with so much loaded ahead."""
        return self

    def arranged_as(self, arrangement: Arrangement) -> StreamPlan:
        """The plan with the order of a saved state."""
        return replace(self, arrangement=arrangement)

    def arranged_for(self, batch_size: int, window_bytes: int) -> StreamPlan:
        """The plan for another batch and window, with the same kind of order."""
        shuffle: Shuffle = "pages"
        if self.arrangement.kind in ("global", "buffer"):
            shuffle = self.arrangement.kind
        elif self.arrangement.kind == "storage":
            shuffle = False
        sized = replace(self, window_bytes=window_bytes)
        return replace(sized, arrangement=_arrange(sized, batch_size, shuffle))

    @property
    def leading(self) -> ColumnPlan:
        return next(column for column in self.columns if column.reading == "leading")

    def choice(self, seed: int, epoch: int) -> RowChoice | None:
        """How often each row comes in one epoch; None: each once."""
        choice = None if self.selection is None else self.selection.choice(seed, epoch)
        if self.echo > 1:
            choice = EchoedRows(EveryRow(self.rows) if choice is None else choice, self.echo)
        return choice

    def items(self, seed: int, epoch: int) -> Items:
        """The items of one epoch."""
        choice = self.choice(seed, epoch)
        if self.packing is None:
            return row_items(self.first_row, self.live, choice)
        pages = self.leading.first_page
        return packed_items(self.packing, pages, self.first_row, self.live, choice)

    def order(self, seed: int, epoch: int, items: Items | None = None) -> Order:
        """The order of one epoch, over `items` of it: those that `items` gives."""
        counted = self.items(seed, epoch) if items is None else items
        base, chosen = self._shuffled(counted, seed, epoch), self.arrangement
        if not chosen.bucket_steps or not base.rows:
            return base
        assert self.lengths is not None, "buckets are made of lengths"
        return Bucketed(
            base,
            counted,
            self.lengths.values,
            self.first_row[counted.runs],
            buckets_of(chosen.bucket_rows, chosen.bucket_steps, base.bands),
            seed=seed,
            epoch=epoch,
            lanes=chosen.lanes,
        )

    def _shuffled(self, items: Items, seed: int, epoch: int) -> Order:
        chosen, counts = self.arrangement, items.counts
        if chosen.kind == "pages" and len(counts):
            lanes, bands = chosen.lanes, chosen.bands
            if not chosen.group_rows:
                return paired_lanes(counts, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
            groups = grouping(counts, self._groups(items.runs), chosen.run_rows)
            return grouped_lanes(groups, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
        first_item = offsets_of(counts)
        if chosen.kind in ("resident", "global") and len(counts):
            return Scattered(first_item, seed, epoch)
        if chosen.kind == "buffer" and len(counts):
            return Buffered(first_item, seed, epoch, chosen.window_rows)
        return RowOrder(first_item)

    def _groups(self, runs: Ints) -> Ints:
        """The group of each run: that in which its fragment begins."""
        entries = self.leading.index.entries["first_row"]
        inside = entries[self.leading.first_page[runs]].astype(np.int64)
        page_starts = self.leading.index.first_row[self.leading.first_page[runs]]
        return (page_starts - inside) // self.arrangement.group_rows


def make_plan(  # noqa: PLR0913  all that decides what is read in which order
    columns: Sequence[tuple[str, ColumnIndex]],
    *,
    batch_size: int,
    window_bytes: int,
    shuffle: Shuffle = "pages",
    deleted: LiveRows | None = None,
    selection: RowSelection | None = None,
    packing: Packing | None = None,
    lengths: RowLengths | None = None,
    bucket_steps: int = 0,
    echo: int = 1,
    most_runs: int = MOST_RUNS,
    far: bool = False,
    leading: str | None = None,
) -> StreamPlan:
    """Plan to stream `columns`.

    Args:
        columns: names and page entries, in the order of the schema.
        batch_size: rows of a step, of all ranks together.
        window_bytes: decoded bytes that may be resident in the whole job.
        shuffle: order that the user asked for; True means "pages".
        deleted: rows that are deleted; None: none. Runs without a live row are left out.
        selection: live rows that come, and how often; None: all, once. Runs without one are left
            out.
        packing: cut of the one column's elements into items; None: items are rows.
        lengths: length of every live row of the dataset, for buckets.
        bucket_steps: number of steps of a block of buckets; 0: no buckets.
        echo: how often each row that comes is given.
        most_runs: number of runs beyond which groups are shuffled first, then the runs in them.
        far: pages come by requests, so bytes that nobody needs are worth avoiding.
        leading: the column whose pages are the runs; None: that with the most decoded bytes.

    Raises:
        InvalidInputError: no columns, an unknown shuffle, a window or batch below 1.
    """
    if not columns:
        raise InvalidInputError("a stream needs at least one column")
    if batch_size < 1 or window_bytes < 1:
        raise InvalidInputError(
            f"batch_size and window_bytes are at least 1, got {batch_size} and {window_bytes}"
        )
    leads = leading or max(columns, key=lambda column: column[1].raw_bytes)[0]
    start, stop, first_row, live = _runs(dict(columns)[leads].first_row, deleted, selection)
    planned = tuple(
        _plan_column(name, index, start, stop, window_bytes, leads=name == leads, far=far)
        for name, index in columns
    )
    run_bytes = np.zeros(len(start), dtype=np.int64)
    for column in planned:
        run_bytes += _run_bytes(column.index, start, stop)
    plan = StreamPlan(
        planned,
        Arrangement("storage"),
        window_bytes,
        first_row,
        live,
        start,
        stop,
        run_bytes,
        selection,
        packing,
        lengths,
        echo,
    )
    chosen = _arrange(plan, batch_size, shuffle, most_runs)
    if bucket_steps:
        chosen = replace(chosen, bucket_rows=batch_size, bucket_steps=bucket_steps)
    return replace(plan, arrangement=chosen)


def _runs(
    bounds: Ints, deleted: LiveRows | None, selection: RowSelection | None
) -> tuple[Ints, ...]:
    """Start and stop of the runs that have rows to hand out, their first live row, live rows."""
    live_bounds = bounds if deleted is None else deleted.live_bounds(bounds)
    live = np.diff(live_bounds)
    kept = live > 0
    if selection is not None:
        kept &= np.diff(selection.chosen.before(live_bounds)) > 0
    if kept.all():
        return bounds[:-1], bounds[1:], live_bounds[:-1], live
    return bounds[:-1][kept], bounds[1:][kept], live_bounds[:-1][kept], live[kept]


def _arrange(
    plan: StreamPlan, batch_size: int, shuffle: Shuffle, most_runs: int = MOST_RUNS
) -> Arrangement:
    index, runs, window_bytes = plan.columns[0].index, plan.runs, plan.window_bytes
    decoded_bytes = sum(column.index.raw_bytes for column in plan.columns)
    if index.rows:  # those of the runs that are left
        decoded_bytes = decoded_bytes * int((plan.stop - plan.start).sum()) // index.rows
    if shuffle is True or shuffle == "pages":
        run_bytes = max(1, decoded_bytes // max(1, runs))
        lanes, bands = choose_lanes(window_bytes, run_bytes, batch_size)
        if runs <= lanes:
            return Arrangement("resident")
        run_rows = max(1, plan.rows // runs) if runs > most_runs else 0
        return Arrangement(
            "pages", lanes, bands, group_rows=GROUP_RUNS * run_rows, run_rows=run_rows
        )
    if shuffle == "global":
        return Arrangement("global")
    if shuffle == "buffer":
        items = plan.expected_items
        fitting = window_bytes * items // max(1, decoded_bytes)
        return Arrangement("buffer", window_rows=max(1, min(items, fitting, _MOST_WINDOW_ROWS)))
    if shuffle is False:
        return Arrangement("storage")
    raise InvalidInputError(
        f"shuffle is 'pages', 'global', 'buffer', True or False, got {shuffle!r}"
    )


def _plan_column(
    name: str,
    index: ColumnIndex,
    start: Ints,
    stop: Ints,
    window_bytes: int,
    *,
    leads: bool,
    far: bool,
) -> ColumnPlan:
    bounds = index.first_row
    first_page, stop_page = _pages_of_runs(bounds, start, stop)
    reading: ColumnReading = "page"
    if leads:
        reading = "leading"
    elif (bounds[first_page] == start).all() and (bounds[stop_page] == stop).all():
        reading = "whole"  # its pages end where runs end
    elif index.raw_bytes * _RESIDENT_SHARE <= window_bytes:
        reading = "resident"
    whole = ColumnPlan(name, index, reading, first_page, stop_page)
    if reading != "page" or not far or not _has_single_rows(index):
        return whole
    rows_bytes = int((stop - start).sum()) * (index.storage.row_bytes + _SUM_BYTES)
    by_rows = replace(whole, reading="rows", rows_bytes=rows_bytes)
    return min(whole, by_rows, key=lambda each: each.read_bytes + GAP_BYTES * each.requests)


def _has_single_rows(index: ColumnIndex) -> bool:
    """Whether rows of every page can be found by arithmetic, and proved without the others."""
    entries = index.entries
    plain = (entries["codec"] == PAGE_PLAIN) & (entries["flags"] & HAS_ROW_SUMS != 0)
    alike = index.storage.layout is ColumnLayout.FIXED and not index.stored_as.any()
    return alike and bool(plain.all())


def _pages_of_runs(bounds: Ints, start: Ints, stop: Ints) -> tuple[Ints, Ints]:
    """First page of each run, and the page after its last."""
    if _is_cut(bounds, start, stop):
        pages = np.arange(len(bounds))
        return pages[:-1], pages[1:]
    first_page = np.searchsorted(bounds, start, side="right") - 1
    return first_page, np.searchsorted(bounds, stop, side="left")


def _is_cut(bounds: Ints, start: Ints, stop: Ints) -> bool:
    """Whether every run is one page, and every page a run."""
    return np.array_equal(bounds[:-1], start) and np.array_equal(bounds[1:], stop)


def _run_bytes(index: ColumnIndex, start: Ints, stop: Ints) -> Ints:
    """Decoded bytes of each run in one column; a page's bytes count evenly for its rows."""
    if index.default is None and _is_cut(index.first_row, start, stop):
        return index.entries["raw_bytes"].astype(np.int64)
    raw_bytes = index.entries["raw_bytes"].astype(np.float64)
    if index.default is not None:  # pages that are nowhere decode to something all the same
        rows = index.entries["rows"]
        nowhere = index.entries["stored_bytes"] == 0
        raw_bytes = np.where(nowhere, rows * max(1, index.default.nbytes), raw_bytes)
    before = np.concatenate(([0], np.cumsum(raw_bytes)))
    ends = np.interp(np.stack([start, stop]), index.first_row, before)
    run_bytes: Ints = (ends[1] - ends[0]).astype(np.int64)
    return run_bytes


@dataclass(frozen=True, slots=True)
class ColumnExplanation:
    """How one column is read; `amplification` is bytes read per stored byte."""

    name: str
    reading: ColumnReading
    pages: int
    requests: int
    read_bytes: int
    amplification: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.reading}, {counted(self.requests, 'read')} of "
            f"{counted(self.pages, 'page')}, {bytes_text(self.read_bytes)} "
            f"(x{self.amplification:.2f})"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a plan will do in an epoch, before anything is read.

    `distinct_runs` says how many runs the rows of 1, 16 and 64 consecutive batches come from, in
    the middle of the epoch: how well it mixes. `rows` are those handed out, or packed `items`;
    with weights `expected_items` come on average. `packed_share` of their elements are not padding.
    """

    order: OrderKind
    rows: int
    steps: int
    runs: int
    lanes: int
    bands: int
    window_bytes: int
    resident_bytes: int
    distinct_runs: dict[int, int]
    requests: int
    read_bytes: int
    columns: tuple[ColumnExplanation, ...]
    selection: str = ""
    items: str = "rows"
    expected_items: int = 0
    packed_share: float = 1.0
    buckets: str = ""
    lengths: str = ""
    tuning: str = ""
    echo: int = 1

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        mixing = ", ".join(
            f"{runs:,} in {counted(n, 'batch', 'batches')}"
            for n, runs in self.distinct_runs.items()
        )
        expected = packed = ""
        if self.expected_items != self.rows:
            expected = f"{items_text(self.expected_items, self.items)} on average"
        if self.packed_share < 1:
            packed = f"{self.packed_share:.1%} of the elements are no padding"
        table = (
            (
                "order",
                f"{self.order}: {items_text(self.rows, self.items)} in {counted(self.runs, 'run')}",
            ),
            ("selection", self.selection),
            ("epoch", expected),
            ("packing", packed),
            ("echo", f"{self.echo} times each row, read once" if self.echo > 1 else ""),
            ("buckets", self.buckets),
            ("lengths", self.lengths),
            ("steps", f"{self.steps:,} an epoch"),
            ("lanes", f"{self.lanes} in {counted(self.bands, 'band')}"),
            ("window", bytes_text(self.window_bytes)),
            ("resident", f"about {bytes_text(self.resident_bytes)}"),
            ("distinct runs", mixing),
            ("reads", f"{counted(self.requests, 'page')}, {bytes_text(self.read_bytes)} an epoch"),
            ("", "\n".join(f"  {column}" for column in self.columns)),
            ("made by", self.tuning),
        )
        return "\n".join(f"{name:<15}{text}" if name else text for name, text in table if text)


def items_of(packing: Packing | None) -> str:
    """What an order is of: ``rows``, or ``items of 1,024 elements``."""
    return "rows" if packing is None else f"items of {counted(packing.size, 'element')}"


def items_text(count: int, items: str) -> str:
    """``1 row``, ``2,000 items of 1,024 elements``."""
    noun, _, rest = items.partition(" ")
    return f"{counted(count, noun.removesuffix('s'))} {rest}".rstrip()


def explain(plan: StreamPlan, *, batch_size: int, steps: int, seed: int, epoch: int) -> Explanation:
    """What reading one epoch by `plan` means."""
    items = plan.items(seed, epoch)
    order = plan.order(seed, epoch, items)
    columns = tuple(column.explained() for column in plan.columns)
    open_runs = plan.arrangement.lanes or plan.runs
    return Explanation(
        order=plan.arrangement.kind,
        rows=items.total,
        steps=steps,
        runs=plan.runs,
        lanes=plan.arrangement.lanes,
        bands=plan.arrangement.bands,
        window_bytes=plan.window_bytes,
        resident_bytes=min(open_runs, plan.runs) * plan.mean_run_bytes,
        distinct_runs={n: _distinct_runs(order, n * batch_size) for n in (1, 16, 64)},
        requests=sum(column.requests for column in columns),
        read_bytes=sum(column.read_bytes for column in columns),
        columns=columns,
        selection="" if plan.selection is None else plan.selection.text,
        items=items_of(plan.packing),
        expected_items=plan.expected_items,
        packed_share=_packed_share(items),
        buckets=_explain_buckets(plan),
        lengths=_explain_lengths(plan.lengths),
        echo=plan.echo,
    )


def _packed_share(items: Items) -> float:
    if not isinstance(items, PackedItems):
        return 1.0
    return items.filled / max(1, items.total * items.size)


def _explain_buckets(plan: StreamPlan) -> str:
    chosen = plan.arrangement
    if plan.lengths is None or not chosen.bucket_steps:
        return ""
    return (
        f"rows of like length of {plan.lengths.column!r} among {chosen.block_rows:,}, "
        f"{chosen.bucket_steps} steps of {chosen.bucket_rows:,}"
    )


def _explain_lengths(lengths: RowLengths | None) -> str:
    if lengths is None:
        return ""
    return (
        f"of {lengths.column!r}: {bytes_text(lengths.read_bytes)} were read to know them, "
        f"{bytes_text(lengths.values.nbytes)} are kept"
    )


def _distinct_runs(order: Order, rows: int) -> int:
    start = max(0, (order.rows - rows) // 2)
    return int(distinct(order.locate(start, start + rows).run).size)

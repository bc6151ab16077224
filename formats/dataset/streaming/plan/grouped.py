"""Plan by groups of runs, for datasets with more pages than are worth knowing one by one.

What an order needs before it begins is known of groups of about a thousand runs alone; of their
pages what the statistics of the dataset and one page index let expect. An iteration reads the
indexes of groups as its lanes reach them and forgets the group that was left first, so memory
follows from the number of lanes. Arrays by run are arrays by slot.

Source:
    docs/spec/stream-order.md, section "Groups".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from functools import cached_property
from itertools import pairwise, starmap
from threading import Lock
from typing import Any

import numpy as np

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.manifest import Leaf, LeafEntry
from tensorrepo.formats.dataset.metadata.tree_read import Links, leaf_part, read_index, read_leaf
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    live_rows,
    open_part,
    page_reader,
)
from tensorrepo.formats.dataset.reading.page_reader import READ_THREADS
from tensorrepo.formats.dataset.schema.schema import SMALL_IMAGE
from tensorrepo.formats.dataset.streaming.order.buckets import buckets_of
from tensorrepo.formats.dataset.streaming.order.grouped import (
    GROUP_RUNS,
    TURNS,
    Grouping,
    GroupRuns,
    RunSlots,
    SlottedBuckets,
    grouped_lanes,
    slotted,
)
from tensorrepo.formats.dataset.streaming.order.items import (
    EveryRow,
    Items,
    PackedItems,
    RowChoice,
    RowItems,
    RowLengths,
    RowSelection,
    RowsWithin,
)
from tensorrepo.formats.dataset.streaming.order.orders import Order, choose_lanes
from tensorrepo.formats.dataset.streaming.order.schedule import MOST_STRETCH_ROWS, STRETCH_ROWS
from tensorrepo.formats.dataset.streaming.plan.packed_groups import GroupPacking
from tensorrepo.formats.dataset.streaming.plan.pages import (
    MOST_RUNS,
    Arrangement,
    StreamPlan,
    make_plan,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.objects.cache import LimitedCache

_LEAVES_BYTES = 4 << 20  # of leaves that are kept: neighbouring groups are often of one
_SPARE_GROUPS = 16  # open beyond one a lane


@dataclass(frozen=True, slots=True, eq=False)
class GroupParts:
    """Where the fragments of groups lie: int64 ``(parts,)``, a part for each leaf of a group.

    `number` counts groups that may have no live row, `first` and `stop` fragments of the leaf.
    """

    number: Ints
    leaf: Ints
    first: Ints
    stop: Ints
    live: Ints


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Every group of a dataset. Safe to share.

    Attributes:
        dataset: dataset that they are of.
        names: names of the columns that are wanted.
        leading: name of the column whose pages are the runs.
        window_bytes: share of one group in the window.
        group_rows: about how many rows, deleted ones counted, a group has.
        parts: parts of groups with live rows, in order.
        packing: how many packed items groups have; None: items are rows.
    """

    dataset: StoredDataset
    names: tuple[str, ...]
    leading: str
    window_bytes: int
    group_rows: int
    parts: GroupParts
    packing: GroupPacking | None = None
    _leaves: LimitedCache[tuple[Leaf, Links]] = field(
        default_factory=lambda: LimitedCache(_LEAVES_BYTES)
    )

    @cached_property
    def _first_part(self) -> Ints:
        """The first part of each group, and where the last one ends."""
        changes = np.flatnonzero(np.diff(self.parts.number, prepend=-1))
        return np.append(changes, self.parts.number.size)

    @cached_property
    def rows(self) -> Ints:
        """Live rows of each group."""
        return np.add.reduceat(self.parts.live, self._first_part[:-1])

    @cached_property
    def first_row(self) -> Ints:
        """The live row of the dataset that each group begins with."""
        return np.cumsum(self.rows) - self.rows

    def items(self, choice: RowChoice) -> Ints:
        """Items of each group, of an epoch with so many of each row."""
        if self.packing is not None:
            return self.packing.of_groups(choice).items
        return choice.before(self.first_row + self.rows) - choice.before(self.first_row)

    def open(self, group: int, number: int, choice: RowChoice) -> OpenGroup:
        """Read what is to be known of a group, whose `number` counts groups with items."""
        low, high = self._first_part[group : group + 2].tolist()
        first, selection = self.first_row.item(group), None
        if not isinstance(choice, EveryRow):
            inside = RowsWithin(choice, first, self.rows.item(group))
            selection = RowSelection(inside, None, "")
        part = self._opened(low, high)
        plan = make_plan(
            [(name, column_index(part, name)) for name in self.names],
            far=any(page_reader(part, name).is_far for name in self.names),
            leading=self.leading,
            batch_size=1,
            window_bytes=self.window_bytes,
            shuffle=False,
            deleted=live_rows(part),
            selection=selection,
        )
        if self.packing is not None:
            return self._packed(group, number, part, plan, self.packing, choice)
        first_row = plan.first_row + first
        ahead = choice.before(first_row)
        counts = choice.before(first_row + plan.live) - ahead
        runs = GroupRuns(number, plan.live, first_row, plan.run_bytes, counts, ahead)
        return OpenGroup(runs, part, plan)

    def _packed(
        self,
        group: int,
        number: int,
        part: StoredDataset,
        plan: StreamPlan,
        packing: GroupPacking,
        choice: RowChoice,
    ) -> OpenGroup:
        """A group of packed runs: those without elements are left out."""
        first_row = plan.first_row + self.first_row.item(group)
        pages = plan.leading.first_page
        elements, counts = packing.of_runs(part, self.leading, pages, first_row, plan.live, choice)
        kept = counts > 0
        plan = plan.of_runs(kept)
        ahead = np.zeros(plan.runs, np.int64)  # no row is looked up by it
        runs = GroupRuns(
            number, plan.live, first_row[kept], plan.run_bytes, counts[kept], ahead, elements[kept]
        )
        return OpenGroup(runs, part, plan)

    def each(self) -> Iterator[StoredDataset]:
        """The rows of one group after the other, each as a dataset."""
        return starmap(self._opened, pairwise(self._first_part.tolist()))

    def together(self, groups: int) -> Iterator[tuple[StoredDataset, Ints]]:
        """The rows of so many groups at a time as one dataset, and live rows of each of them."""
        for first in range(0, self.rows.size, groups):
            rows = self.rows[first : first + groups]
            low, high = self._first_part[[first, first + rows.size]].tolist()
            yield self._opened(low, high), rows

    def _opened(self, low: int, high: int) -> StoredDataset:
        some: list[tuple[int, range]] = []
        for at in range(low, high):
            leaf, first, stop = (
                each.item(at) for each in (self.parts.leaf, self.parts.first, self.parts.stop)
            )
            # What follows in one leaf is one part: to cut an index takes what a thousand pages do.
            if some and (some[-1][0], some[-1][1].stop) == (leaf, first):
                first = some.pop()[1].start
            some.append((leaf, range(first, stop)))
        return open_part(self.dataset, [self._part(*each) for each in some])

    def _part(self, number: int, some: range) -> tuple[Leaf, Links]:
        entry = self.dataset.root.leaves[number]
        leaf, links = self._leaves.get_or_load(number, lambda: self._leaf(entry))
        schema = self.dataset.schema
        columns = {schema.column(name).id for name in self.names}
        small = {(each, SMALL_IMAGE) for each in columns}  # read in place of these: `previewed`
        columns |= {each.id for each in schema.columns if each.derived in small}
        return leaf_part(self.dataset.objects, leaf, links, some, frozenset(columns))

    def _leaf(self, entry: LeafEntry) -> tuple[tuple[Leaf, Links], int]:
        loaded = read_leaf(self.dataset.objects, self.dataset.links, entry)
        return loaded, loaded[0].fragments.nbytes + 512 * len(loaded[0].spans)


@dataclass(frozen=True, slots=True, eq=False)
class OpenGroup:
    """A group that was read: its runs, its fragments as a dataset, and how their pages are read.

    `loader` is what reads them, once somebody has made it.
    """

    runs: GroupRuns
    dataset: StoredDataset
    plan: StreamPlan
    loader: list[Any] = field(default_factory=list)


class OpenGroups:
    """The groups of one epoch that lanes are in, by number among those with items. Thread-safe."""

    def __init__(self, table: GroupTable, lanes: int, turn_rows: int = 0) -> None:
        """Prepare for so many lanes, each in a group of its own, that give so many items a turn."""
        self.table = table
        self.rows = self._groups = np.zeros(0, np.int64)
        self._lanes, self._turn_rows, self._most = lanes, turn_rows, 0
        self._choice: RowChoice = EveryRow(0)
        self._open: OrderedDict[int, OpenGroup] = OrderedDict()
        self._lock = Lock()

    def choose(self, choice: RowChoice) -> None:
        """Give the groups the items of an epoch; called before anything is asked of them."""
        rows = self.table.items(choice)
        self._groups = np.flatnonzero(rows)
        self._choice, self.rows = choice, rows[self._groups]
        self._open.clear()
        # Groups of which few rows were chosen are passed through within a turn.
        passed = self._turn_rows * self._groups.size // max(1, int(rows.sum()))
        self._most = self._lanes + self._lanes // 8 + _SPARE_GROUPS + passed

    def prepare(self, groups: Sequence[int]) -> None:
        """Read what is not there of these, side by side."""
        missing = [group for group in groups if self.known(group) is None]
        if len(missing) < 2:
            return
        with ThreadPoolExecutor(READ_THREADS, "tensorrepo-groups") as threads:
            list(threads.map(self.get, missing))

    def runs(self, group: int) -> GroupRuns:
        return self.get(group).runs

    def known(self, group: int) -> GroupRuns | None:
        """The runs of a group that is open."""
        open_group = self._open.get(group)
        return None if open_group is None else open_group.runs

    def get(self, group: int) -> OpenGroup:
        """A group, read if it is not open."""
        with self._lock:
            open_group = self._open.get(group)
            if open_group is not None:
                self._open.move_to_end(group)
                return open_group
        fresh = self.table.open(self._groups.item(group), group, self._choice)
        with self._lock:
            open_group = self._open.setdefault(group, fresh)
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return open_group


def group_parts(dataset: StoredDataset, group_rows: int) -> GroupParts:
    """Where the groups of a dataset lie, which has a leaf."""
    entries = dataset.root.leaves
    first_rows = np.cumsum([0, *(entry.rows for entry in entries)]).tolist()

    def of_leaf(number: int) -> Ints:
        leaf, _ = read_leaf(dataset.objects, dataset.links, entries[number])
        return _parts_of_leaf(leaf, number, first_rows[number], group_rows)

    with ThreadPoolExecutor(READ_THREADS, "leaf") as threads:
        parts = np.concatenate(list(threads.map(of_leaf, range(len(entries)))), axis=1)
    live = np.bincount(parts[0], parts[4])
    return GroupParts(*parts[:, live[parts[0]] > 0])


def _parts_of_leaf(leaf: Leaf, number: int, first_row: int, group_rows: int) -> Ints:
    """Rows of `GroupParts`, int64 ``(5, parts)``."""
    rows = leaf.fragments["rows"].astype(np.int64)
    live = rows - leaf.fragments["deleted"].astype(np.int64)
    groups = (first_row + np.cumsum(rows) - rows) // group_rows
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    stop = np.append(first[1:], groups.size)
    leaves = np.full(first.size, number)
    return np.stack([groups[first], leaves, first, stop, np.add.reduceat(live, first)])


LEAST_BYTES = 16 << 30  # decoded, of the leading column: less is planned as a whole
_LEAST_GROUP_RUNS = 128
_OPEN_RUNS = 1 << 19  # about so many are known at once
_MOST_BLOCK_ROWS = 1 << 20
_LEAST_SHARE = 4  # of so many runs on average one has an item: less is planned as a whole


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupedPlan(StreamPlan):
    """A plan whose arrays by run are by slot, and empty until it is `opened`.

    Attributes:
        table: table of all groups.
        sample: first of them.
        slots: slots of an iteration.
        store: groups that it has open.
        eager: maker of the plan of all runs.
    """

    table: GroupTable
    sample: OpenGroup
    slots: RunSlots
    store: OpenGroups
    eager: Callable[[], StreamPlan]

    @property
    def rows(self) -> int:
        return self.table.dataset.rows

    @property
    def runs(self) -> int:
        """About how many there are."""
        rows = self.rows if self.selection is None else self.selection.chosen.total
        return max(1, min(self.rows // self.arrangement.run_rows, rows))

    @property
    def mean_run_bytes(self) -> int:
        return self._row_bytes * self.arrangement.run_rows

    @property
    def item_bytes(self) -> int:
        if self.packing is not None:
            return self.packing.size * self.leading.index.storage.element.itemsize
        return self._row_bytes

    @property
    def _row_bytes(self) -> int:
        dataset = self.table.dataset
        return _raw_bytes(dataset, self.table.names) // max(1, dataset.root.rows)

    def whole(self) -> StreamPlan:
        return self.eager()

    def opened(self, batch_size: int, ahead_bytes: int) -> GroupedPlan:
        lanes, block_rows = self.arrangement.lanes, self.arrangement.block_rows
        ahead_rows = min(2 * ahead_bytes // max(1, self.item_bytes), MOST_STRETCH_ROWS)
        turn_rows = max(STRETCH_ROWS, 2 * (lanes + block_rows), ahead_rows) + batch_size
        turn_rows += 2 * block_rows  # of which a turn has some rows alone
        store = OpenGroups(self.table, lanes, turn_rows)
        slots = RunSlots(TURNS * turn_rows, store.known)
        return replace(
            self,
            slots=slots,
            store=store,
            first_row=slots.first_row,
            live=slots.live,
            run_bytes=slots.run_bytes,
        )

    def arranged_for(self, batch_size: int, window_bytes: int) -> GroupedPlan:
        lanes, bands = choose_lanes(window_bytes, self.mean_run_bytes, batch_size)
        chosen = replace(self.arrangement, lanes=lanes, bands=bands)
        return replace(self, arrangement=chosen, window_bytes=window_bytes)

    def arranged_as(self, arrangement: Arrangement) -> StreamPlan:
        same_groups = arrangement.group_rows == self.table.group_rows
        if arrangement.kind == "pages" and same_groups and _are_few(arrangement.block_rows):
            return replace(self, arrangement=arrangement)
        return replace(self.eager(), arrangement=arrangement)

    def items(self, seed: int, epoch: int) -> Items:
        choice, slots = self.choice(seed, epoch) or EveryRow(self.rows), self.slots
        numbers = np.arange(slots.live.size)
        if self.table.packing is not None:
            return self.table.packing.items(numbers, slots.counts, slots.elements, choice)
        return RowItems(numbers, slots.counts, choice, slots.first_row, slots.ahead)

    def order(self, seed: int, epoch: int, items: Items | None = None) -> Order:
        chosen, store = self.arrangement, self.store
        items = items or self.items(seed, epoch)
        assert isinstance(items, RowItems | PackedItems), "no other items are of groups"
        store.choose(items.choice or EveryRow(self.rows))
        unread = Grouping(
            store.rows, np.zeros(0, np.int64), lambda at: store.runs(at).counts, chosen.run_rows
        )
        lanes, bands = chosen.lanes, chosen.bands
        laid = grouped_lanes(unread, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
        if not chosen.bucket_steps:
            return slotted(laid, store, self.slots)
        assert self.lengths is not None, "buckets are made of lengths"
        buckets = buckets_of(chosen.bucket_rows, chosen.bucket_steps, bands)
        return SlottedBuckets(laid, store, self.slots, items, self.lengths.values, buckets)


def plan_groups(  # noqa: PLR0913  all that decides which groups there are
    dataset: StoredDataset,
    names: tuple[str, ...],
    eager: Callable[[], StreamPlan],
    *,
    batch_size: int,
    window_bytes: int,
    choose: Callable[[], RowSelection | None] = lambda: None,
    lengths: Callable[[], RowLengths] | None = None,
    bucket_steps: int = 0,
    echo: int = 1,
    pack: Callable[[GroupTable, RowSelection | None], GroupPacking] | None = None,
    most_runs: int = MOST_RUNS,
    least_bytes: int = LEAST_BYTES,
    group_runs: int | None = None,
) -> GroupedPlan | None:
    """The plan of a stream of rows in the order "pages", in groups.

    Args:
        dataset: dataset to stream.
        names: names of the columns, in the order of the schema.
        eager: maker of the plan of all runs.
        batch_size: rows of a step, of all ranks together.
        window_bytes: decoded bytes that may be resident in the whole job.
        choose: chooser of the rows that come, called where there are many runs.
        lengths: reader of the lengths of all live rows, for buckets; called likewise.
        bucket_steps: number of steps of a block of buckets; 0: no buckets.
        echo: how often each of them is given.
        pack: counter of the packed items of all groups, called likewise; None: items are rows.
        most_runs: most runs that are planned one by one.
        least_bytes: decoded bytes of the leading column, of which less is planned run by run.
        group_runs: about how many runs make a group; None: as many as let few enough be open.

    Returns:
        The plan; None where the dataset has few runs, or few of them have rows that come.
    """
    if dataset.root.rows <= most_runs or not _are_few(batch_size * bucket_steps):
        return None
    raw_bytes = {each.id: each.raw_bytes for each in dataset.root.statistics}
    leading = max(names, key=lambda name: raw_bytes[dataset.schema.column(name).id])
    if raw_bytes[dataset.schema.column(leading).id] < least_bytes:
        return None
    run_rows = _run_rows(dataset, leading)
    if run_rows is None or dataset.root.rows // run_rows <= most_runs:
        return None
    run_bytes = _raw_bytes(dataset, names) * run_rows // dataset.root.rows
    lanes, bands = choose_lanes(window_bytes, run_bytes, batch_size)
    group_runs = group_runs or max(_LEAST_GROUP_RUNS, min(GROUP_RUNS, _OPEN_RUNS // lanes))
    chosen = Arrangement("pages", lanes, bands, group_rows=group_runs * run_rows, run_rows=run_rows)
    parts = group_parts(dataset, chosen.group_rows)
    own_bytes = max(1, window_bytes // (2 * lanes))
    table = GroupTable(dataset, names, leading, own_bytes, chosen.group_rows, parts)
    selection, store = choose(), OpenGroups(table, 0)
    choice = EveryRow(dataset.rows) if selection is None else selection.chosen
    store.choose(choice)
    if not store.rows.size or not _has_many(selection, store.rows.size * group_runs, most_runs):
        return None
    if pack is not None:
        table = replace(table, packing=pack(table, selection))
        store = OpenGroups(table, 0)
        store.choose(choice)
        if not store.rows.size:
            return None
    sample = store.get(0)
    stored = {each.id: each.stored_bytes for each in dataset.root.statistics}
    groups = int(store.rows.sum()) / int(sample.runs.counts.sum())
    columns = tuple(
        replace(column, sampled=(groups, stored[column.index.id])) for column in sample.plan.columns
    )
    if bucket_steps:
        chosen = replace(chosen, bucket_rows=batch_size, bucket_steps=bucket_steps)
    none = np.zeros(0, np.int64)
    return GroupedPlan(
        columns,
        chosen,
        window_bytes,
        none,
        none,
        none,
        none,
        none,
        selection=selection,
        packing=None if table.packing is None else table.packing.packing,
        lengths=lengths() if lengths is not None else None,
        echo=echo,
        table=table,
        sample=sample,
        slots=RunSlots(0, store.known),
        store=store,
        eager=eager,
    )


def _are_few(block_rows: int) -> bool:
    """Whether there can be slots for the runs of some blocks of buckets."""
    return block_rows <= _MOST_BLOCK_ROWS


def _has_many(selection: RowSelection | None, runs: int, most_runs: int) -> bool:
    """Whether so many runs, of groups with rows that were chosen, are worth planning by groups."""
    if selection is None:
        return True
    return runs > most_runs and selection.expected_rows * _LEAST_SHARE >= runs


def _raw_bytes(dataset: StoredDataset, names: tuple[str, ...]) -> int:
    wanted = {dataset.schema.column(name).id for name in names}
    return sum(each.raw_bytes for each in dataset.root.statistics if each.id in wanted)


def _run_rows(dataset: StoredDataset, name: str) -> int | None:
    """Rows of a page of the first page index; None where the first leaf has none."""
    column = dataset.schema.column(name).id
    group = next(group[0] for group in dataset.root.groups if column in group)
    leaf, links = read_leaf(dataset.objects, dataset.links, dataset.root.leaves[0])
    for span in leaf.indexes:
        if span.group == group:
            pages = read_index(dataset.objects, span, links)[0].column(column)
            if pages is not None:
                return max(1, int(pages.entries["rows"].sum(dtype=np.int64)) // len(pages.entries))
    return None

"""Which groups of runs has a dataset, and what is in those that are looked into?

`GroupTable` knows of every group where its fragments lie and how many rows it has: that is counted
leaf by leaf, and no leaf is kept. `OpenGroups` reads the page indexes of a group when lanes come to
it, and forgets the group that was left first. So what a stream keeps in memory follows from the
number of lanes, and from that of pages only by the few bytes of a group.

Source:
    docs/spec/stream-order.md, section "Groups".
"""

from __future__ import annotations

from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.read import Dataset, column_index, live_rows, open_part, page_reader
from tensorrepo.formats.dataset.rows.limited import LimitedCache
from tensorrepo.formats.dataset.rows.pageread import READ_THREADS
from tensorrepo.formats.dataset.streaming.ordering.plan import Plan, make_plan
from tensorrepo.formats.dataset.streaming.ordering.slots import GroupRuns
from tensorrepo.formats.dataset.tree.leafread import leaf_part
from tensorrepo.formats.dataset.tree.manifest import HAS_PATCHES
from tensorrepo.formats.dataset.tree.treeread import read_leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.tree.manifest import Leaf, LeafEntry
    from tensorrepo.formats.dataset.tree.treeread import Links

_LEAVES_BYTES = 4 << 20  # of leaves that are kept: neighbouring groups are often of one
_SPARE_GROUPS = 16  # open beyond one a lane


@dataclass(frozen=True, slots=True, eq=False)
class GroupParts:
    """Where the fragments of groups lie: int64 ``(parts,)``, a part for each leaf of a group.

    `number` counts groups that may have no live row, `first` and `stop` fragments of the leaf.
    """

    number: NDArray[np.int64]
    leaf: NDArray[np.int64]
    first: NDArray[np.int64]
    stop: NDArray[np.int64]
    live: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupTable:
    """Every group of a dataset. Safe to share.

    Attributes:
        dataset: whose.
        names: of the columns that are wanted.
        leading: the column whose pages are the runs.
        window_bytes: what one group's share of the window is.
        group_rows: of about how many rows, deleted ones counted, a group is.
        parts: of groups with live rows, in order.
    """

    dataset: Dataset
    names: tuple[str, ...]
    leading: str
    window_bytes: int
    group_rows: int
    parts: GroupParts
    _leaves: LimitedCache[tuple[Leaf, Links]] = field(
        default_factory=lambda: LimitedCache(_LEAVES_BYTES)
    )

    @cached_property
    def _first_part(self) -> NDArray[np.int64]:
        """The first part of each group, and where the last one ends."""
        changes = np.flatnonzero(np.diff(self.parts.number, prepend=-1))
        return np.append(changes, self.parts.number.size)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """Live rows of each group."""
        return np.add.reduceat(self.parts.live, self._first_part[:-1])

    @cached_property
    def first_row(self) -> NDArray[np.int64]:
        """The live row of the dataset that each group begins with."""
        return np.cumsum(self.rows) - self.rows

    def open(self, group: int) -> OpenGroup:
        """Read what is to be known of a group."""
        low, high = self._first_part[group : group + 2].tolist()
        part = open_part(self.dataset, [self._part(at) for at in range(low, high)])
        plan = make_plan(
            [(name, column_index(part, name)) for name in self.names],
            far=any(page_reader(part, name).is_far for name in self.names),
            leading=self.leading,
            batch_size=1,
            window_bytes=self.window_bytes,
            shuffle=False,
            deleted=live_rows(part),
        )
        first_row = plan.first_row + self.first_row[group]
        return OpenGroup(GroupRuns(group, plan.live, first_row, plan.run_bytes), part, plan)

    def _part(self, at: int) -> tuple[Leaf, Links]:
        number = self.parts.leaf.item(at)
        entry = self.dataset.root.leaves[number]
        leaf, links = self._leaves.get_or_load(number, lambda: self._leaf(entry))
        some = range(self.parts.first.item(at), self.parts.stop.item(at))
        columns = frozenset(self.dataset.schema.column(name).id for name in self.names)
        return leaf_part(self.dataset.objects, leaf, links, some, columns)

    def _leaf(self, entry: LeafEntry) -> tuple[tuple[Leaf, Links], int]:
        found = read_leaf(self.dataset.objects, self.dataset.links, entry)
        return found, found[0].fragments.nbytes + 512 * len(found[0].spans)


@dataclass(frozen=True, slots=True, eq=False)
class OpenGroup:
    """A group that was read: its runs, its fragments as a dataset, and how their pages are read.

    `loader` is what reads them, once somebody has made it.
    """

    runs: GroupRuns
    dataset: Dataset
    plan: Plan
    loader: list[Any] = field(default_factory=list)


class OpenGroups:
    """The groups that lanes are in. Thread-safe."""

    def __init__(self, table: GroupTable, lanes: int) -> None:
        """Prepare for so many lanes, each in a group of its own."""
        self.table = table
        self._most = lanes + lanes // 8 + _SPARE_GROUPS
        self._open: OrderedDict[int, OpenGroup] = OrderedDict()
        self._lock = Lock()

    @property
    def rows(self) -> NDArray[np.int64]:
        return self.table.rows

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
        found = self._open.get(group)
        return None if found is None else found.runs

    def get(self, group: int) -> OpenGroup:
        """A group, read if it is not open."""
        with self._lock:
            found = self._open.get(group)
            if found is not None:
                self._open.move_to_end(group)
                return found
        fresh = self.table.open(group)
        with self._lock:
            found = self._open.setdefault(group, fresh)
            while len(self._open) > self._most:
                self._open.popitem(last=False)
        return found


def group_parts(dataset: Dataset, group_rows: int) -> GroupParts | None:
    """Where the groups of a dataset lie; None where values of some fragments were set later."""
    entries = dataset.root.leaves
    first_rows = np.cumsum([0, *(entry.rows for entry in entries)]).tolist()

    def of_leaf(number: int) -> NDArray[np.int64] | None:
        leaf, _ = read_leaf(dataset.objects, dataset.links, entries[number])
        if (leaf.fragments["flags"] & HAS_PATCHES).any():
            return None
        return _parts_of_leaf(leaf, number, first_rows[number], group_rows)

    with ThreadPoolExecutor(READ_THREADS, "leaf") as threads:
        found = list(threads.map(of_leaf, range(len(entries))))
    tables = [table for table in found if table is not None]
    if len(tables) < len(found) or not tables:
        return None
    parts = np.concatenate(tables, axis=1)
    live = np.bincount(parts[0], parts[4])
    return GroupParts(*parts[:, live[parts[0]] > 0])


def _parts_of_leaf(leaf: Leaf, number: int, first_row: int, group_rows: int) -> NDArray[np.int64]:
    """Rows of `GroupParts`, int64 ``(5, parts)``."""
    rows = leaf.fragments["rows"].astype(np.int64)
    live = rows - leaf.fragments["deleted"]
    groups = (first_row + np.cumsum(rows) - rows) // group_rows
    first = np.flatnonzero(np.diff(groups, prepend=-1))
    stop = np.append(first[1:], groups.size)
    leaves = np.full(first.size, number)
    return np.stack([groups[first], leaves, first, stop, np.add.reduceat(live, first)])

"""How is a stream planned whose pages are too many to be known?

By groups of about a thousand runs. What an order needs before it begins is known of groups alone;
of their pages what the statistics of the dataset and one page index let expect. An iteration reads
the indexes of groups as its lanes reach them, and its arrays by run are arrays by slot.

Source:
    docs/spec/stream-order.md, section "Groups".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.streaming.groups import (
    GroupTable,
    OpenGroup,
    OpenGroups,
    group_parts,
)
from tensorrepo.formats.dataset.streaming.ordering.choice import EveryRow
from tensorrepo.formats.dataset.streaming.ordering.grouped import GROUP_RUNS, slotted_lanes
from tensorrepo.formats.dataset.streaming.ordering.items import RowItems
from tensorrepo.formats.dataset.streaming.ordering.order import choose_lanes
from tensorrepo.formats.dataset.streaming.ordering.plan import (
    MOST_RUNS,
    Arrangement,
    ColumnPlan,
    Plan,
)
from tensorrepo.formats.dataset.streaming.ordering.schedule import (
    MOST_STRETCH_ROWS,
    STRETCH_ROWS,
)
from tensorrepo.formats.dataset.streaming.ordering.slots import TURNS, Slots
from tensorrepo.formats.dataset.tree.index import column_pages
from tensorrepo.formats.dataset.tree.treeread import read_index, read_leaf

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.streaming.ordering.items import Items
    from tensorrepo.formats.dataset.streaming.ordering.order import Order

LEAST_BYTES = 16 << 30  # decoded, of the leading column: less is planned as a whole
_LEAST_GROUP_RUNS = 128
_OPEN_RUNS = 1 << 19  # about so many are known at once


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class GroupedPlan(Plan):
    """A plan whose arrays by run are by slot, and empty until it is `opened`.

    Attributes:
        table: where groups are.
        sample: one of them.
        slots: of an iteration.
        store: the groups that it has open.
        eager: makes the plan of all runs.
    """

    table: GroupTable
    sample: OpenGroup
    slots: Slots
    store: OpenGroups
    eager: Callable[[], Plan]

    @property
    def rows(self) -> int:
        return self.table.dataset.rows

    @property
    def runs(self) -> int:
        """About how many there are."""
        return max(1, self.rows // self.arrangement.run_rows)

    @property
    def expected_items(self) -> int:
        return self.rows

    @property
    def mean_run_bytes(self) -> int:
        return self.item_bytes * self.arrangement.run_rows

    @property
    def item_bytes(self) -> int:
        dataset = self.table.dataset
        return _raw_bytes(dataset, self.table.names) // max(1, dataset.root.rows)

    def whole(self) -> Plan:
        return self.eager()

    def opened(self, batch_size: int, ahead_bytes: int) -> GroupedPlan:
        lanes = self.arrangement.lanes
        store = OpenGroups(self.table, lanes)
        ahead_rows = min(2 * ahead_bytes // max(1, self.item_bytes), MOST_STRETCH_ROWS)
        turn_rows = max(STRETCH_ROWS, 2 * lanes, ahead_rows) + batch_size
        return _with_slots(self, Slots(TURNS * turn_rows, store.known), store)

    def arranged_as(self, arrangement: Arrangement) -> Plan:
        if arrangement.kind == "pages" and arrangement.group_rows == self.table.group_rows:
            return replace(self, arrangement=arrangement)
        return replace(self.eager(), arrangement=arrangement)

    def items(self, seed: int, epoch: int) -> Items:  # noqa: ARG002  every row, in each
        return RowItems(
            np.zeros(0, np.int64), self.live, EveryRow(self.rows), self.first_row, self.first_row
        )

    def order(self, seed: int, epoch: int, items: Items | None = None) -> Order:  # noqa: ARG002
        chosen = self.arrangement
        return slotted_lanes(
            self.store,
            self.slots,
            chosen.run_rows,
            seed=seed,
            epoch=epoch,
            lanes=chosen.lanes,
            bands=chosen.bands,
        )


def plan_groups(
    dataset: Dataset,
    names: tuple[str, ...],
    eager: Callable[[], Plan],
    *,
    batch_size: int,
    window_bytes: int,
    most_runs: int = MOST_RUNS,
    least_bytes: int = LEAST_BYTES,
    group_runs: int | None = None,
) -> GroupedPlan | None:
    """The plan of a stream of every row in the order "pages", in groups.

    Args:
        dataset: what to stream.
        names: of the columns, in the order of the schema.
        eager: makes the plan of all runs.
        batch_size: rows of a step, of all ranks together.
        window_bytes: decoded bytes that may be resident in the whole job.
        most_runs: so many are planned one by one.
        least_bytes: decoded bytes of the leading column, of which less is planned run by run.
        group_runs: about how many runs make a group; None: as many as let few enough be open.

    Returns:
        The plan; None where the dataset has few runs, or such as cannot be read alone.
    """
    if dataset.root.rows <= most_runs:
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
    if parts is None or not parts.number.size:
        return None
    own_bytes = max(1, window_bytes // (2 * lanes))
    table = GroupTable(dataset, names, leading, own_bytes, chosen.group_rows, parts)
    return _planned(table, chosen, window_bytes, eager)


def _planned(
    table: GroupTable, chosen: Arrangement, window_bytes: int, eager: Callable[[], Plan]
) -> GroupedPlan:
    sample = table.open(0)
    store = OpenGroups(table, 0)
    stored = {each.id: each.stored_bytes for each in table.dataset.root.statistics}
    groups = table.dataset.rows / int(sample.runs.live.sum())
    columns = tuple(
        ColumnPlan(
            column.name,
            column.index,
            column.reading,
            column.first_page,
            column.stop_page,
            column.rows_bytes,
            sampled=(groups, stored[column.index.id]),
        )
        for column in sample.plan.columns
    )
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
        table=table,
        sample=sample,
        slots=Slots(0, store.known),
        store=store,
        eager=eager,
    )


def _with_slots(plan: GroupedPlan, slots: Slots, store: OpenGroups) -> GroupedPlan:
    return replace(
        plan,
        slots=slots,
        store=store,
        first_row=slots.first_row,
        live=slots.live,
        run_bytes=slots.run_bytes,
    )


def _raw_bytes(dataset: Dataset, names: tuple[str, ...]) -> int:
    wanted = {dataset.schema.column(name).id for name in names}
    return sum(each.raw_bytes for each in dataset.root.statistics if each.id in wanted)


def _run_rows(dataset: Dataset, name: str) -> int | None:
    """Rows of a page of the first page index; None where the first leaf has none."""
    column = dataset.schema.column(name).id
    group = next(group[0] for group in dataset.root.groups if column in group)
    leaf, links = read_leaf(dataset.objects, dataset.links, dataset.root.leaves[0])
    for span in leaf.indexes:
        if span.group == group:
            pages = column_pages(read_index(dataset.objects, span, links)[0], column)
            if pages is not None:
                return max(1, int(pages.entries["rows"].sum(dtype=np.int64)) // len(pages.entries))
    return None

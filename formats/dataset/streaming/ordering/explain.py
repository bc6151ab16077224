"""What will reading by a plan mean, before anything is read?

Pure, as plans are: everything here is counted from page entries.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.streaming.ordering.items import items_total
from tensorrepo.formats.dataset.streaming.ordering.packing import PackedItems

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.streaming.ordering.items import Items
    from tensorrepo.formats.dataset.streaming.ordering.order import Order
    from tensorrepo.formats.dataset.streaming.ordering.plan import ColumnPlan, Kind, Plan, Reading


@dataclass(frozen=True, slots=True)
class ColumnExplanation:
    """How one column is read; `amplification` is bytes read per stored byte."""

    name: str
    reading: Reading
    pages: int
    requests: int
    read_bytes: int
    amplification: float

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.reading}, {self.requests:,} reads of {self.pages:,} pages, "
            f"{human(self.read_bytes)} (x{self.amplification:.2f})"
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a plan will do in an epoch, before anything is read.

    `distinct_runs` says how many runs the rows of 1, 16 and 64 consecutive batches come from, in
    the middle of the epoch: how well it mixes. `rows` are those handed out, or packed `items`;
    with weights `expected_items` come on average. `packed_share` of their elements are not padding.
    """

    order: Kind
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        mixing = ", ".join(f"{runs:,} in {n} batches" for n, runs in self.distinct_runs.items())
        return "\n".join(
            (
                f"order          {self.order}: {self.rows:,} {self.items} in {self.runs:,} runs",
                *self._sampled(),
                f"steps          {self.steps:,} an epoch",
                f"lanes          {self.lanes} in {self.bands} bands",
                f"window         {human(self.window_bytes)}",
                f"resident       about {human(self.resident_bytes)}",
                f"distinct runs  {mixing}",
                f"reads          {self.requests:,} pages, {human(self.read_bytes)} an epoch",
                *(f"  {column}" for column in self.columns),
                *((f"made by        {self.tuning}",) if self.tuning else ()),
            )
        )

    def _sampled(self) -> list[str]:
        found = []
        if self.selection:
            found.append(f"selection      {self.selection}")
        if self.expected_items != self.rows:
            found.append(f"epoch          {self.expected_items:,} {self.items} on average")
        if self.packed_share < 1:
            found.append(f"packing        {self.packed_share:.1%} of the elements are no padding")
        if self.buckets:
            found.append(f"buckets        {self.buckets}")
        if self.lengths:
            found.append(f"lengths        {self.lengths}")
        return found


def explain(plan: Plan, *, batch_size: int, steps: int, seed: int, epoch: int) -> Explanation:
    """What reading one epoch by `plan` means."""
    items = plan.items(seed, epoch)
    order = plan.order(seed, epoch, items)
    columns = tuple(_explain_column(column) for column in plan.columns)
    open_runs = plan.arrangement.lanes or plan.runs
    return Explanation(
        order=plan.arrangement.kind,
        rows=items_total(items),
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
        items="rows" if plan.packing is None else f"items of {plan.packing.size:,} elements",
        expected_items=plan.expected_items,
        packed_share=_packed_share(items),
        buckets=_explain_buckets(plan),
        lengths=_explain_lengths(plan),
    )


def _packed_share(items: Items) -> float:
    if not isinstance(items, PackedItems):
        return 1.0
    return int(items.elements.sum()) / max(1, items_total(items) * items.size)


def _explain_buckets(plan: Plan) -> str:
    chosen = plan.arrangement
    if plan.lengths is None or not chosen.bucket_steps:
        return ""
    return (
        f"rows of like length of {plan.lengths.column!r} among {chosen.block_rows:,}, "
        f"{chosen.bucket_steps} steps of {chosen.bucket_rows:,}"
    )


def _explain_lengths(plan: Plan) -> str:
    known = plan.lengths
    if known is None:
        return ""
    return (
        f"of {known.column!r}: {human(known.read_bytes)} were read to know them, "
        f"{human(known.values.nbytes)} are kept"
    )


def _explain_column(column: ColumnPlan) -> ColumnExplanation:
    read_bytes = column.read_bytes
    return ColumnExplanation(
        column.name,
        column.reading,
        column.pages,
        column.requests,
        read_bytes,
        read_bytes / max(1, column.stored_bytes),
    )


def _distinct_runs(order: Order, rows: int) -> int:
    start = max(0, (order.rows - rows) // 2)
    return int(np.unique(order.locate(start, start + rows).run).size)


def human(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"

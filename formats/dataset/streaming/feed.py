"""Feed of a stream: the data of its epochs, and the order in which they come.

A `Feed` is a value that several iterations share: one dataset with a plan, or several datasets
that are mixed. The stream that has it keeps the position, and makes batches with its assembler.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, row_id_table
from tensorrepo.formats.dataset.streaming.collate.assemble import Assembler, plan_stretches
from tensorrepo.formats.dataset.streaming.collate.batch import BatchForm
from tensorrepo.formats.dataset.streaming.load.loaders import loader_of
from tensorrepo.formats.dataset.streaming.options import StreamSetup, Tuning
from tensorrepo.formats.dataset.streaming.order.items import items_total
from tensorrepo.formats.dataset.streaming.plan.pages import Explanation, StreamPlan, explain
from tensorrepo.formats.dataset.streaming.state import (
    ItemsState,
    StreamState,
    decode_state,
    encode_state,
)
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.formats.native.rows import BEST


class Pass(NamedTuple):
    """One epoch: the seed of its order, and its number."""

    seed: int
    epoch: int


FeedT_co = TypeVar("FeedT_co", covariant=True)


class Resumed(NamedTuple, Generic[FeedT_co]):
    """What a saved state says: the feed as it was arranged, the epoch, and the position in it."""

    feed: FeedT_co
    epoch: Pass
    position: int


class Feed(Protocol):
    """Data of epochs, and their order. Equal on every rank."""

    @property
    def title(self) -> str:
        """Name of the data, for the log."""
        ...

    @property
    def identify(self) -> Callable[..., NDArray[Any]]:
        """Finds the ids of rows, and takes the sources of these in a mix."""
        ...

    def rows(self, epoch: Pass) -> int:
        """Number of rows, or packed items, of an epoch."""
        ...

    def assembler(
        self, setup: StreamSetup, epoch: Pass, pool: Pool, stats: StreamStats
    ) -> Assembler:
        """Maker of the batches of one iteration."""
        ...

    def state(self, epoch: Pass, position: int) -> dict[str, Any]:
        """State at a position, as JSON values."""
        ...

    def resumed(self, state: dict[str, Any]) -> Resumed[Feed]:
        """Where a state was saved. Raises InvalidInputError: it is one of other data."""
        ...

    def explain(self, setup: StreamSetup, epoch: Pass, tuning: Tuning) -> Any:
        """What reading an epoch will mean."""
        ...

    def text(self, epoch: Pass) -> str:
        """Begin of a stream's representation."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DatasetFeed:
    """One dataset, by a plan.

    Attributes:
        dataset: dataset to read.
        plan: its runs and their order.
        columns: names of the columns of a batch, in their order there.
    """

    dataset: StoredDataset
    plan: StreamPlan
    columns: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"dataset {self.dataset.digest:.12}"

    def identify(self, rows: Ints) -> NDArray[Any]:
        return row_id_table(self.dataset).of(live_rows(self.dataset).physical(rows))

    def rows(self, epoch: Pass) -> int:
        return items_total(self.plan.items(*epoch))

    def assembler(
        self,
        setup: StreamSetup,
        epoch: Pass,  # noqa: ARG002  the same for all of them
        pool: Pool,
        stats: StreamStats,
        nullable: Collection[str] = (),
    ) -> Assembler:
        """Maker of the batches of one iteration; columns in `nullable` count as nullable."""
        options, schema = setup.options, self.dataset.schema
        plan = self.plan.opened(options.batch_size, options.ahead_bytes)
        names = [column.name for column in plan.columns]
        with_valid = tuple(schema.column(name).nullable or name in nullable for name in names)
        # A caller who goes on without damaged pages learns of them while runs are loaded.
        by_row = options.on_error == "raise"
        loader = loader_of(self.dataset, plan, with_valid, by_row=by_row)
        return Assembler(
            plan=plan,
            loader=loader,
            columns=tuple((schema.column(name), names.index(name)) for name in self.columns),
            nullable=with_valid,
            form=BatchForm(
                options.output, options.pad, pool, self.identify, frozenset(setup.decodes)
            ),
            setup=setup,
            stats=stats,
            stretches=partial(plan_stretches, plan, loader.is_local, options.ahead_bytes),
        )

    def state(self, epoch: Pass, position: int) -> dict[str, Any]:
        arrangement = self.plan.arrangement
        return encode_state(
            StreamState(
                dataset=self.dataset.digest,
                columns=self.columns,
                order=arrangement.kind,
                lanes=arrangement.lanes,
                bands=arrangement.bands,
                window_rows=arrangement.window_rows,
                group_rows=arrangement.group_rows,
                run_rows=arrangement.run_rows,
                items=self._items_state(),
                seed=epoch.seed,
                epoch=epoch.epoch,
                position=position,
            )
        )

    def resumed(self, state: dict[str, Any]) -> Resumed[DatasetFeed]:
        saved = decode_state(
            state,
            dataset=self.dataset.digest,
            columns=self.columns,
            items=self._items_state(),
            length=lambda seed, epoch: self.rows(Pass(seed, epoch)),
        )
        feed = replace(self, plan=self.plan.arranged_as(saved.arrangement))
        return Resumed(feed, Pass(saved.seed, saved.epoch), saved.position)

    def explain(self, setup: StreamSetup, epoch: Pass, tuning: Tuning) -> Explanation:
        share = setup.options.share(0)
        explanation = explain(
            self.plan.opened(setup.options.batch_size, setup.options.ahead_bytes),
            batch_size=share.batch_size,
            steps=share.steps(self.rows(epoch)),
            seed=epoch.seed,
            epoch=epoch.epoch,
        )
        return replace(explanation, tuning=str(tuning))

    def text(self, epoch: Pass) -> str:
        plan = self.plan
        items = "rows" if plan.packing is None else f"items of {plan.packing.size:,} elements"
        selected = "" if plan.selection is None else f" ({plan.selection.text})"
        return f"Stream({self.rows(epoch):,} {items}{selected}, order={plan.arrangement.kind!r}"

    def _items_state(self) -> ItemsState:
        plan, arrangement = self.plan, self.plan.arrangement
        return ItemsState(
            selection="" if plan.selection is None else plan.selection.digest,
            pack=0 if plan.packing is None else plan.packing.size,
            bucket=plan.lengths.column if plan.lengths and arrangement.bucket_steps else "",
            bucket_rows=arrangement.bucket_rows,
            bucket_steps=arrangement.bucket_steps,
        )


def tuning_of(assembler: Assembler) -> Tuning:
    """How many threads make batches, and how far ahead."""
    setup = assembler.setup
    works = setup.options.transform is not None or bool(setup.decodes)
    return Tuning(
        setup.prefetch,
        setup.options.own_work_threads if works else 0,
        assembler.fetch_threads,
        assembler.steps_at_once,
        BEST.name,
    )

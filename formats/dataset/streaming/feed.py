"""Feed of a stream: the data of its epochs, the order in which they come, and a place in it.

A `Feed` is a value that several iterations share: one dataset with a plan, or several datasets
that are mixed. The stream that has it keeps the position, and makes batches with its assembler.

The state of a stream or a mix, to resume it, is one JSON object for all ranks. It holds what
decides the order and how many rows were handed out; nothing in it depends on the number of ranks,
the batch size or the machine. That of a mix has the states of its sources inside, which say their
data and orders; where they are follows from the position of the mix.

Source:
    docs/spec/stream-order.md, section "State".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, row_id_table
from tensorrepo.formats.dataset.schema.nulls import null_policy
from tensorrepo.formats.dataset.streaming.collate.assemble import Assembler, plan_stretches
from tensorrepo.formats.dataset.streaming.collate.batch import BatchForm
from tensorrepo.formats.dataset.streaming.load.loaders import loader_of
from tensorrepo.formats.dataset.streaming.options import StreamSetup, Tuning
from tensorrepo.formats.dataset.streaming.order.feedback import Feedback, Scores
from tensorrepo.formats.dataset.streaming.plan.pages import (
    Arrangement,
    Explanation,
    OrderKind,
    StreamPlan,
    explain,
    items_of,
    items_text,
)
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.formats.native.rows import BEST
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.typed_decoding import from_plain

FORMAT = "tensorrepo stream state v2"
_State = TypeVar("_State")


class ItemsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What positions count: every row once, unless something else is said.

    Attributes:
        selection: digest of the rows or weights that were chosen; "" for every row once.
        pack: elements of a packed item; 0 where items are rows.
        bucket: column by whose lengths rows are sorted; "" for none.
        bucket_rows: rows of a step of the stream that chose; 0 without buckets.
        bucket_steps: steps of a block of buckets; 0 without them.
        echo: how often each row that comes is given; left out where that is once.
    """

    selection: str = ""
    pack: int = 0
    bucket: str = ""
    bucket_rows: int = 0
    bucket_steps: int = 0
    echo: int = 1

    def __str__(self) -> str:
        return ", ".join(
            (
                f"selection {self.selection:.12}" if self.selection else "every row once",
                *([f"pack={self.pack}"] if self.pack else []),
                *([f"bucket={self.bucket!r}"] if self.bucket else []),
                *([f"echo={self.echo}"] if self.echo > 1 else []),
            )
        )


class StreamState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place in an epoch of one dataset, and the order it was reached in."""

    dataset: str
    columns: tuple[str, ...]
    order: OrderKind
    lanes: int
    bands: int
    window_rows: int
    seed: int
    epoch: int
    position: int
    group_rows: int = 0
    run_rows: int = 0
    items: ItemsState = ItemsState()
    format: str = FORMAT

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement(
            self.order,
            self.lanes,
            self.bands,
            self.window_rows,
            self.items.bucket_rows,
            self.items.bucket_steps,
            self.group_rows,
            self.run_rows,
        )


def _check_numbers(state: StreamState, length: Callable[[Pass], int]) -> None:
    words = 0 <= state.seed < 1 << 64 and 0 <= state.epoch < 1 << 64
    rows = length(Pass(state.seed, state.epoch)) if words else 0
    bucketed = state.items.bucket_rows > 0, state.items.bucket_steps > 0
    lanes_fit = state.lanes >= 2 and state.lanes % 2 == 0
    sound = (
        words
        and 0 <= state.position <= rows
        and (state.order != "pages" or (lanes_fit and 0 < state.bands <= state.lanes))
        and (state.order != "pages" or state.lanes % state.bands == 0)
        and (state.order != "buffer" or state.window_rows > 0)
        and (state.group_rows > 0) == (state.run_rows > 0)
        and min(state.group_rows, state.run_rows) >= 0
        and bucketed == (bool(state.items.bucket),) * 2
        and state.items.echo >= 1
    )
    if not sound:
        raise InvalidInputError(f"the state contradicts itself or has no such row: {state}")


def encode_state(state: msgspec.Struct) -> dict[str, Any]:
    """The state as JSON values."""
    form: dict[str, Any] = msgspec.to_builtins(state)
    return form


def decoded_as(form: Mapping[str, Any], kind: type[_State], format_: str) -> _State:
    """A state of this kind. Raises InvalidInputError where it is none."""
    if not hasattr(form, "get") or form.get("format") != format_:
        raise InvalidInputError(f"not a {format_!r}: {form!r:.120}")
    try:
        return from_plain(dict(form), kind)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"not the state of a stream: {error}") from error


class Pass(NamedTuple):
    """One epoch: the seed of its order, and its number."""

    seed: int
    epoch: int


class Resumed(NamedTuple):
    """What a saved state says: the feed as it was arranged, the epoch, and the position in it."""

    feed: Feed
    epoch: Pass
    position: int


class Feed(Protocol):
    """Data of epochs, and their order. Equal on every rank."""

    @property
    def title(self) -> str:
        """Name of the data, for the log."""

    @property
    def identify(self) -> Callable[..., NDArray[Any]]:
        """Finds the ids of rows, and takes the sources of these in a mix."""

    def rows(self, epoch: Pass) -> int:
        """Number of rows, or packed items, of an epoch."""

    def assembler(
        self, setup: StreamSetup, epoch: Pass, pool: Pool, stats: StreamStats
    ) -> Assembler:
        """Maker of the batches of one iteration."""

    def state(self, epoch: Pass, position: int) -> dict[str, Any]:
        """State at a position, as JSON values."""

    def resumed(self, state: dict[str, Any]) -> Resumed:
        """Where a state was saved. Raises InvalidInputError: it is one of other data."""

    def explain(self, setup: StreamSetup, epoch: Pass, tuning: Tuning) -> Any:
        """What reading an epoch will mean."""

    def text(self, epoch: Pass) -> str:
        """Begin of a stream's representation."""


@dataclass(frozen=True, slots=True, eq=False)
class DatasetFeed:
    """One dataset, by a plan.

    Attributes:
        dataset: dataset to read.
        plan: its runs and their order.
        columns: names of the columns of a batch, in their order there.
        epoch_rows: average length of an epoch, where rows have weights by feedback.
    """

    dataset: StoredDataset
    plan: StreamPlan
    columns: tuple[str, ...]
    epoch_rows: int = 0

    @property
    def title(self) -> str:
        return f"dataset {self.dataset.digest:.12}"

    def identify(self, rows: Ints) -> NDArray[Any]:
        return row_id_table(self.dataset).of(live_rows(self.dataset).physical(rows))

    def rows(self, epoch: Pass) -> int:
        return self.plan.items(*epoch).total

    def assembler(
        self,
        setup: StreamSetup,
        epoch: Pass,  # noqa: ARG002  the same for all of them
        pool: Pool,
        stats: StreamStats,
        nullable: Collection[str] = (),
        ahead_bytes: int | None = None,
    ) -> Assembler:
        """Maker of the batches of one iteration; columns in `nullable` count as nullable.

        Its order is worked out ahead by so many bytes; None: by those of the options.
        """
        options, schema = setup.options, self.dataset.schema
        if ahead_bytes is None:
            ahead_bytes = options.loading.ahead_bytes
        plan = self.plan.opened(options.batch_size, ahead_bytes)
        names = [column.name for column in plan.columns]
        with_valid = tuple(schema.column(name).nullable or name in nullable for name in names)
        # A caller who goes on without damaged pages learns of them while runs are loaded.
        by_row = options.loading.on_error == "raise"
        loader = loader_of(self.dataset, plan, with_valid, by_row=by_row)
        return Assembler(
            plan=plan,
            loader=loader,
            columns=tuple((schema.column(name), names.index(name)) for name in self.columns),
            nullable=with_valid,
            form=BatchForm(
                options.output,
                options.pad,
                pool,
                self.identify,
                frozenset(setup.decodes),
                nulls=null_policy(schema.select(self.columns), options.nulls),
            ),
            setup=setup,
            stats=stats,
            stretches=partial(plan_stretches, plan, loader.is_local, ahead_bytes),
        )

    def state(self, epoch: Pass, position: int) -> dict[str, Any]:
        arrangement = self.plan.arrangement
        form = encode_state(
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
        if form["items"]["echo"] == 1:  # readers before echo= know no such field
            del form["items"]["echo"]
        return form

    def resumed(self, state: dict[str, Any]) -> Resumed:
        saved, here = decoded_as(state, StreamState, FORMAT), self.dataset.digest
        if saved.dataset != here:
            raise InvalidInputError(
                f"the state belongs to dataset {saved.dataset:.12}, this is {here:.12}. Stream the "
                "commit that it was saved with, or start a new epoch without it."
            )
        if saved.columns != self.columns:
            raise InvalidInputError(
                f"the state was saved for columns {list(saved.columns)}, these are "
                f"{list(self.columns)}: their order of rows differs. Stream the same columns to "
                "resume."
            )
        old, new = saved.items, self._items_state()
        its, own = ((each.selection, each.pack, each.bucket, each.echo) for each in (old, new))
        if its != own:
            raise InvalidInputError(
                f"the state was saved for {old}, this stream has {new}: its positions count other "
                "rows. Give the same rows, where, weights, balance, pack, bucket and echo to "
                "resume."
            )
        _check_numbers(saved, self.rows)
        feed = replace(self, plan=self.plan.arranged_as(saved.arrangement))
        return Resumed(feed, Pass(saved.seed, saved.epoch), saved.position)

    def explain(self, setup: StreamSetup, epoch: Pass, tuning: Tuning) -> Explanation:
        share = setup.options.share(0)
        explanation = explain(
            self.plan.opened(setup.options.batch_size, setup.options.loading.ahead_bytes),
            batch_size=share.batch_size,
            steps=share.steps(self.rows(epoch)),
            seed=epoch.seed,
            epoch=epoch.epoch,
        )
        return replace(explanation, tuning=str(tuning))

    def scored(self, scores: Scores, how: Feedback) -> DatasetFeed:
        """The same data, with the weights that follow from `scores`."""
        selection = self.plan.selection
        assert selection is not None, "rows with feedback have weights"
        weights = scores.weights(selection.chosen, self.epoch_rows, how)
        weighted = replace(selection, weights=weights, _newest={})
        return replace(self, plan=replace(self.plan, selection=weighted))

    def text(self, epoch: Pass) -> str:
        plan = self.plan
        items = items_text(self.rows(epoch), items_of(plan.packing))
        selected = "" if plan.selection is None else f" ({plan.selection.text})"
        return f"Stream({items}{selected}, order={plan.arrangement.kind!r}"

    def _items_state(self) -> ItemsState:
        plan, arrangement = self.plan, self.plan.arrangement
        return ItemsState(
            selection="" if plan.selection is None else plan.selection.digest,
            pack=0 if plan.packing is None else plan.packing.size,
            bucket=plan.lengths.column if plan.lengths and arrangement.bucket_steps else "",
            bucket_rows=arrangement.bucket_rows,
            bucket_steps=arrangement.bucket_steps,
            echo=plan.echo,
        )


def tuning_of(assembler: Assembler) -> Tuning:
    """How many threads make batches, and how far ahead."""
    setup = assembler.setup
    works = setup.options.transform is not None or bool(setup.decodes)
    return Tuning(
        setup.prefetch,
        setup.options.loading.own_work_threads if works else 0,
        assembler.fetch_threads,
        assembler.steps_at_once,
        BEST.name,
    )

"""State of a stream or a mix, to resume it: one JSON object for all ranks.

It holds what decides the order and how many rows were handed out; nothing in it depends on the
number of ranks, the batch size or the machine. That of a mix has the states of its sources inside,
which say their data and orders; where they are follows from the position of the mix.

Source:
    docs/spec/stream-order.md, section "State".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from tensorrepo.formats.dataset.streaming.mix.blend import MixWish
from tensorrepo.formats.dataset.streaming.plan.pages import Arrangement, OrderKind
from tensorrepo.repo.errors import InvalidInputError

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
    """

    selection: str = ""
    pack: int = 0
    bucket: str = ""
    bucket_rows: int = 0
    bucket_steps: int = 0

    def __str__(self) -> str:
        return ", ".join(
            (
                f"selection {self.selection:.12}" if self.selection else "every row once",
                *([f"pack={self.pack}"] if self.pack else []),
                *([f"bucket={self.bucket!r}"] if self.bucket else []),
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


def decode_state(
    form: Mapping[str, Any],
    *,
    dataset: str,
    columns: tuple[str, ...],
    items: ItemsState,
    length: Callable[[int, int], int],
) -> StreamState:
    """The state that `encode_state` wrote, if it belongs to this dataset and these columns.

    Args:
        form: state as JSON values.
        dataset: digest of the dataset that is streamed.
        columns: names of its columns that are.
        items: what positions count.
        length: gives the length of an epoch by its seed and number.

    Raises:
        InvalidInputError: it is not such a state, or one of other data.
    """
    state = _decoded(form, StreamState, FORMAT)
    if state.dataset != dataset:
        raise InvalidInputError(
            f"the state belongs to dataset {state.dataset:.12}, this is {dataset:.12}. Stream the "
            "commit that it was saved with, or start a new epoch without it."
        )
    if state.columns != columns:
        raise InvalidInputError(
            f"the state was saved for columns {list(state.columns)}, these are {list(columns)}: "
            "their order of rows differs. Stream the same columns to resume."
        )
    _check_items(state.items, items)
    _check_numbers(state, length)
    return state


def _check_items(saved: ItemsState, here: ItemsState) -> None:
    if (saved.selection, saved.pack, saved.bucket) != (here.selection, here.pack, here.bucket):
        raise InvalidInputError(
            f"the state was saved for {saved}, this stream has {here}: its positions count other "
            "rows. Give the same rows, where, weights, balance, pack and bucket to resume."
        )


def _check_numbers(state: StreamState, length: Callable[[int, int], int]) -> None:
    words = 0 <= state.seed < 1 << 64 and 0 <= state.epoch < 1 << 64
    rows = length(state.seed, state.epoch) if words else 0
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
    )
    if not sound:
        raise InvalidInputError(f"the state contradicts itself or has no such row: {state}")


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


def encode_state(state: StreamState | MixState) -> dict[str, Any]:
    """The state as JSON values."""
    form: dict[str, Any] = msgspec.to_builtins(state)
    return form


def decode_mix_state(form: Mapping[str, Any], *, sources: int) -> MixState:
    """The state of a mix of so many sources; the states of these are not looked at.

    Raises:
        InvalidInputError: it is not such a state.
    """
    state = _decoded(form, MixState, MIX_FORMAT)
    if len(state.sources) != sources:
        raise InvalidInputError(
            f"the state is of a mix of {len(state.sources)} sources, this one has {sources}: mix "
            "the same streams, in the same order, to resume"
        )
    sound = (
        len(state.shares) == sources
        and 0 <= state.position <= state.rows
        and 0 <= state.seed < 1 << 64
        and 0 <= state.epoch < 1 << 64
    )
    if not sound:
        raise InvalidInputError(f"the state contradicts itself or has no such row: {state}")
    return state


def _decoded(form: Mapping[str, Any], kind: type[_State], format_: str) -> _State:
    if not hasattr(form, "get") or form.get("format") != format_:
        raise InvalidInputError(f"not a {format_!r}: {form!r:.120}")
    try:
        return msgspec.convert(dict(form), kind)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"not the state of a stream: {error}") from error

"""Where was reading, so that it can go on there?

One JSON object for all ranks. It holds what decides the order and how many rows were handed out;
nothing in it depends on the number of ranks, the batch size or the machine.

Source:
    docs/spec/stream-order.md, section "State".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tensorrepo.formats.dataset.streaming.ordering.plan import Arrangement, Kind
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMAT = "tensorrepo stream state v1"


class StreamState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A place in an epoch of one dataset, and the order it was reached in."""

    dataset: str
    columns: tuple[str, ...]
    order: Kind
    lanes: int
    bands: int
    window_rows: int
    seed: int
    epoch: int
    position: int
    format: str = FORMAT

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement(self.order, self.lanes, self.bands, self.window_rows)


def encode_state(state: StreamState) -> dict[str, Any]:
    """The state as JSON values."""
    form: dict[str, Any] = msgspec.to_builtins(state)
    return form


def decode_state(
    form: Mapping[str, Any], *, dataset: str, columns: tuple[str, ...], rows: int
) -> StreamState:
    """The state that `encode_state` wrote, if it belongs to this dataset and these columns.

    Raises:
        InvalidInputError: it is not such a state, or one of other data.
    """
    if not hasattr(form, "get") or form.get("format") != FORMAT:
        raise InvalidInputError(f"not a {FORMAT!r}: {form!r:.120}")
    try:
        state = msgspec.convert(dict(form), StreamState)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"not the state of a stream: {error}") from error
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
    _check_numbers(state, rows)
    return state


def _check_numbers(state: StreamState, rows: int) -> None:
    lanes_fit = state.lanes >= 2 and state.lanes % 2 == 0
    sound = (
        0 <= state.position <= rows
        and 0 <= state.seed < 1 << 64
        and 0 <= state.epoch < 1 << 64
        and (state.order != "pages" or (lanes_fit and 0 < state.bands <= state.lanes))
        and (state.order != "pages" or state.lanes % state.bands == 0)
        and (state.order != "buffer" or 0 < state.window_rows <= max(1, rows))
    )
    if not sound:
        raise InvalidInputError(f"the state contradicts itself or has no such row: {state}")

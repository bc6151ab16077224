"""Where was a mix, so that it can go on there?

One JSON object for all ranks, with the states of the sources inside. These say which data and which
orders they have; where they are follows from the position of the mix.

Source:
    docs/spec/stream-order.md, section "Mix".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tensorrepo.formats.dataset.streaming.ordering.mixing import Wish
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    wish: Wish
    seed: int
    epoch: int
    position: int
    format: str = MIX_FORMAT


def encode_mix_state(state: MixState) -> dict[str, Any]:
    """The state as JSON values."""
    form: dict[str, Any] = msgspec.to_builtins(state)
    return form


def decode_mix_state(form: Mapping[str, Any], *, sources: int) -> MixState:
    """The state of a mix of so many sources; the states of these are not looked at.

    Raises:
        InvalidInputError: it is not such a state.
    """
    if not hasattr(form, "get") or form.get("format") != MIX_FORMAT:
        raise InvalidInputError(f"not a {MIX_FORMAT!r}: {form!r:.120}")
    try:
        state = msgspec.convert(dict(form), MixState)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"not the state of a mix: {error}") from error
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

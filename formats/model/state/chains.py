"""Chains of checkpoints: when a difference from the last one pays, and when a fresh start does.

A checkpoint that is the difference from others keeps them: those that expired as well. So a run
whose checkpoints expire begins anew, with one that stands alone, as often as costs least:

    bytes that refs reach, on average + bytes that are stored for each checkpoint

A byte that is stored costs as much as one that is kept until the next checkpoint. Let a checkpoint
take `alone` by itself and `change` as a difference, `kept` of them be kept, and every `length`-th
stand alone. Then the cost is `kept + 1` times what one takes on average, and what is kept for
bases only: at each of `length` places, what lies between the chain's beginning and the oldest one.
"""

from __future__ import annotations

from typing import Final

from tensorrepo.formats.model.layout.placement import MemberEntry, Placement
from tensorrepo.formats.model.write.base_choice import RUN_DEPTH, DeltaOptions
from tensorrepo.formats.model.write.encoding import WORTH_A_BASE
from tensorrepo.repo.deferred_dataclass import dataclass

LONGEST: Final = RUN_DEPTH  # checkpoints of a chain whose members expire, the first one included


@dataclass(frozen=True, slots=True)
class Chain:
    """What a stored checkpoint is the difference from.

    Attributes:
        length: checkpoints that it passes through; 0: it stands alone.
        alone: bytes that its tensors took where their chains begin.
        change: bytes that they take here.
    """

    length: int
    alone: int
    change: int


def next_step(before: Placement | None, kept: int | None) -> DeltaOptions:
    """How a checkpoint behind the one placed so is encoded; `kept` of all stay, None: every one."""
    if kept is None or before is None:
        return DeltaOptions(depth=RUN_DEPTH)
    return step_behind(chain_of(before), kept)


def step_behind(chain: Chain, kept: int) -> DeltaOptions:
    """The same, from what is known of the checkpoint before."""
    if chain.length and chain.length + 1 >= best_length(chain.alone, chain.change, kept):
        return DeltaOptions(depth=0)
    # Of two checkpoints in turn one stands alone, at least: what pays then pays at all.
    return DeltaOptions(depth=RUN_DEPTH, worth=min(WORTH_A_BASE, kept / (kept + 1)))


def best_length(alone: float, change: float, kept: int) -> int:
    """How many checkpoints from one that stands alone to the next, for the least cost."""
    return min(range(1, LONGEST + 1), key=lambda length: cost(alone, change, kept, length))


def cost(alone: float, change: float, kept: int, length: int) -> float:
    """Bytes that are reached, and stored for one checkpoint, on average; see above."""
    each = (alone + (length - 1) * change) / length
    between = ((length - 1) * alone + (length - 1) * (length - 2) / 2 * change) / length
    return (kept + 1) * each + between


def chain_of(placement: Placement) -> Chain:
    """The chain of the model that a placement is of."""
    own = [member for tensor in placement.tensors for member in tensor.members]
    known = {member.place: member for member in (*own, *placement.bases)}
    firsts = [_first(member, known) for member in own]
    return Chain(
        max((passed for _, passed in firsts), default=0),
        sum(first.stored_bytes for first, _ in firsts),
        sum(member.stored_bytes for member in own),
    )


def _first(
    member: MemberEntry, known: dict[tuple[int, int], MemberEntry]
) -> tuple[MemberEntry, int]:
    """What a tensor was where its chain begins, and how many checkpoints ago.

    A codec of several bases names first what the tensor was before.
    """
    passed = 0
    while member.bases:
        member, passed = known[member.bases[0]], passed + 1
    return member, passed

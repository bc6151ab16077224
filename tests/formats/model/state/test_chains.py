"""The cost of chains is what a run that is played through has, and the least one is chosen."""

from __future__ import annotations

from statistics import mean

import pytest

from tensorrepo.formats.model.layout.placement import (
    MemberEntry,
    PackEntry,
    Placement,
    StoredTensor,
)
from tensorrepo.formats.model.state.chains import (
    LONGEST,
    Chain,
    best_length,
    chain_of,
    cost,
    step_behind,
)
from tensorrepo.formats.model.write.base_choice import RUN_DEPTH
from tensorrepo.formats.model.write.encoding import WORTH_A_BASE

ALONE, CHANGE = 800, 300


def played(kept: int, length: int) -> float:
    """Bytes reached and stored for one checkpoint, over many whole chains."""
    sizes = [CHANGE if step % length else ALONE for step in range(40 * length)]
    reached = [
        sum(sizes[(step - kept + 1) // length * length : step + 1])
        for step in range(20 * length, 40 * length)
    ]
    return mean(reached) + mean(sizes)


@pytest.mark.parametrize("kept", [1, 2, 3, 7])
@pytest.mark.parametrize("length", range(1, LONGEST + 1))
def test_the_cost_is_that_of_a_run_played_through(kept: int, length: int) -> None:
    assert cost(ALONE, CHANGE, kept, length) == pytest.approx(played(kept, length))


def test_the_more_are_kept_the_longer_are_chains() -> None:
    lengths = [best_length(ALONE, CHANGE, kept) for kept in (1, 2, 5, 20)]
    assert lengths == sorted(lengths)
    assert lengths[0] < lengths[-1] == LONGEST


def test_differences_that_save_little_make_no_chain() -> None:
    assert best_length(ALONE, 0.9 * ALONE, kept=2) == 1


def test_a_chain_ends_where_another_one_would_cost_less() -> None:
    length = best_length(ALONE, CHANGE, kept=2)
    depths = [
        step_behind(Chain(passed, ALONE, ALONE if not passed else CHANGE), kept=2).depth
        for passed in range(length)
    ]
    assert depths == [RUN_DEPTH] * (length - 1) + [0]


def test_a_base_must_bring_more_where_few_are_kept() -> None:
    worth = [step_behind(Chain(0, ALONE, ALONE), kept).worth for kept in (1, 2, 100)]
    assert worth == [1 / 2, 2 / 3, WORTH_A_BASE]


def test_a_chain_is_counted_in_checkpoints_not_in_bases() -> None:
    """A prediction is made from what it was, and from what others are now: the first one counts."""
    before, moment, now = (
        MemberEntry(0, 0, "planes", 0, 80),
        MemberEntry(0, 1, "delta", 1, 50, ((0, 0),)),
        MemberEntry(1, 0, "adam", 2, 5, ((0, 0), (0, 1), (0, 1))),
    )
    packs = tuple(PackEntry(bytes([at] * 32), 4096, 100, bytes(16)) for at in (1, 2))
    found = chain_of(Placement(packs, (StoredTensor(bytes(32), (now,)),), (before, moment)))
    assert found == Chain(1, 80, 5)

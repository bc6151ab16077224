"""Which source comes when: shares kept at every place, any place found, and steps cut in parts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.mix.blend import (
    MixWish,
    SourceBlend,
    blend_of,
    parts_of,
    rank_cut,
    rank_turns,
    rounded,
)
from tensorrepo.formats.dataset.streaming.order.orders import stride_of
from tensorrepo.repo.errors import InvalidInputError
from tests.support.second_readers import order as reference


@st.composite
def blends(draw: st.DrawFn) -> SourceBlend:
    slot_rows = draw(st.integers(1, 4))
    shares = tuple(draw(st.lists(st.integers(1, 30), min_size=1, max_size=5)))
    left = st.integers(0, slot_rows - 1)
    rest = draw(st.lists(left, min_size=len(shares), max_size=len(shares)) | st.just([]))
    return SourceBlend(
        shares=shares,
        cycle_slots=draw(st.integers(1, 40)),
        slot_rows=slot_rows,
        rows=slot_rows * draw(st.integers(1, 150)) + sum(rest),
        rest=tuple(rest),
    )


def every_source(blend: SourceBlend, seed: int = 3, epoch: int = 1) -> list[int]:
    return blend.sources(seed, epoch, 0, blend.rows).tolist()


def test_the_specs_example_comes_out_slot_by_slot() -> None:
    blend = SourceBlend((3, 1, 2), cycle_slots=8, slot_rows=1, rows=20)
    assert [blend.taken(slots) for slots in (8, 16, 20)] == [[4, 1, 3], [8, 2, 6], [10, 3, 7]]
    assert blend.sources(7, 0, 0, 20).tolist() == reference.mix([3, 1, 2], 8, 1, 20, 7, 0)
    assert "".join(map(str, blend.sources(7, 0, 0, 20).tolist())) == EXAMPLE


EXAMPLE = "20120020202010020210"


@given(blends(), st.integers(0, 2**64 - 1), st.integers(0, 9))
def test_a_mix_is_that_of_the_spec(blend: SourceBlend, seed: int, epoch: int) -> None:
    assert every_source(blend, seed, epoch) == reference.mix(
        list(blend.shares),
        blend.cycle_slots,
        blend.slot_rows,
        blend.rows,
        seed,
        epoch,
        blend.rest,
    )


@given(blends(), st.data())
def test_any_stretch_of_a_mix_is_found_without_what_comes_before(
    blend: SourceBlend, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, blend.rows))
    stop = data.draw(st.integers(start, blend.rows))
    assert blend.sources(3, 1, start, stop).tolist() == every_source(blend)[start:stop]


@given(blends(), st.data())
def test_rows_before_a_position_are_those_that_came(
    blend: SourceBlend, data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, blend.rows))
    came = np.bincount(every_source(blend)[:position], minlength=len(blend.shares))
    assert blend.rows_before(3, 1, position).tolist() == came.tolist()


@given(blends())
def test_an_epoch_has_of_each_source_what_it_says(blend: SourceBlend) -> None:
    came = np.bincount(every_source(blend), minlength=len(blend.shares))
    assert came.tolist() == blend.epoch_rows
    assert sum(blend.epoch_rows) == blend.rows


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6), st.data())
def test_shares_are_kept_exactly_at_every_multiple_of_their_sum(
    shares: list[int], data: st.DataObject
) -> None:
    times = data.draw(st.integers(0, 50))
    blend = SourceBlend(tuple(shares), 7, 1, sum(shares))
    assert blend.taken(times * sum(shares)) == [times * share for share in shares]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=6), st.integers(0, 3000))
def test_a_further_slot_is_of_one_source_which_is_never_far_from_its_share(
    shares: list[int], slots: int
) -> None:
    blend = SourceBlend(tuple(shares), 7, 1, sum(shares))
    now, then = np.array(blend.taken(slots)), np.array(blend.taken(slots + 1))
    assert sorted((then - now).tolist()) == [0] * (len(shares) - 1) + [1]
    assert np.abs(now - slots * np.array(shares) / sum(shares)).max() < len(shares)


# ------------------------------------------------------------------------------ wishes

SIZES = [100, 300]


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        ({}, SourceBlend((100, 300), 4096, 1, 400)),
        ({"repeat": [2, 0.5]}, SourceBlend((200, 150), 4096, 1, 350)),
        ({"choose": [10, 30]}, SourceBlend((10, 30), 4096, 1, 40)),
        ({"weights": [1, 1]}, SourceBlend((2048, 2048), 4096, 1, 400)),
        ({"weights": [3, 1], "rows": 50}, SourceBlend((3072, 1024), 4096, 1, 50)),
        ({"rows": 50}, SourceBlend((1024, 3072), 4096, 1, 50)),
        ({"weights": [2, 1], "batching": "stratified"}, SourceBlend((11, 5), 16, 1, 400)),
        ({"weights": [1, 1], "batching": "per_source"}, SourceBlend((2048, 2048), 4096, 16, 400)),
        (
            {"choose": [10, 33], "batching": "per_source"},
            SourceBlend((0, 2), 4096, 16, 43, (10, 1)),
        ),
        ({"batching": "per_source", "choose": [16, 32]}, SourceBlend((1, 2), 4096, 16, 48)),
        ({"batching": "per_source", "choose": [1, 2]}, SourceBlend((0, 0), 4096, 16, 3, (1, 2))),
    ],
)
def test_wishes_become_whole_shares(wish: dict[str, Any], expected: SourceBlend) -> None:
    assert blend_of(SIZES, 16, MixWish(**wish)) == expected


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"weights": [1, 1], "repeat": [1, 1]}, "weights and repeat"),
        ({"choose": [1, 1], "rows": 5}, "choose and rows"),
        ({"weights": [1]}, "1 numbers for 2 sources"),
        ({"weights": [1, 0]}, "above 0"),
        ({"repeat": [1, float("inf")]}, "above 0"),
        ({"weights": [1, 1e-6]}, "source 1 .* less than one row"),
        ({"rows": 0}, "at least 1"),
        ({"batching": "whole"}, "batching"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        blend_of(SIZES, 16, MixWish(**wish))


def test_sources_without_rows_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="has rows"):
        blend_of([5, 0], 16, MixWish())


@pytest.mark.parametrize(
    "wrong",
    [
        ((), 1, 1, 5),
        ((0,), 1, 1, 5),
        ((1,), 0, 1, 5),
        ((1,), 1, 2, 5),
        ((0,), 1, 2, 3, (1,)),
        ((1,), 1, 2, 3, (2,)),
        ((1, 1), 1, 2, 3, (1,)),
        ((1,), 1, 2, 4, (1,)),
        ((1, 0), 1, 2, 2, (0, 0)),
        ((-1, 2), 1, 2, 3, (1, 0)),
    ],
)
def test_an_impossible_blend_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInputError):
        SourceBlend(*wrong)


@given(st.lists(st.floats(0.05, 50), min_size=1, max_size=6))
def test_rounded_weights_add_up_and_are_less_than_one_off(weights: list[float]) -> None:
    found = rounded(weights, 6000)
    assert sum(found) == 6000
    exact = [weight * 6000 / sum(weights) for weight in weights]
    assert max(abs(one - other) for one, other in zip(found, exact, strict=True)) <= 1


# ------------------------------------------------------------------------------ parts and ranks


@st.composite
def some_steps(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Source and step of rows, rows of each source before them, rows of an epoch of each."""
    sources = draw(st.integers(1, 4))
    source = draw(st.lists(st.integers(0, sources - 1), min_size=1, max_size=60))
    batch = draw(st.integers(1, 20))
    before = draw(st.lists(st.integers(0, 40), min_size=sources, max_size=sources))
    length = draw(st.lists(st.integers(1, 25), min_size=sources, max_size=sources))
    return source, [at // batch for at in range(len(source))], before, length


@given(some_steps())
def test_parts_are_the_rows_of_each_epoch_of_each_source(
    given_: tuple[list[int], list[int], list[int], list[int]],
) -> None:
    source, step, before, length = given_
    expected: dict[tuple[int, int, int], list[int]] = {}
    reached = list(before)
    for one, at in zip(source, step, strict=True):
        epoch, position = divmod(reached[one], length[one])
        expected.setdefault((at, one, epoch), []).append(position)
        reached[one] += 1
    parts = parts_of(np.array(step), np.array(source), np.array(before), np.array(length), 3)
    keys = zip(parts.step.tolist(), parts.source.tolist(), parts.epoch.tolist(), strict=True)
    spans = zip(parts.start.tolist(), parts.rows.tolist(), strict=True)
    found = {key: list(range(low, low + n)) for key, (low, n) in zip(keys, spans, strict=True)}
    assert found == expected
    assert list(found) == sorted(found)


@given(some_steps(), st.integers(1, 9))
def test_ranks_get_all_of_a_part_and_equally_much_of_every_part_and_step(
    given_: tuple[list[int], list[int], list[int], list[int]], world: int
) -> None:
    source, step, before, length = map(np.array, given_)
    parts = parts_of(step, source, before, length, world)
    turns = rank_turns(world, stride_of(world))
    cuts = [rank_cut(parts, rank, turns) for rank in range(world)]
    edges = [np.zeros(parts.rows.size), *(stop for _, stop in cuts)]
    assert all(np.array_equal(edge, first) for edge, (first, _) in zip(edges, cuts, strict=False))
    assert np.array_equal(edges[-1], parts.rows)
    each = np.array([stop - first for first, stop in cuts])
    assert (each.max(axis=0) - each.min(axis=0)).max() <= 1
    of_steps = np.array([np.bincount(parts.step, weights=rows) for rows in each])
    assert (of_steps.max(axis=0) - of_steps.min(axis=0)).max() <= 1

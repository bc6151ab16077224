"""Plans are within their limits, and never better than the best of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.maintenance.repack_plan import (
    OptionChoice,
    RepackProblem,
    StorageOption,
    make_plan,
)
from tensorrepo.repo.errors import InvalidInputError


def cost_of(problem: RepackProblem, choice: OptionChoice, at: int, left: int) -> int | None:
    """What reading a tensor costs, too simple to be wrong; None: more than `left` bases deep."""
    option = problem.options[at][choice[at]]
    if left < 0:
        return None
    parts = [cost_of(problem, choice, base, left - 1) for base in option.bases]
    return None if None in parts else option.cost + sum(part or 0 for part in parts)


def costs(problem: RepackProblem, choice: OptionChoice) -> list[int] | None:
    """What each model costs; None for a choice that is no forest of the depth allowed."""
    one = [cost_of(problem, choice, at, problem.depth) for at in range(len(choice))]
    if None in one:
        return None
    return [sum(one[at] or 0 for at in model) for model in problem.models]


def is_good(problem: RepackProblem, choice: OptionChoice) -> bool:
    found = costs(problem, choice)
    limits = problem.limits()
    return found is not None and all(a <= b for a, b in zip(found, limits, strict=True))


def stored(problem: RepackProblem, choice: OptionChoice) -> int:
    return sum(problem.options[at][number].stored_bytes for at, number in enumerate(choice))


def good_choices(problem: RepackProblem) -> Iterator[OptionChoice]:
    every = product(*(range(len(options)) for options in problem.options))
    return (choice for choice in every if is_good(problem, choice))


@st.composite
def problems(draw: st.DrawFn, tensors: int = 4) -> RepackProblem:
    count = draw(st.integers(1, tensors))
    number = st.integers(0, 30)
    options = []
    for at in range(count):
        others = [one for one in range(count) if one != at]
        bases = st.lists(st.sampled_from(others), min_size=1, max_size=2, unique=True)
        delta = st.builds(StorageOption, bases.map(tuple), number, number)
        deltas = draw(st.lists(delta, max_size=2)) if others else []
        whole = st.builds(StorageOption, st.just(()), number, number)
        options.append((*draw(st.lists(whole, min_size=1, max_size=2)), *deltas))
    members = st.lists(st.integers(0, count - 1), min_size=1, max_size=5).map(tuple)
    models = draw(st.lists(members, min_size=1, max_size=3))
    alpha = draw(st.sampled_from([Fraction(1), Fraction(3, 2), Fraction(4)]))
    return RepackProblem(tuple(options), tuple(models), alpha, draw(st.integers(0, 3)))


@given(problems())
def test_a_plan_is_within_its_limits_and_not_below_the_best(problem: RepackProblem) -> None:
    plan = make_plan(problem)
    assert is_good(problem, plan.choice)
    assert list(plan.costs) == costs(problem, plan.choice)
    assert plan.stored_bytes == stored(problem, plan.choice)
    assert plan.stored_bytes >= min(stored(problem, one) for one in good_choices(problem))


@given(st.data())
def test_a_plan_takes_no_more_than_what_is_there(data: st.DataObject) -> None:
    problem = data.draw(problems())
    present = data.draw(st.sampled_from(list(good_choices(problem))))
    plan = make_plan(replace(problem, present=present))
    assert is_good(problem, plan.choice)
    assert plan.stored_bytes <= stored(problem, present)


@given(problems(tensors=1))
def test_a_lone_tensor_is_stored_best(problem: RepackProblem) -> None:
    best = min(stored(problem, one) for one in good_choices(problem))
    assert make_plan(problem).stored_bytes == best


def chain(alpha: str, depth: int = 9) -> RepackProblem:
    """Four tensors of one model each, of which each is a small delta of the one before."""
    options = [(StorageOption((), 100, 100),)]
    options += [(StorageOption((), 100, 100), StorageOption((at,), 10, 20)) for at in range(3)]
    return RepackProblem(tuple(options), tuple((at,) for at in range(4)), Fraction(alpha), depth)


@pytest.mark.parametrize(
    ("alpha", "depth", "stored_bytes"),
    [
        ("1", 9, 400),
        ("1.2", 9, 220),
        ("1.4", 9, 220),
        ("1.6", 9, 130),
        ("9", 9, 130),
        ("9", 1, 220),
        ("9", 0, 400),
    ],
)
def test_what_reads_may_cost_decides_where_chains_are_cut(
    alpha: str, depth: int, stored_bytes: int
) -> None:
    found = make_plan(chain(alpha, depth)).stored_bytes
    best = min(stored(chain(alpha, depth), one) for one in good_choices(chain(alpha, depth)))
    assert (found, best) == (stored_bytes, stored_bytes)


@pytest.mark.parametrize(("alpha", "depth"), [(Fraction(1, 2), 2), (Fraction(1), -1)])
def test_impossible_wishes_are_refused(alpha: Fraction, depth: int) -> None:
    with pytest.raises(InvalidInputError, match="or more"):
        RepackProblem(((StorageOption((), 1, 1),),), ((0,),), alpha, depth)


def test_a_tensor_that_is_whole_nowhere_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="whole"):
        RepackProblem(((StorageOption((0,), 1, 1),),), ((0,),), Fraction(1), 2)

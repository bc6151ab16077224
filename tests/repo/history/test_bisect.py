"""A bisection finds the commit that broke something, in any history, and in few steps."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.history.bisect import BisectStep, ancestor_counts, next_step
from tests.repo.history.test_history import Graph, build, graphs


def bisected(
    graph: Graph, tip: int, good: int, culprit: int, skipped: Collection[int] = ()
) -> tuple[BisectStep, int]:
    """What is found when all that has `culprit` is bad, and after how many tries."""
    bad, goods, skips, tries = tip, [good], set(), 0
    while True:
        step = next_step(
            graph.objects,
            graph.digests[bad],
            [graph.digests[each] for each in goods],
            {graph.digests[each] for each in skips},
        )
        if step.commit is None:
            return step, tries
        tries += 1
        (tried,) = graph.numbers([step.commit])
        if tried in skipped:
            skips.add(tried)
        elif culprit in graph.ancestors[tried]:
            bad = tried
        else:
            goods.append(tried)


@st.composite
def broken(draw: st.DrawFn) -> tuple[Graph, int, int, int]:
    """A history with a bad tip, a good commit, and the commit that made the difference."""
    graph = draw(graphs())
    tip = draw(st.integers(0, len(graph.digests) - 1))
    good = draw(st.integers(0, len(graph.digests) - 1))
    open_ = graph.ancestors[tip] - graph.ancestors[good]
    if not open_ or good not in graph.ancestors[tip]:
        return build([[], [0]]), 1, 0, 1
    return graph, tip, good, draw(st.sampled_from(sorted(open_)))


@given(broken())
def test_the_commit_that_broke_it_is_found(drawn: tuple[Graph, int, int, int]) -> None:
    graph, tip, good, culprit = drawn
    step, tries = bisected(graph, tip, good, culprit)
    assert step.found == graph.digests[culprit]
    # A merge base is tried as well, of what is good and a bad commit that is not behind it.
    assert tries < len(graph.ancestors[tip])


@given(broken(), st.sets(st.integers(0, 13)))
def test_what_is_skipped_leaves_the_culprit_among_the_candidates(
    drawn: tuple[Graph, int, int, int], skipped: set[int]
) -> None:
    graph, tip, good, culprit = drawn
    step, _ = bisected(graph, tip, good, culprit, skipped)
    assert graph.digests[culprit] in step.candidates
    assert graph.numbers(step.candidates) - {culprit} <= skipped | graph.ancestors[tip]


@pytest.mark.parametrize("culprit", [1, 7, 64, 99, 100])
def test_a_straight_history_is_halved(culprit: int) -> None:
    graph = build([[], *([number] for number in range(100))])
    step, tries = bisected(graph, 100, 0, culprit)
    assert step.found == graph.digests[culprit]
    assert tries <= 7


@given(graphs())
def test_ancestors_are_counted_as_sets_of_them(graph: Graph) -> None:
    parents = {
        digest: [graph.digests[each] for each in graph.ancestors[number] - {number}]
        for number, digest in reversed(list(enumerate(graph.digests)))
    }
    expected = {
        digest: len(above) for digest, above in zip(graph.digests, graph.ancestors, strict=True)
    }
    assert ancestor_counts(parents) == expected


FORK = build([[], [0], [1], [1], [3]])  # 2 and 4 parted at 1


def test_where_two_histories_met_is_tried_first() -> None:
    bad, good, base = (FORK.digests[number] for number in (4, 2, 1))
    step = next_step(FORK.objects, bad, [good])
    assert (step.commit, step.is_base) == (base, True)
    after = next_step(FORK.objects, bad, [good, base])
    assert FORK.numbers(after.candidates) == {3, 4}
    with pytest.raises(ConflictError, match="was mended between them"):
        next_step(FORK.objects, base, [good])


def test_a_commit_is_not_good_and_bad() -> None:
    with pytest.raises(InvalidInputError, match="good and bad"):
        next_step(FORK.objects, FORK.digests[1], [FORK.digests[1]])

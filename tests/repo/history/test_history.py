"""Walks over history, against sets of ancestors on random graphs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.commits import (
    Commit,
    ahead_behind,
    best_common,
    contained,
    is_ancestor,
    is_contained,
    read_commit,
    some_changed,
    touches,
    walk,
    write_commit,
)
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects

AUTHOR = "A <a@example.org>"


@dataclass(frozen=True)
class Graph:
    """Commits numbered in the order they were made, with all their ancestors and themselves."""

    objects: MemoryObjects
    digests: tuple[Digest, ...]
    ancestors: tuple[frozenset[int], ...]

    def numbers(self, digests: Collection[Digest]) -> set[int]:
        return {self.digests.index(digest) for digest in digests}

    def reachable(self, tips: Collection[int]) -> set[int]:
        return {number for tip in tips for number in self.ancestors[tip]}

    def best(self, candidates: Collection[int]) -> set[int]:
        """Those of `candidates` that are no ancestors of others."""
        return {
            one
            for one in candidates
            if not any(one in self.ancestors[two] for two in candidates if two != one)
        }


def build(parents: Sequence[Sequence[int]]) -> Graph:
    """One commit for each list of earlier numbers."""
    objects = MemoryObjects()
    digests: list[Digest] = []
    ancestors: list[frozenset[int]] = []
    for number, above in enumerate(parents):
        links = tuple(digests[parent] for parent in above)
        generation = 1 + max((read_commit(objects, link).generation for link in links), default=0)
        commit = Commit(EMPTY_TREE, links, generation, AUTHOR, f"{number}", number)
        digests.append(write_commit(objects, commit).digest)
        ancestors.append(frozenset({number}.union(*(ancestors[parent] for parent in above))))
    return Graph(objects, tuple(digests), tuple(ancestors))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    size = draw(st.integers(1, 14))
    near = [st.integers(max(0, number - 5), number - 1) for number in range(1, size)]
    parents = [draw(st.lists(numbers, max_size=3, unique=True)) for numbers in near]
    return build([[], *parents])


@st.composite
def graphs_and_two(draw: st.DrawFn) -> tuple[Graph, int, int]:
    graph = draw(graphs())
    number = st.integers(0, len(graph.digests) - 1)
    return graph, draw(number), draw(number)


CRISS_CROSS = build([[], [0], [0], [1, 2], [2, 1], [3], [4]])


@given(graphs_and_two())
def test_merge_bases_are_all_best_common_ancestors(drawn) -> None:
    graph, a, b = drawn
    expected = graph.best(graph.ancestors[a] & graph.ancestors[b])
    found = best_common(graph.objects, [graph.digests[a]], [graph.digests[b]])
    assert graph.numbers(found) == expected
    assert len(found) == len(expected)


@given(graphs_and_two())
def test_merge_bases_do_not_depend_on_the_side(drawn) -> None:
    graph, a, b = drawn
    left, right = graph.digests[a], graph.digests[b]
    assert best_common(graph.objects, [left], [right]) == best_common(
        graph.objects, [right], [left]
    )


@given(graphs(), st.data())
def test_best_common_ancestors_of_sets_are_those_of_their_joins(graph, data) -> None:
    numbers = st.sets(st.integers(0, len(graph.digests) - 1), min_size=1, max_size=3)
    left, right = data.draw(numbers), data.draw(numbers)
    found = best_common(
        graph.objects, [graph.digests[n] for n in left], [graph.digests[n] for n in right]
    )
    expected = graph.best(graph.reachable(left) & graph.reachable(right))
    assert graph.numbers(found) == expected


def test_a_criss_cross_has_two_merge_bases() -> None:
    found = best_common(CRISS_CROSS.objects, [CRISS_CROSS.digests[5]], [CRISS_CROSS.digests[6]])
    assert CRISS_CROSS.numbers(found) == {1, 2}


def test_unrelated_histories_have_no_merge_base() -> None:
    graph = build([[], []])
    assert best_common(graph.objects, *([digest] for digest in graph.digests)) == ()


@given(graphs_and_two())
def test_an_ancestor_is_whatever_the_descendant_contains(drawn) -> None:
    graph, a, b = drawn
    found = is_ancestor(graph.objects, graph.digests[a], graph.digests[b])
    assert found == (a in graph.ancestors[b])
    held = contained(graph.objects, graph.digests, graph.digests[b])
    assert graph.numbers(held) == graph.ancestors[b]


def test_many_refs_are_asked_by_one_walk() -> None:
    line = [[], *([number] for number in range(100))]
    graph = build([*line, *([99] for _ in range(50))])
    old, tips = graph.digests[0], graph.digests[101:]
    graph.objects.reads.clear()
    assert is_contained(graph.objects, graph.digests[99], tips)
    assert len(graph.objects.reads) <= 3, "the first of them leads there"
    assert is_contained(graph.objects, old, tips)
    assert not is_contained(graph.objects, graph.digests[100], tips)
    assert contained(graph.objects, [old, *tips], graph.digests[100]) == {old}
    assert len(graph.objects.reads) <= 2 * 101 + 3 * 51


@given(graphs_and_two())
def test_ahead_and_behind_count_what_the_other_lacks(drawn) -> None:
    graph, a, b = drawn
    expected = (
        len(graph.ancestors[a] - graph.ancestors[b]),
        len(graph.ancestors[b] - graph.ancestors[a]),
    )
    assert ahead_behind(graph.objects, graph.digests[a], graph.digests[b]) == expected


@given(graphs(), st.data())
def test_a_walk_visits_what_is_reachable_and_not_hidden_once_in_order(graph, data) -> None:
    numbers = st.sets(st.integers(0, len(graph.digests) - 1), max_size=3)
    tips, hidden = data.draw(numbers), data.draw(numbers)
    visited = list(
        walk(
            graph.objects,
            [graph.digests[n] for n in tips],
            hidden=[graph.digests[n] for n in hidden],
        )
    )
    keys = [(commit.generation, digest) for digest, commit in visited]
    expected = graph.reachable(tips) - graph.reachable(hidden)
    assert graph.numbers([digest for digest, _ in visited]) == expected
    assert keys == sorted(set(keys), reverse=True)


def test_a_walk_stops_reading_where_all_the_rest_is_hidden() -> None:
    graph = build([[], *([number] for number in range(200))])
    graph.objects.reads.clear()
    visited = list(walk(graph.objects, [graph.digests[200]], hidden=[graph.digests[190]]))
    assert len(visited) == 10
    assert len(graph.objects.reads) <= 12


def test_a_walk_reads_as_it_goes() -> None:
    graph = build([[], *([number] for number in range(200))])
    graph.objects.reads.clear()
    steps = walk(graph.objects, [graph.digests[200]])
    assert [next(steps)[0], next(steps)[0]] == [graph.digests[200], graph.digests[199]]
    assert len(graph.objects.reads) <= 3


def test_the_question_whether_a_recent_commit_is_contained_reads_no_old_history() -> None:
    graph = build([[], *([number] for number in range(200))])
    graph.objects.reads.clear()
    assert not is_ancestor(graph.objects, graph.digests[200], graph.digests[195])
    assert len(graph.objects.reads) <= 2


@pytest.mark.parametrize("generation", [2, 3])
def test_a_generation_that_is_not_above_its_parents_is_corrupt(generation: int) -> None:
    graph = build([[], [0], [1]])
    liar = Commit(EMPTY_TREE, (graph.digests[2],), generation, AUTHOR, "", 0)
    digest = write_commit(graph.objects, liar).digest
    with pytest.raises(CorruptError, match="a parent's is smaller"):
        list(walk(graph.objects, [digest]))


class TestTouches:
    def history(self, listed: bool) -> tuple[MemoryObjects, dict[str, Commit]]:
        """`first` makes a/x and b, `left` edits a/x, `right` edits b, `merge` joins them.

        `listed` says whether the commits list what they changed.
        """
        objects = MemoryObjects()
        old, new = (Entry(Kind.BLOB, objects.put(Kind.BLOB, d).digest) for d in (b"o", b"n"))
        trees = {"first": {"a/x": old, "b": old}, "left": {"a/x": new, "b": old}}
        trees |= {"right": {"a/x": old, "b": new}, "merge": {"a/x": new, "b": new}}
        parents = {"first": [], "left": ["first"], "right": ["first"], "merge": ["left", "right"]}
        changed = {"first": ("a/x", "b"), "left": ("a/x",), "right": ("b",), "merge": ("b",)}
        commits: dict[str, Commit] = {}
        digests: dict[str, Digest] = {}
        for name, tree in trees.items():
            root = update(objects, EMPTY_TREE, tree)
            above = tuple(digests[parent] for parent in parents[name])
            generation = 1 + max(
                (commits[parent].generation for parent in parents[name]), default=0
            )
            paths = changed[name] if listed else None
            commit = Commit(root, above, generation, AUTHOR, name, 0, changed=paths)
            commits[name], digests[name] = commit, write_commit(objects, commit).digest
        return objects, commits

    @pytest.mark.parametrize("listed", [True, False])
    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("a/x", {"first", "left"}),
            ("a", {"first", "left"}),
            ("a/", {"first", "left"}),
            ("b", {"first", "right"}),
            ("", {"first", "left", "right", "merge"}),
            ("a/x/y", set()),
            ("A", set()),
            ("nothing", set()),
        ],
    )
    def test_commits_that_touch_a_path_are_those_that_edited_it(
        self, listed: bool, path: str, expected: set[str]
    ) -> None:
        objects, commits = self.history(listed)
        assert {n for n, c in commits.items() if touches(objects, c, path)} == expected

    def test_a_commit_that_lists_other_paths_is_judged_without_reading(self) -> None:
        objects, commits = self.history(listed=True)
        objects.reads.clear()
        assert not touches(objects, commits["left"], "b")
        assert objects.reads == []


@pytest.mark.parametrize("listed", [True, False])
def test_what_a_commit_changed_is_told_up_to_a_limit_whether_it_lists_it_or_not(
    listed: bool,
) -> None:
    objects = MemoryObjects()
    entry = Entry(Kind.BLOB, objects.put(Kind.BLOB, b"x").digest)
    first = update(objects, EMPTY_TREE, {"a/b": entry, "c": entry})
    second = update(objects, first, {"a/b": None, "d": entry})
    root = Commit(first, (), 1, AUTHOR, "", 0, changed=("a/b", "c") if listed else None)
    parent = write_commit(objects, root).digest
    child = Commit(second, (parent,), 2, AUTHOR, "", 0, changed=("a/b", "d") if listed else None)
    assert some_changed(objects, root, 2) == ("a/b", "c")
    assert some_changed(objects, child, 2) == ("a/b", "d")
    assert some_changed(objects, child, 1) is None

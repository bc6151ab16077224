"""F5: what the graph of commits joins is what the parents say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.query.drawing.commit_graph import ASCII, COMMIT, graph_lines

History = list[tuple[str, list[str]]]


def drawn(history: History, hidden: frozenset[str] = frozenset()) -> list[tuple[str | None, str]]:
    told = ((commit, parents, commit not in hidden) for commit, parents in history)
    return list(graph_lines(told))


ENDS, DOWN = frozenset("╯╰┴"), frozenset("│├┤┼╮╭┬")


def parents_drawn(history: History) -> dict[str, set[str]]:
    """Parents of each commit, by following the lines of the drawing alone."""
    parents: dict[str, set[str]] = {}
    coming: dict[int, set[str]] = {}  # by column, commits whose lines come down in it
    place = 0
    for commit, line in drawn(history):
        if commit is None:
            coming = followed(line, coming, place)
            continue
        place = line.index(COMMIT)
        for child in coming.get(place, ()):
            parents[child].add(commit)
        parents[commit] = set()
        coming = {at: who for at, who in coming.items() if line[at : at + 1] == "│"}
        coming[place] = {commit}
    return parents


def followed(line: str, coming: dict[int, set[str]], place: int) -> dict[int, set[str]]:
    """Where lines lead in a row below the commit at `place`."""
    found: dict[int, set[str]] = {}
    for at, box in enumerate(line):
        if box in DOWN and at in coming:
            found.setdefault(at, set()).update(coming[at])
        if box in "├┤┼╮╭┬" and at != place and place in coming:
            found.setdefault(at, set()).update(coming[place])
        if box in ENDS and at != place:  # a line that ends joins the commit's own column
            found.setdefault(place, set()).update(coming[at])
    return found


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Commits, newest first, each with parents among the later ones."""
    count = draw(st.integers(1, 12))
    history: History = []
    for number in range(count):
        later = [str(each) for each in range(number + 1, count)]
        most = min(3, len(later))
        parents = (
            draw(st.lists(st.sampled_from(later), max_size=most, unique=True)) if later else []
        )
        history.append((str(number), parents))
    return history


@given(histories())
def test_the_drawing_says_what_the_parents_say(history: History) -> None:
    assert parents_drawn(history) == {commit: set(parents) for commit, parents in history}


@given(histories())
def test_no_two_lines_of_a_row_are_longer_than_there_are_lines_of_descent(history: History) -> None:
    for _, line in drawn(history):
        assert len(line) <= 2 * len(history)


@pytest.mark.parametrize(
    ("history", "lines"),
    [
        ([("b", ["a"]), ("a", [])], ["*", "*"]),
        (
            [("m", ["o", "t"]), ("o", ["f"]), ("t", ["b"]), ("f", ["b"]), ("b", [])],
            ["*", "├─╮", "* │", "│ *", "* │", "├─╯", "*"],
        ),
        ([("x", ["b"]), ("y", ["b"]), ("b", [])], ["*", "│ *", "├─╯", "*"]),
        (
            [("m", ["a", "b", "c"]), ("c", ["a"]), ("b", ["a"]), ("a", [])],
            ["*", "├─┬─╮", "│ │ *", "├─│─╯", "│ *", "├─╯", "*"],
        ),
    ],
)
def test_what_is_drawn(history: History, lines: list[str]) -> None:
    assert [line for _, line in drawn(history)] == lines


def test_commits_that_are_not_shown_leave_their_lines() -> None:
    history: History = [("d", ["c"]), ("c", ["b"]), ("b", ["a"]), ("a", [])]
    assert [line for _, line in drawn(history, frozenset("cb"))] == ["*", "*"]
    forked: History = [("m", ["x", "y"]), ("y", ["a"]), ("x", ["a"]), ("a", [])]
    assert [line for _, line in drawn(forked, frozenset("y"))] == ["*", "├─╮", "* │", "├─╯", "*"]


def test_it_can_be_written_in_ascii() -> None:
    assert "├─╮ │ ╯ ┼".translate(ASCII).isascii()

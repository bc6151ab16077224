"""What differs between two trees is the same however it is found."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.history.tree_pages import HEADER, Entry
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, TreeChanges, differences, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects

PATHS = [f"files/{name}" for name in ("a", "ab", "abc", "b", "c/a", "c/b", "d", "e0", "e1", "e2")]
DIGESTS = [Digest(digit * 64) for digit in "0123"]
ENTRIES = st.one_of(
    st.builds(Entry, st.sampled_from([Kind.BLOB, Kind.DATASET]), st.sampled_from(DIGESTS)),
    st.builds(Entry, st.just(Kind.MODEL), st.sampled_from(DIGESTS), st.sampled_from(DIGESTS)),
)
EDITS = st.dictionaries(st.sampled_from(PATHS), st.none() | ENTRIES, max_size=4)


def by_path(changes: Iterable[PathChange]) -> dict[str, PathChange]:
    return {change.path: change for change in changes}


@given(st.lists(EDITS, max_size=8))
def test_changes_are_those_that_trees_know(steps: list[dict[str, Entry | None]]) -> None:
    objects, trees, tree = MemoryObjects(), TreeChanges(MemoryObjects()), EMPTY_TREE
    for edits in steps:
        before, tree = tree, update(objects, tree, edits)
        expected = by_path(differences(objects, before, tree))
        assert by_path(trees.between(before, tree)) == expected
        assert by_path(trees.between(tree, before)) == by_path(differences(objects, tree, before))


def test_trees_of_many_pages_are_compared_too() -> None:
    objects = MemoryObjects()
    one, two = (Entry(Kind.BLOB, objects.put(Kind.BLOB, text).digest) for text in (b"1", b"2"))
    old = update(objects, EMPTY_TREE, {f"files/{at:04}": one for at in range(2000)})
    new = update(objects, old, {"files/0700": two})
    assert TreeChanges(objects).between(old, new) == (PathChange("files/0700", one, two),)


def test_more_entries_may_change_at_once_than_are_looked_for_one_by_one() -> None:
    objects = MemoryObjects()
    first, second = (
        update(objects, EMPTY_TREE, {f"files/{at:03}": Entry(Kind.BLOB, one) for at in range(100)})
        for one in DIGESTS[:2]
    )
    third = update(objects, second, {"files/050": Entry(Kind.BLOB, DIGESTS[2])})
    trees = TreeChanges(objects)
    assert len(trees.between(second, third)) == 1
    assert len(trees.between(first, second)) == 100


def test_pages_of_one_length_need_not_have_one_form() -> None:
    objects = MemoryObjects()
    # The rest of a path of one page is as long as that of the other, at another place.
    one, two = (
        update(objects, EMPTY_TREE, {path: Entry(Kind.BLOB, DIGESTS[0]) for path in paths})
        for paths in (("files/a", "files/bc"), ("files/ab", "files/c"))
    )
    assert len(one) == len(two) > HEADER.size
    trees = TreeChanges(objects)
    assert {change.path for change in trees.between(EMPTY_TREE, one)} == {"files/a", "files/bc"}
    found = {change.path for change in trees.between(one, two)}
    assert found == {"files/a", "files/ab", "files/bc", "files/c"}

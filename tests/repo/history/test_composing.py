"""Commits that are composed of paths: the same as a commit that whoever wants it would make."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import InvalidInputError, MissingObjectsError
from tensorrepo.repo.history.commits import Commit, read_commit, write_commit
from tensorrepo.repo.history.composing import (
    MOST_COMPOSED_PATHS,
    WantedCommit,
    WantedEntry,
    compose,
    encode_wanted,
    parse_wanted,
    wanted_entry,
)
from tensorrepo.repo.history.merge_trees import MergeContext, merge_trees
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, file_entry, iterate, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import path_key
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.repositories import ADA

Files = dict[str, bytes | None]
FILES = st.dictionaries(
    st.sampled_from(["a", "a/b", "b/c", "b/d", "B/e"]), st.none() | st.sampled_from([b"1", b"2"]),
    max_size=3,
)  # fmt: skip


def writer() -> ObjectWriter:
    return ObjectWriter(ObjectStore(MemoryBackend()), ())


def entries(objects: ObjectWriter, files: Files) -> dict[str, Entry | None]:
    return {
        path: None if data is None else file_entry(objects.put(Kind.BLOB, data))
        for path, data in files.items()
    }


def commit(objects: ObjectWriter, before: Digest | None, files: Files) -> Digest:
    """A commit of its files, by hand."""
    parent = None if before is None else read_commit(objects, before)
    tree = EMPTY_TREE if parent is None else parent.tree
    made = Commit(
        tree=update(objects, tree, entries(objects, files)),
        parents=() if before is None else (before,),
        generation=1 if parent is None else parent.generation + 1,
        author=ADA,
        message="made by hand",
        time_ns=1,
    )
    return write_commit(objects, made).digest


def wanted(objects: ObjectWriter, base: Digest | None, files: Files) -> WantedCommit:
    changes = {path: wanted_entry(one) for path, one in entries(objects, files).items()}
    asked = WantedCommit("t1", "heads/main", changes, ADA, "words", 2, base, {"loss": 0.5})
    return parse_wanted(msgspec.Raw(encode_wanted(asked)))


@given(before=FILES, mine=FILES.filter(bool), theirs=FILES)
def test_composed_is_what_a_merge_of_a_commit_gives(
    before: Files, mine: Files, theirs: Files
) -> None:
    objects = writer()
    try:
        base = commit(objects, None, before)
        tip = commit(objects, base, theirs)
        own = update(objects, read_commit(objects, base).tree, entries(objects, mine))
    except InvalidInputError:  # two of the paths clash
        return
    trees = (read_commit(objects, base).tree, own, read_commit(objects, tip).tree)
    merged = merge_trees(objects, *trees, drivers={}, context=MergeContext(True, "fail", (3, 2)))
    found = compose(objects, wanted(objects, base, mine), tip, drivers={})
    if trees[0] == own:
        assert (found.commit, found.conflicts) == (None, ())
    elif merged.conflicts:
        assert found.conflicts == merged.conflicts
    else:
        assert found.commit is not None
        made = read_commit(objects, found.commit)
        assert made.tree == merged.root
        assert (made.parents, made.generation) == ((tip,), 3)
        here, there = (dict(iterate(objects, tree)) for tree in (made.tree, trees[2]))
        changed = (path for path in here.keys() | there.keys() if here.get(path) != there.get(path))
        assert made.changed == tuple(sorted(changed, key=path_key))


def test_a_path_that_clashes_with_one_of_theirs_is_a_conflict() -> None:
    objects = writer()
    base = commit(objects, None, {"a": b"1"})
    tip = commit(objects, base, {"b/c": b"1"})
    found = compose(objects, wanted(objects, base, {"B/e": b"1"}), tip, drivers={})
    assert (found.commit, len(found.conflicts)) == (None, 1)
    assert "differ only in case" in found.conflicts[0].reason
    with pytest.raises(InvalidInputError, match="differ only in case"):
        compose(objects, wanted(objects, base, {"A": b"1"}), base, drivers={})


def test_the_first_commit_of_a_branch_has_no_parent() -> None:
    objects = writer()
    found = compose(objects, wanted(objects, None, {"a": b"1"}), None, drivers={})
    assert found.commit is not None
    made = read_commit(objects, found.commit)
    assert (made.parents, made.generation, made.changed) == ((), 1, ("a",))
    assert (made.message, made.time_ns, made.metadata) == ("words", 2, {"loss": 0.5})


def test_an_entry_is_of_the_kind_of_its_object() -> None:
    objects = writer()
    asked = wanted(objects, None, {"a": b"1"})
    named = asked.changes["a"]
    assert named is not None
    forged = msgspec.structs.replace(named, kind=int(Kind.CHUNK))
    asked = msgspec.structs.replace(asked, changes={"a": forged})
    with pytest.raises(InvalidInputError, match="is a blob, not a chunk"):
        compose(objects, asked, None, drivers={})


def test_objects_that_are_not_there_are_named() -> None:
    asked = wanted(writer(), None, {"a": b"1"})
    named = asked.changes["a"]
    assert named is not None
    with pytest.raises(MissingObjectsError) as caught:
        compose(writer(), asked, None, drivers={})
    assert caught.value.digests == (named.digest,)


@pytest.mark.parametrize("count", [0, MOST_COMPOSED_PATHS + 1])
def test_a_commit_changes_some_paths(count: int) -> None:
    entry = WantedEntry(int(Kind.BLOB), Digest("0" * 64))
    asked = WantedCommit("t1", "heads/main", {f"{at}": entry for at in range(count)}, ADA, "x", 1)
    with pytest.raises(InvalidInputError, match="changes 1 to 64 paths"):
        parse_wanted(msgspec.Raw(encode_wanted(asked)))

"""Three-way merges against a dict, with a driver that joins sets of lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.commits import Commit, read_commit, write_commit
from tensorrepo.repo.history.merge_trees import (
    Conflict,
    Drivers,
    MergeContext,
    Merged,
    merge_base_tree,
    merge_trees,
    pick_sides,
    replay,
)
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, iterate, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import path_key
from tensorrepo.repo.objects.envelope import Kind, ObjectSink
from tests.support.builders.objects import MemoryObjects
from tests.support.second_readers.tree import clashing

OBJECTS = MemoryObjects()
BLOBS = [OBJECTS.put(Kind.BLOB, bytes([i])).digest for i in range(4)]
A, B, C, D = (Entry(Kind.BLOB, digest) for digest in BLOBS)
OTHER_KIND = Entry(Kind.DATASET, BLOBS[0])
FAIL, OURS, THEIRS = (MergeContext(False, name, (3, 4)) for name in ("fail", "ours", "theirs"))


class Lines:
    """Joins blobs that are sets of lines; a line that one side added and another removed stays."""

    def __init__(self, refuse: bool = False) -> None:
        self.calls: list[tuple[str, Entry | None, MergeContext]] = []
        self.refuse = refuse

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict:
        self.calls.append((path, base, context))
        if self.refuse:
            before = base.digest if base else None
            return Conflict(path, ours.kind, before, ours.digest, theirs.digest, "cannot")
        old, here, there = (lines(objects, entry) for entry in (base, ours, theirs))
        kept = (here & there) | (here - old) | (there - old)
        return text(objects, *kept)


def lines(objects: ObjectSink, entry: Entry | None) -> set[bytes]:
    return set(bytes(objects.get(entry.digest).payload).split()) if entry else set()


def text(objects: ObjectSink, *words: bytes) -> Entry:
    return Entry(Kind.BLOB, objects.put(Kind.BLOB, b"\n".join(sorted(words))).digest)


Tree = dict[str, Entry]


def root(tree: Mapping[str, Entry]) -> bytes:
    return update(OBJECTS, EMPTY_TREE, tree)


def merge(
    base: Tree,
    ours: Tree,
    theirs: Tree,
    context: MergeContext = FAIL,
    drivers: Drivers | None = None,
    **options: Any,
) -> Merged:
    trees = [root(tree) for tree in (base, ours, theirs)]
    return merge_trees(OBJECTS, *trees, drivers=drivers or {}, context=context, **options)


def content(entry: Entry | None) -> tuple[Kind, Digest] | None:
    return (entry.kind, entry.digest) if entry else None


def model(base: Tree, ours: Tree, theirs: Tree, strategy: str) -> tuple[Tree, set[str]]:
    """What a merge without drivers must give, and the paths that conflict."""
    result, conflicts = {}, set()
    for path in {*base, *ours, *theirs}:
        b, o, t = base.get(path), ours.get(path), theirs.get(path)
        changed_here, changed_there = content(b) != content(o), content(b) != content(t)
        if changed_here and changed_there and content(o) != content(t):
            if strategy == "fail":
                conflicts.add(path)
            taken = t if strategy == "theirs" else o
        elif changed_here:
            taken = o
        elif changed_there:
            taken = t
        else:
            taken = t if o == b else o
        if taken is not None:
            result[path] = taken
    return result, conflicts


ENTRIES = st.sampled_from([A, B, C, OTHER_KIND, Entry(Kind.BLOB, BLOBS[0], BLOBS[3])])
APART = st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e.x"]), ENTRIES)
CLASHING = st.dictionaries(
    st.sampled_from(["a", "A", "a/b", "a/B", "a/b/c", "A/d", "a-x"]), ENTRIES, max_size=3
).filter(lambda tree: not clashing(tree))


@given(APART, APART, APART, st.sampled_from([FAIL, OURS, THEIRS]))
def test_a_merge_is_that_of_dicts(base: Tree, ours: Tree, theirs: Tree, context) -> None:
    expected, conflicts = model(base, ours, theirs, context.strategy)
    merged = merge(base, ours, theirs, context)
    assert {conflict.path for conflict in merged.conflicts} == conflicts
    assert merged.root == root(ours if conflicts else expected)


@given(APART, APART, APART)
def test_changes_lead_from_ours_to_the_result_in_key_order(base, ours, theirs) -> None:
    merged = merge(base, ours, theirs, OURS)
    paths = [change.path for change in merged.changes]
    assert update(OBJECTS, root(ours), {c.path: c.new for c in merged.changes}) == merged.root
    assert all(change.old == ours.get(change.path) for change in merged.changes)
    assert paths == sorted(set(paths), key=path_key)


@given(CLASHING, CLASHING, CLASHING)
def test_clashing_results_are_conflicts_and_no_others(base, ours, theirs) -> None:
    expected, conflicts = model(base, ours, theirs, "fail")
    merged = merge(base, ours, theirs)
    assert bool(merged.conflicts) == (bool(conflicts) or clashing(expected))
    assert merged.root == root(ours if merged.conflicts else expected)


@given(CLASHING, CLASHING, CLASHING, st.sampled_from([OURS, THEIRS]))
def test_no_strategy_makes_a_tree_that_clashes(base, ours, theirs, context) -> None:
    expected, _ = model(base, ours, theirs, context.strategy)
    merged = merge(base, ours, theirs, context)
    assert bool(merged.conflicts) == clashing(expected)
    assert merged.root == root(ours if merged.conflicts else expected)


@given(CLASHING, CLASHING)
def test_a_side_that_did_nothing_leaves_the_other_as_it_is(base, changed) -> None:
    assert merge(base, base, changed).root == root(changed)
    assert merge(base, changed, base) == Merged(root(changed), (), ())
    assert merge(base, changed, changed) == Merged(root(changed), (), ())


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "reason"),
    [
        (A, B, C, "changed on both sides, and a blob has no merge"),
        (None, B, C, "changed on both sides"),
        (A, None, C, "deleted in ours, changed in theirs"),
        (A, B, None, "deleted in theirs, changed in ours"),
        (B, OTHER_KIND, C, "a dataset in ours, a blob in theirs"),
    ],
)
def test_a_conflict_names_path_kind_digests_and_why(base, ours, theirs, reason) -> None:
    trees = [{"x/y": entry} if entry else {} for entry in (base, ours, theirs)]
    (conflict,) = merge(*trees).conflicts
    digests = tuple(entry.digest if entry else None for entry in (base, ours, theirs))
    assert (conflict.base, conflict.ours, conflict.theirs) == digests
    assert (conflict.path, conflict.kind) == ("x/y", (ours or theirs).kind)
    assert reason in conflict.reason


@pytest.mark.parametrize(
    ("ours", "theirs", "reason"),
    [
        ("a", "a/b", "cannot be an entry and a folder"),
        ("a/b", "a", "cannot be an entry and a folder"),
        ("a", "A", "differ only in case"),
        ("Data/x", "data/y", "folders of 'Data/x' and 'data/y' differ only in case"),
    ],
)
@pytest.mark.parametrize("context", [FAIL, OURS, THEIRS])
def test_a_clash_names_both_paths_under_every_strategy(ours, theirs, reason, context) -> None:
    (conflict,) = merge({}, {ours: A}, {theirs: B}, context).conflicts
    assert (conflict.path, conflict.ours, conflict.theirs) == (theirs, None, B.digest)
    assert reason in conflict.reason
    assert f"ours has {ours!r}, theirs added {theirs!r}" in conflict.reason


def test_a_conflict_is_reported_once_though_it_also_clashes() -> None:
    (conflict,) = merge({"a": A}, {"a": B}, {"a/b": C}).conflicts
    assert conflict.reason == "deleted in theirs, changed in ours"


class TestUnchanged:
    @pytest.mark.parametrize("declared", ["d/train", "d"])
    def test_a_declared_path_that_theirs_changed_conflicts(self, declared: str) -> None:
        base, theirs = {"d/train": A}, {"d/train": B}
        (conflict,) = merge(base, {**base, "m": C}, theirs, unchanged=[declared]).conflicts
        assert (conflict.path, conflict.base, conflict.theirs) == ("d/train", A.digest, B.digest)
        assert f"{declared!r} was declared unchanged" in conflict.reason

    @pytest.mark.parametrize("theirs", [{}, {"d": B}, {"d": Entry(Kind.DATASET, A.digest)}])
    def test_deleting_replacing_and_retyping_are_changes(self, theirs: Tree) -> None:
        assert merge({"d": A}, {"d": A}, theirs, unchanged=["d"]).conflicts

    @pytest.mark.parametrize("theirs", [{"d": A, "dd": B}, {"d": A}, {"d": A, "D2": B}])
    def test_other_paths_may_change(self, theirs: Tree) -> None:
        assert merge({"d": A}, {"d": A}, theirs, unchanged=["d"]).root == root(theirs)

    def test_making_something_below_a_declared_path_is_a_change(self) -> None:
        assert merge({}, {"m": C}, {"d/new": A}, unchanged=["d"]).conflicts

    def test_what_was_only_stored_anew_is_unchanged(self) -> None:
        theirs = {"d": Entry(Kind.BLOB, A.digest, BLOBS[3])}
        assert merge({"d": A}, {"d": A}, theirs, unchanged=["d"]).root == root(theirs)

    @pytest.mark.parametrize("context", [OURS, THEIRS])
    def test_no_strategy_settles_it(self, context: MergeContext) -> None:
        assert merge({"d": A}, {"d": A}, {"d": B}, context, unchanged=["d"]).conflicts

    def test_it_conflicts_though_ours_made_the_same_change(self) -> None:
        assert merge({"d": A}, {"d": B}, {"d": B}, unchanged=["d"]).conflicts


class TestStorage:
    """A model's storage may move without its content changing."""

    def at(self, number: int) -> Entry:
        return Entry(Kind.MODEL, BLOBS[0], BLOBS[number])

    @pytest.mark.parametrize(
        ("base", "ours", "theirs", "taken"), [(1, 1, 2, 2), (1, 2, 1, 2), (1, 2, 3, 2)]
    )
    def test_storage_that_moved_is_no_conflict(self, base, ours, theirs, taken) -> None:
        trees = [{"m": self.at(number)} for number in (base, ours, theirs)]
        assert merge(*trees).root == root({"m": self.at(taken)})

    def test_new_content_wins_over_moved_storage(self) -> None:
        trained = Entry(Kind.MODEL, BLOBS[2], BLOBS[2])
        base, moved, new = {"m": self.at(1)}, {"m": self.at(3)}, {"m": trained}
        assert merge(base, moved, new).root == merge(base, new, moved).root == root(new)

    def test_deleting_wins_over_moved_storage(self) -> None:
        base, moved = {"m": self.at(1)}, {"m": self.at(3)}
        assert merge(base, moved, {}).root == merge(base, {}, moved).root == EMPTY_TREE


class TestDrivers:
    def test_the_driver_of_the_kind_joins_what_both_changed(self) -> None:
        trees = [
            {"d": text(OBJECTS, *words)}
            for words in ([b"x", b"y"], [b"x", b"o"], [b"x", b"y", b"t"])
        ]
        driver = Lines()
        merged = merge(*trees, FAIL, {Kind.BLOB: driver})
        assert merged.root == root({"d": text(OBJECTS, b"x", b"o", b"t")})
        assert driver.calls == [("d", trees[0]["d"], FAIL)]

    def test_a_driver_is_not_asked_about_what_one_side_changed(self) -> None:
        driver = Lines()
        merge({"a": A, "b": A}, {"a": B, "b": A}, {"a": A, "b": C}, FAIL, {Kind.BLOB: driver})
        assert driver.calls == []

    def test_a_base_of_another_kind_is_no_base_for_the_driver(self) -> None:
        driver = Lines()
        merge({"d": OTHER_KIND}, {"d": B}, {"d": C}, FAIL, {Kind.BLOB: driver})
        assert driver.calls == [("d", None, FAIL)]

    def test_a_driver_sees_strategies_that_only_it_knows(self) -> None:
        driver, average = Lines(), MergeContext(False, "average", (1, 1))
        merge({"d": A}, {"d": B}, {"d": C}, average, {Kind.BLOB: driver})
        assert driver.calls == [("d", A, average)]

    @pytest.mark.parametrize(("context", "taken"), [(FAIL, None), (OURS, B), (THEIRS, C)])
    def test_what_the_driver_refuses_goes_by_the_strategy(self, context, taken) -> None:
        merged = merge({"d": A}, {"d": B}, {"d": C}, context, {Kind.BLOB: Lines(refuse=True)})
        assert [c.reason for c in merged.conflicts] == ([] if taken else ["cannot"])
        assert merged.root == root({"d": taken or B})


class History:
    """Commits by name, on one store."""

    def __init__(self) -> None:
        self.commits: dict[str, Digest] = {}

    def commit(self, name: str, tree: Tree, *parents: str) -> Digest:
        above = tuple(self.commits[parent] for parent in parents)
        generation = 1 + max(
            (read_commit(OBJECTS, digest).generation for digest in above), default=0
        )
        commit = Commit(root(tree), above, generation, "A <a@b>", name, 0)
        self.commits[name] = write_commit(OBJECTS, commit).digest
        return self.commits[name]

    def base(self, ours: str, theirs: str, drivers: Drivers | None = None) -> Tree:
        found = merge_base_tree(
            OBJECTS, self.commits[ours], self.commits[theirs], drivers=drivers or {}
        )
        return dict(iterate(OBJECTS, found))

    def criss_cross(self, start: Tree, left: Tree, right: Tree) -> None:
        """`ours` and `theirs` both merged `left` and `right`."""
        self.commit("start", start)
        self.commit("left", left, "start")
        self.commit("right", right, "start")
        self.commit("ours", left, "left", "right")
        self.commit("theirs", right, "right", "left")


class TestMergeBase:
    def test_one_merge_base_is_taken_as_it_is(self) -> None:
        history = History()
        history.commit("start", {"a": A})
        history.commit("ours", {"a": B}, "start")
        history.commit("theirs", {"a": C}, "start")
        assert history.base("ours", "theirs") == {"a": A}

    def test_unrelated_histories_start_from_nothing(self) -> None:
        history = History()
        history.commit("ours", {"a": B})
        history.commit("theirs", {"a": C})
        assert history.base("ours", "theirs") == {}

    def test_several_merge_bases_are_merged_with_each_other(self) -> None:
        history = History()
        history.criss_cross({"a": A, "b": A}, {"a": B, "b": A}, {"a": A, "b": C})
        assert history.base("ours", "theirs") == {"a": B, "b": C}

    def test_a_conflict_between_merge_bases_keeps_what_their_own_base_had(self) -> None:
        history = History()
        history.criss_cross({"a": A, "c": A}, {"a": B, "c": B}, {"a": C, "n": D})
        assert history.base("ours", "theirs") == {"a": A, "c": A, "n": D}

    def test_merge_bases_that_clash_keep_neither_side(self) -> None:
        history = History()
        history.criss_cross({"k": A}, {"k": A, "a": B, "x": C}, {"k": A, "a/b": C, "X": D})
        assert history.base("ours", "theirs") == {"k": A}

    def test_a_conflict_that_clashes_with_a_clean_change_keeps_what_the_base_had(self) -> None:
        history = History()
        history.criss_cross({"a": A}, {"a/b": B}, {"a": C})
        assert history.base("ours", "theirs") == {"a": A}

    def test_drivers_join_merge_bases_too(self) -> None:
        history = History()
        start, left, right = (
            {"d": text(OBJECTS, *words)} for words in ([b"s"], [b"s", b"l"], [b"s", b"r"])
        )
        history.criss_cross(start, left, right)
        driver = Lines()
        joined = {"d": text(OBJECTS, b"s", b"l", b"r")}
        assert history.base("ours", "theirs", {Kind.BLOB: driver}) == joined
        assert driver.calls[0][2].automatic

    def test_the_base_is_the_same_from_both_sides(self) -> None:
        history = History()
        history.criss_cross({"a": A, "b": A}, {"a": B, "b": C}, {"a": C, "b": A, "A-1": D})
        assert history.base("ours", "theirs") == history.base("theirs", "ours")

    @pytest.mark.parametrize("rounds", [3, 40])
    def test_criss_crosses_on_criss_crosses_come_to_an_end(self, rounds: int) -> None:
        history = History()
        history.commit("l0", {"a": A, "b": A})
        history.commit("r0", {"a": A, "b": B}, "l0")
        history.commit("l1", {"a": B, "b": A}, "l0")
        history.commit("r1", {"a": A, "b": C}, "l0")
        for number in range(2, rounds):
            before = (f"l{number - 1}", f"r{number - 1}")
            history.commit(f"l{number}", {"a": B, "b": C, f"l{number}": D}, *before)
            history.commit(f"r{number}", {"a": B, "b": C, f"r{number}": D}, *before)
        base = history.base(f"l{rounds - 1}", f"r{rounds - 1}")
        assert (base["a"], base["b"]) == (B, C)


class TestPicking:
    def history(self) -> History:
        history = History()
        history.commit("first", {"a": A})
        history.commit("second", {"a": B}, "first")
        history.commit("side", {"a": A, "s": C}, "first")
        history.commit("merge", {"a": B, "s": C}, "second", "side")
        return history

    def apply(self, name: str, onto: Tree, **options: Any) -> Tree:
        history = self.history()
        base, theirs = pick_sides(OBJECTS, history.commits[name], **options)
        merged = merge_trees(OBJECTS, base, root(onto), theirs, drivers={}, context=FAIL)
        assert not merged.conflicts
        return dict(iterate(OBJECTS, merged.root))

    def test_a_cherry_pick_repeats_what_a_commit_changed(self) -> None:
        assert self.apply("second", {"a": A, "z": D}, revert=False) == {"a": B, "z": D}

    def test_a_revert_undoes_what_a_commit_changed(self) -> None:
        assert self.apply("second", {"a": B, "z": D}, revert=True) == {"a": A, "z": D}

    def test_the_first_commit_changed_everything(self) -> None:
        assert self.apply("first", {"z": D}, revert=False) == {"a": A, "z": D}
        assert self.apply("first", {"a": A, "z": D}, revert=True) == {"z": D}

    @pytest.mark.parametrize(
        ("mainline", "left"), [(1, {"a": B, "z": D}), (2, {"a": A, "s": C, "z": D})]
    )
    def test_a_merge_is_undone_against_its_mainline(self, mainline: int, left: Tree) -> None:
        onto = {"a": B, "s": C, "z": D}
        assert self.apply("merge", onto, revert=True, mainline=mainline) == left

    @pytest.mark.parametrize(
        ("name", "mainline", "reason"),
        [("merge", None, "say with --mainline"), ("merge", 3, "not a parent 3"),
         ("second", 2, "has 1 parents"), ("merge", 0, "not a parent 0"), ("first", 1, "0 parents")],
    )  # fmt: skip
    def test_a_mainline_that_does_not_fit_is_refused(self, name, mainline, reason) -> None:
        with pytest.raises(InvalidInputError, match=reason):
            pick_sides(OBJECTS, self.history().commits[name], revert=True, mainline=mainline)


@given(APART, APART, APART)
def test_a_replay_is_the_merge_wherever_it_is_one(base: Tree, ours: Tree, theirs: Tree) -> None:
    again = replay(OBJECTS, root(base), root(ours), root(theirs))
    merged = merge(base, ours, theirs, FAIL)
    assert again is None or (again.root, ()) == (merged.root, tuple(merged.conflicts))


@given(CLASHING, CLASHING, CLASHING)
def test_a_replay_makes_no_tree_that_clashes(base: Tree, ours: Tree, theirs: Tree) -> None:
    again = replay(OBJECTS, root(base), root(ours), root(theirs))
    assert again is None or again.root == merge(base, ours, theirs, FAIL).root

"""One commit's change is repeated, or undone, on a branch: whole, or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.merge_branches import (
    cherry_pick,
    merge,
    picked_message,
    revert,
    revert_message,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitExpired, ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tests.support.builders.repositories import (
    ADA,
    BOB,
    again,
    commit_files,
    files_at,
    new_repository,
    stage_files,
    tip_of,
)
from tests.support.reference.collector import condemn, delete


def side_commit(repository: RepositoryCore, files: dict[str, bytes | None]) -> Digest:
    """A commit of Bob's on branch side, which begins where main stands."""
    base = tip_of(repository)
    assert base is not None
    refs.create_branch(repository, "side", base, actor=BOB)
    return commit_files(repository, files, branch="side", author=BOB, message="Bob's").digest


def test_a_cherry_pick_brings_one_change_and_nothing_else_of_the_branch() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    side_commit(repository, {"files/b": b"b"})
    wanted = commit_files(repository, {"files/c": b"c", "files/a": None}, branch="side").digest
    made = cherry_pick(repository, "main", wanted, committer=ADA)
    assert made is not None
    assert files_at(repository, tip_of(repository)) == {"files/c": b"c"}
    assert len(made.commit.parents) == 1


def test_a_cherry_pick_keeps_the_author_and_the_log_names_the_committer() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = side_commit(repository, {"files/b": b"b"})
    made = cherry_pick(repository, "main", wanted, committer=ADA)
    assert made is not None
    assert made.commit.author == BOB
    assert made.commit.message == f"Bob's\n\n(cherry picked from commit {wanted})"
    assert next(refs.reflog(repository, "heads/main")).entry.actor == ADA
    refs.undo(repository, "main", actor=ADA)
    assert files_at(repository, tip_of(repository)) == {"files/a": b"a"}


def test_a_revert_takes_one_change_back_and_keeps_what_came_after() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    mistake = commit_files(repository, {"files/a": b"x", "files/b": b"b"}, message="Oops\n\nbody")
    commit_files(repository, {"files/c": b"c"})
    made = revert(repository, "main", mistake.digest, author=BOB)
    assert made is not None
    assert files_at(repository, made.digest) == {"files/a": b"a", "files/c": b"c"}
    assert made.commit.author == BOB
    assert made.commit.message == f'Revert "Oops"\n\nThis reverts commit {mistake.digest}.'


def test_the_first_commit_is_reverted_to_nothing() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"a"})
    made = revert(repository, "main", first.digest, author=ADA)
    assert made is not None
    assert files_at(repository, made.digest) == {}


@pytest.mark.parametrize("mainline", [1, 2])
def test_a_merge_is_reverted_against_the_parent_that_is_named(mainline: int) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    other = side_commit(repository, {"files/theirs": b"b"})
    commit_files(repository, {"files/ours": b"c"})
    joined = merge(repository, "main", other, author=ADA, message="Join").committed
    assert joined is not None
    made = revert(repository, "main", joined.digest, author=ADA, mainline=mainline)
    assert made is not None
    left = {1: "files/ours", 2: "files/theirs"}[mainline]
    assert set(files_at(repository, made.digest)) == {"files/a", left}
    assert f"reversing\nchanges made to {joined.commit.parents[mainline - 1]}." in (
        made.commit.message
    )


def test_a_merge_needs_the_parent_to_be_named() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    other = side_commit(repository, {"files/b": b"b"})
    joined = merge(
        repository, "main", other, author=ADA, message="Join", fast_forward=False
    ).committed
    assert joined is not None
    with pytest.raises(InvalidInputError, match="--mainline"):
        revert(repository, "main", joined.digest, author=ADA)
    with pytest.raises(InvalidInputError, match="not a parent 3"):
        cherry_pick(repository, "main", joined.digest, committer=ADA, mainline=3)
    assert tip_of(repository) == joined.digest


def test_what_the_branch_has_already_makes_no_commit() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = commit_files(repository, {"files/b": b"b"}).digest
    before = repository.log.refresh().generation
    assert cherry_pick(repository, "main", wanted, committer=ADA) is None
    assert repository.log.refresh().generation == before


def test_what_is_gone_already_is_not_reverted_again() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    mistake = commit_files(repository, {"files/b": b"b"}).digest
    assert revert(repository, "main", mistake, author=ADA) is not None
    assert revert(repository, "main", mistake, author=ADA) is None


def test_a_conflict_changes_nothing_and_names_the_sides() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    mistake = commit_files(repository, {"files/a": b"x"}).digest
    tip = commit_files(repository, {"files/a": b"y"}).digest
    with pytest.raises(ConflictError, match="theirs: what was there before") as caught:
        revert(repository, "main", mistake, author=ADA)
    assert [conflict.path for conflict in caught.value.conflicts] == ["files/a"]
    assert tip_of(repository) == tip


@pytest.mark.parametrize(("strategy", "content"), [("ours", None), ("theirs", b"a")])
def test_a_strategy_settles_a_conflict(strategy: str, content: bytes | None) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    mistake = commit_files(repository, {"files/a": b"x"}).digest
    commit_files(repository, {"files/a": b"y"})
    made = revert(repository, "main", mistake, author=ADA, strategy=strategy)
    assert (made and files_at(repository, made.digest)["files/a"]) == content


def test_a_pick_onto_a_branch_that_moved_meanwhile_keeps_both() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = side_commit(repository, {"files/b": b"b"})
    others: list[Digest] = []

    def clock() -> int:
        # Read after the branch was, and before the record is appended.
        others.append(commit_files(again(repository), {"files/c": b"c"}).digest)
        return 1

    made = cherry_pick(repository, "main", wanted, committer=ADA, clock=clock)
    assert made is not None
    assert made.onto == others[0]
    assert set(files_at(repository, made.digest)) == {"files/a", "files/b", "files/c"}


def test_a_pick_that_somebody_else_made_meanwhile_makes_no_second_commit() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = side_commit(repository, {"files/b": b"b"})
    others: list[Digest] = []

    def clock() -> int:
        others.append(commit_files(again(repository), {"files/b": b"b"}).digest)
        return 1

    assert cherry_pick(repository, "main", wanted, committer=ADA, clock=clock) is None
    assert tip_of(repository) == others[0]


def test_no_branch_is_made_by_a_pick() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"a"}).digest
    with pytest.raises(NotFoundError, match="tensorrepo branch"):
        cherry_pick(repository, "none", first, committer=ADA)


def test_a_commit_that_no_ref_leads_to_is_picked_whole_while_it_is_collected() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = side_commit(repository, {"files/b": b"b"})
    dropped = refs.delete_ref(repository, "heads/side", actor=BOB)
    keys = condemn(repository, release=[dropped])
    made = cherry_pick(repository, "main", wanted, committer=ADA)
    delete(repository, keys)
    assert made is not None
    assert files_at(again(repository), made.digest) == {"files/a": b"a", "files/b": b"b"}


def test_a_commit_that_was_collected_cannot_be_picked() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = side_commit(repository, {"files/b": b"b"})
    dropped = refs.delete_ref(repository, "heads/side", actor=BOB)
    delete(repository, condemn(repository, release=[dropped]))
    with pytest.raises((CommitExpired, NotFoundError)):
        cherry_pick(again(repository), "main", wanted, committer=ADA)


def test_what_a_commit_says_of_itself_goes_along_with_a_pick_and_not_with_a_revert() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    with begin(repository, "main") as transaction:
        stage_files(transaction, {"files/b": b"b"})
        wanted = transaction.commit("b", author=BOB, metadata={"run": 7})
    assert wanted is not None
    reverted = revert(repository, "main", wanted.digest, author=ADA)
    picked = cherry_pick(repository, "main", wanted.digest, committer=ADA)
    assert reverted is not None
    assert picked is not None
    assert (reverted.commit.metadata, picked.commit.metadata) == ({}, {"run": 7})


def test_a_message_is_taken_as_it_is_given() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    wanted = side_commit(repository, {"files/b": b"b"})
    made = cherry_pick(repository, "main", wanted, committer=ADA, message="mine")
    assert made is not None
    assert made.commit.message == "mine"


def test_default_messages_name_the_commit_in_full() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"a"}, message="One\n\ntwo")
    assert picked_message(made.commit, made.digest).endswith(f"commit {made.digest})")
    assert revert_message(made.commit, made.digest).startswith('Revert "One"\n\n')


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_somebody_else_merged_meanwhile_is_not_merged_again(
    goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    other = side_commit(repository, {"files/b": b"b"})
    commit_files(repository, {"files/c": b"c"})
    merged_tree = merge_branches._merged_tree

    def overtaken(*arguments: Any) -> bytes:
        monkeypatch.setattr(merge_branches, "_merged_tree", merged_tree)
        someone = again(repository)
        refs.reset_branch(someone, "main", other, actor=BOB)
        if goes_on:
            commit_files(someone, {"files/d": b"d"}, author=BOB)
        return merged_tree(*arguments)

    monkeypatch.setattr(merge_branches, "_merged_tree", overtaken)
    outcome = merge(repository, "main", other, author=ADA, message="merge")
    assert (outcome.committed, outcome.forwarded) == (None, None)
    assert files_at(repository, tip_of(again(repository)))["files/b"] == b"b"

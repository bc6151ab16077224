"""Commits are whole or not at all, and merge with what others did meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import ConflictError, InvalidInputError
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


def test_what_is_committed_comes_back() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one", "files/b": b"two"})
    assert files_at(again(repository), made.digest) == {"files/a": b"one", "files/b": b"two"}


def test_a_commit_that_changes_nothing_writes_no_record() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    before = repository.log.refresh().generation
    transaction = begin(repository, "main")
    stage_files(transaction, {"files/a": b"one"})
    assert transaction.commit("nothing", author=ADA) is None
    assert repository.log.refresh().generation == before


def test_an_aborted_transaction_leaves_the_branch() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    with begin(repository, "main") as transaction:
        stage_files(transaction, {"files/a": b"two"})
    assert tip_of(repository) == made.digest


def test_a_commit_onto_a_branch_that_moved_keeps_both_changes() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    late = begin(repository, "main")
    stage_files(late, {"files/late": b"late"})
    early = commit_files(repository, {"files/early": b"early"}, author=BOB)
    made = late.commit("late", author=ADA)
    assert made is not None
    assert made.onto == early.digest
    assert made.commit.parents == (early.digest,)
    assert set(files_at(repository, made.digest)) == {"files/a", "files/early", "files/late"}


def test_the_same_path_changed_twice_is_a_conflict_that_names_it() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    late = begin(repository, "main")
    stage_files(late, {"files/a": b"mine"})
    early = commit_files(repository, {"files/a": b"theirs"}, author=BOB)
    with pytest.raises(ConflictError, match="files/a") as caught:
        late.commit("late", author=ADA)
    assert [conflict.path for conflict in caught.value.conflicts] == ["files/a"]
    assert tip_of(repository) == early.digest


def test_a_path_that_was_relied_on_and_changed_is_a_conflict() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    late = begin(repository, "main", unchanged=["files/a"])
    stage_files(late, {"files/b": b"made from a"})
    commit_files(repository, {"files/a": b"another"})
    with pytest.raises(ConflictError, match="files/a"):
        late.commit("late", author=ADA)


def test_a_branch_deleted_meanwhile_is_a_conflict_that_says_how_to_bring_it_back() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    late = begin(repository, "main")
    stage_files(late, {"files/b": b"two"})
    refs.delete_ref(repository, "heads/main", actor=BOB)
    with pytest.raises(ConflictError, match="tensorrepo branch main"):
        late.commit("late", author=ADA)


def test_two_first_commits_are_merged() -> None:
    repository = new_repository()
    late = begin(repository, "main")
    stage_files(late, {"files/late": b"late"})
    commit_files(repository, {"files/early": b"early"})
    made = late.commit("late", author=ADA)
    assert made is not None
    assert files_at(repository, made.digest) == {"files/early": b"early", "files/late": b"late"}


@pytest.mark.parametrize("writers", [2, 8])
def test_writers_of_disjoint_paths_lose_nothing(writers: int) -> None:
    repository = new_repository()
    each = 6

    def write(writer: int) -> list[int]:
        mine = again(repository)
        return [
            commit_files(mine, {f"files/{writer}-{at}": b"%d" % at}).attempts for at in range(each)
        ]

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    found = files_at(repository, tip_of(repository))
    expected = {
        f"files/{writer}-{at}": b"%d" % at for writer in range(writers) for at in range(each)
    }
    assert found == expected


def test_changed_paths_stand_in_the_commit() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one", "files/b": b"two"})
    made = commit_files(repository, {"files/a": None, "files/c": b"three"})
    assert made.commit.changed == ("files/a", "files/c")


def test_too_many_changed_paths_are_left_out_of_the_commit() -> None:
    made = commit_files(new_repository(), {f"files/{at:04}": b"x" for at in range(300)})
    assert made.commit.changed is None


def test_a_commit_onto_a_branch_that_was_undone_does_not_bring_it_back() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    commit_files(repository, {"files/bad": b"bad"})
    late = begin(repository, "main")
    stage_files(late, {"files/late": b"late"})
    refs.undo(repository, "main", actor=ADA)
    made = late.commit("late", author=BOB)
    assert made is not None
    assert files_at(repository, made.digest) == {"files/a": b"one", "files/late": b"late"}


def test_a_path_that_was_relied_on_and_undone_is_a_conflict() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    commit_files(repository, {"files/a": b"two"})
    late = begin(repository, "main", unchanged=["files/a"])
    stage_files(late, {"files/b": b"made from two"})
    refs.undo(repository, "main", actor=ADA)
    with pytest.raises(ConflictError, match="files/a"):
        late.commit("late", author=ADA)


@pytest.mark.parametrize("branch", ["main/sub", "m"])
def test_a_first_commit_keeps_to_the_names_that_branches_have(branch: str) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"}, branch="m/x" if branch == "m" else "main")
    with pytest.raises(ConflictError, match="beside"):
        commit_files(repository, {"files/a": b"two"}, branch=branch)


@pytest.mark.parametrize("branch", ["", "../x", "a b", "-a", "a..b", "x.lock", "HEAD"])
def test_a_branch_of_an_impossible_name_is_refused_at_once(branch: str) -> None:
    with pytest.raises(InvalidInputError):
        begin(new_repository(), branch)

from __future__ import annotations

import pytest

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.squash import squash_branch
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of


def test_a_branch_has_one_commit_with_what_it_had() -> None:
    repository = new_repository()
    for at in range(3):
        commit_files(repository, {f"files/{at}": b"x"})
    before = files_at(repository, tip_of(repository))
    landed = squash_branch(repository, "main", "all of it", author=ADA)
    commit = read_commit(repository.objects, landed.digest)
    assert (commit.parents, commit.generation, commit.message) == ((), 1, "all of it")
    assert files_at(repository, tip_of(repository)) == before


def test_it_is_taken_back() -> None:
    repository = new_repository()
    old = commit_files(repository, {"files/a": b"x"}).digest
    squash_branch(repository, "main", "all of it", author=ADA)
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == old


def test_a_branch_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        squash_branch(new_repository(), "nope", "all of it", author=ADA)

"""The way of first parents between two commits."""

from __future__ import annotations

from itertools import count

import pytest

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.merge_branches import merge
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.history.trail import Trail, trail
from tensorrepo.repo.ids import Digest
from tests.support.builders.repositories import ADA, commit_files, new_repository

_NUMBERS = count()


@pytest.fixture
def repository() -> RepositoryCore:
    return new_repository()


def grow(repository: RepositoryCore, commits: int, branch: str = "main") -> list[Digest]:
    """Digests of new commits, oldest first."""
    return [
        commit_files(repository, {f"files/{branch}": b"%d" % next(_NUMBERS)}, branch=branch).digest
        for _ in range(commits)
    ]


def test_all_commits_behind_one_or_all_of_them(repository: RepositoryCore) -> None:
    one, two, three = grow(repository, 3)
    objects = repository.objects
    assert trail(objects, three, one) == Trail(one, (two, three))
    assert trail(objects, three, None) == Trail(None, (one, two, three))
    assert trail(objects, three, three) == Trail(three, ())


def test_a_merge_is_one_step(repository: RepositoryCore) -> None:
    (one,) = grow(repository, 1)
    refs.create_branch(repository, "side", one, actor=ADA)
    side = grow(repository, 2, "side")
    (two,) = grow(repository, 1)
    merge(repository, "main", side[-1], author=ADA, message="m", called="side")
    tip = repository.log.refresh().state.refs["heads/main"]
    assert trail(repository.objects, tip, one) == Trail(one, (two, tip))


def test_of_a_commit_beside_the_way_it_begins_where_both_parted(repository: RepositoryCore) -> None:
    one, two = grow(repository, 2)
    refs.create_branch(repository, "side", one, actor=ADA)
    beside = grow(repository, 3, "side")[-1]
    (three,) = grow(repository, 1)
    assert trail(repository.objects, three, beside) == Trail(one, (two, three))


def test_a_tip_that_was_set_back_has_no_steps(repository: RepositoryCore) -> None:
    one, two = grow(repository, 2)
    assert trail(repository.objects, one, two) == Trail(one, ())


def test_histories_that_never_met_have_no_steps(repository: RepositoryCore) -> None:
    (one,) = grow(repository, 1)
    apart = commit_files(repository, {"files/apart": b"x"}, branch="apart").digest
    grown = grow(repository, 1, "apart")[-1]
    assert trail(repository.objects, grown, one) == Trail(grown, ())
    assert trail(repository.objects, grown, apart) == Trail(apart, (grown,))

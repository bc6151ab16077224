"""Commits of a series stand beside each other, and the expired ones go as new ones come."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import (
    MOST_DROPPED,
    LandedCommit,
    begin_beside,
    commit_beside,
)
from tensorrepo.repo.errors import ConflictError
from tensorrepo.repo.ids import Digest
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    files_at,
    new_repository,
    stage_files,
)


def commit_step(
    repository: RepositoryCore,
    step: int | str,
    content: bytes = b"weights",
    *,
    parent: Digest | None = None,
    drops: tuple[str, ...] = (),
) -> LandedCommit:
    with begin_beside(repository, f"runs/exp/{step}") as transaction:
        stage_files(transaction, {"files/a": content})
        return commit_beside(transaction, parent, f"step {step}", author=ADA, drops=lambda _: drops)


def refs_of(repository: RepositoryCore) -> dict[str, Digest]:
    return dict(repository.log.refresh().state.refs)


def test_every_commit_has_the_start_as_its_parent() -> None:
    repository = new_repository()
    start = commit_files(repository, {"files/a": b"data"})
    made = [commit_step(repository, step, parent=start.digest) for step in (1, 2)]
    assert [one.commit.parents for one in made] == [(start.digest,)] * 2


def test_a_commit_holds_what_is_staged_and_nothing_of_its_parent() -> None:
    repository = new_repository()
    start = commit_files(repository, {"files/data": b"data"})
    made = commit_step(repository, 1, b"weights", parent=start.digest)
    assert files_at(again(repository), made.digest) == {"files/a": b"weights"}


def test_a_series_may_begin_nowhere() -> None:
    made = commit_step(new_repository(), 1)
    assert made.commit.parents == ()


def test_expired_refs_go_in_the_record_of_the_new_one() -> None:
    repository = new_repository()
    commit_step(repository, 1)
    before = repository.log.refresh().generation
    made = commit_step(repository, 2, drops=("runs/exp/1",))
    assert refs_of(again(repository)) == {"runs/exp/2": made.digest}
    assert repository.log.refresh().generation == before + 1


def test_a_ref_to_be_dropped_that_is_gone_is_passed_over() -> None:
    repository = new_repository()
    made = commit_step(repository, 2, drops=("runs/exp/1",))
    assert refs_of(repository) == {"runs/exp/2": made.digest}


def test_a_step_that_is_saved_again_takes_the_place_of_the_first() -> None:
    repository = new_repository()
    first = commit_step(repository, 1, b"one")
    second = commit_step(repository, 1, b"two")
    assert refs_of(again(repository)) == {"runs/exp/1": second.digest}
    assert second.commit.parents == ()
    assert first.digest in repository.log.refresh().state.retained


def test_a_step_cannot_be_a_folder_of_steps() -> None:
    repository = new_repository()
    commit_step(repository, 1)
    with pytest.raises(ConflictError, match="beside"):
        commit_step(repository, "1/2")


def test_more_than_a_record_holds_are_dropped_by_and_by() -> None:
    backend = MemoryBackend()
    repository = new_repository(backend)
    steps = range(MOST_DROPPED + 5)
    for step in steps:
        commit_step(repository, step)
    every = tuple(f"runs/exp/{step}" for step in steps)
    commit_step(repository, 1000, drops=every)
    left = len(refs_of(repository))
    commit_step(repository, 1001, drops=every)
    assert (left, len(refs_of(again(repository)))) == (6, 2)


def test_two_writers_of_a_series_both_get_in() -> None:
    repository = new_repository()
    other = again(repository)
    with begin_beside(repository, "runs/exp/1") as transaction:
        stage_files(transaction, {"files/a": b"one"})
        commit_step(other, 2)
        commit_beside(transaction, None, "step 1", author=ADA, drops=lambda _: ())
    assert sorted(refs_of(other)) == ["runs/exp/1", "runs/exp/2"]

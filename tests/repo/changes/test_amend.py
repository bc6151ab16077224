"""A commit that takes the place of the head of its branch, in one entry of the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorrepo.repo.changes.refs import BRANCHES, reflog, undo
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import LandedCommit, amend, begin
from tensorrepo.repo.errors import ConflictError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.log.reader import Form, RepositoryLog
from tensorrepo.repo.log.segments import read_segment
from tests.support.builders.repositories import (
    ADA,
    commit_files,
    files_at,
    new_repository,
    stage_files,
    tip_of,
)


def amended(repository: RepositoryCore, content: bytes) -> LandedCommit:
    transaction = begin(repository, "main")
    stage_files(transaction, {"files/a": content})
    return amend(transaction, "again", author=ADA)


@pytest.mark.parametrize("before", [0, 2])
def test_an_amended_commit_has_the_parents_of_the_one_before(before: int) -> None:
    repository = new_repository()
    for number in range(before):
        commit_files(repository, {"files/old": b"%d" % number})
    first = commit_files(repository, {"files/a": b"one", "files/b": b"b"})
    made = amended(repository, b"two")
    commit = read_commit(repository.objects, made.digest)
    assert (commit.parents, commit.generation) == (first.commit.parents, first.commit.generation)
    assert commit.changed == ("files/a", "files/b")
    assert files_at(repository, tip_of(repository))["files/a"] == b"two"
    assert made.onto is None
    move = next(reflog(repository, f"{BRANCHES}main"))
    assert (move.entry.kind, move.entry.note) == ("ref-reset", "amend: again")
    assert first.digest in repository.log.refresh().state.retained
    undo(repository, "main", actor=ADA)
    assert tip_of(repository) == first.digest


def test_a_branch_that_moved_meanwhile_is_not_amended() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    transaction = begin(repository, "main")
    other = commit_files(repository, {"files/b": b"b"})
    with pytest.raises(ConflictError, match="moved from"):
        amend(transaction, "again", author=ADA)
    assert tip_of(repository) == other.digest


def test_segments_hold_commits_that_were_amended() -> None:
    repository = new_repository()
    identity = repository.backend.read("repo.json")
    assert identity is not None
    log = RepositoryLog(repository.backend, identity, lambda _: (), form=Form(segment_lengths=(4,)))
    writing = replace(repository, log=log)
    made = [commit_files(writing, {"files/a": b"one"}).digest]
    made.append(amended(writing, b"two").digest)
    undo(writing, "main", actor=ADA)
    made.append(amended(writing, b"three").digest)
    segment = read_segment(log.slots, 4)
    assert segment is not None
    assert [commit.digest for commit in segment.commits][:2] == made[:2]
    assert {commit.digest for commit in segment.commits} == set(made)

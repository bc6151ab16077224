"""Revisions are named as git names them."""

from __future__ import annotations

from functools import partial

import pytest

from tensorrepo.repo.changes import merge_branches, refs
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import Head, resolve, split_path
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Digest
from tests.support.builders.repositories import ADA, commit_files, new_repository, stage_files


@pytest.fixture(scope="module")
def history() -> tuple[RepositoryCore, dict[str, Digest]]:
    """main: first - second - merge, with `side` merged in; tag v1 at first."""
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"}).digest
    refs.create_branch(repository, "side", first, actor=ADA)
    refs.create_tag(repository, "v1", first, actor=ADA)
    side = commit_files(repository, {"files/s": b"side"}, branch="side").digest
    second = commit_files(repository, {"files/a": b"two"}).digest
    outcome = merge_branches.merge(repository, "main", side, author=ADA, message="merge")
    assert outcome.committed is not None
    named = {"first": first, "second": second, "side": side, "merge": outcome.committed.digest}
    return repository, named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("main", "merge"),
        ("v1", "first"),
        ("HEAD", "merge"),
        ("@", "merge"),
        ("heads/side", "side"),
        ("main~", "second"),
        ("main~2", "first"),
        ("main^", "second"),
        ("main^2", "side"),
        ("main^2~1", "first"),
        ("main^0", "merge"),
        ("main@{0}", "merge"),
        ("main@{1}", "second"),
        ("HEAD@{2}", "first"),
        ("@{1}", "second"),
        ("main@{1}~1", "first"),
        ("main@{now}", "merge"),
    ],
)
def test_a_revision_names_its_commit(
    history: tuple[RepositoryCore, dict[str, Digest]], text: str, name: str
) -> None:
    repository, named = history
    assert resolve(repository, text, head=Head(branch="main")).digest == named[name]


@pytest.mark.parametrize("digits", [8, 12, 64])
def test_a_digest_may_be_short(
    history: tuple[RepositoryCore, dict[str, Digest]], digits: int
) -> None:
    repository, named = history
    assert resolve(repository, named["side"][:digits]).digest == named["side"]


@pytest.mark.parametrize("text", ["nothing", "main~9", "main^3", "main@{7}", "0" * 64, "0" * 70])
def test_what_is_not_there_is_not_found(
    history: tuple[RepositoryCore, dict[str, Digest]], text: str
) -> None:
    with pytest.raises(NotFoundError):
        resolve(history[0], text)


def test_near_names_are_suggested(history: tuple[RepositoryCore, dict[str, Digest]]) -> None:
    with pytest.raises(NotFoundError, match="Did you mean side"):
        resolve(history[0], "sied")


@pytest.mark.parametrize("text", ["", "v1~@{1}", "HEAD"])
def test_what_is_no_revision_is_invalid(
    history: tuple[RepositoryCore, dict[str, Digest]], text: str
) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        resolve(history[0], text)


def test_a_moment_names_what_the_newest_record_of_its_time_or_before_left() -> None:
    repository, made = new_repository(), []
    # The third writer's clock is late: the order of records counts.
    for second in (100, 300, 200, 400):
        clock = partial(int, second * 10**9)
        transaction = begin(repository, "main")
        stage_files(transaction, {"files/a": str(second).encode()})
        landed = transaction.commit("change", author=ADA, clock=clock)
        assert landed is not None
        made.append(landed.digest)

    def as_of(second: int) -> Digest:
        moment = f"main@{{1970-01-01 00:{second // 60:02}:{second % 60:02}}}"
        return resolve(repository, moment).digest

    assert [as_of(second) for second in (100, 250, 300, 399, 400)] == [
        made[0], made[2], made[2], made[2], made[3],
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match="known from 1970-01-01 00:01:40 UTC on"):
        as_of(99)


@pytest.mark.parametrize("text", ["main@{soon}", "main@{}", "v1~@{yesterday}"])
def test_what_names_no_moment_of_a_ref_is_invalid(
    history: tuple[RepositoryCore, dict[str, Digest]], text: str
) -> None:
    with pytest.raises((InvalidInputError, NotFoundError)):
        resolve(history[0], text)


def test_a_name_that_is_branch_and_tag_is_the_branch_with_a_warning() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"}).digest
    second = commit_files(repository, {"files/a": b"two"}).digest
    refs.create_tag(repository, "main", first, actor=ADA)
    found = resolve(repository, "main")
    assert found.digest == second
    assert "both a branch and a tag" in str(found.warning)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("main:datasets/x", ("main", "datasets/x")),
        (":datasets/x", ("HEAD", "datasets/x")),
        ("main", ("main", None)),
        ("main:", ("main", "")),
    ],
)
def test_a_path_follows_the_colon(text: str, parts: tuple[str, str | None]) -> None:
    assert split_path(text) == parts

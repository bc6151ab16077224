"""Leases keep what no ref leads to, until they are closed."""

from __future__ import annotations

import pytest

from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.leases import MOST_CLOSED, close_leases, open_lease
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import CommitExpired, ConflictError, NotFoundError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.repositories import ADA, again, commit_files, new_repository
from tests.support.reference.collector import condemn, delete

NOW = 10**18
DAY_SECONDS = 86400.0


def stored(repository: RepositoryCore, content: bytes) -> Digest:
    writer = ObjectWriter(repository.objects, repository.log.refresh().state.graves)
    link = writer.put(Kind.BLOB, content)
    writer.flush()
    return link.digest


def opened(
    repository: RepositoryCore, name: str, *keep: Digest, since: int = 0, clock: int = NOW
) -> None:
    told = {"holder": ADA, "note": "test", "seconds": DAY_SECONDS, "clock": lambda: clock}
    open_lease(repository, name, keep, since=since, **told)


def collect(repository: RepositoryCore, *, close: bool = False) -> None:
    rules = CollectionRules(grace_seconds=0, close_leases=close)
    collect_garbage(repository, actor=ADA, rules=rules)


@pytest.fixture
def repository() -> RepositoryCore:
    made = new_repository()
    commit_files(made, {"files/a": b"a"})
    return made


def test_a_lease_keeps_what_it_names_until_it_is_closed(repository: RepositoryCore) -> None:
    kept, left = stored(repository, b"kept"), stored(repository, b"left")
    opened(repository, "one", kept)
    collect(repository)
    assert again(repository).objects.get(kept).payload == b"kept"
    with pytest.raises(NotFoundError):
        again(repository).objects.get(left)
    close_leases(repository, ["one", "never there"], holder=ADA)
    collect(repository)
    with pytest.raises(NotFoundError):
        again(repository).objects.get(kept)


def test_what_a_collection_condemned_before_the_lease_is_kept(repository: RepositoryCore) -> None:
    """Its deletions land when the lease is open already."""
    since, kept = repository.log.refresh().generation, stored(repository, b"kept")
    keys = condemn(again(repository))
    opened(repository, "late", kept, since=since)
    delete(repository, keys)
    assert again(repository).objects.get(kept).payload == b"kept"
    collect(again(repository))
    assert again(repository).objects.get(kept).payload == b"kept"


def test_no_lease_is_opened_on_what_was_collected_before(repository: RepositoryCore) -> None:
    gone, since = stored(repository, b"gone"), repository.log.refresh().generation
    collect(repository)
    with pytest.raises(CommitExpired, match=r"lease late.* was collected") as refused:
        opened(again(repository), "late", gone, since=since)
    assert (str(refused.value).count("collected"), str(refused.value).count("again")) == (1, 1)
    assert not again(repository).log.refresh().state.leases


def test_a_lease_says_who_holds_it_and_when_it_runs_out(repository: RepositoryCore) -> None:
    kept = stored(repository, b"kept")
    opened(repository, "one", kept, kept)
    lease = repository.log.refresh().state.leases["one"]
    assert (lease.holder, lease.keep) == (ADA, (kept,))
    assert lease.expires_ns == NOW + int(DAY_SECONDS * 10**9)


def test_one_that_is_opened_again_stays_and_keeps_nothing_else(repository: RepositoryCore) -> None:
    kept, other = stored(repository, b"kept"), stored(repository, b"other")
    opened(repository, "one", kept)
    generation = repository.log.refresh().generation
    opened(repository, "one", kept, clock=NOW + 1)
    assert repository.log.refresh().generation == generation
    with pytest.raises(ConflictError, match="open already"):
        opened(repository, "one", other)


def test_one_that_ran_out_is_closed_by_a_collection_that_is_told_to(
    repository: RepositoryCore,
) -> None:
    opened(repository, "old", stored(repository, b"kept"), clock=1)
    collect(repository)
    assert "old" in repository.log.refresh().state.leases
    collect(repository, close=True)
    assert not repository.log.refresh().state.leases


def test_many_are_closed_in_records_that_have_room(repository: RepositoryCore) -> None:
    kept = stored(repository, b"kept")
    names = [f"part-{number:059d}" for number in range(MOST_CLOSED + 5)]
    for name in names:
        opened(repository, name, kept)
    before = repository.log.refresh().generation
    close_leases(repository, names, holder="x" * 60 + " <x@example.org>")
    view = repository.log.refresh()
    assert not view.state.leases
    assert view.generation == before + 2

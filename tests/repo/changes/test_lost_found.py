"""Commits that no ref leads to are found, and kept from then on."""

from __future__ import annotations

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.lost_found import find_lost
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.incarnations import object_key
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, again, commit_files, files_at, new_repository
from tests.support.reference.collector import condemn, delete


def lose(repository: RepositoryCore) -> tuple[Digest, list[str]]:
    """Two commits of a branch that is gone and forgotten; the newer one, and keys of garbage."""
    commit_files(repository, {"files/a": b"kept"})
    commit_files(repository, {"files/b": b"one"}, branch="gone")
    newest = commit_files(repository, {"files/b": b"two"}, branch="gone").digest
    refs.delete_ref(repository, "heads/gone", actor=ADA)
    return newest, condemn(repository, release=[newest])


def test_a_lost_history_gets_a_name_and_outlives_the_collection() -> None:
    repository = new_repository()
    newest, keys = lose(repository)
    (found,) = find_lost(again(repository), actor=ADA)
    assert (found.digest, found.ref) == (newest, f"lost-found/{newest[:16]}")
    delete(repository, keys)
    fresh = again(repository)
    assert files_at(fresh, newest) == {"files/b": b"two"}
    verify(repository.backend)
    assert find_lost(fresh, actor=ADA) == []


def test_of_what_is_no_longer_whole_it_is_told_that_it_was_there() -> None:
    repository = new_repository()
    newest, keys = lose(repository)
    delete(repository, [key for key in keys if key != object_key(newest)])
    (found,) = find_lost(again(repository), actor=ADA)
    assert (found.digest, found.ref) == (newest, "")
    assert not [ref for ref in again(repository).log.refresh().state.refs if "lost" in ref]

"""History that ends at a commit ends there for everyone who walks."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_fence, merge_branches, refs
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.revisions import resolve
from tensorrepo.repo.changes.shallow import end_history
from tensorrepo.repo.changes.transaction import amend, begin
from tensorrepo.repo.errors import CommitExpired
from tensorrepo.repo.history.commits import (
    ahead_behind,
    best_common,
    encode_commit,
    is_ancestor,
    read_commit,
    walk,
)
from tensorrepo.repo.ids import Digest
from tests.support.builders.histories import extend_history
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    files_at,
    new_repository,
    tip_of,
)
from tests.support.reference.collection_replay import Interrupted
from tests.support.reference.collector import condemn, delete


def with_history(*names: str) -> tuple[RepositoryCore, list[Digest]]:
    """A branch with a commit for each of `names`: each adds the file of its name, and no more."""
    repository = new_repository()
    made = [commit_files(repository, {f"files/{name}": name.encode()}).digest for name in names]
    return repository, made


def collect(repository: RepositoryCore) -> None:
    retained = repository.log.refresh().state.retained
    delete(repository, condemn(repository, release=retained))


def test_history_ends_at_more_commits_than_a_record_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorrepo.repo.changes.shallow.MOST_ENDED", 2)
    repository, made = with_history("one", "two", "three", "four", "five", "six")
    before = repository.log.refresh().generation
    end_history(repository, made[1:], actor=ADA)
    view = repository.log.refresh()
    assert (view.state.shallow, view.generation) == ({*made[1:]}, before + 3)


def test_every_walk_ends_at_a_shallow_commit() -> None:
    repository, (one, two, three) = with_history("one", "two", "three")
    end_history(repository, [two], actor=ADA)
    objects = again(repository).objects
    repository.log.refresh()
    assert [digest for digest, _ in walk(repository.objects, [three])] == [three, two]
    assert not is_ancestor(repository.objects, one, three)
    assert best_common(repository.objects, [three], [one]) == ()
    assert ahead_behind(repository.objects, three, one) == (2, 1)
    state = repository.log.refresh().state
    reached = set(gc_fence.closure(repository.objects, [three], state.supersedes))
    assert one not in reached
    assert two in reached
    assert objects.shallow == frozenset(), "who has not read the log knows of no end"


def test_a_shallow_commit_keeps_its_name_and_tells_of_the_parents_it_had() -> None:
    repository, (one, two) = with_history("one", "two")
    whole = encode_commit(read_commit(repository.objects, two))
    end_history(repository, [two], actor=ADA)
    known = read_commit(repository.objects, two)
    assert (known.parents, known.beyond) == ((), (one,))
    assert encode_commit(known) == whole


def test_what_lies_before_is_garbage_and_the_rest_is_whole_without_it() -> None:
    repository, (one, two, three) = with_history("one", "two", "three")
    end_history(repository, [two], actor=ADA)
    collect(repository)
    fresh = again(repository)
    assert tip_of(fresh) == three
    assert files_at(fresh, three) == {
        f"files/{name}": name.encode() for name in ("one", "two", "three")
    }
    assert list(check_objects(fresh.objects, fresh.log.refresh().state, ObjectTotals())) == []
    assert list(fresh.objects.find(one)) == []


def test_what_another_ref_leads_to_stays() -> None:
    repository, (one, two) = with_history("one", "two")
    refs.create_tag(repository, "v1", one, actor=ADA)
    end_history(repository, [two], actor=ADA)
    collect(repository)
    assert files_at(again(repository), one) == {"files/one": b"one"}


def test_a_merge_whose_base_lies_beyond_says_so() -> None:
    repository, (one, two) = with_history("one", "two")
    refs.create_branch(repository, "dev", one, actor=ADA)
    dev = commit_files(repository, {"files/dev": b"dev"}, branch="dev").digest
    end_history(repository, [two], actor=ADA)
    with pytest.raises(CommitExpired, match=f"no common ancestor .* before commit {two:.12}"):
        merge_branches.merge(repository, "main", dev, author=ADA, message="merge")


def test_parents_and_changes_of_a_shallow_commit_are_said_to_be_gone() -> None:
    repository, (_, two) = with_history("one", "two")
    end_history(repository, [two], actor=ADA)
    with pytest.raises(CommitExpired, match="history ends there"):
        resolve(repository, "main~1")
    with pytest.raises(CommitExpired, match="history ends there"):
        merge_branches.revert(repository, "main", two, author=ADA)
    with pytest.raises(CommitExpired, match="history ends there"):
        amend(begin(repository, "main"), "again", author=ADA)


def test_a_ref_to_what_lies_before_goes_through_the_fence() -> None:
    repository, (one, two) = with_history("one", "two")
    end_history(repository, [two], actor=ADA)
    keys = condemn(repository)
    refs.create_branch(repository, "old", one, actor=ADA)
    delete(repository, keys)
    assert files_at(again(repository), one) == {"files/one": b"one"}


def test_a_revert_that_began_before_history_was_given_up_stores_again_what_it_took_from_there() -> (
    None
):
    backend = Interrupted(MemoryBackend())
    repository = new_repository(backend.inner)
    commit_files(repository, {"files/x": b"old", "files/y": b"y"})
    gone = commit_files(repository, {"files/x": None}).digest
    slow = open_repository(backend, drivers={})
    keys: list[str] = []

    def give_up() -> None:
        end_history(repository, [gone], actor=ADA)
        keys.extend(condemn(repository))

    backend.before_record = give_up
    made = merge_branches.revert(slow, "main", gone, author=ADA)
    assert keys, "what lay before was condemned in between"
    delete(repository, keys)
    assert made is not None
    assert files_at(again(repository), made.digest) == {"files/x": b"old", "files/y": b"y"}


def test_history_goes_on_again_where_it_was_taken_back_in_time() -> None:
    repository, (one, two) = with_history("one", "two")
    end_history(repository, [two], actor=ADA)
    keys = condemn(repository)
    extend_history(repository, [two], actor=ADA)
    delete(repository, keys)
    fresh = again(repository)
    tip = tip_of(fresh)
    assert tip is not None
    assert [digest for digest, _ in walk(fresh.objects, [tip])] == [two, one]
    assert files_at(fresh, one) == {"files/one": b"one"}


def test_history_that_was_collected_cannot_go_on() -> None:
    repository, (_, two) = with_history("one", "two")
    end_history(repository, [two], actor=ADA)
    collect(repository)
    fresh = again(repository)
    with pytest.raises(CommitExpired, match="collected"):
        extend_history(fresh, [two], actor=ADA)

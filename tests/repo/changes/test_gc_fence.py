"""A collection that runs beside a writer never takes what the writer commits."""

from __future__ import annotations

import pytest

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitExpired
from tensorrepo.repo.history.trees import Entry, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import object_key
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    files_at,
    new_repository,
    stage_files,
    tip_of,
)
from tests.support.reference.collector import condemn, condemn_keys, delete, supersede


def drop(repository: RepositoryCore, branch: str) -> Digest:
    """Delete a branch; gives the commit that it stood at."""
    return refs.delete_ref(repository, f"heads/{branch}", actor=ADA)


def open_lease(repository: RepositoryCore, name: str, digests: list[Digest]) -> None:
    data = {"id": name, "keep": digests, "expires": None}
    entry = LogEntry("a" * 32, "lease-open", ADA, 0, data=data)
    append(repository.log, lambda _: (entry,))


def test_a_collection_deletes_what_nothing_leads_to() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    commit_files(repository, {"files/b": b"dropped"}, branch="dead")
    dropped = drop(repository, "dead")
    delete(repository, condemn(repository, release=[dropped]))
    assert files_at(again(repository), tip_of(repository)) == {"files/a": b"kept"}
    assert repository.backend.size(object_key(dropped)) is None


def test_an_object_put_again_after_its_condemnation_lies_under_a_new_key() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"content"}, branch="dead")
    dropped = drop(repository, "dead")
    keys = condemn(repository, release=[dropped])
    made = commit_files(repository, {"files/a": b"content"})
    delete(repository, keys)
    assert files_at(again(repository), made.digest) == {"files/a": b"content"}


def test_what_was_put_before_a_condemnation_is_stored_again_before_the_commit() -> None:
    repository = new_repository()
    commit_files(repository, {"files/old": b"old"})
    slow = begin(repository, "main")
    stage_files(slow, {"files/a": b"content"})
    slow.objects.flush()
    keys = condemn(repository)
    made = slow.commit("slow", author=ADA)
    delete(repository, keys)
    assert made is not None
    assert files_at(again(repository), made.digest) == {"files/a": b"content", "files/old": b"old"}


def test_late_deletions_of_an_old_condemnation_hit_nothing_new() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"content"}, branch="dead")
    keys = condemn(repository, release=[drop(repository, "dead")])
    delete(repository, keys)
    made = commit_files(repository, {"files/a": b"content"})
    delete(repository, keys)
    delete(repository, keys)
    assert files_at(again(repository), made.digest) == {"files/a": b"content"}


def test_staged_digests_from_before_a_condemnation_are_copied() -> None:
    """A staging area of yesterday has digests only: any whole incarnation is copied."""
    repository = new_repository()
    commit_files(repository, {"files/x": b"x"})
    yesterday = begin(repository, "main")
    link = yesterday.objects.put(Kind.BLOB, b"staged")
    yesterday.objects.flush()
    pinned = yesterday.pin.generation
    keys = condemn(repository)
    today = begin(repository, "main", pin=repository.log.view_at(pinned))
    today.stage("files/staged", Entry(Kind.BLOB, link.digest), since=pinned)
    made = today.commit("today", author=ADA)
    delete(repository, keys)
    assert made is not None
    assert files_at(again(repository), made.digest)["files/staged"] == b"staged"


def test_staged_digests_that_were_collected_say_what_to_add_again() -> None:
    repository = new_repository()
    commit_files(repository, {"files/x": b"x"})
    yesterday = begin(repository, "main")
    link = yesterday.objects.put(Kind.BLOB, b"staged")
    yesterday.objects.flush()
    pinned = yesterday.pin.generation
    delete(repository, condemn(repository))
    forgetful = again(repository)
    today = begin(forgetful, "main", pin=forgetful.log.view_at(pinned))
    today.stage("files/staged", Entry(Kind.BLOB, link.digest), since=pinned)
    before = tip_of(repository)
    with pytest.raises(CommitExpired, match="Add or fetch it again"):
        today.commit("today", author=ADA)
    assert tip_of(repository) == before


def test_a_lease_keeps_what_it_names() -> None:
    repository = new_repository()
    commit_files(repository, {"files/x": b"x"})
    transaction = begin(repository, "main")
    link = transaction.objects.put(Kind.BLOB, b"leased")
    transaction.objects.flush()
    open_lease(repository, "mine", [link.digest])
    assert object_key(link.digest) not in condemn(repository)


def test_a_branch_at_a_dropped_commit_is_brought_back_whole() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    commit_files(repository, {"files/b": b"content"}, branch="dead")
    dropped = drop(repository, "dead")
    keys = condemn(repository, release=[dropped])
    refs.create_branch(repository, "back", dropped, actor=ADA)
    delete(repository, keys)
    assert files_at(again(repository), dropped) == {"files/b": b"content"}


def test_a_branch_at_a_collected_commit_is_refused() -> None:
    repository = new_repository()
    commit_files(repository, {"files/b": b"content"}, branch="dead")
    dropped = drop(repository, "dead")
    delete(repository, condemn(repository, release=[dropped]))
    with pytest.raises(CommitExpired):
        refs.create_branch(again(repository), "back", dropped, actor=ADA)


def test_a_retained_commit_can_be_named_again_at_no_cost() -> None:
    repository = new_repository()
    commit_files(repository, {"files/b": b"content"}, branch="dead")
    dropped = drop(repository, "dead")
    keys = condemn(repository)
    assert object_key(dropped) not in keys
    refs.create_branch(repository, "back", dropped, actor=ADA)
    assert files_at(again(repository), dropped) == {"files/b": b"content"}


def test_a_commit_on_a_repacked_model_needs_the_new_placement_alone() -> None:
    """After a repack the old placement and its packs die, and nobody misses them."""
    repository = new_repository()
    setup = begin(repository, "main")
    pack = setup.objects.put(Kind.PACK, b"tensors")
    old = setup.objects.put(Kind.PLACEMENT, b"old", [pack.digest])
    manifest = setup.objects.put(Kind.MODEL, b"manifest")
    setup.stage("models/m", Entry(Kind.MODEL, manifest.digest, old.digest))
    assert setup.commit("model", author=ADA) is not None
    slow = begin(repository, "main")
    stage_files(slow, {"files/note": b"note"})
    repack = begin(repository, "main")
    new_pack = repack.objects.put(Kind.PACK, b"tensors, packed better")
    new = repack.objects.put(Kind.PLACEMENT, b"new", [new_pack.digest])
    repack.objects.flush()
    supersede(repository, old.digest, new.digest)
    keys = condemn(repository)
    assert object_key(pack.digest) in keys
    delete(repository, keys)
    made = slow.commit("slow", author=ADA)
    delete(repository, keys)
    assert made is not None
    reader = again(repository)
    state = reader.log.refresh().state
    assert state.resolve(old.digest) == new.digest
    assert bytes(reader.objects.get(new_pack.digest).payload) == b"tensors, packed better"


def test_a_commit_that_reuses_what_was_condemned_by_mistake_stores_it_again() -> None:
    """With a supersede since the pin the whole reused closure is looked up, leaves and all."""
    repository = new_repository()
    setup = begin(repository, "main")
    old = setup.objects.put(Kind.PLACEMENT, b"old")
    manifest = setup.objects.put(Kind.MODEL, b"manifest")
    setup.stage("models/m", Entry(Kind.MODEL, manifest.digest, old.digest))
    assert setup.commit("model", author=ADA) is not None
    commit_files(repository, {"files/a": b"reused"})
    slow = begin(repository, "main")
    stage_files(slow, {"files/note": b"note"})
    new = begin(repository, "main").objects
    better = new.put(Kind.PLACEMENT, b"new")
    new.flush()
    supersede(repository, old.digest, better.digest)
    keys = [stored.key for stored in repository.backend.list("objects/")]
    reused = [key for key in keys if repository.backend.read(key).endswith(b"reused")]
    condemn_keys(repository, reused)
    made = slow.commit("slow", author=ADA)
    delete(repository, reused)
    assert made is not None
    entry = lookup(repository.objects, made.commit.tree, "files/a")
    assert entry is not None
    assert bytes(again(repository).objects.get(entry.digest).payload) == b"reused"


def test_what_is_staged_from_a_branch_that_is_collected_meanwhile_is_stored_again() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    other = commit_files(repository, {"files/b": b"borrowed"}, branch="dev")
    slow = begin(repository, "main")
    entry = lookup(repository.objects, other.commit.tree, "files/b")
    assert entry is not None
    slow.stage("files/b", entry)
    keys = condemn(repository, release=[drop(repository, "dev")])
    made = slow.commit("slow", author=ADA)
    delete(repository, keys)
    assert made is not None
    assert files_at(again(repository), made.digest) == {"files/a": b"kept", "files/b": b"borrowed"}


def test_what_was_adopted_and_is_collected_before_the_commit_is_stored_again() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"kept"})
    garbage = begin(repository, "main")
    garbage.objects.put(Kind.BLOB, b"twice")
    garbage.objects.flush()
    slow = begin(repository, "main")
    stage_files(slow, {"files/b": b"twice"})
    keys = condemn(repository)
    delete(repository, keys)
    made = slow.commit("slow", author=ADA)
    delete(repository, keys)
    assert made is not None
    assert files_at(again(repository), made.digest) == {"files/a": b"kept", "files/b": b"twice"}


def test_a_change_whose_base_was_collected_is_expired() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    commit_files(repository, {"files/a": b"two"})
    slow = begin(again(repository), "main")
    refs.undo(repository, "main", actor=ADA)
    delete(repository, condemn(repository, release=repository.log.refresh().state.retained))
    stage_files(slow, {"files/b": b"b"})
    with pytest.raises(CommitExpired, match="Stage it again"):
        slow.commit("slow", author=ADA)


def test_undo_to_a_collected_commit_is_expired() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    refs.delete_ref(repository, "heads/main", actor=ADA)
    delete(repository, condemn(repository, release=repository.log.refresh().state.retained))
    with pytest.raises(CommitExpired):
        refs.undo(again(repository), "main", actor=ADA)

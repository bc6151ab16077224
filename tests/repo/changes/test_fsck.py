"""What fsck proves of objects: all roots, links, incarnations, labels, and what is nobody's."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.damage_reach import find_needs
from tensorrepo.repo.changes.fsck import ObjectFault, ObjectTotals, check_objects
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.history.commits import Commit, encode_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, encode_object, stored_form
from tensorrepo.repo.objects.incarnations import object_key
from tests.support.builders.histories import to_disk
from tests.support.builders.repositories import ADA, again, commit_files, new_repository, tip_of
from tests.support.faults.damage import flipped
from tests.support.reference.collector import condemn, condemn_keys


@pytest.fixture
def made() -> RepositoryCore:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one" * 100, "files/b": b"two" * 100})
    return repository


def check(
    repository: RepositoryCore, totals: ObjectTotals | None = None, *, deep: bool = False
) -> list[ObjectFault]:
    core = again(repository)
    state = core.log.refresh().state
    return list(
        check_objects(
            core.objects,
            state,
            totals or ObjectTotals(),
            deep=deep,
            is_known=lambda key: key.startswith(("log/", "repo.json")),
        )
    )


def blob(repository: RepositoryCore, path: str) -> Digest:
    transaction = begin(repository, "main")
    entry = transaction.entry(path)
    assert entry is not None
    return entry.digest


def flip(backend: Backend, key: str) -> None:
    data = backend.read(key)
    backend.overwrite(key, (flipped(data, len(data) // 2, 1),))


def put(repository: RepositoryCore, kind: Kind, payload: bytes, *links: ObjectLink) -> ObjectLink:
    encoded = encode_object(kind, payload, links)
    repository.backend.create(object_key(encoded.link.digest), stored_form(encoded))
    return encoded.link


def keep(repository: RepositoryCore, *digests: Digest) -> None:
    """A lease on objects: what it keeps are roots."""
    data = {"id": "a", "keep": list(digests), "expires": None}
    append(repository.log, lambda _: (LogEntry("lease", "lease-open", ADA, 0, data=data),))


def test_a_check_of_small_files_on_a_disk_starts_no_thread(
    made: RepositoryCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk = open_repository(to_disk(made.backend, tmp_path), drivers={})
    monkeypatch.delattr(Thread, "start")
    assert [check(on_disk, deep=deep) for deep in (False, True)] == [[], []]


def test_a_commit_that_only_undo_would_take_up_is_checked(made: RepositoryCore) -> None:
    second = commit_files(made, {"files/a": b"three" * 100})
    refs.undo(made, "main", actor=ADA)
    made.backend.delete(object_key(second.digest))
    (fault,) = check(made)
    assert (fault.digest, fault.commit) == (second.digest, second.digest)


@pytest.mark.parametrize("kind", [Kind.BLOB, Kind.DATASET, Kind.REF_UPDATES])
def test_what_a_lease_keeps_is_checked_whatever_it_is(made: RepositoryCore, kind: Kind) -> None:
    link = put(made, kind, b"kept" * 50)
    keep(made, link.digest)
    assert check(made, deep=True) == []
    flip(made.backend, object_key(link.digest))
    (fault,) = check(made, deep=True)
    assert fault.digest == link.digest
    assert fault.needed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"bytes": 7}, "of 7 bytes"),
        ({"kind": Kind.PACK}, "a pack"),
        ({"leaf": False}, "that leads on"),
    ],
)
def test_a_link_that_says_what_its_target_is_not_is_told(
    made: RepositoryCore, changes: dict[str, object], says: str
) -> None:
    target = put(made, Kind.ROW_RUNS, b"target" * 30)
    lie = ObjectLink(
        **{name: changes.get(name, getattr(target, name)) for name in target.__slots__}
    )
    parent = put(made, Kind.DATASET, b"one that lies", lie)
    honest = put(made, Kind.DATASET, b"one that does not", target)
    keep(made, parent.digest, honest.digest)
    assert any(says in fault.problem for fault in check(made))


def test_a_commit_with_other_links_than_it_names_is_told(made: RepositoryCore) -> None:
    tip = tip_of(made)
    assert tip is not None
    envelope = made.objects.get(tip)
    commit = put(made, Kind.COMMIT, bytes(envelope.payload), *envelope.links[:1])
    keep(made, commit.digest)
    (fault,) = check(made)
    assert "its content names others" in fault.problem


def test_a_parent_that_is_younger_than_its_child_is_told(made: RepositoryCore) -> None:
    tip = tip_of(made)
    assert tip is not None
    parent = made.objects.get(tip).link(tip)
    child = Commit(b"\x02\x00\x00\x00", (tip,), 2, ADA, "ok", 0)
    grandchild = put(made, Kind.COMMIT, encode_commit(child), parent)
    wrong = Commit(b"\x02\x00\x00\x00", (grandchild.digest,), 2, ADA, "no", 0)
    commit = put(made, Kind.COMMIT, encode_commit(wrong), grandchild)
    keep(made, grandchild.digest, commit.digest)
    (fault,) = check(made)
    assert fault.digest == commit.digest
    assert "by its parents of 3" in fault.problem


def test_a_damaged_incarnation_beside_a_whole_one_is_told(made: RepositoryCore) -> None:
    tip = tip_of(made)
    assert tip is not None
    made.backend.create(object_key(tip, 1), (made.backend.read(object_key(tip)),))
    flip(made.backend, object_key(tip))
    (fault,) = check(made)
    assert "another incarnation of it is whole" in fault.problem


def test_what_is_nobodys_is_named_and_is_no_fault(made: RepositoryCore) -> None:
    digest, backend = blob(made, "files/a"), made.backend
    strange = ["notes.txt", "objects/readme", object_key(digest, 99)]
    for key in strange:
        backend.create(key, (backend.read(object_key(digest)),))
    totals = ObjectTotals()
    assert check(made, totals) == []
    assert sorted(totals.unknown) == sorted(strange)
    assert totals.unknown_count == len(strange)


def test_a_label_that_a_grave_explains_is_known(made: RepositoryCore) -> None:
    commit_files(made, {"files/dead": b"dead"}, branch="dead")
    dropped = refs.delete_ref(made, "heads/dead", actor=ADA)
    condemn(made, release=[dropped])
    commit_files(again(made), {"files/dead": b"dead"})
    totals = ObjectTotals()
    assert check(made, totals) == []
    assert totals.unknown == []


def test_what_a_collection_under_way_would_delete_though_it_is_needed_is_told(
    made: RepositoryCore,
) -> None:
    digest = blob(made, "files/a")
    condemn_keys(made, [object_key(digest)])
    (fault,) = check(made)
    assert fault.digest == digest
    assert "deletes it" in fault.problem


def test_damage_of_what_nothing_needs_is_found_by_reading_all(made: RepositoryCore) -> None:
    link = put(made, Kind.BLOB, b"left by a command that was cut off")
    assert check(made, deep=True) == []
    flip(made.backend, object_key(link.digest))
    assert check(made) == []
    (fault,) = check(made, deep=True)
    assert (fault.digest, fault.needed) == (link.digest, False)


def test_damage_behind_damage_may_be_needed(made: RepositoryCore) -> None:
    tip = tip_of(made)
    assert tip is not None
    for digest in (tip, blob(made, "files/a")):
        flip(made.backend, object_key(digest))
    assert {fault.needed for fault in check(made, deep=True)} == {True}


def test_all_entries_that_need_an_object_are_named(made: RepositoryCore) -> None:
    shared = blob(made, "files/a")
    with begin(made, "main") as transaction:
        transaction.stage("files/copy", Entry(Kind.BLOB, shared))
        transaction.commit("copy", author=ADA)
    commit_files(made, {"files/a": None})
    state = made.log.refresh().state
    needs = find_needs(made.objects, state, [shared, blob(made, "files/b")])
    assert {need.path for need in needs[shared]} == {"files/a", "files/copy"}
    assert {need.path for need in needs[blob(made, "files/b")]} == {"files/b"}


@pytest.mark.parametrize("deep", [False, True])
def test_a_check_reads_each_object_once(deep: bool) -> None:
    backend = MemoryBackend()
    repository = new_repository(backend)
    for number in range(5):
        commit_files(repository, {f"files/{n}": b"%d" % n for n in range(number + 3)})
    totals = ObjectTotals()
    assert check(repository, totals, deep=deep) == []
    stored = list(backend.list("objects/"))
    assert totals.objects == len(stored)
    assert totals.bytes == totals.stored_bytes == sum(each.bytes for each in stored)
    assert totals.commits == 5

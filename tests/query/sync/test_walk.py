"""A walk finds what is new, in segments of the log where there are some."""

from __future__ import annotations

from pathlib import Path

from tensorrepo.query.sync.catch_up import Walk
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.log.log_slots import segment_key
from tensorrepo.repo.log.past_commits import PastCommits
from tensorrepo.repo.log.reader import Form, RepositoryLog
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.repositories import commit_files, new_repository, tip_of

LENGTH, COMMITS = 16, 20


def none_known(_: object) -> set[str]:
    return set()


def long_history(folder: Path) -> tuple[RepositoryCore, PastCommits]:
    """A repository on a disk whose first 16 records are in a segment."""
    repository = new_repository(LocalBackend(folder))
    form = Form(segment_lengths=(LENGTH,))
    identity = repository.backend.read("repo.json")
    log = RepositoryLog(
        repository.backend, identity, lambda _: (), form=form, report=lambda _: None
    )
    object.__setattr__(repository, "log", log)
    for number in range(COMMITS):
        commit_files(repository, {f"files/{number % 3}": b"%d" % number})
    log.refresh()
    return repository, PastCommits(log)


def test_what_is_in_a_segment_is_not_asked_for_one_by_one(tmp_path: Path) -> None:
    repository, past = long_history(tmp_path)
    tip = tip_of(repository)
    assert tip is not None
    expected = list(walk(repository.objects, [tip]))
    near = MemoryObjects()  # has those alone that a walk reads before it looks at a segment
    for digest, _ in expected[: COMMITS - LENGTH]:
        envelope = repository.objects.get(digest)
        near.links |= {link.digest: link for link in envelope.links}
        near.put(envelope.kind, envelope.payload, [link.digest for link in envelope.links])
    found = list(Walk(near, none_known, frozenset(), past).new([tip]))
    assert [(one.digest, one.commit) for one in found] == expected


def test_a_damaged_segment_changes_nothing(tmp_path: Path) -> None:
    repository, past = long_history(tmp_path)
    segment = tmp_path / segment_key(LENGTH)
    damaged = bytearray(segment.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    segment.write_bytes(damaged)
    tip = tip_of(repository)
    assert tip is not None
    with_past, without = (
        list(Walk(repository.objects, none_known, frozenset(), each).new([tip]))
        for each in (past, None)
    )
    assert with_past == without
    assert len(without) == COMMITS

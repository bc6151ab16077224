"""Branches and tags move by one record each, and moves can be taken back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import ConflictError, NotFoundError
from tensorrepo.repo.log import append as append_module
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import LogEntry, Update
from tests.support.builders.repositories import ADA, BOB, commit_files, new_repository, tip_of


def test_a_branch_begins_where_it_is_told() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    refs.create_branch(repository, "dev", made.digest, actor=ADA)
    assert tip_of(repository, "dev") == made.digest


def test_a_name_that_is_taken_is_refused() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    with pytest.raises(ConflictError, match="exists already"):
        refs.create_branch(repository, "main", made.digest, actor=ADA)


def test_no_refusal_is_of_what_was_seen_before_others_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def waits(_: object, *, prepare: Callable[[], None], **__: object) -> nullcontext[None]:
        prepare()  # as who waits for its turn does, on what it saw last
        return nullcontext()

    repository = new_repository()
    commit_files(repository, {"files/a": b"1"})
    tip = tip_of(repository)
    refs.create_branch(repository, "dev", tip, actor=ADA)
    other = open_repository(repository.backend, drivers={})
    refs.delete_ref(other, "heads/dev", actor=BOB)
    monkeypatch.setattr(append_module, "turn_of", waits)
    refs.create_branch(repository, "dev", tip, actor=ADA)
    with pytest.raises(ConflictError, match="exists already"):
        refs.create_branch(other, "dev", tip, actor=BOB)


@pytest.mark.parametrize("name", ["main/sub", "m"])
def test_a_branch_cannot_be_a_folder_of_branches(name: str) -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"}, branch="m/x" if name == "m" else "main")
    with pytest.raises(ConflictError, match="beside"):
        refs.create_branch(repository, name, made.digest, actor=ADA)


def test_a_renamed_branch_keeps_its_commit() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    refs.rename_branch(repository, "main", "trunk", actor=ADA)
    assert (tip_of(repository), tip_of(repository, "trunk")) == (None, made.digest)


def test_undo_gives_a_renamed_branch_its_old_name_and_redo_the_new_one() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    refs.rename_branch(repository, "main", "trunk", actor=ADA)
    undone = refs.undo(repository, "trunk", actor=ADA)
    assert undone.renamed == Update("heads/main", None, made.digest)
    assert (tip_of(repository), tip_of(repository, "trunk")) == (made.digest, None)
    redone = refs.redo(repository, "main", actor=ADA)
    assert redone.renamed == Update("heads/trunk", None, made.digest)
    assert (tip_of(repository), tip_of(repository, "trunk")) == (None, made.digest)


def test_undo_takes_back_the_commits_after_a_rename_before_the_rename() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"})
    refs.rename_branch(repository, "main", "trunk", actor=ADA)
    commit_files(repository, {"files/a": b"two"}, branch="trunk")
    assert refs.undo(repository, "trunk", actor=ADA).renamed is None
    refs.undo(repository, "trunk", actor=ADA)
    assert (tip_of(repository), tip_of(repository, "trunk")) == (first.digest, None)


def test_a_rename_is_not_undone_over_a_name_that_was_given_away() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"})
    refs.rename_branch(repository, "main", "trunk", actor=ADA)
    refs.create_branch(repository, "main", first.digest, actor=ADA)
    with pytest.raises(ConflictError, match="renamed"):
        refs.undo(repository, "trunk", actor=ADA)
    assert (tip_of(repository), tip_of(repository, "trunk")) == (first.digest, first.digest)


def test_branches_of_two_transactions_in_one_record_are_no_rename() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    updates = Update("heads/new", None, made.digest), Update("heads/main", made.digest, None)
    entries = tuple(
        LogEntry(letter * 32, kind, ADA, 0, "", (update,))
        for letter, kind, update in zip("ab", ("ref-create", "ref-delete"), updates, strict=True)
    )
    repository.append(lambda _: entries)
    assert refs.undo(repository, "new", actor=ADA).renamed is None
    assert (tip_of(repository), tip_of(repository, "new")) == (None, None)


def test_a_tag_cannot_be_set_twice() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    refs.create_tag(repository, "v1", made.digest, actor=ADA)
    with pytest.raises(ConflictError):
        refs.create_tag(repository, "v1", made.digest, actor=ADA)


def test_deleting_what_is_not_there_says_so() -> None:
    with pytest.raises(NotFoundError, match="branch 'gone'"):
        refs.delete_ref(new_repository(), "heads/gone", actor=ADA)


def test_undo_steps_back_and_redo_forward_again() -> None:
    repository = new_repository()
    made = [commit_files(repository, {"files/a": b"%d" % at}).digest for at in range(3)]
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == made[1]
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == made[0]
    refs.redo(repository, "main", actor=ADA)
    assert tip_of(repository) == made[1]
    refs.redo(repository, "main", actor=ADA)
    assert tip_of(repository) == made[2]


def test_undo_of_the_first_commit_leaves_a_branch_without_commits() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) is None
    refs.redo(repository, "main", actor=ADA)
    assert tip_of(repository) == made.digest


def test_a_commit_after_an_undo_ends_what_can_be_redone() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    commit_files(repository, {"files/a": b"two"})
    refs.undo(repository, "main", actor=ADA)
    commit_files(repository, {"files/a": b"three"})
    with pytest.raises(NotFoundError, match="nothing to redo"):
        refs.redo(repository, "main", actor=ADA)


def test_undo_of_somebody_elses_change_is_refused_and_names_them() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    commit_files(repository, {"files/a": b"two"}, author=BOB)
    with pytest.raises(ConflictError, match="Bob"):
        refs.undo(repository, "main", actor=ADA)


def test_the_reflog_leaves_out_what_had_no_effect() -> None:
    """A server that groups transactions appends also what lost: two people moved main alike."""
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"})
    second = commit_files(repository, {"files/a": b"two"}, branch="side")
    move = Update("heads/main", first.digest, second.digest)
    late = Update("heads/main", None, second.digest)
    entries = (
        LogEntry("a" * 32, "ref-reset", ADA, 0, "", (move,)),
        LogEntry("b" * 32, "ref-reset", BOB, 0, "", (move,)),
        LogEntry("c" * 32, "ref-create", BOB, 0, "", (late,)),
    )
    appended = append(repository.log, lambda _: entries, allow_void=True)
    assert [verdict.applied for verdict in appended.verdicts] == [True, False, False]
    moves = list(refs.reflog(repository, "heads/main"))
    assert [(move.entry.actor, move.update.old) for move in moves] == [
        (ADA, first.digest),
        (ADA, None),
    ]
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == first.digest


def test_the_reflog_tells_every_place_of_a_branch() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"}).digest
    second = commit_files(repository, {"files/a": b"two"}).digest
    commit_files(repository, {"files/z": b"x"}, branch="other")
    refs.reset_branch(repository, "main", first, actor=ADA)
    moves = [(move.update.old, move.update.new) for move in refs.reflog(repository, "heads/main")]
    assert moves == [(second, first), (first, second), (None, first)]


def test_a_commit_whose_subject_reads_like_an_undo_is_none() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    second = commit_files(repository, {"files/a": b"two"}).digest
    commit_files(repository, {"files/a": b"three"}, message="undo 2")
    with pytest.raises(NotFoundError, match="nothing to redo"):
        refs.redo(repository, "main", actor=ADA)
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == second


def test_a_reset_whose_note_reads_like_an_undo_is_none() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"one"}).digest
    second = commit_files(repository, {"files/a": b"two"}).digest
    refs.reset_branch(repository, "main", first, actor=ADA, note="undo 2")
    with pytest.raises(NotFoundError, match="nothing to redo"):
        refs.redo(repository, "main", actor=ADA)
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == second


def test_undo_of_a_deletion_is_refused_where_the_name_cannot_be() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"}, branch="a")
    refs.delete_ref(repository, "heads/a", actor=ADA)
    commit_files(repository, {"files/b": b"two"}, branch="a/b")
    with pytest.raises(ConflictError, match="beside"):
        refs.undo(repository, "a", actor=ADA)


def test_a_branch_deleted_by_mistake_comes_back_with_undo() -> None:
    repository = new_repository()
    made = commit_files(repository, {"files/a": b"one"})
    refs.delete_ref(repository, "heads/main", actor=ADA)
    refs.undo(repository, "main", actor=ADA)
    assert tip_of(repository) == made.digest

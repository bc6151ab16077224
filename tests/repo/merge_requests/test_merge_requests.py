"""Merge requests: proposed, talked about, approved, checked, and merged in one record."""

from __future__ import annotations

import threading

import pytest

from tensorrepo.repo.changes import refs, rules
from tensorrepo.repo.changes.merge_branches import merge
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
)
from tensorrepo.repo.history.commits import is_ancestor
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import BranchRule
from tensorrepo.repo.merge_requests import editing, merging, records
from tensorrepo.repo.merge_requests.records import MergeRequest
from tests.support.builders.repositories import (
    ADA,
    BOB,
    again,
    commit_files,
    files_at,
    new_repository,
    tip_of,
)

MAIN, SIDE = "heads/main", "heads/side"


def _proposed(files: dict[str, bytes | None] | None = None) -> tuple[RepositoryCore, Digest]:
    """A repository with a request of Bob's, and the commit that it proposes."""
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    base = tip_of(repository)
    assert base is not None
    refs.create_branch(repository, "side", base, actor=BOB)
    head = commit_files(repository, files or {"files/b": b"b"}, branch="side", author=BOB).digest
    _open(repository)
    return repository, head


def _open(repository: RepositoryCore, title: str = "More") -> MergeRequest:
    return editing.open_request(
        repository, source=SIDE, target=MAIN, title=title, text="Because.", author=BOB
    )


def _found(repository: RepositoryCore, number: int = 1) -> MergeRequest:
    view = repository.log.refresh()
    return records.find_request(repository.objects, view, number)


def test_a_proposal_is_a_ref_and_a_file() -> None:
    repository, head = _proposed()
    state = repository.log.refresh().state
    assert state.refs["requests/1/head"] == head
    request = _found(again(repository))
    assert (request.title, request.author, request.source, request.state) == (
        "More", BOB, SIDE, "open",
    )  # fmt: skip


def test_a_merge_moves_the_target_and_closes_in_one_record() -> None:
    repository, head = _proposed()
    commit_files(repository, {"files/c": b"c"})
    before = repository.log.refresh().generation
    merged = merging.merge_request(repository, 1, author=ADA)
    assert repository.log.refresh().generation == before + 1
    tip = tip_of(repository)
    assert files_at(repository, tip) == {"files/a": b"a", "files/b": b"b", "files/c": b"c"}
    assert merged.ended is not None
    assert (merged.state, merged.ended.by, merged.ended.commit) == ("merged", ADA, tip)
    assert _found(again(repository)) == merged
    assert is_ancestor(repository.objects, head, tip or head)


def test_what_conflicts_changes_nothing() -> None:
    repository, _ = _proposed({"files/a": b"theirs"})
    commit_files(repository, {"files/a": b"ours"})
    before = repository.log.refresh()
    told = "'side' into 'main': files/a: .* Merge 'main' into 'side', decide there"
    with pytest.raises(ConflictError, match=told):
        merging.merge_request(repository, 1, author=ADA)
    looked = merging.look_at(repository, before, _found(repository))
    assert [each.path for each in looked.conflicts] == ["files/a"]
    assert repository.log.refresh().generation == before.generation


def test_what_is_merged_or_closed_is_not_merged_again() -> None:
    repository, _ = _proposed()
    editing.close_request(repository, 1, author=BOB)
    with pytest.raises(ConflictError, match="closed"):
        merging.merge_request(repository, 1, author=ADA)
    editing.reopen_request(repository, 1, author=BOB)
    merging.merge_request(repository, 1, author=ADA)
    with pytest.raises(ConflictError, match="merged"):
        merging.merge_request(repository, 1, author=ADA)


def test_what_the_target_has_by_now_is_merged_without_a_move() -> None:
    repository, head = _proposed()
    merge(repository, "main", head, author=ADA, message="by hand")
    tip = tip_of(repository)
    assert merging.merge_request(repository, 1, author=ADA).state == "merged"
    assert tip_of(repository) == tip


def test_a_target_that_is_gone_is_told_by_its_name_and_nothing_is_merged() -> None:
    repository, _ = _proposed()
    tip = tip_of(repository)
    refs.create_branch(repository, "kept", tip, actor=ADA)
    refs.delete_ref(repository, MAIN, actor=ADA)
    told = "branch 'main', into which merge request 1 is to come, is gone"
    with pytest.raises(NotFoundError, match=told):
        merging.look_at(repository, repository.log.refresh(), _found(repository))
    with pytest.raises(NotFoundError, match=told):
        merging.merge_request(repository, 1, author=ADA)
    assert editing.close_request(repository, 1, author=BOB).state == "closed"


def test_only_what_somebody_looked_at_is_merged() -> None:
    repository, head = _proposed()
    commit_files(repository, {"files/evil": b"x"}, branch="side", author=BOB)
    editing.update_head(repository, 1, author=BOB)
    with pytest.raises(ConflictError, match="look at it again"):
        merging.merge_request(repository, 1, author=ADA, head=head)


def test_a_push_to_the_source_changes_no_proposal() -> None:
    repository, _ = _proposed()
    commit_files(repository, {"files/evil": b"x"}, branch="side", author=BOB)
    merging.merge_request(repository, 1, author=ADA)
    assert "files/evil" not in files_at(repository, tip_of(repository))


def test_approvals_are_for_one_commit_and_one_voice_each() -> None:
    repository, head = _proposed()
    editing.add_review(repository, 1, "reject", commit=head, author=ADA)
    request = editing.add_review(repository, 1, "approve", commit=head, author=ADA)
    (review,) = request.reviews
    assert (review.author, review.verdict, review.commit) == (ADA, "approve", head)
    commit_files(repository, {"files/d": b"d"}, branch="side", author=BOB)
    assert editing.update_head(repository, 1, author=BOB).reviews == (review,)
    with pytest.raises(ConflictError, match="look at it again"):
        editing.add_review(repository, 1, "approve", commit=head, author=ADA)


def test_a_required_check_must_have_passed_on_this_very_commit() -> None:
    repository, head = _proposed()
    rules.set_rule(repository, BranchRule("main", checks=("quality",)), actor=ADA)
    with pytest.raises(PermissionDenied, match="quality"):
        merging.merge_request(repository, 1, author=ADA)
    editing.report_check(repository, 1, "quality", "failed", commit=head, reporter=ADA)
    with pytest.raises(PermissionDenied, match="quality"):
        merging.merge_request(repository, 1, author=ADA)
    editing.report_check(repository, 1, "quality", "passed", commit=head, reporter=ADA)
    assert merging.merge_request(repository, 1, author=ADA).state == "merged"


def test_a_check_of_an_older_proposal_does_not_count() -> None:
    repository, head = _proposed()
    rules.set_rule(repository, BranchRule("main", checks=("quality",)), actor=ADA)
    editing.report_check(repository, 1, "quality", "passed", commit=head, reporter=ADA)
    commit_files(repository, {"files/evil": b"x"}, branch="side", author=BOB)
    editing.update_head(repository, 1, author=BOB)
    with pytest.raises(PermissionDenied, match="quality"):
        merging.merge_request(repository, 1, author=ADA)


def test_who_may_not_move_the_target_does_not_merge() -> None:
    repository, _ = _proposed()
    rules.set_rule(repository, BranchRule("main", pushers=(ADA,)), actor=ADA)
    before = repository.log.refresh().generation
    with pytest.raises(PermissionDenied, match="only"):
        merging.merge_request(repository, 1, author=BOB)
    assert repository.log.refresh().generation == before
    assert _found(repository).state == "open"


def test_a_signed_target_is_told_its_head_and_takes_the_merge_of_who_signs() -> None:
    repository, head = _proposed()
    commit_files(repository, {"files/c": b"c"})
    rules.set_rule(repository, BranchRule("main", signed=True), actor=ADA)
    tip = tip_of(repository)
    with pytest.raises(ConflictError, match=str(tip)):
        merging.merge_request(repository, 1, author=ADA)
    unsigned = _merged_on_a_branch(repository, head)
    with pytest.raises(PermissionDenied, match="signed"):
        merging.merge_request(repository, 1, author=ADA, commit=unsigned)
    rules.remove_rule(repository, "main", actor=ADA)
    merged = merging.merge_request(repository, 1, author=ADA, commit=unsigned)
    assert tip_of(repository) == unsigned
    assert merged.ended is not None
    assert merged.ended.commit == unsigned


def _merged_on_a_branch(repository: RepositoryCore, head: Digest) -> Digest:
    """A merge of main and the head that somebody made on a branch of their own."""
    tip = tip_of(repository)
    assert tip is not None
    refs.create_branch(repository, "mine", tip, actor=ADA)
    made = merge(repository, "mine", head, author=ADA, message="mine")
    assert made.committed is not None
    return made.committed.digest


def test_a_merge_of_something_else_is_not_taken() -> None:
    repository, _ = _proposed()
    tip = tip_of(repository)
    other = commit_files(repository, {"files/z": b"z"}, branch="other").digest
    with pytest.raises(ConflictError, match="history"):
        merging.merge_request(repository, 1, author=ADA, commit=other)
    assert tip_of(repository) == tip


def test_one_branch_is_proposed_for_another_once_at_a_time() -> None:
    repository, _ = _proposed()
    with pytest.raises(ConflictError, match="merge request 1 proposes 'side' for 'main' already"):
        _open(repository, "Once more")
    tip = tip_of(repository)
    assert tip is not None
    refs.create_branch(repository, "release", tip, actor=BOB)
    other = editing.open_request(
        repository, source=SIDE, target="heads/release", title="Elsewhere", text="", author=BOB
    )
    editing.close_request(repository, 1, author=BOB)
    second = _open(repository, "Once more")
    assert (other.number, second.number) == (2, 3)
    with pytest.raises(ConflictError, match="merge request 3 proposes 'side' for 'main' already"):
        editing.reopen_request(repository, 1, author=BOB)
    editing.close_request(repository, 3, author=BOB)
    assert editing.reopen_request(repository, 1, author=BOB).state == "open"


def test_nothing_to_merge_is_no_proposal() -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    tip = tip_of(repository)
    assert tip is not None
    refs.create_branch(repository, "side", tip, actor=BOB)
    with pytest.raises(ConflictError, match="'main' has all that 'side' has: there is nothing"):
        _open(repository)
    with pytest.raises(NotFoundError, match="there is no branch 'none'"):
        editing.open_request(
            repository, source="heads/none", target=MAIN, title="x", text="", author=BOB
        )


def test_two_who_comment_at_once_lose_no_word() -> None:
    repository, _ = _proposed()

    def say(name: str) -> None:
        for number in range(5):
            editing.add_comment(again(repository), 1, f"{name}{number}", author=ADA)

    threads = [threading.Thread(target=say, args=(name,)) for name in "xy"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    texts = {comment.text for comment in _found(repository).comments}
    assert texts == {f"{name}{number}" for name in "xy" for number in range(5)}


def test_a_number_is_given_once() -> None:
    repository, _ = _proposed()
    editing.close_request(repository, 1, author=BOB)
    assert _open(repository, "again").number == 2


@pytest.mark.parametrize(
    "change",
    [
        {"title": " "},
        {"title": "a\u202eb"},
        {"title": "a\nb"},
        {"text": "x" * (1 << 17)},
        {"source": "tags/v1"},
        {"target": "heads/../x"},
        {"state": "closed"},
    ],
    ids=str,
)
def test_what_deceives_or_is_too_long_is_not_written(change: dict[str, str]) -> None:
    good = MergeRequest(1, "t", SIDE, MAIN, BOB, 0)
    with pytest.raises(InvalidInputError):
        records.encode_request(MergeRequest(**{**_fields(good), **change}))


def _fields(request: MergeRequest) -> dict[str, object]:
    return {name: getattr(request, name) for name in request.__struct_fields__}


def test_a_file_that_somebody_damaged_is_told() -> None:
    data = records.encode_request(MergeRequest(1, "t", SIDE, MAIN, BOB, 0))
    assert records.decode_request(data, "x").title == "t"
    with pytest.raises(CorruptError, match=r"^x: "):
        records.decode_request(data[:-9], "x")
    with pytest.raises(CorruptError, match="version 0"):
        records.decode_request(data.replace(b'"version": 1', b'"version": 0'), "x")

"""A branch with a rule moves as the rule allows, whichever verb moves it; nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tensorrepo.repo.changes import refs, rules
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import CheckRun, ClientPolicy
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.signatures import SshSigner, commit_signatory
from tensorrepo.repo.log.branch_rules import BranchRule, rules_problem
from tensorrepo.repo.log.records import LogEntry, Update, encode_ref_updates
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.repositories import ADA, BOB, commit_files, new_repository, tip_of

ADAS, BOBS = (
    SshSigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in (1, 2)
)


def ruled(*demands: BranchRule) -> RepositoryCore:
    """A repository with one commit of main, signers ada and bob, and these rules."""
    repository = new_repository()
    commit_files(repository, {"files/a": b"one"})
    rules.add_signer(repository, "ada", ADAS.public_key, actor=ADA)
    rules.add_signer(repository, "bob", BOBS.public_key, actor=ADA)
    for rule in demands:
        rules.set_rule(repository, rule, actor=ADA)
    return repository


def signing(repository: RepositoryCore, signer: SshSigner) -> RepositoryCore:
    return replace(repository, policy=replace(repository.policy, signer=lambda: signer))


def test_rules_are_kept_with_the_repository_and_make_older_clients_read_only() -> None:
    rule = BranchRule("main", ("ada@example.org",), True, True, ("ada",), ("tests",))
    state = ruled(rule).log.refresh().state
    assert rules.rules_of(state) == [rule]
    assert list(state.config["features"]) == ["branch-rules"]  # type: ignore[arg-type]


FORBIDDEN: list[Callable[[RepositoryCore], object]] = [
    lambda repository: commit_files(repository, {"files/a": b"two"}, author=BOB),
    lambda repository: refs.reset_branch(repository, "main", side(repository), actor=BOB),
    lambda repository: refs.delete_ref(repository, "heads/main", actor=BOB),
    lambda repository: refs.rename_branch(repository, "main", "other", actor=BOB),
]


def side(repository: RepositoryCore) -> str:
    return commit_files(repository, {"files/b": b"side"}, branch="side", author=BOB).digest


@pytest.mark.parametrize("move", FORBIDDEN)
def test_only_those_who_are_named_move_a_branch(move: Callable[[RepositoryCore], object]) -> None:
    repository = ruled(BranchRule("main", pushers=(ADA,)))
    before = tip_of(repository)
    with pytest.raises(PermissionDenied, match=r"only .* may move it"):
        move(repository)
    assert tip_of(repository) == before
    assert commit_files(repository, {"files/a": b"two"}, author=ADA).digest == tip_of(repository)


@pytest.mark.parametrize("move", FORBIDDEN[1:])
def test_a_branch_that_moves_forward_is_not_reset_renamed_or_deleted(
    move: Callable[[RepositoryCore], object],
) -> None:
    repository = ruled(BranchRule("main", fast_forward=True))
    before = tip_of(repository)
    with pytest.raises(PermissionDenied, match=r"forward|deleted"):
        move(repository)
    assert tip_of(repository) == before
    commit_files(repository, {"files/a": b"two"}, author=BOB)


@pytest.mark.parametrize(
    ("signer", "refused"),
    [(None, "not signed"), (BOBS, "nobody is known"), (ADAS, None)],
)
def test_a_signed_branch_takes_commits_of_its_signers(
    signer: SshSigner | None, refused: str | None
) -> None:
    repository = ruled(BranchRule("main", signed=True, signers=("ada",)))
    mine = repository if signer is None else signing(repository, signer)
    if refused is None:
        made = commit_files(mine, {"files/a": b"two"})
        allowed = rules.listed_signers(repository.log.refresh().state)
        found = commit_signatory(read_commit(repository.objects, made.digest), allowed)
        assert (found.state, found.name) == ("good", "ada")
        return
    with pytest.raises(PermissionDenied, match=refused):
        commit_files(mine, {"files/a": b"two"})


def test_every_commit_that_comes_onto_a_signed_branch_is_looked_at() -> None:
    repository = ruled(BranchRule("main", signed=True))
    unsigned = commit_files(repository, {"files/b": b"1"}, branch="side").digest
    tip = commit_files(signing(repository, ADAS), {"files/b": b"2"}, branch="side").digest
    with pytest.raises(PermissionDenied, match=f"{unsigned:.12}.*not signed"):
        refs.reset_branch(repository, "main", tip, actor=ADA)


def test_what_the_user_trusts_goes_before_what_the_repository_lists() -> None:
    repository = ruled(BranchRule("main", signed=True))
    trusting = replace(repository, policy=ClientPolicy(allowed={"bob": BOBS.public_key}))
    with pytest.raises(PermissionDenied, match="nobody is known"):
        commit_files(signing(trusting, ADAS), {"files/a": b"two"})
    commit_files(signing(trusting, BOBS), {"files/a": b"two"})


def test_a_check_is_asked_of_this_base_and_this_commit() -> None:
    asked: list[CheckRun] = []
    repository = ruled(BranchRule("ma*", checks=("tests",)))
    before = tip_of(repository)
    with pytest.raises(PermissionDenied, match=r"config check\.tests"):
        commit_files(repository, {"files/a": b"two"})
    checked = replace(repository, policy=ClientPolicy(run_check=asked.append))
    made = commit_files(checked, {"files/a": b"two"})
    assert asked == [CheckRun("tests", "heads/main", before, made.digest)]


def test_a_check_that_fails_leaves_the_branch_where_it_is() -> None:
    def fail(run: CheckRun) -> None:
        raise PermissionDenied(f"{run.name} failed")

    repository = ruled(BranchRule("main", checks=("tests",)))
    before = tip_of(repository)
    checked = replace(repository, policy=ClientPolicy(run_check=fail))
    with pytest.raises(PermissionDenied, match="tests failed"):
        commit_files(checked, {"files/a": b"two"})
    assert tip_of(repository) == before
    rules.remove_rule(repository, "main", actor=ADA)
    commit_files(checked, {"files/a": b"two"})


def test_a_signer_that_a_rule_needs_stays() -> None:
    repository = ruled(BranchRule("main", signed=True, signers=("ada",)))
    with pytest.raises(InvalidInputError, match="main needs signer 'ada'"):
        rules.remove_signer(repository, "ada", actor=ADA)
    rules.remove_signer(repository, "bob", actor=ADA)
    with pytest.raises(NotFoundError, match="Did you mean ada"):
        rules.set_rule(repository, BranchRule("x", signed=True, signers=("adda",)), actor=ADA)


@pytest.mark.parametrize(
    "value",
    [[], {"main": []}, {"main": {"hook": "rm -rf /"}}, {"main": {"checks": "x"}},
     {"main": {"signed": 1}}, {"a..b": {"signed": True}}, {"main": {"pushers": [""]}}],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_every_reader(value: object) -> None:
    assert rules_problem(value) is not None


def test_tags_are_signed_and_told_from_others() -> None:
    repository = ruled()
    tip = tip_of(repository)
    assert tip is not None
    refs.create_tag(repository, "plain", tip, actor=ADA)
    refs.create_tag(signing(repository, ADAS), "v1", tip, actor=ADA)
    assert refs.tag_signatory(repository, "plain").state == "none"
    found = refs.tag_signatory(repository, "v1")
    assert (found.state, found.name) == ("good", "ada")


def test_updates_that_lie_in_an_object_are_looked_at_as_others_are() -> None:
    repository = ruled(BranchRule("main", fast_forward=True))
    before = tip_of(repository)
    update = Update("heads/main", before, None)
    writer = ObjectWriter(repository.objects, ())
    bulk = writer.put(Kind.REF_UPDATES, encode_ref_updates([update]))
    writer.flush()
    entry = LogEntry("many", "ref-delete", ADA, 1, bulk=bulk.digest)
    with pytest.raises(PermissionDenied, match="deleted"):
        repository.append(lambda _: (entry,))
    assert tip_of(repository) == before


def test_what_a_rule_replaces_is_given_back() -> None:
    repository = ruled()
    first, second = BranchRule("main", fast_forward=True), BranchRule("main", signed=True)
    assert rules.set_rule(repository, first, actor=ADA) is None
    assert rules.set_rule(repository, second, actor=ADA) == first
    assert rules.rules_of(repository.log.refresh().state) == [second]

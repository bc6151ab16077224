"""Expiry keeps what its rule says, and says what else it cuts."""

from __future__ import annotations

from typing import Any

import pytest

from tensorrepo.repo.changes import expire as expiring
from tensorrepo.repo.changes import refs, rules
from tensorrepo.repo.changes.expire import expire, expire_kept, parse_keep, plan_expiry, plan_kept
from tensorrepo.repo.changes.gc_collect import CollectionRules, collect_garbage
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CommitExpired, InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.log.branch_rules import KEEP_FEATURE, BranchRule, KeepRule, keep_rules_problem
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    new_repository,
    stage_files,
)

DAY_NS = 86_400 * 10**9
NOW_NS = 1_000 * DAY_NS


def commit_at(repository: RepositoryCore, days_ago: int) -> str:
    """A commit that tells a time so long ago."""
    transaction = begin(repository, "main")
    stage_files(transaction, {"files/a": b"%d" % days_ago})
    made = transaction.commit("change", author=ADA, clock=lambda: NOW_NS - days_ago * DAY_NS)
    assert made is not None
    return made.digest


def aged(*days_ago: int) -> tuple[RepositoryCore, list[str]]:
    """A repository with a commit of each age, the oldest first."""
    repository = new_repository()
    return repository, [commit_at(repository, days) for days in days_ago]


@pytest.mark.parametrize(
    ("text", "kept"),
    [("1", 1), ("3", 3), ("99", 5), ("2d", 2), ("2d,3", 3), ("30d,1", 4), ("0d", 1)],
)
def test_a_branch_keeps_what_either_part_of_the_rule_keeps(text: str, kept: int) -> None:
    repository, commits = aged(90, 30, 10, 2, 1)
    expiry = plan_expiry(repository, "main", parse_keep(text), now_ns=NOW_NS)
    assert (expiry.kept, expiry.given_up) == (kept, 5 - kept)
    assert expiry.ends == ((commits[-kept],) if kept < 5 else ())
    assert len(list(walk(repository.objects, [commits[-1]]))) == 5, "a plan changes nothing"


def test_what_expired_is_collected_and_other_branches_are_named() -> None:
    repository, commits = aged(30, 20, 10)
    refs.create_branch(repository, "other", commits[2], actor=ADA)
    rule = KeepRule(newest=2)
    expiry = expire(repository, "main", rule, actor=ADA, now_ns=NOW_NS)
    assert expiry.shortens == ("heads/other",)
    rules = CollectionRules(grace_seconds=0, retention_seconds=0)
    collect_garbage(repository, actor=ADA, rules=rules)
    fresh = again(repository)
    fresh.log.refresh()
    assert [digest for digest, _ in walk(fresh.objects, [commits[2]])] == commits[:0:-1]
    with pytest.raises(CommitExpired):
        again(repository).objects.get(commits[0])


def test_a_branch_that_is_not_there_is_answered_with_near_ones() -> None:
    repository, _ = aged(1)
    with pytest.raises(NotFoundError, match=r"no branch 'mian'.*Did you mean main\?"):
        plan_expiry(repository, "mian", KeepRule(), now_ns=NOW_NS)
    with pytest.raises(NotFoundError, match=r"There is main\."):
        plan_expiry(repository, "zzz", KeepRule(), now_ns=NOW_NS)


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "30d,,1", "30d;1"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_keep(text)


def test_undo_to_a_commit_that_was_collected_says_so() -> None:
    repository = new_repository()
    first = commit_files(repository, {"files/a": b"1"})
    refs.create_branch(repository, "b", first.digest, actor=ADA)
    commit_files(repository, {"files/a": b"2"}, branch="b")
    refs.undo(repository, "b", actor=ADA)
    rules = CollectionRules(grace_seconds=0, retention_seconds=0)
    collect_garbage(repository, actor=ADA, rules=rules)
    with pytest.raises(CommitExpired, match=r"cannot redo: commit .* branch 'b' .* collected"):
        refs.redo(again(repository), "b", actor=ADA)


def test_rules_of_branches_say_what_a_collection_gives_up() -> None:
    repository, commits = aged(90, 30, 10, 2, 1)
    refs.create_branch(repository, "release/1", commits[3], actor=ADA)
    refs.create_branch(repository, "side", commits[1], actor=ADA)
    for pattern, keep in (("*", "99"), ("main", "1"), ("release/*", "1"), ("release/1", "5d,2")):
        rules.set_rule(repository, BranchRule(pattern, keep=parse_keep(keep)), actor=ADA)
    # Of what main would give up, release/1 keeps two; side keeps what it has, which is older.
    planned = plan_kept(repository, now_ns=NOW_NS)
    assert planned == ()
    rules.remove_rule(repository, "*", actor=ADA)
    done = expire_kept(repository, actor=ADA, now_ns=NOW_NS)
    assert [(each.branch, each.kept, each.given_up) for each in done] == [
        ("main", 3, 2),
        ("release/1", 2, 2),
    ]
    assert {end for each in done for end in each.ends} == {commits[2]}
    assert plan_kept(repository, now_ns=NOW_NS) == ()


def test_what_many_branches_give_up_is_found_by_one_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    repository, commits = aged(*range(30))
    names = [f"team/{at}" for at in range(20)]
    for name in names:
        refs.create_branch(repository, name, commits[20], actor=ADA)
    rules.set_rule(repository, BranchRule("team/*", keep=KeepRule(newest=5)), actor=ADA)
    walked: list[int] = []
    walks = expiring.walk

    def counted(*args: Any) -> Any:
        for each in walks(*args):
            walked.append(1)
            yield each

    monkeypatch.setattr(expiring, "walk", counted)
    planned = plan_kept(repository, now_ns=NOW_NS)
    assert [(each.branch, each.kept, each.ends) for each in planned] == [
        (name, 5, (commits[16],)) for name in sorted(names)
    ]
    assert planned[0].shortens == ("heads/main", *(f"heads/{name}" for name in sorted(names)[1:]))
    assert len(walked) <= 21 + 30


def test_a_rule_of_what_is_kept_makes_older_clients_read_only_and_stands_beside_others() -> None:
    repository, _ = aged(1)
    rule = BranchRule("main", fast_forward=True, keep=parse_keep("30d,100"))
    rules.set_rule(repository, rule, actor=ADA)
    state = repository.log.refresh().state
    assert rules.rules_of(state) == [rule]
    assert KEEP_FEATURE in state.config["features"]  # type: ignore[operator]
    assert "keeps 30d,100" in list(rule.words())
    assert parse_keep(str(rule.keep)) == rule.keep
    rules.set_rule(repository, BranchRule("main", keep=KeepRule(3)), actor=ADA)
    assert rules.rules_of(repository.log.refresh().state) == [BranchRule("main", keep=KeepRule(3))]
    rules.remove_rule(repository, "main", actor=ADA)
    assert rules.rules_of(repository.log.refresh().state) == []


@pytest.mark.parametrize(
    "value",
    [[], {"main": 3}, {"main": {"newest": 1}}, {"main": {"newest": 0, "seconds": 0}},
     {"main": {"newest": True, "seconds": 0}}, {"a..b": {"newest": 1, "seconds": 0}}],
)  # fmt: skip
def test_what_the_config_cannot_hold_of_what_is_kept_is_refused(value: object) -> None:
    assert keep_rules_problem(value)


def test_a_branch_without_a_rule_has_nothing_to_expire_by() -> None:
    repository, _ = aged(1)
    with pytest.raises(NotFoundError, match="rule set main --history"):
        plan_expiry(repository, "main", now_ns=NOW_NS)


def test_the_repository_says_how_long_dropped_refs_are_kept() -> None:
    repository, _ = aged(1)
    assert rules.retention_seconds(repository.log.refresh().state) is None
    rules.set_retention(repository, 60, actor=ADA)
    assert rules.retention_seconds(repository.log.refresh().state) == 60
    rules.set_retention(repository, None, actor=ADA)
    assert rules.retention_seconds(repository.log.refresh().state) is None

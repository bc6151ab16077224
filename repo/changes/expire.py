"""Expiry of old commits: where the history of a branch is cut, and the entry that cuts it.

Commits younger than a span of time are kept, and at least so many of the newest. What comes before
them is given up by making the oldest that are kept shallow (`shallow`): the next garbage collection
takes what nothing else leads to.

A merge is cut off from all of its parents or from none. Where only some of them are kept by the
rule, the others are kept as well, and history ends at those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.shallow import end_history
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import is_ancestor, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.repo.tables import RecordTable, Shown


@dataclass(frozen=True, slots=True)
class KeepRule:
    """Which commits of a branch are kept: what either member keeps.

    Attributes:
        newest: number of the newest commits.
        seconds: age up to which commits are kept, by the times that they tell.
    """

    newest: int = 1
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.newest < 1 or self.seconds < 0:
            raise InvalidInputError("at least the newest commit of a branch is kept")

    @classmethod
    def parse(cls, text: str) -> KeepRule:
        """The rule of a text such as ``30d``, ``100`` or ``30d,100``."""
        rule = cls()
        for part in (one.strip() for one in text.split(",")):
            if re.fullmatch(r"[0-9]{1,9}", part):
                rule = replace(rule, newest=int(part))
            else:
                rule = replace(rule, seconds=parse_span(part))
        return rule


@dataclass(frozen=True, slots=True, repr=False)
class Expiry(Shown):
    """What a branch keeps, and what it gives up.

    Attributes:
        branch: name of the branch.
        kept: number of its commits that are kept.
        given_up: number of its commits that are not; other refs may keep some of them.
        ends: commits at which its history ends then.
        shortens: other refs that have these commits: what lies before is given up there as well,
            where nothing else of theirs leads to it.
    """

    branch: str
    kept: int
    given_up: int
    ends: tuple[Digest, ...]
    shortens: tuple[str, ...]

    def to_table(self) -> RecordTable:
        """In lines."""
        lines = [f"{self.branch}: {self.kept:,} commits kept, {self.given_up:,} given up"]
        lines += [f"history ends at {digest:.12}" for digest in self.ends]
        lines += [f"shortens {ref}" for ref in self.shortens]
        return RecordTable(tuple(lines))


def plan_expiry(repository: RepositoryCore, branch: str, rule: KeepRule, *, now_ns: int) -> Expiry:
    """Where the history of a branch would end. Changes nothing.

    Raises:
        NotFoundError: there is no such branch.
    """
    refs = repository.log.refresh().state.refs
    ref = check_ref(BRANCHES + branch)
    if ref not in refs:
        known = [name.removeprefix(BRANCHES) for name in refs if name.startswith(BRANCHES)]
        hint = did_you_mean(branch, known, there_are(sorted(known), "There is none at all."))
        raise NotFoundError(f"no branch {branch!r} whose commits could expire.{hint}")
    oldest_ns = now_ns - int(rule.seconds * 1e9)
    parents: dict[Digest, Sequence[Digest]] = {}  # children come before parents
    length = 0
    for number, (digest, commit) in enumerate(walk(repository.objects, [refs[ref]]), 1):
        parents[digest] = commit.parents
        if number <= rule.newest or (rule.seconds and commit.time_ns >= oldest_ns):
            length = number
    kept, ends = _cut(parents, length)
    others = (name for name in sorted(refs) if name != ref)
    objects = repository.objects
    shortens = [
        name for name in others if any(is_ancestor(objects, one, refs[name]) for one in ends)
    ]
    return Expiry(branch, len(kept), len(parents) - len(kept), ends, tuple(shortens))


def expire(
    repository: RepositoryCore, branch: str, rule: KeepRule, *, actor: str, now_ns: int
) -> Expiry:
    """Give up what the rule does not keep of a branch; nothing is deleted yet."""
    planned = plan_expiry(repository, branch, rule, now_ns=now_ns)
    if planned.ends:
        end_history(repository, planned.ends, actor=actor, note=f"expire {branch}")
    return planned


def _cut(
    parents: Mapping[Digest, Sequence[Digest]], length: int
) -> tuple[set[Digest], tuple[Digest, ...]]:
    """Which commits are kept, of which the first `length` are for certain; and where that ends."""
    order = list(parents)
    kept = set(order[:length])
    grows = True
    while grows:
        before = len(kept)
        for digest in order:
            if digest in kept and any(parent in kept for parent in parents[digest]):
                kept.update(parents[digest])
        grows = len(kept) > before
    ends = sorted(digest for digest in kept if parents[digest] and kept.isdisjoint(parents[digest]))
    return kept, tuple(ends)

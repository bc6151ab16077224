"""Expiry of old commits: where the history of a branch is cut, and the entry that cuts it.

Commits younger than a span of time are kept, and at least so many of the newest. What comes before
them is given up by making the oldest that are kept shallow (`shallow`): the next garbage collection
takes what nothing else leads to.

A merge is cut off from all of its parents or from none. Where only some of them are kept by the
rule, the others are kept as well, and history ends at those.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.rules import rules_of
from tensorrepo.repo.changes.shallow import end_history
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.branch_rules import KeepRule
from tensorrepo.repo.log.state import State
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.repo.tables import RecordTable, Shown


def parse_keep(text: str) -> KeepRule:
    """The rule of a text such as ``30d``, ``100`` or ``30d,100``."""
    rule = KeepRule()
    for part in (one.strip() for one in text.split(",")):
        if re.fullmatch(r"[0-9]{1,9}", part):
            rule = replace(rule, newest=int(part))
        else:
            rule = replace(rule, seconds=int(parse_span(part)))
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


def plan_expiry(
    repository: RepositoryCore, branch: str, rule: KeepRule | None = None, *, now_ns: int
) -> Expiry:
    """Where the history of a branch would end. Changes nothing.

    Args:
        repository: where.
        branch: name of the branch.
        rule: which commits are kept; None: what the rule of the branch says.
        now_ns: moment from which ages are counted, in nanoseconds UTC.

    Raises:
        NotFoundError: there is no such branch, or it has no rule of what is kept.
    """
    state = repository.log.refresh().state
    ref = check_ref(BRANCHES + branch)
    if ref not in state.refs:
        known = [name.removeprefix(BRANCHES) for name in state.refs if name.startswith(BRANCHES)]
        hint = did_you_mean(branch, known, there_are(sorted(known), "There is none at all."))
        raise NotFoundError(f"no branch {branch!r} whose commits could expire.{hint}")
    if rule is None and (rule := keep_rule_of(state, branch)) is None:
        raise NotFoundError(
            f"no rule says which commits branch {branch!r} keeps: say it here, as in `30d,100`, or "
            f"for good with `tensorrepo rule set {branch} --history 30d,100`"
        )
    (expiry,) = _plan(repository, state, {branch: rule}, now_ns)
    return expiry


def expire(
    repository: RepositoryCore,
    branch: str,
    rule: KeepRule | None = None,
    *,
    actor: str,
    now_ns: int,
) -> Expiry:
    """Give up what the rule does not keep of a branch; nothing is deleted yet."""
    planned = plan_expiry(repository, branch, rule, now_ns=now_ns)
    if planned.ends:
        end_history(repository, planned.ends, actor=actor, note=f"expire {branch}")
    return planned


def keep_rule_of(state: State, branch: str) -> KeepRule | None:
    """What the rules of the repository keep of a branch, the longest pattern that matches first."""
    matching = (rule for rule in rules_of(state) if rule.keep and rule.matches(branch))
    longest = max(matching, key=lambda rule: (len(rule.pattern), rule.pattern), default=None)
    return None if longest is None else longest.keep


def plan_kept(repository: RepositoryCore, *, now_ns: int) -> tuple[Expiry, ...]:
    """What branches whose rules say what they keep would give up; those alone that would."""
    state = repository.log.refresh().state
    names = (ref.removeprefix(BRANCHES) for ref in sorted(state.refs) if ref.startswith(BRANCHES))
    ruled = {name: rule for name in names if (rule := keep_rule_of(state, name)) is not None}
    return tuple(each for each in _plan(repository, state, ruled, now_ns) if each.given_up)


def expire_kept(repository: RepositoryCore, *, actor: str, now_ns: int) -> tuple[Expiry, ...]:
    """Give up what the rules of branches do not keep; nothing is deleted yet."""
    planned = plan_kept(repository, now_ns=now_ns)
    ends = {end for expiry in planned for end in expiry.ends}
    if ends:
        end_history(repository, ends, actor=actor, note="rules of what is kept")
    return planned


def _plan(
    repository: RepositoryCore, state: State, rules: Mapping[str, KeepRule], now_ns: int
) -> list[Expiry]:
    """What each of some branches gives up, where nothing goes that one of them keeps."""
    objects, refs = repository.objects, [BRANCHES + branch for branch in rules]
    commits = {
        digest: (commit, branches)
        for digest, commit, branches in _led_to(objects, [state.refs[ref] for ref in refs])
    }
    parents = {digest: commit.parents for digest, (commit, _) in commits.items()}
    kept, ends = _cut(parents, _sure(commits, list(rules.values()), now_ns))
    alike: dict[int, list[int]] = {}  # by the branches that have them: commits, and those kept
    own: list[list[Digest]] = [[] for _ in refs]
    for digest, (_, branches) in commits.items():
        count = alike.setdefault(branches, [0, 0])
        count[0] += 1
        count[1] += digest in kept
    for digest in ends:
        for at in _ones(commits[digest][1]):
            own[at].append(digest)
    counts = [[0, 0] for _ in refs]
    for branches, (all_of_them, kept_of_them) in alike.items():
        for at in _ones(branches):
            counts[at][0] += all_of_them
            counts[at][1] += kept_of_them
    having = _refs_having(objects, state, ends)
    return [
        Expiry(
            branch,
            counts[at][1],
            counts[at][0] - counts[at][1],
            tuple(own[at]),
            tuple(sorted({ref for end in own[at] for ref in having[end]} - {refs[at]})),
        )
        for at, branch in enumerate(rules)
    ]


def _sure(
    commits: Mapping[Digest, tuple[Commit, int]], rules: Sequence[KeepRule], now_ns: int
) -> set[Digest]:
    """Commits that are kept, whatever else is: of each branch up to the last that its rule names.

    `commits` come children before parents, each with the branches that have it, as bits.
    """
    last, counts = [0] * len(rules), [0] * len(rules)
    counting = (1 << len(rules)) - 1  # of these not all of the newest were met
    young: dict[int, int] = {}  # from when on, and branches
    for at, rule in enumerate(rules):
        if rule.seconds:
            oldest_ns = now_ns - rule.seconds * 10**9
            young[oldest_ns] = young.get(oldest_ns, 0) | 1 << at
    for place, (commit, branches) in enumerate(commits.values()):
        for at in _ones(branches & counting):
            counts[at] += 1
            last[at] = place
            if counts[at] == rules[at].newest:
                counting ^= 1 << at
        for oldest_ns, some in young.items():
            if commit.time_ns >= oldest_ns:
                for at in _ones(branches & some):
                    last[at] = place
    return _up_to(commits, last)


def _up_to(commits: Mapping[Digest, tuple[Commit, int]], last: Sequence[int]) -> set[Digest]:
    """Commits of each branch up to the one at a place among all of them."""
    ending: dict[int, int] = {}
    for at, place in enumerate(last):
        ending[place] = ending.get(place, 0) | 1 << at
    going_on = (1 << len(last)) - 1
    found = set()
    for place, (digest, (_, branches)) in enumerate(commits.items()):
        if branches & going_on:
            found.add(digest)
        going_on ^= ending.get(place, 0)
    return found


def _refs_having(
    objects: ObjectSource, state: State, commits: Collection[Digest]
) -> dict[Digest, list[str]]:
    """Refs whose history has each of some commits."""
    names, wanted, found = sorted(state.refs), set(commits), dict[Digest, list[str]]()
    if wanted:
        for digest, _, refs in _led_to(objects, [state.refs[name] for name in names]):
            if digest in wanted:
                found[digest] = [names[at] for at in _ones(refs)]
            if len(found) == len(wanted):
                break
    return found


def _led_to(objects: ObjectSource, tips: Sequence[Digest]) -> Iterator[tuple[Digest, Commit, int]]:
    """All commits that tips lead to, children before parents, with the tips that do, as bits."""
    waiting: dict[Digest, int] = {}
    for at, tip in enumerate(tips):
        waiting[tip] = waiting.get(tip, 0) | 1 << at
    for digest, commit in walk(objects, list(waiting)):
        bits = waiting.pop(digest)
        for parent in commit.parents:
            # One number for all of a line of commits: there may be as many bits as refs.
            waiting[parent] = waiting[parent] | bits if parent in waiting else bits
        yield digest, commit, bits


def _ones(bits: int) -> Iterator[int]:
    """Places of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _cut(
    parents: Mapping[Digest, Sequence[Digest]], sure: Collection[Digest]
) -> tuple[set[Digest], tuple[Digest, ...]]:
    """Which commits are kept, of which those that are sure to be are given; and where that ends."""
    kept = set(sure)
    grows = True
    while grows:
        before = len(kept)
        for digest in parents:
            if digest in kept and any(parent in kept for parent in parents[digest]):
                kept.update(parents[digest])
        grows = len(kept) > before
    ends = sorted(digest for digest in kept if parents[digest] and kept.isdisjoint(parents[digest]))
    return kept, tuple(ends)

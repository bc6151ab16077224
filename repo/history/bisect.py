"""Bisection of a history: the commit to try next, and which of them first went bad.

Candidates are the ancestors of a bad commit that are no ancestors of a good one. Whether one of
them is good or bad settles all of its ancestors, or all others: tried next is the one for which
the lesser of both parts is the largest, in histories with merges as in straight ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.history.commits import best_common, is_ancestor, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSource


@dataclass(frozen=True, slots=True)
class BisectStep:
    """What is to be done next.

    Attributes:
        commit: the commit to try; None: there is none left.
        candidates: the commits of which one went bad first, the newest first; alone, when `commit`
            is None and nothing was skipped, it is that one.
        is_base: whether it is tried because two histories met there: it must be good.
    """

    commit: Digest | None
    candidates: tuple[Digest, ...]
    is_base: bool = False

    @property
    def found(self) -> Digest | None:
        """The commit that went bad first, when it is known."""
        done = self.commit is None and len(self.candidates) == 1
        return self.candidates[0] if done else None


def next_step(
    objects: ObjectSource, bad: Digest, good: Sequence[Digest], skipped: Collection[Digest] = ()
) -> BisectStep:
    """The commit that tells most of what is still open.

    Args:
        objects: where commits are.
        bad: a commit that is bad.
        good: commits that are good.
        skipped: commits that cannot be tried.

    Raises:
        InvalidInputError: a commit is good and bad, or nothing good is told.
        ConflictError: what both histories began with is bad: it was mended on one side.
    """
    if bad in good:
        raise InvalidInputError(f"commit {bad:.12} is said to be good and bad")
    if not good:
        raise InvalidInputError("which commit is good? `tensorrepo bisect good REF`")
    base = _untried_base(objects, bad, good, skipped)
    if base is not None:
        return BisectStep(base, (), is_base=True)
    parents = {
        digest: commit.parents for digest, commit in walk(objects, [bad], hidden=good)
    }  # children before parents
    sizes = ancestor_counts(parents)
    untried = [each for each in parents if each not in skipped and each != bad]
    best = max(untried, key=lambda each: min(sizes[each], len(parents) - sizes[each]), default=None)
    return BisectStep(best, tuple(parents))


def ancestor_counts(parents: Mapping[Digest, Sequence[Digest]]) -> dict[Digest, int]:
    """How many of the commits each has as ancestors, itself included.

    `parents` names children before parents; parents that are no keys do not count. Of each commit
    a set of bits is held until its last child is counted: one at a time in a straight history.
    """
    waiting: dict[Digest, int] = dict.fromkeys(parents, 0)
    for found in parents.values():
        for parent in found:
            if parent in waiting:
                waiting[parent] += 1
    counts: dict[Digest, int] = {}
    reached: dict[Digest, int] = {}
    for at, (digest, found) in enumerate(reversed([*parents.items()])):
        bits = 1 << at
        for parent in found:
            if parent not in waiting:
                continue
            bits |= reached[parent]
            waiting[parent] -= 1
            if not waiting[parent]:
                del reached[parent]
        counts[digest] = bits.bit_count()
        reached[digest] = bits
    return counts


def _untried_base(
    objects: ObjectSource, bad: Digest, good: Sequence[Digest], skipped: Collection[Digest]
) -> Digest | None:
    """A commit where the bad history and a good one that is beside it met, if it is not tried."""
    for each in good:
        if is_ancestor(objects, each, bad):
            continue
        for base in best_common(objects, [bad], [each]):
            if base == bad:
                raise ConflictError(
                    f"commit {bad:.12} is bad, and {each:.12}, which came after it, is good: what "
                    "is looked for was mended between them. Swap good and bad, and start again."
                )
            others = (other for other in good if other != each)
            if base not in skipped and not any(is_ancestor(objects, base, one) for one in others):
                return base
    return None

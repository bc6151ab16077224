"""First-parent history between two commits: what a branch grew through, step by step.

Each step is a commit and its first parent, so that the steps together lead from the one commit to
the other, whatever was merged on the way.
"""

from __future__ import annotations

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitExpired
from tensorrepo.repo.history.commits import is_ancestor, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSource


@dataclass(frozen=True, slots=True)
class Trail:
    """The way to a tip.

    Attributes:
        start: commit that it begins behind; None: the way begins with the first of `commits`.
        commits: commits on the way, each the first parent of the next, the last one the tip.
    """

    start: Digest | None
    commits: tuple[Digest, ...]


def trail(objects: ObjectSource, tip: Digest, since: Digest | None) -> Trail:
    """The first parents of `tip` behind `since`, oldest first; None: all of them.

    Where `since` is no first parent of the tip, because a branch was reset or a side branch is
    meant, the way begins at the newest one that `since` has grown out of, too; and at the tip
    itself, without steps, where there is none.

    Raises:
        CommitExpired: the history of the repository ends before it gets there.
    """
    lowest = None if since is None else read_commit(objects, since).generation
    behind: list[Digest] = []
    digest = tip
    while True:
        commit = read_commit(objects, digest)
        if digest == since or (
            since is not None
            and lowest is not None
            and commit.generation < lowest
            and is_ancestor(objects, digest, since)
        ):
            return Trail(digest, tuple(reversed(behind)))
        behind.append(digest)
        if commit.parents:
            digest = commit.parents[0]
        elif since is None:
            return Trail(None, tuple(reversed(behind)))
        elif commit.beyond:
            raise CommitExpired(
                f"the history that leads from {since:.12} to {tip:.12} is not here: it ends at "
                f"{digest:.12}. Begin anew, without a commit to begin at."
            )
        else:
            return Trail(tip, ())

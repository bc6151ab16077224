"""Which commits lead to which?

Every walk goes by generation, largest first: a commit's children have larger generations, so when
it is its turn all of them have been seen and what they say about it is final. Nothing but the
frontier is kept in memory, whatever the length of the history.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING

from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.trees import EMPTY_TREE, diff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource

_LEFT, _RIGHT, _STALE = 1, 2, 4


class _Frontier:
    """Commits still to be visited, with marks that flow from children to parents."""

    def __init__(self, objects: ObjectSource, tips: Mapping[Digest, int]) -> None:
        self._objects = objects
        self._heap: list[tuple[int, int, Digest]] = []
        self._waiting: dict[Digest, tuple[Commit, int]] = {}
        self._stale = 0
        for digest, marks in tips.items():
            self._mark(digest, read_commit(objects, digest), marks)

    @property
    def live(self) -> bool:
        """Whether anything waits that is not stale."""
        return self._stale < len(self._waiting)

    def pop(self) -> tuple[Digest, Commit, int]:
        """The next commit by (generation, digest), with its marks; they are final."""
        digest = heappop(self._heap)[2]
        commit, marks = self._waiting.pop(digest)
        self._stale -= bool(marks & _STALE)
        return digest, commit, marks

    def push_parents(self, digest: Digest, commit: Commit, marks: int) -> None:
        for parent in commit.parents:
            known = self._waiting.get(parent)
            found = known[0] if known else read_commit(self._objects, parent)
            if found.generation >= commit.generation:
                raise CorruptError(
                    f"commit {digest:.12} has generation {commit.generation}, its parent "
                    f"{parent:.12} {found.generation}: a parent's is smaller"
                )
            self._mark(parent, found, marks)

    def _mark(self, digest: Digest, commit: Commit, marks: int) -> None:
        if digest not in self._waiting:
            heappush(self._heap, (-commit.generation, -int(digest, 16), digest))
        before = self._waiting[digest][1] if digest in self._waiting else 0
        self._waiting[digest] = (commit, before | marks)
        self._stale += bool(marks & _STALE) and not before & _STALE


def walk(
    objects: ObjectSource, tips: Iterable[Digest], *, hidden: Iterable[Digest] = ()
) -> Iterator[tuple[Digest, Commit]]:
    """Ancestors of `tips`, themselves included, that are no ancestors of `hidden`.

    Children come before parents: by (generation, digest), largest first.
    """
    marks = dict.fromkeys(tips, _LEFT) | dict.fromkeys(hidden, _STALE)
    frontier = _Frontier(objects, marks)
    while frontier.live:
        digest, commit, marked = frontier.pop()
        if not marked & _STALE:
            yield digest, commit
        frontier.push_parents(digest, commit, marked)


def merge_bases(objects: ObjectSource, a: Digest, b: Digest) -> tuple[Digest, ...]:
    """All best common ancestors: common ancestors that no other common ancestor descends from.

    By (generation, digest), largest first: the same for `a` and `b` swapped.
    """
    return best_common(objects, (a,), (b,))


def best_common(
    objects: ObjectSource, left: Iterable[Digest], right: Iterable[Digest]
) -> tuple[Digest, ...]:
    """Merge bases of two sets of commits, each taken as one commit with all of them as parents."""
    marks = dict.fromkeys(left, _LEFT)
    for digest in right:
        marks[digest] = marks.get(digest, 0) | _RIGHT
    frontier = _Frontier(objects, marks)
    best = []
    while frontier.live:
        digest, commit, marked = frontier.pop()
        if marked == _LEFT | _RIGHT:
            best.append(digest)
            marked |= _STALE
        frontier.push_parents(digest, commit, marked)
    return tuple(best)


def is_ancestor(objects: ObjectSource, ancestor: Digest, descendant: Digest) -> bool:
    """Whether `descendant` contains `ancestor`; every commit contains itself."""
    lowest = read_commit(objects, ancestor).generation
    frontier = _Frontier(objects, {descendant: 0})
    while frontier.live:
        digest, commit, _ = frontier.pop()
        if digest == ancestor:
            return True
        if commit.generation > lowest:
            frontier.push_parents(digest, commit, 0)
    return False


def ahead_behind(objects: ObjectSource, a: Digest, b: Digest) -> tuple[int, int]:
    """How many commits `a` has that `b` lacks, and the other way round."""
    frontier = _Frontier(objects, {a: _LEFT, b: _RIGHT} if a != b else {})
    counts = {_LEFT: 0, _RIGHT: 0}
    while frontier.live:
        digest, commit, marked = frontier.pop()
        if marked in counts:
            counts[marked] += 1
        both = marked & (_LEFT | _RIGHT) == _LEFT | _RIGHT
        frontier.push_parents(digest, commit, marked | _STALE if both else marked)
    return counts[_LEFT], counts[_RIGHT]


def touches(objects: ObjectSource, commit: Commit, path: str) -> bool:
    """Whether `path`, or anything beneath it, differs from every parent of `commit`.

    So a merge that took `path` from one of its parents does not touch it: the commit that did
    comes later in the walk. The empty path means the whole tree.
    """
    if commit.changed is not None and not any(_within(name, path) for name in commit.changed):
        return False
    parents = [read_commit(objects, parent).tree for parent in commit.parents] or [EMPTY_TREE]
    known = commit.changed is not None  # `changed` has settled the first parent
    return all(_differs(objects, tree, commit.tree, path) for tree in parents[known:])


def some_changed(objects: ObjectSource, commit: Commit, limit: int) -> tuple[str, ...] | None:
    """Paths that differ from the first parent (from nothing, without one); None above `limit`."""
    if commit.changed is not None:
        return commit.changed if len(commit.changed) <= limit else None
    before = read_commit(objects, commit.parents[0]).tree if commit.parents else EMPTY_TREE
    changes = diff(objects, before, commit.tree)
    paths = tuple(change.path for change in islice(changes, limit + 1))
    return paths if len(paths) <= limit else None


def _differs(objects: ObjectSource, old: bytes, new: bytes, path: str) -> bool:
    return any(_within(change.path, path) for change in diff(objects, old, new, path))


def _within(name: str, path: str) -> bool:
    """Whether `name` is `path`, or lies in the folder `path`."""
    return not path or name == path or name.startswith(path.rstrip("/") + "/")

"""Which commits does the catalog lack, and what does each change?

The walk goes from the new tips back, children first, until all that is left is known. To ask the
database about each commit would cost more than to read it: it goes some steps ahead, asks about all
of them at once, and drops what was known already. With everything that it adds in one transaction
the order does not matter.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from tensorrepo.query import tables
from tensorrepo.query.sync.treechanges import tree_changes
from tensorrepo.query.sync.values import as_json
from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.trees import EMPTY_TREE, Change

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tensorrepo.query.sync.loader import Rows
    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource

MOST_AHEAD: Final = 1024
_MOST_KEPT_BYTES: Final = 32 << 20
_COMMIT_BYTES: Final = 2000  # about what one takes in memory beside its tree


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit, and what it changed against its first parent."""

    digest: Digest
    commit: Commit
    changes: tuple[Change, ...]


class Walk:
    """The commits that lead to some tips and are not known yet.

    Args:
        objects: where they are stored.
        known: which of these digests the catalog has.
        shallow: commits whose parents the repository does not have.
    """

    def __init__(
        self,
        objects: ObjectSource,
        known: Callable[[Iterable[Digest]], set[str]],
        shallow: frozenset[Digest],
    ) -> None:
        self._objects = objects
        self._known = known
        self._shallow = shallow
        self._read = _Recent(objects)
        self._heap: list[tuple[int, Digest]] = []
        self._waiting: set[Digest] = set()

    def new(self, tips: Iterable[Digest]) -> Iterator[NewCommit]:
        """All of them, each once; children come before their parents."""
        wanted = set(tips)
        for digest in sorted(wanted - self._known(wanted)):
            self._push(digest)
        steps = 1
        while self._waiting:
            ahead = [self._next() for _ in range(steps) if self._waiting]
            known = self._known([*(digest for digest, _ in ahead), *self._waiting])
            self._waiting -= known
            for digest, commit in ahead:
                if digest not in known:
                    yield NewCommit(digest, commit, self._changes(digest, commit))
            steps = max(min(2 * steps, MOST_AHEAD), len(self._waiting))

    def _next(self) -> tuple[Digest, Commit]:
        """The waiting commit of the largest generation; its parents wait from now on."""
        while (digest := heappop(self._heap)[1]) not in self._waiting:
            pass  # was found to be known
        self._waiting.discard(digest)
        commit = self._read(digest)
        for parent in self.parents(digest, commit):
            if parent not in self._waiting:
                self._push(parent)
        return digest, commit

    def parents(self, digest: Digest, commit: Commit) -> tuple[Digest, ...]:
        """Those that the repository has."""
        return () if digest in self._shallow else commit.parents

    def _push(self, digest: Digest) -> None:
        self._waiting.add(digest)
        heappush(self._heap, (-self._read(digest).generation, digest))

    def _changes(self, digest: Digest, commit: Commit) -> tuple[Change, ...]:
        parents = self.parents(digest, commit)
        before = self._read(parents[0]).tree if parents else EMPTY_TREE
        changes = tree_changes(self._objects, before, commit.tree)
        if commit.changed is None:
            return changes
        # A checkpoint, or a registered version, holds its own entries alone: it did not remove all
        # others of the commit that it stands beside. What a commit says that it changed tells so.
        own = set(commit.changed)
        return tuple(one for one in changes if one.new is not None or one.path in own)


def rows_of(new: NewCommit) -> Rows:
    """The rows of one commit."""
    commit = new.commit
    yield (
        tables.commit,
        (
            new.digest,
            commit.generation,
            commit.author,
            commit.message,
            commit.time_ns,
            as_json(dict(commit.metadata)),
        ),
    )
    for place, parent in enumerate(commit.parents):
        yield tables.commit_parent, (new.digest, place, parent)
    for change in new.changes:
        old, now = change.old, change.new
        either = now or old
        assert either is not None, "a change has a side"
        yield (
            tables.entry_change,
            (
                new.digest,
                change.path,
                either.kind.label,
                None if old is None else old.digest,
                None if now is None else now.digest,
                None if now is None else now.storage,
            ),
        )


class _Recent:
    """Commits read lately: each is wanted again as its child's parent."""

    def __init__(self, objects: ObjectSource) -> None:
        self._objects = objects
        self._kept: OrderedDict[Digest, Commit] = OrderedDict()
        self._bytes = 0

    def __call__(self, digest: Digest) -> Commit:
        found = self._kept.get(digest)
        if found is None:
            found = self._kept[digest] = read_commit(self._objects, digest)
            self._bytes += _COMMIT_BYTES + len(found.tree)
            while self._bytes > _MOST_KEPT_BYTES and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= _COMMIT_BYTES + len(gone.tree)
        return found

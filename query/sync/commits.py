"""Commit walk of the catalog sync: new commits and what each changes.

The walk goes from the new tips back, children first, until all that is left is known. To ask the
database about each commit would cost more than to read it: it goes some steps ahead, asks about all
of them at once, and drops what was known already. With everything that it adds in one transaction
the order does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from tensorrepo.query.catalog import tables
from tensorrepo.query.sync.loader import TableRows, as_json
from tensorrepo.repo.errors import Error
from tensorrepo.repo.history.commits import Commit, decode_commit, read_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, TreeChanges
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.past_commits import PastCommits
from tensorrepo.repo.objects.envelope import Kind, ObjectSource, decode_payload

MOST_AHEAD: Final = 1024


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit, and what it changed against its first parent."""

    digest: Digest
    commit: Commit
    changes: tuple[PathChange, ...]


class Walk:
    """The commits that lead to some tips and are not known yet.

    Args:
        objects: where they are stored.
        known: which of these digests the catalog has.
        shallow: commits whose parents the repository does not have.
        past: commits that need not be read one by one; also where objects are near, as a file
            for each takes ten times as long as a place in a segment.
    """

    def __init__(
        self,
        objects: ObjectSource,
        known: Callable[[Iterable[Digest]], set[str]],
        shallow: frozenset[Digest],
        past: PastCommits | None = None,
    ) -> None:
        self._known = known
        self._shallow = shallow
        self._read = _Reader(objects, past)
        self._trees = TreeChanges(objects)
        self._heap: list[tuple[int, Digest]] = []
        self._waiting: dict[Digest, Commit] = {}

    def new(self, tips: Iterable[Digest]) -> Iterator[NewCommit]:
        """All of them, each once; children come before their parents."""
        wanted = set(tips)
        for digest in sorted(wanted - self._known(wanted)):
            self._push(digest)
        steps = 1
        while self._waiting:
            ahead = [self._next() for _ in range(steps) if self._waiting]
            known = self._known([*(digest for digest, _, _ in ahead), *self._waiting])
            for one in self._waiting.keys() & known:
                del self._waiting[one]
            for digest, commit, before in ahead:
                if digest not in known:
                    yield NewCommit(digest, commit, self._changes(commit, before))
            steps = max(min(2 * steps, MOST_AHEAD), len(self._waiting))

    def _next(self) -> tuple[Digest, Commit, bytes]:
        """The waiting commit of the largest generation, and the tree of its first parent.

        Its parents wait from now on.
        """
        while (digest := heappop(self._heap)[1]) not in self._waiting:
            pass  # was found to be known
        commit = self._waiting.pop(digest)
        # Those that the repository has; all are read now, so that none is read again for its tree.
        parents = () if digest in self._shallow else commit.parents
        trees = [(self._waiting.get(parent) or self._push(parent)).tree for parent in parents]
        return digest, commit, trees[0] if trees else EMPTY_TREE

    def _push(self, digest: Digest) -> Commit:
        commit = self._waiting[digest] = self._read(digest)
        heappush(self._heap, (-commit.generation, digest))
        return commit

    def _changes(self, commit: Commit, before: bytes) -> tuple[PathChange, ...]:
        changes = self._trees.between(before, commit.tree)
        if commit.changed is None:
            return changes
        # A checkpoint, or a registered version, holds its own entries alone: it did not remove all
        # others of the commit that it stands beside. What a commit says that it changed tells so.
        own = set(commit.changed)
        return tuple(one for one in changes if one.new is not None or one.path in own)


def rows_of(new: NewCommit) -> TableRows:
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


class _Reader:
    """Reads commits; those in segments of the log need no request each."""

    def __init__(self, objects: ObjectSource, past: PastCommits | None) -> None:
        self._objects = objects
        self._past = past

    def __call__(self, digest: Digest) -> Commit:
        return self._from_past(digest) or read_commit(self._objects, digest)

    def _from_past(self, digest: Digest) -> Commit | None:
        data = None if self._past is None else self._past.get(digest)
        if data is None:
            return None
        try:
            kind, payload = decode_payload(data)
            return decode_commit(payload) if kind is Kind.COMMIT else None
        except Error:
            return None  # who reads the object itself says what is wrong with it

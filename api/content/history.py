"""History: commits that lead to one, the newest first, some at a time.

The order is that of `commits.walk`: by generation, then digest. So a place in it is a pair, and
whoever has read so far goes on there; a process that remembers which commits wait at that place
need not walk all before it again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import Field

from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.ids import Digest

LOOKED_AT: Final = 20_000  # commits of one answer, where few fit what is asked for
_PLACE: Final = re.compile(r"(\d{1,19}):([0-9a-f]{64})", re.ASCII)


class CommitRecord(Record):
    """One commit."""

    digest: str
    parents: list[str] = Field(description="Digests of its parents, as far as they are here.")
    author: str = Field(examples=["Ann <ann@example.org>"])
    message: str
    time_ns: int = Field(description="When it was made: nanoseconds since 1970, UTC.")
    generation: int = Field(description="1 + the largest of its parents'.")
    signed: bool = Field(description="Whether it carries a signature.")
    changed: list[str] | None = Field(description="Paths that changed; null where many did.")
    refs: list[str] = Field(default=[], description="Refs at it, of those the caller may read.")


class CommitHistory(Record):
    """Some commits, the newest first; `after` is where the next ones begin, null at the end."""

    commits: tuple[CommitRecord, ...]
    after: str | None = None


@dataclass(frozen=True, slots=True)
class HistoryFilter:
    """Which commits are asked for: all that is told must hold.

    Attributes:
        path: entry or folder that a commit changed; "" is any.
        author: text within name and address, whatever its case.
        message: text within the message, whatever its case.
    """

    path: str = ""
    author: str = ""
    message: str = ""

    def takes(self, content: CommitContent, digest: Digest, commit: Commit) -> bool:
        """Whether a commit is one of them; reads trees only where the commit does not tell."""
        if self.author.lower() not in commit.author.lower():
            return False
        if self.message.lower() not in commit.message.lower():
            return False
        return not self.path or content.core.touches(digest, commit, self.path)


def commit_record(digest: Digest, commit: Commit, refs: Sequence[str] = ()) -> CommitRecord:
    """A commit as answers have it."""
    return CommitRecord(
        digest=digest,
        parents=list(commit.parents),
        author=commit.author,
        message=commit.message,
        time_ns=commit.time_ns,
        generation=commit.generation,
        signed=commit.signature is not None,
        changed=None if commit.changed is None else list(commit.changed),
        refs=list(refs),
    )


def get_commit(content: CommitContent) -> CommitRecord:
    """The commit itself."""
    names = _names(content).get(content.commit, ())
    return commit_record(content.commit, content.revision.commit, names)


def list_history(
    content: CommitContent,
    wanted: HistoryFilter | None = None,
    *,
    after: str | None = None,
    limit: int = 100,
) -> CommitHistory:
    """Commits that lead to one, itself included.

    Fewer than `limit` may come where few of many fit: `after` says then where to go on.

    Args:
        content: the newest one.
        wanted: which are asked for; None: all.
        after: `after` of the commits before.
        limit: largest number of commits.
    """
    chosen = wanted or HistoryFilter()
    begun = _place(after)
    found: list[CommitRecord] = []
    names = _names(content)
    walked = _Walk(content, begun)
    for looked_at, (digest, commit) in enumerate(walked, 1):
        if chosen.takes(content, digest, commit):
            found.append(commit_record(digest, commit, names.get(digest, ())))
        if len(found) == limit or looked_at == LOOKED_AT:
            break
    return CommitHistory(commits=tuple(found), after=walked.remember())


class _Walk:
    """Commits behind a place, and those that wait where the walk was left."""

    def __init__(self, content: CommitContent, begun: tuple[int, str] | None) -> None:
        self._content, self._begun = content, begun
        self._waiting: set[Digest] = set()
        self._at: tuple[int, str] | None = None

    def __iter__(self) -> Iterator[tuple[Digest, Commit]]:
        memory = self._content.memory.places
        known = None if self._begun is None else memory.get(self._key(self._begun))
        tips = known if known is not None else (self._content.commit,)
        self._waiting = set(tips)
        for digest, commit in walk(self._content.core.objects, tips):
            self._waiting.discard(digest)
            self._waiting.update(commit.parents)
            if self._begun is not None and (commit.generation, digest) >= self._begun:
                continue
            self._at = (commit.generation, digest)
            yield digest, commit

    def remember(self) -> str | None:
        """Where to go on; None at the end."""
        if not self._waiting or self._at is None:
            return None
        self._content.memory.places.put(self._key(self._at), tuple(sorted(self._waiting)), 1)
        return f"{self._at[0]}:{self._at[1]}"

    def _key(self, at: tuple[int, str]) -> tuple[object, ...]:
        return self._content.core.id, self._content.commit, at


def _place(after: str | None) -> tuple[int, str] | None:
    if after is None:
        return None
    found = _PLACE.fullmatch(after)
    if found is None:
        raise InvalidInputError(
            "this place in a history is none of ours: take `after` of the commits before"
        )
    return int(found[1]), found[2]


def _names(content: CommitContent) -> dict[Digest, list[str]]:
    """Refs by the commit that they stand at, of those that the caller may read."""
    found: dict[Digest, list[str]] = {}
    for ref, commit in sorted(content.access.refs().items()):
        found.setdefault(commit, []).append(ref)
    return found

"""Origins of promoted entries: where something came from, and where it went.

The commit that brought an entry names its origin in its metadata; the origin has a ref for each
entry that went somewhere: ``promoted/<repository>/<path>``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from tensorrepo.repo.changes.refs import BRANCHES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import Commit, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.typed_decoding import from_plain

PROMOTED: Final = "promoted"  # key of a commit's metadata, and the space of refs at the origin


class Origin(msgspec.Struct, frozen=True):
    """Where something was promoted from: repository, commit and path there."""

    repository: str
    commit: str
    path: str


@dataclass(frozen=True, slots=True)
class PromotedTo:
    """A note at the origin: `source_path` of `commit` went to `path` of another repository."""

    repository: str
    source_path: str
    path: str
    commit: Digest


def promoted_to(view: LogView, path: str) -> Iterator[PromotedTo]:
    """Where the entry at `path` went, by the notes of this repository."""
    for ref, commit in sorted(view.state.refs.items()):
        space, _, rest = ref.partition("/")
        repository, _, told = rest.partition("/")
        source_path, renamed, there = told.partition("=")
        if space == PROMOTED and source_path == path:
            where = there.replace("+", "/") if renamed else path
            yield PromotedTo(repository, source_path, where, commit)


def promoted_from(
    repository: RepositoryCore, path: str, branch: str = "main"
) -> tuple[Digest, Origin] | None:
    """The newest commit of a branch that brought `path` from elsewhere, and where that was."""
    tip = repository.log.refresh().state.refs.get(BRANCHES + branch)
    for digest, commit in walk(repository.objects, [] if tip is None else [tip]):
        if repository.touches(digest, commit, path):
            origin = origin_of(commit)
            return None if origin is None else (digest, origin)
    return None


def origin_of(commit: Commit) -> Origin | None:
    """Where the content of a commit was promoted from; None where it was not."""
    told: Any = commit.metadata.get(PROMOTED)
    try:
        return None if told is None else from_plain(told, Origin)
    except msgspec.ValidationError:
        return None  # another program's words

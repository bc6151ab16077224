"""Pages of commits: their graph, and one with what it changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.pages.repository import BOOKS, Ref, ref_link, ref_names
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.query.drawing.commit_graph import graph_drawings
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import Commit, read_commit, walk
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind

router: Final = deferred_router(include_in_schema=False)
_COMMITS: Final = 60  # of a page
_MOST_SKIPPED: Final = 20_000
_CHANGES: Final = 100
_MOST_CHANGES: Final = 10_000
_COMPARED: Final = frozenset({Kind.DATASET, Kind.MODEL, Kind.BLOB})


@dataclass(frozen=True, slots=True)
class GraphRow:
    """A commit in the graph, and the names of branches and tags that stand at it."""

    digest: Digest
    commit: Commit
    names: list[str]
    drawing: str


@dataclass(frozen=True, slots=True)
class ChangeLine:
    """What a commit did to one path."""

    mark: str
    word: str
    path: str
    content: str
    page: str | None
    compare: str | None


@router.get("/{repository:repository}/-/commits")
def graph(
    page: RepositoryPageOf,
    ref: Ref = "",
    skip: Annotated[int, Query(ge=0, le=_MOST_SKIPPED)] = 0,
) -> Response:
    """The graph of all branches, or of one ref."""
    access = page.access
    named = names_at(access)
    branches = (
        at
        for name, at in access.refs().items()
        if name.startswith(BRANCHES) and not name.startswith(BOOKS)
    )
    tips = [access.resolve(ref).digest] if ref else list(dict.fromkeys(branches))
    history = list(islice(walk(access.core.objects, tips), skip + _COMMITS + 1))
    shown = history[skip : skip + _COMMITS]
    lines = ((digest, commit.parents) for digest, commit in history)
    rows = [
        GraphRow(digest, commit, named.get(digest, []), drawn.svg)
        for (digest, commit), drawn in zip(shown, graph_drawings(lines, skip=skip), strict=False)
    ]
    return page.render(
        "_commits.html" if page.is_fragment else "commits.html",
        refs=ref_names(access),
        ref=ref,
        refs_to=ref_link(page, "commits"),
        rows=rows,
        following=skip + _COMMITS if len(history) > skip + _COMMITS else None,
    )


@router.get("/{repository:repository}/-/commit/{revision:path}")
def commit(page: RepositoryPageOf, revision: str, all: bool = False) -> Response:  # noqa: A002
    """One commit, and what it changed against its first parent."""
    found = page.access.resolve(revision)
    limit = _MOST_CHANGES if all else _CHANGES
    changes = list(islice(_changes(page, found), limit + 1))
    return page.render(
        "commit.html",
        revision=found,
        commit=found.commit,
        names=names_at(page.access).get(found.digest, []),
        changes=changes[:limit],
        more=len(changes) > limit,
    )


def names_at(access: RepositoryAccess) -> dict[Digest, list[str]]:
    """Branches and tags by the commit that they stand at."""
    names: dict[Digest, list[str]] = {}
    for ref, at in sorted(access.refs().items()):
        if ref.startswith((BRANCHES, TAGS)):
            names.setdefault(at, []).append(ref.partition("/")[2])
    return names


def _changes(page: RepositoryPage, found: Revision) -> Iterator[ChangeLine]:
    objects, commit = page.access.core.objects, found.commit
    parent = commit.parents[0] if commit.parents else None
    before = EMPTY_TREE if parent is None else read_commit(objects, parent).tree
    # A checkpoint stands beside its parent and holds its own entries alone: it removed no others.
    own = None if commit.changed is None else frozenset(commit.changed)
    for change in diff(objects, before, commit.tree):
        if change.new is not None or own is None or change.path in own:
            yield change_line(page, change, found.digest, parent)


def change_line(
    page: RepositoryPage, change: PathChange, digest: Digest, parent: Digest | None
) -> ChangeLine:
    """A change between `parent`, None where there is none, and commit `digest`, with its pages."""
    mark, word = _mark(change)
    one = change.new or change.old
    assert one is not None, "a change has a side"
    listed = list_entry(change.path, one)
    at = digest if change.new is not None else parent
    compared = change.old and change.new and one.kind in _COMPARED
    return ChangeLine(
        mark,
        word,
        change.path,
        listed.content,
        page.here(change.path, ref=at),
        page.here("compare", path=change.path, old=parent, new=digest) if compared else None,
    )


def _mark(change: PathChange) -> tuple[str, str]:
    if change.old is None:
        return "+", "added"
    return ("-", "removed") if change.new is None else ("~", "changed")

"""Pages of a repository: what is in it, its contents at a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Annotated, Any, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.content.documents import readme_of
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.routes.pagination import decode_cursor, encode_cursor
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history.commits import walk

router: Final = deferred_router(include_in_schema=False)
Ref = Annotated[str, Query(max_length=1024)]
_OVERVIEW_ENTRIES: Final = 30
_ENTRIES: Final = 200  # of a page
_LATEST: Final = 6
_MAIN: Final = "main"
BOOKS: Final = f"{BRANCHES}meta/"  # branches that are the service's and the registry's own


@dataclass(frozen=True, slots=True)
class EntryLine:
    """An entry in a list: what the tree says of it."""

    kind: str
    path: str
    content: str
    bytes: int


def entry_lines(access: RepositoryAccess, tree: bytes, prefix: str = "") -> Iterator[EntryLine]:
    """Entries of a tree by path; nothing but the tree is read."""
    for path, entry in access.core.entries(tree, prefix):
        one = list_entry(path, entry)
        yield EntryLine(one.kind, path, one.content, one.bytes)


def ref_names(access: RepositoryAccess) -> dict[str, list[str]]:
    """Names of branches and tags that the caller may read, by what they are."""
    refs = [ref for ref in sorted(access.refs()) if not ref.startswith(BOOKS)]
    return {
        words: [ref.removeprefix(space) for ref in refs if ref.startswith(space)]
        for words, space in (("Branches", BRANCHES), ("Tags", TAGS))
    }


def chosen_ref(access: RepositoryAccess, ref: str) -> str:
    """`ref`, else main, else the first branch that may be read; "" where there is none."""
    branches = ref_names(access)["Branches"]
    return ref or (_MAIN if _MAIN in branches else next(iter(branches), ""))


def revision_at(page: RepositoryPage, ref: str) -> tuple[str, Revision]:
    """The commit that a page is about, and what it is called there. Raises NotFoundError."""
    name = chosen_ref(page.access, ref)
    if not name:
        raise NotFoundError(f"{page.access.name} has no commit that you may read yet")
    return name, page.access.resolve(name)


def nothing_yet(page: RepositoryPage, tab: str) -> Response | None:
    """What a page shows where nothing was committed; None: something was."""
    return None if chosen_ref(page.access, "") else page.render("nothing_yet.html", tab=tab)


def ref_link(page: RepositoryPage, *segments: str, **query: object) -> Callable[[str], str]:
    """Where the menu of refs leads: the same page at another ref."""
    return lambda name: page.here(*segments, **query, ref=name)


@router.get("/{repository:repository}")
def overview(page: RepositoryPageOf, ref: Ref = "") -> Response:
    """A repository: its entries, its latest commits, its README."""
    access = page.access
    refs, name = ref_names(access), chosen_ref(access, ref)
    values: dict[str, Any] = {"refs": refs, "ref": name, "head": None, "readme": None}
    if name:
        head = access.resolve(name)
        entries = list(islice(entry_lines(access, head.commit.tree), _OVERVIEW_ENTRIES + 1))
        values |= {
            "readme": readme_of(page.service.at(access, head.digest)),
            "head": head,
            "entries": entries[:_OVERVIEW_ENTRIES],
            "more": len(entries) > _OVERVIEW_ENTRIES,
            "latest": list(islice(walk(access.core.objects, [head.digest]), _LATEST)),
        }
    return page.render(
        "repository.html",
        refs_to=lambda ref: page.href(access.name, ref=ref),
        branches=len(refs["Branches"]),
        tags=len(refs["Tags"]),
        description=page.service.directory.find(access.name).description,
        **values,
    )


@router.get("/{repository:repository}/-/entries")
def entries(
    page: RepositoryPageOf,
    ref: Ref = "",
    prefix: Annotated[str, Query(max_length=1024)] = "",
    cursor: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """Paths of a commit, a page of them at a time."""
    if (empty := nothing_yet(page, "entries")) is not None:
        return empty
    name, revision = revision_at(page, ref)
    after = decode_cursor(cursor)
    every = entry_lines(page.access, revision.commit.tree, prefix)
    behind = (one for one in every if after is None or one.path > after)
    shown = list(islice(behind, _ENTRIES + 1))
    following = encode_cursor(shown[_ENTRIES - 1].path) if len(shown) > _ENTRIES else None
    return page.render(
        "entries.html",
        refs=ref_names(page.access),
        ref=name,
        refs_to=ref_link(page, "entries", prefix=prefix),
        revision=revision,
        prefix=prefix,
        entries=shown[:_ENTRIES],
        following=following,
    )

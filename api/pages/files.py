"""Pages of files, and the history of any entry."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query
from starlette.responses import Response

from tensorrepo.api.content.documents import file_bytes, picture_type, shown_file
from tensorrepo.api.content.history import HistoryFilter, list_history
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import FILE_HEADERS, FOREVER, disposition
from tensorrepo.api.pages.repository import Ref, ref_link, ref_names, revision_at

router: Final = deferred_router(include_in_schema=False)


@router.get("/{repository:repository}/-/files/{name:path}")
def file(page: RepositoryPageOf, name: str, ref: Ref = "") -> Response:
    """A file: text, a card or a picture as such, others to be downloaded."""
    ref, revision = revision_at(page, ref)
    path = f"files/{name}"
    shown = shown_file(page.service.at(page.access, revision.digest), path)
    return page.render(
        "file.html",
        refs=ref_names(page.access),
        refs_to=ref_link(page, path),
        ref=ref,
        file=shown,
        commit=revision.digest,
    )


@router.get("/{repository:repository}/-/raw/{path:path}")
def raw(page: RepositoryPageOf, path: str, ref: Ref = "") -> Response:
    """The bytes of a file, which no browser runs."""
    _, revision = revision_at(page, ref)
    data = file_bytes(page.service.at(page.access, revision.digest), path)
    media_type = picture_type(data)
    return Response(
        data,
        media_type=media_type or "application/octet-stream",
        headers={
            **FILE_HEADERS,
            "Content-Disposition": disposition(
                path.rpartition("/")[2], inline=media_type is not None
            ),
            "Cache-Control": FOREVER if ref == revision.digest else "no-store",
        },
    )


@router.get("/{repository:repository}/-/history/{path:path}")
def history(
    page: RepositoryPageOf,
    path: str,
    ref: Ref = "",
    after: Annotated[str | None, Query(max_length=100)] = None,
) -> Response:
    """Commits that changed an entry, the newest first."""
    ref, revision = revision_at(page, ref)
    content = page.service.at(page.access, revision.digest)
    found = list_history(content, HistoryFilter(path=path), after=after, limit=50)
    return page.render(
        "history.html",
        refs=ref_names(page.access),
        refs_to=ref_link(page, "history", path),
        ref=ref,
        path=path,
        commits=found.commits,
        after=found.after,
    )

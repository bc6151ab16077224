"""Commits and trees: history, listings, entries, and files byte for byte."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Query, Request, Response

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.files import open_file
from tensorrepo.api.content.history import CommitRecord, HistoryFilter, list_history
from tensorrepo.api.content.models import DEFAULT_REF
from tensorrepo.api.content.trees import TreeEntry, get_entry, list_tree
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.conditional import answer_json
from tensorrepo.api.routes.downloads import BINARY, answer_file
from tensorrepo.api.routes.models import RefOf
from tensorrepo.api.routes.pagination import (
    Cursor,
    Limit,
    ListPage,
    decode_cursor,
    encode_cursor,
)

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-", tags=["trees"]
)
_Words = Annotated[str, Query(max_length=200)]


def content_of(access: AccessOf, service: ServiceOf, ref: RefOf = DEFAULT_REF) -> CommitContent:
    """What the commit holds that a request names."""
    return service.at(access, ref)


ContentOf = Annotated[CommitContent, Depends(content_of)]


@router.get("/history", summary="Commits that lead to one")
def get_history(
    content: ContentOf,
    path: Annotated[str, Query(max_length=4096, description="What they changed.")] = "",
    author: Annotated[_Words, Query(description="Within author and address.")] = "",
    message: Annotated[_Words, Query(description="Within the message.")] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[CommitRecord]:
    """The newest first. A page may be short, and more follow: few of many fit what is asked."""
    wanted = HistoryFilter(path.strip("/"), author, message)
    found = list_history(content, wanted, after=decode_cursor(cursor), limit=limit)
    following = None if found.after is None else encode_cursor(found.after)
    return ListPage(items=list(found.commits), next=following)


@router.get("/tree", summary="Entries of a commit", response_model=ListPage[TreeEntry])
def get_tree(
    request: Request,
    content: ContentOf,
    prefix: Annotated[
        str, Query(max_length=4096, description="Beginning of paths.", examples=["datasets/"])
    ] = "",
    folders: Annotated[
        bool, Query(description="Tell what lies in a folder as the folder.")
    ] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """By path, with how much each holds; no entry is opened for it."""
    after = decode_cursor(cursor)
    found = list_tree(content, prefix, folders=folders, after=after, limit=limit)
    following = None if found.after is None else encode_cursor(found.after)
    return answer_json(request, ListPage[TreeEntry](items=list(found.entries), next=following))


@router.get("/entries/{path:entry}", summary="One entry", response_model=TreeEntry)
def get_one_entry(request: Request, content: ContentOf, path: str) -> Response:
    """What lies at a path, and how much it holds."""
    return answer_json(request, get_entry(content, path))


@router.get(
    "/files/{path:entry}",
    summary="A file, byte for byte",
    response_class=Response,
    responses={
        200: {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}},
        206: {"description": "The range that was asked for."},
        304: {"description": "The caller has it."},
        416: {"description": "A range behind its end."},
    },
)
@router.head("/files/{path:entry}", include_in_schema=False)
def get_file(request: Request, content: ContentOf, path: str) -> Response:
    """As an attachment, with a strong ETag; takes Range, If-Range and If-None-Match.

    `path` is below `files/`.
    """
    file = open_file(content, f"files/{path}")
    return answer_file(
        request, file.pieces, size_bytes=file.bytes, etag=file.digest, name=file.name
    )

"""Comparison of two commits: paths, what they hold, and rows of datasets."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Query, Request, Response

from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.differences import (
    MOST_CHANGES,
    MOST_ROWS,
    EntryDifference,
    RowDifferences,
    compare_commits,
    compare_rows,
    first_parent,
)
from tensorrepo.api.content.models import DEFAULT_REF
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.conditional import answer_json
from tensorrepo.api.routes.datasets import MAX_ROW, Columns
from tensorrepo.api.routes.pagination import Cursor, ListPage, decode_cursor, encode_cursor

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/compare", tags=["trees"]
)
Old = Annotated[
    str, Query(max_length=1024, description="Revision before; none: the first parent of `new`.")
]
New = Annotated[str, Query(min_length=1, max_length=1024, description="Revision after.")]
_Key = Annotated[
    list[str], Query(max_length=100, description="Columns that tell rows apart; none: their ids.")
]


@router.get("", summary="What differs", response_model=ListPage[EntryDifference])
def get_differences(
    request: Request,
    access: AccessOf,
    service: ServiceOf,
    old: Old = "",
    new: New = DEFAULT_REF,
    prefix: Annotated[str, Query(max_length=4096, description="Beginning of paths.")] = "",
    contents: Annotated[bool, Query(description="Compare what entries hold, too.")] = True,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=MOST_CHANGES)] = 20,
) -> Response:
    """By path: of a dataset its rows and columns, of a model its tensors, of a file its size."""
    after = service.at(access, new)
    found = compare_commits(
        _before(service.at(access, old) if old else None, after),
        after,
        prefix,
        after=decode_cursor(cursor),
        limit=limit,
        contents=contents,
    )
    following = None if found.after is None else encode_cursor(found.after)
    page = ListPage[EntryDifference](items=list(found.changes), next=following)
    return answer_json(request, page)


@router.get("/rows", summary="Rows that differ", response_model=RowDifferences)
def get_row_differences(
    request: Request,
    access: AccessOf,
    service: ServiceOf,
    path: Annotated[str, Query(max_length=4096, examples=["datasets/digits"])],
    old: Old = "",
    new: New = DEFAULT_REF,
    column: Columns = [],  # noqa: B006  FastAPI copies it
    key: _Key = [],  # noqa: B006
    start: Annotated[int, Query(ge=0, le=MAX_ROW)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 100,
) -> Response:
    """Of one dataset, with the values on both sides."""
    after = service.at(access, new)
    before = _before(service.at(access, old) if old else None, after)
    found = compare_rows(
        before, after, path, columns=tuple(column), key=tuple(key), start=start, limit=limit
    )
    return answer_json(request, found)


def _before(old: CommitContent | None, new: CommitContent) -> CommitContent | None:
    return first_parent(new) if old is None else old

"""SQL over datasets, views and the catalog: pages of JSON, or an Arrow stream."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Body, Response
from pydantic import BaseModel, ConfigDict, Field

from tensorrepo.api.content.queries import MOST_ROWS, SqlPage
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.datasets import MAX_ROW
from tensorrepo.api.routes.downloads import ARROW_STREAM, answer_arrow
from tensorrepo.query.untrusted.sandbox import MOST_QUERY_BYTES

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/sql", tags=["sql"]
)
_Value = str | int | float | bool | None


class SqlRequest(BaseModel):
    """One SELECT, and what it is asked of."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(
        max_length=MOST_QUERY_BYTES,
        examples=["SELECT label, count(*) AS n FROM digits GROUP BY label ORDER BY label"],
    )
    ref: str = Field(
        default="main",
        min_length=1,
        max_length=1024,
        description='Commit whose datasets are called by their names; others are "name@ref".',
    )
    params: list[_Value] | dict[str, _Value] | None = Field(
        default=None, description="Values for `?`, or by name for `$name`."
    )


class SqlPageRequest(SqlRequest):
    """The same, and which rows of the result."""

    start: int = Field(default=0, ge=0, le=MAX_ROW)
    limit: int = Field(default=100, ge=1, le=MOST_ROWS)


@router.post("", summary="Ask SQL, for a page of JSON")
def ask_sql(
    access: AccessOf, service: ServiceOf, asked: Annotated[SqlPageRequest, Body()]
) -> SqlPage:
    """Over what the caller may read, in a process with limits of time, memory, rows and bytes."""
    content = service.at(access, asked.ref)
    return service.queries.page(
        content, asked.query, asked.params, start=asked.start, limit=asked.limit
    )


@router.post(
    "/arrow",
    summary="Ask SQL, for an Arrow stream",
    response_class=Response,
    responses={
        200: {"content": {ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}}}}
    },
)
def stream_sql(
    access: AccessOf, service: ServiceOf, asked: Annotated[SqlRequest, Body()]
) -> Response:
    """The whole result, within the limits, while it is made."""
    content = service.at(access, asked.ref)
    return answer_arrow(service.queries.stream(content, asked.query, asked.params))

"""Lineage: what an entry came from, and what came from it."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Query, Request, Response

from tensorrepo.api.content.lineage import LineageGraph, LineageRequest, lineage_of
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import ServiceOf
from tensorrepo.api.routes.conditional import answer_json
from tensorrepo.api.routes.trees import ContentOf

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/lineage", tags=["lineage"]
)


@router.get("", summary="Lineage of an entry", response_model=LineageGraph)
def get_lineage(
    request: Request,
    service: ServiceOf,
    content: ContentOf,
    path: Annotated[
        str,
        Query(
            min_length=1, max_length=4096, description="Whole path, or a URL.",
            examples=["models/net"],
        ),
    ],
    direction: Annotated[Literal["up", "down", "both"], Query()] = "both",
    depth: Annotated[int | None, Query(ge=1, le=10_000, description="Edges away, at most.")] = None,
    relation: Annotated[list[str], Query(max_length=50)] = [],  # noqa: B006  FastAPI copies it
    every_version: Annotated[bool, Query(description="Of all that was ever there.")] = False,
) -> Response:  # fmt: skip
    """As a graph of things and edges, over all commits that the caller may read."""
    asked = LineageRequest(
        up=direction != "down",
        down=direction != "up",
        depth=depth,
        relations=tuple(relation),
        every_version=every_version,
    )
    return answer_json(request, lineage_of(content, service.catalogs, path, asked).graph())

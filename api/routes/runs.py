"""Runs: lists, one run, points of its metrics, comparisons."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query

from tensorrepo.api.content import runs
from tensorrepo.api.content.runs import MOST_POINTS, RunDetails, RunInfo, SeriesInfo
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.pagination import Cursor, Limit, ListPage, keyed_page

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/runs", tags=["runs"]
)


@router.get("", summary="Runs that the caller may read")
def list_runs(
    access: AccessOf,
    service: ServiceOf,
    prefix: Annotated[str, Query(max_length=128, description="Beginning of names.")] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[RunInfo]:
    """By name."""
    names = runs.list_runs(access, prefix=prefix)
    items, following = keyed_page(((name, name) for name in names), cursor, limit)
    return ListPage(
        items=[runs.info_of(service.live.find(access, name)) for name in items], next=following
    )


@router.get("/-/compare", summary="Runs side by side")
def compare_runs(
    access: AccessOf,
    service: ServiceOf,
    run: Annotated[list[str], Query(min_length=1, max_length=32, description="1 to 32 names.")],
) -> dict[str, Any]:
    """Parameters and last values of metrics, and which parameters differ."""
    return runs.compare_runs(service.live.find(access, name) for name in run)


@router.get("/{run}", summary="One run")
def get_run(access: AccessOf, service: ServiceOf, run: str) -> RunDetails:
    """Parameters, inputs, outputs, attempts, and metrics in short."""
    return runs.details_of(service.live.find(access, run))


@router.get("/{run}/metrics", summary="Points of metrics")
def get_metrics(
    access: AccessOf,
    service: ServiceOf,
    run: str,
    metric: Annotated[
        list[str], Query(max_length=64, description="Names; none: the first 64.")
    ] = [],  # noqa: B006  pydantic copies it
    points: Annotated[int, Query(ge=2, le=MOST_POINTS, description="At most, of each.")] = 1000,
    system: Annotated[bool | None, Query(description="Those of the machine only, or not.")] = None,
) -> list[SeriesInfo]:
    """Thinned so that a line drawn through them looks the same: extremes stay."""
    found = service.live.find(access, run)
    names = runs.metric_names(found, metric, system=system)
    return runs.series_of({name: found.points(name) for name in names}, points)

"""Runs as they happen: begun, logged, ended, and streams of their metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import Header, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.authentication import require_unchanged
from tensorrepo.api.content import runs
from tensorrepo.api.content.live_runs import points_of
from tensorrepo.api.content.runs import RunDetails
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.errors import told
from tensorrepo.api.live.hub import LiveEnd, LiveNews
from tensorrepo.api.live.store import PendingPoints, RunKey
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.events import HEARTBEAT_SECONDS, LISTENING, EventStream
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.repo.errors import Error, InvalidInputError

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/runs", tags=["runs"]
)
MOST_POINTS: Final = 1 << 16  # of one request

RunName = Annotated[str, Field(max_length=128, examples=["exp1"])]
Json = dict[str, Any]


class NewRun(BaseModel):
    """A run that begins."""

    name: RunName
    params: Json = Field(default={}, description="JSON values by name.")
    environment: Json = Field(default={}, description="Python, packages, machine.")
    resume: bool = Field(default=False, description="Go on with the one of that name.")


class PointIn(BaseModel):
    """A value of a metric."""

    metric: str = Field(min_length=1, max_length=256)
    value: float = Field(description='A number, or "NaN", "Infinity", "-Infinity".')
    step: int = Field(default=0, ge=-(2**63), lt=2**63)
    time_ms: int | None = Field(
        default=None, ge=0, lt=2**53, description="UTC; null: when it came."
    )


class NewPoints(BaseModel):
    """Points of metrics, of each in the order of time."""

    points: list[PointIn] = Field(max_length=MOST_POINTS)
    batch: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="A name of these points, which count once, however often they are sent.",
    )


class Kept(BaseModel):
    """What became of points."""

    waiting: int = Field(description="Points that are durable, and not in the repository yet.")


class InputEdge(BaseModel):
    """What a run read."""

    relation: str = Field(max_length=64, examples=["trained-on"])
    path: str = Field(max_length=4096, examples=["datasets/photos"])
    digest: str = Field(default="", max_length=64)
    commit: str | None = Field(default=None, max_length=64)
    details: Json = {}


class RunChange(BaseModel):
    """What is noted of a run beside its metrics; what is not named stays."""

    params: Json = {}
    inputs: list[InputEdge] = Field(default=[], max_length=4096)


class RunEnd(BaseModel):
    """How a run ended."""

    status: Literal["finished", "failed", "interrupted"] = "finished"
    error: str | None = Field(default=None, max_length=10_000)


@router.post("", status_code=201, summary="Begin a run, or go on with one")
def begin_run(access: AccessOf, service: ServiceOf, new: NewRun) -> RunDetails:
    """409 where there is one of that name, unless it is to be gone on with."""
    made = service.live.begin(
        access, new.name, params=new.params, environment=new.environment, resume=new.resume
    )
    return runs.details_of(made)


@router.post("/{run}/points", summary="Log points of metrics")
def log_points(access: AccessOf, service: ServiceOf, run: str, new: NewPoints) -> Kept:
    """Durable when answered, and seen at once; written to the run at most a minute later."""
    now = time.time_ns() // 1_000_000
    points = points_of(
        (one.metric, one.step, one.value, now if one.time_ms is None else one.time_ms)
        for one in new.points
    )
    return Kept(waiting=service.live.log(access, run, points, batch=new.batch))


@router.patch("/{run}", summary="Note parameters and inputs of a run")
def change_run(access: AccessOf, service: ServiceOf, run: str, change: RunChange) -> RunDetails:
    """Of one that goes on."""
    edges = [
        ProvenanceEdge(one.relation, one.path, one.digest, one.commit, one.details)
        for one in change.inputs
    ]
    made = service.live.change(access, run, params=change.params, inputs=edges)
    return runs.details_of(made)


@router.post("/{run}/end", summary="End a run")
def end_run(access: AccessOf, service: ServiceOf, run: str, end: RunEnd) -> RunDetails:
    """All points are written to it before this answers."""
    return runs.details_of(service.live.end(access, run, end.status, end.error))


@router.get(
    "/{run}/events",
    summary="Metrics as they are logged",
    response_class=EventStream,
    responses={200: {"content": {"text/event-stream": {}}, "description": "Server-sent events."}},
)
async def stream_run(
    request: Request,
    access: AccessOf,
    service: ServiceOf,
    run: str,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> EventStream:
    """Events `points` (steps, values and times by metric), `reset` where points between were
    missed (read the run anew), and `end`. A client that comes back sends `Last-Event-ID`.
    """
    found = await run_in_threadpool(runs.find_run, access, run)
    key = RunKey(access.name, found.name)
    since = None if last_event_id is None else _id(last_event_id)

    async def parts() -> AsyncIterator[str]:
        points = service.live.points
        async with service.live_events.subscribe(key) as (queue, start):
            yield LISTENING
            if since is not None and since < start:
                if await run_in_threadpool(points.has, key, since):
                    missed = await run_in_threadpool(points.pending, key, since)
                    yield _points_event(missed)
                else:
                    yield f"id: {start}\nevent: reset\ndata: {{}}\n\n"
            while True:
                news = await _next(queue)
                await require_unchanged(request, access)
                if news is None:
                    yield ": still here\n\n"
                elif isinstance(news, LiveEnd):
                    yield f"event: end\ndata: {_json({'why': news.why})}\n\n"
                    return
                else:
                    yield _points_event(news)

    return EventStream(_with_errors(parts(), partial(told, request)))


async def _next(queue: asyncio.Queue[LiveNews]) -> LiveNews | None:
    """What comes next; None when nothing did for a while."""
    try:
        async with asyncio.timeout(HEARTBEAT_SECONDS):
            return await queue.get()
    except TimeoutError:
        return None


async def _with_errors(
    parts: AsyncIterator[str], words: Callable[[Exception], str]
) -> AsyncIterator[str]:
    try:
        async for part in parts:
            yield part
    except Error as error:
        yield f"event: end\ndata: {_json({'why': words(error), 'kind': error.kind})}\n\n"


def _points_event(news: PendingPoints) -> str:
    data = {
        metric: {
            "steps": points.steps.tolist(),
            "values": [_number(value) for value in points.values.tolist()],
            "times_ms": points.times_ms.tolist(),
        }
        for metric, points in news.points.items()
    }
    return f"id: {news.last_id}\nevent: points\ndata: {_json({'metrics': data})}\n\n"


def _number(value: float) -> float | str:
    """As JSON has it: NaN and infinities are texts."""
    if value != value:  # noqa: PLR0124  NaN alone
        return "NaN"
    return value if abs(value) != float("inf") else ("Infinity" if value > 0 else "-Infinity")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise InvalidInputError(f"Last-Event-ID {text!r:.40}: expected an id of an event")
    return int(text)

"""Pages of runs: a list, one with charts that move while it trains, several side by side."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Annotated, Any, Final

import numpy as np
from fastapi import Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tensorrepo.api.authentication import require_unchanged
from tensorrepo.api.content import runs
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.live.store import RunKey
from tensorrepo.api.pages.door import RepositoryPageOf
from tensorrepo.api.pages.rendering import RepositoryPage
from tensorrepo.api.routes.events import HEARTBEAT_SECONDS, EventStream
from tensorrepo.formats.runs.run_record import RUNNING, SYSTEM
from tensorrepo.formats.runs.stored_run import StoredRun
from tensorrepo.repo.errors import Error, InvalidInputError

router: Final = deferred_router(include_in_schema=False)
_RUNS: Final = 100  # of a page
_COMPARED: Final = 8
_POINTS: Final = 1000
_CHARTS: Final = 24
_UNITS: Final = {"percent": "%", "gib": "GiB", "watts": "W"}
_PAUSE_SECONDS: Final = 1.0  # between parts of a stream: what came meanwhile comes together


@router.get("/{repository:repository}/-/runs")
def run_list(
    page: RepositoryPageOf,
    q: Annotated[str, Query(max_length=200)] = "",
    skip: Annotated[int, Query(ge=0)] = 0,
) -> Response:
    """Runs, the newest first."""
    names = [name for name in runs.list_runs(page.access) if q.strip().lower() in name.lower()]
    every = sorted(
        (runs.info_of(page.service.live.find(page.access, name)) for name in names),
        key=lambda one: (-one.started_ns, one.name),
    )
    shown = every[skip : skip + _RUNS]
    metrics = list(dict.fromkeys(name for one in shown for name in one.metrics))
    return page.render(
        "runs.html",
        runs=shown,
        q=q.strip(),
        metrics=[name for name in metrics if not name.startswith(SYSTEM)][:4],
        following=skip + _RUNS if len(every) > skip + _RUNS else None,
    )


@router.get("/{repository:repository}/-/compare-runs")
def compare(
    page: RepositoryPageOf, run: Annotated[list[str] | None, Query(max_length=200)] = None
) -> Response:
    """Some runs side by side: parameters, metrics, and a chart for each metric."""
    names = list(dict.fromkeys(run or []))
    if not 2 <= len(names) <= _COMPARED:
        raise InvalidInputError(f"choose 2 to {_COMPARED} runs to compare, got {len(names)}")
    found = [page.service.live.find(page.access, name) for name in names]
    told = runs.compare_runs(found)
    shown = [name for name in told["metrics"] if not name.startswith(SYSTEM)]
    return page.render("compare_runs.html", names=names, told=told, metrics=shown[:_CHARTS])


@router.get("/{repository:repository}/-/run-points")
def points(
    page: RepositoryPageOf,
    metric: Annotated[str, Query(max_length=1000)],
    run: Annotated[list[str], Query(max_length=_COMPARED)],
) -> dict[str, list[runs.SeriesInfo]]:
    """Points of one metric of some runs, thinned, for a chart; runs without it have none."""
    series = []
    for name in run:
        found = page.service.live.find(page.access, name)
        if metric in {one.name for one in found.document.metrics}:
            series += runs.series_of({metric: found.points(metric)}, _POINTS)
        else:
            series.append(
                runs.SeriesInfo(metric=metric, points=0, steps=[], values=[], times_ms=[])
            )
    return {"series": series}


@router.get("/{repository:repository}/-/run-events/{name:path}")
async def run_events(page: RepositoryPageOf, name: str) -> EventStream:
    """Points of a run as they come (server-sent events), until it ends."""
    find = partial(run_in_threadpool, page.service.live.find, page.access, name)
    run = await find()
    seen = {one.name: one.last.step for one in run.document.metrics}
    key = RunKey(page.access.name, name)

    async def parts() -> AsyncIterator[str]:
        yield "retry: 2000\n\n"
        async with (
            page.service.events.subscribe(page.access.served) as subscription,
            page.service.live_events.subscribe(key) as (queue, _),
        ):
            while True:
                found = await find()
                news = await run_in_threadpool(_news, found, seen)
                yield _message("points", news) if news else ": still here\n\n"
                if found.state() != RUNNING:
                    yield _message("end", {"state": found.state()})
                    return
                await asyncio.sleep(_PAUSE_SECONDS)
                if not await _is_still_allowed(page):
                    return
                await _either(subscription.next(HEARTBEAT_SECONDS), queue.get())
                if subscription.ended:  # the service is ending: the browser comes back
                    return

    return EventStream(parts())


@router.get("/{repository:repository}/-/runs/{name:path}")
def one_run(page: RepositoryPageOf, name: str) -> Response:
    """One run: what it was given, what it read and made, how its metrics went."""
    run = runs.details_of(page.service.live.find(page.access, name))
    own = [one for one in run.summaries if not one.name.startswith(SYSTEM)]
    system = [one for one in run.summaries if one.name.startswith(SYSTEM)]
    return page.render(
        "run.html",
        run=run,
        own=own[:_CHARTS],
        system=system[:_CHARTS],
        is_live=run.state == RUNNING,
        machine=_machine(run),
        system_words=system_words,
    )


def system_words(metric: str) -> str:
    """A metric of the machine in words: its unit in brackets."""
    name, _, unit = metric.removeprefix(SYSTEM).rpartition("_")
    words = name.replace("_", " ").replace("cpu", "CPU").replace("gpu", "GPU ")
    return f"{words[:1].upper()}{words[1:]} ({_UNITS.get(unit, unit)})"


def _machine(run: runs.RunDetails) -> str:
    """What the newest attempt ran on."""
    told = run.attempts[-1]["environment"].get("machine", {}) if run.attempts else {}
    cores = f"{told['cores']} cores" if told.get("cores") else ""
    gpus = ", ".join(told.get("gpus", ()))
    return ", ".join(filter(None, [told.get("host"), told.get("processor"), cores, gpus]))


def _news(run: StoredRun, seen: dict[str, int]) -> dict[str, dict[str, list[float | str]]]:
    """Points behind the steps that were `seen`, which are moved on."""
    told = {}
    for metric in run.document.metrics:
        before = seen.get(metric.name)
        if before is not None and metric.last.step <= before:
            continue
        seen[metric.name] = metric.last.step
        points = run.points(metric.name)
        new = points if before is None else points[int(np.argmax(points.steps > before)) :]
        (series,) = runs.series_of({metric.name: new}, _POINTS)
        shown = series.model_dump(mode="json")  # NaN is no JSON
        told[metric.name] = {"steps": shown["steps"], "values": shown["values"]}
    return told


async def _is_still_allowed(page: RepositoryPage) -> bool:
    """Whether nothing was revoked since the page was asked for."""
    try:
        await require_unchanged(page.request, page.access)
    except Error:
        return False
    return True


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of these happened; what it gave does not matter."""
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in tasks:
            one.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _message(event: str, data: object) -> str:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n"

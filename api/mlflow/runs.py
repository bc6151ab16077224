"""Runs, as MLflow's clients ask for them: begun, logged, searched, and histories of metrics."""

from __future__ import annotations

import time
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from fastapi import Depends, Request, Response

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.content import tracking
from tensorrepo.api.content.artifacts import ArtifactPlace, list_artifacts
from tensorrepo.api.content.logged_models import ModelMetric, add_model_metrics
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.mlflow.answers import files_json, points_json, run_info_json, run_json
from tensorrepo.api.mlflow.messages import (
    MetricValue,
    Pair,
    answer,
    body_of,
    by_key,
    page,
    query_of,
)
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.formats.runs.metrics import MetricPoints
from tensorrepo.repo.errors import InvalidInputError

router: Final = deferred_router(
    prefix="/{repository:repository}/api/2.0/mlflow", include_in_schema=False
)
_PAGE: Final = 1000
_HISTORY_PAGE: Final = 25_000
_MOST_BULK: Final = 100  # runs of one bulk history
MOST_POINTS: Final = 1 << 16  # of one batch


class _New(msgspec.Struct):
    experiment_id: str = "0"
    user_id: str = ""
    run_name: str = ""
    start_time: int | None = None
    tags: list[Pair] = []


class _ById(msgspec.Struct):
    run_id: str = ""
    run_uuid: str = ""

    @property
    def id(self) -> str:
        found = self.run_id or self.run_uuid
        if not found:
            raise InvalidInputError("Missing value for required parameter 'run_id'")
        return found


class _Update(_ById):
    status: str | None = None
    end_time: int | None = None
    run_name: str | None = None


class _Batch(_ById):
    metrics: list[MetricValue] = []
    params: list[Pair] = []
    tags: list[Pair] = []


class _OneMetric(_ById, kw_only=True):
    key: str
    value: float
    timestamp: int = 0
    step: int = 0
    model_id: str | None = None
    dataset_name: str | None = None
    dataset_digest: str | None = None


class _OnePair(_ById, kw_only=True):
    key: str
    value: str = ""


class _Dataset(msgspec.Struct):
    name: str
    digest: str
    source_type: str = ""
    source: str = ""
    schema: str = ""
    profile: str = ""


class _DatasetInput(msgspec.Struct):
    dataset: _Dataset
    tags: list[Pair] = []


class _ModelOf(msgspec.Struct):
    model_id: str
    step: int = 0


class _Inputs(_ById, kw_only=True):
    datasets: list[_DatasetInput] = []
    models: list[_ModelOf] = []


class _Outputs(_ById, kw_only=True):
    models: list[_ModelOf] = []


class _LegacyModel(_ById, kw_only=True):
    model_json: str = ""


class _Search(msgspec.Struct):
    experiment_ids: list[str] = []
    filter: str = ""
    run_view_type: str = tracking.ACTIVE_ONLY
    max_results: int = 0
    order_by: list[str] = []
    page_token: str = ""


class _History(_ById, kw_only=True):
    metric_key: str
    max_results: int = 0
    page_token: str = ""


class _BulkHistory(msgspec.Struct, kw_only=True):
    run_ids: list[str] = []
    run_id: list[str] = []
    metric_key: str
    start_step: int | None = None
    end_step: int | None = None
    max_results: int = 0


class _Listing(_ById, kw_only=True):
    path: str = ""


@router.post("/runs/create")
def create(
    access: AccessOf, service: ServiceOf, new: Annotated[_New, Depends(body_of(_New))]
) -> Response:
    made = tracking.begin_run(
        access,
        service.live,
        experiment=new.experiment_id,
        name=new.run_name,
        user=new.user_id,
        start_ms=new.start_time,
        tags=by_key(new.tags),
    )
    return answer({"run": run_json(made)})


@router.get("/runs/get")
def get(
    access: AccessOf, service: ServiceOf, asked: Annotated[_ById, Depends(query_of(_ById))]
) -> Response:
    return answer({"run": run_json(tracking.get_run(access, service.live, asked.id))})


@router.post("/runs/update")
def update(
    access: AccessOf, service: ServiceOf, told: Annotated[_Update, Depends(body_of(_Update))]
) -> Response:
    run = tracking.update_run(
        access,
        service.live,
        told.id,
        status=told.status,
        end_ms=told.end_time,
        name=told.run_name,
    )
    return answer({"run_info": run_info_json(run)})


@router.post("/runs/delete")
def delete(
    access: AccessOf, service: ServiceOf, told: Annotated[_ById, Depends(body_of(_ById))]
) -> Response:
    tracking.set_deleted(access, service.live, told.id, on=True)
    return answer({})


@router.post("/runs/restore")
def restore(
    access: AccessOf, service: ServiceOf, told: Annotated[_ById, Depends(body_of(_ById))]
) -> Response:
    tracking.set_deleted(access, service.live, told.id, on=False)
    return answer({})


@router.post("/runs/log-batch")
def log_batch(
    access: AccessOf, service: ServiceOf, told: Annotated[_Batch, Depends(body_of(_Batch))]
) -> Response:
    _log(access, service, told)
    return answer({})


@router.post("/runs/log-metric")
def log_metric(
    access: AccessOf, service: ServiceOf, told: Annotated[_OneMetric, Depends(body_of(_OneMetric))]
) -> Response:
    metric = MetricValue(
        told.key,
        told.value,
        told.timestamp,
        told.step,
        told.model_id,
        told.dataset_name,
        told.dataset_digest,
    )
    _log(access, service, _Batch(told.id, metrics=[metric]))
    return answer({})


@router.post("/runs/log-parameter")
def log_parameter(
    access: AccessOf, service: ServiceOf, told: Annotated[_OnePair, Depends(body_of(_OnePair))]
) -> Response:
    _log(access, service, _Batch(told.id, params=[Pair(told.key, told.value)]))
    return answer({})


@router.post("/runs/set-tag")
def set_tag(
    access: AccessOf, service: ServiceOf, told: Annotated[_OnePair, Depends(body_of(_OnePair))]
) -> Response:
    _log(access, service, _Batch(told.id, tags=[Pair(told.key, told.value)]))
    return answer({})


@router.post("/runs/delete-tag")
def delete_tag(
    access: AccessOf, service: ServiceOf, told: Annotated[_OnePair, Depends(body_of(_OnePair))]
) -> Response:
    tracking.remove_tag(access, service.live, told.id, told.key)
    return answer({})


@router.post("/runs/log-inputs")
def log_inputs(
    access: AccessOf, service: ServiceOf, told: Annotated[_Inputs, Depends(body_of(_Inputs))]
) -> Response:
    datasets = [
        {**_without_empty(one.dataset), "tags": msgspec.to_builtins(one.tags)}
        for one in told.datasets
    ]
    models = [one.model_id for one in told.models]
    tracking.log_inputs(access, service.live, told.id, datasets, models)
    return answer({})


@router.post("/runs/outputs")
def log_outputs(
    access: AccessOf, service: ServiceOf, told: Annotated[_Outputs, Depends(body_of(_Outputs))]
) -> Response:
    models = [msgspec.to_builtins(one) for one in told.models]
    tracking.log_outputs(access, service.live, told.id, models)
    return answer({})


@router.post("/runs/log-model")
def log_model(
    access: AccessOf,
    service: ServiceOf,
    told: Annotated[_LegacyModel, Depends(body_of(_LegacyModel))],
) -> Response:
    """What clients before 3.0 say of a model among the files of a run."""
    tracking.note_model(access, service.live, told.id, told.model_json)
    return answer({})


@router.post("/runs/search")
def search(
    request: Request,
    access: AccessOf,
    service: ServiceOf,
    asked: Annotated[_Search, Depends(body_of(_Search))],
) -> Response:
    note(request, None)  # it only asks
    found = tracking.search_runs(
        access,
        service.live,
        experiments=asked.experiment_ids,
        filter_text=asked.filter,
        view=asked.run_view_type,
        order_by=asked.order_by,
    )
    shown, following = page(found, asked.page_token, asked.max_results, _PAGE)
    return answer({"runs": [run_json(one) for one in shown], "next_page_token": following})


@router.get("/metrics/get-history")
def get_history(
    access: AccessOf, service: ServiceOf, asked: Annotated[_History, Depends(query_of(_History))]
) -> Response:
    points = tracking.metric_points(access, service.live, asked.id, asked.metric_key)
    if points is None:
        return answer({"metrics": []})
    most = asked.max_results or (_HISTORY_PAGE if asked.page_token else len(points))
    rows, following = page(range(len(points)), asked.page_token, most, _HISTORY_PAGE)
    some = points[rows[0] : rows[-1] + 1] if rows else points[:0]
    return answer(
        {"metrics": points_json(asked.metric_key, some, asked.id), "next_page_token": following}
    )


@router.get("/metrics/get-history-bulk-interval")
def get_history_of_steps(
    access: AccessOf,
    service: ServiceOf,
    asked: Annotated[_BulkHistory, Depends(query_of(_BulkHistory))],
) -> Response:
    return _bulk(access, service, asked)


@router.get("/metrics/get-history-bulk")
def get_histories(
    access: AccessOf,
    service: ServiceOf,
    asked: Annotated[_BulkHistory, Depends(query_of(_BulkHistory))],
) -> Response:
    return _bulk(access, service, asked)


@router.get("/artifacts/list")
def list_run_artifacts(
    access: AccessOf, asked: Annotated[_Listing, Depends(query_of(_Listing))]
) -> Response:
    root = ArtifactPlace("runs", asked.id)
    found = list_artifacts(access, ArtifactPlace("runs", asked.id, asked.path.strip("/")))
    return answer({"root_uri": root.uri, "files": files_json(found, asked.path.strip("/"))})


def _log(access: AccessOf, service: ServiceOf, batch: _Batch) -> None:
    if len(batch.metrics) > MOST_POINTS:
        raise InvalidInputError(
            f"A batch logging request can contain at most {MOST_POINTS} metrics. "
            f"Got {len(batch.metrics)} metrics. Please split up metrics across multiple requests."
        )
    now = time.time_ns() // 10**6
    tracking.log_batch(
        access,
        service.live,
        batch.id,
        metrics=((one.key, one.step, one.value, one.timestamp or now) for one in batch.metrics),
        params=tracking.distinct((one.key, one.value) for one in batch.params),
        tags=by_key(batch.tags),
    )
    of_models: dict[str, list[ModelMetric]] = {}
    for one in batch.metrics:
        if one.model_id:
            finite = one.value if np.isfinite(one.value) else None
            of_models.setdefault(one.model_id, []).append(
                ModelMetric(
                    one.key,
                    finite,
                    one.step,
                    one.timestamp or now,
                    one.dataset_name,
                    one.dataset_digest,
                    batch.id,
                )
            )
    add_model_metrics(access, of_models)


def _bulk(access: AccessOf, service: ServiceOf, asked: _BulkHistory) -> Response:
    ids = asked.run_ids or asked.run_id
    if not 0 < len(ids) <= _MOST_BULK:
        raise InvalidInputError(f"{len(ids)} runs: expected 1 to {_MOST_BULK} as run_ids")
    most = min(asked.max_results or _HISTORY_PAGE, _HISTORY_PAGE)
    found: list[dict[str, Any]] = []
    for id_ in ids:
        points = tracking.metric_points(access, service.live, id_, asked.metric_key)
        if points is not None:
            found += points_json(asked.metric_key, _interval(points, asked, most), id_)
    return answer({"metrics": found})


def _interval(points: MetricPoints, asked: _BulkHistory, most: int) -> MetricPoints:
    """Points of some steps, evenly thinned to `most`; the first and the last stay."""
    low = -(2**63) if asked.start_step is None else asked.start_step
    high = 2**63 - 1 if asked.end_step is None else asked.end_step
    inside = np.flatnonzero((points.steps >= low) & (points.steps <= high))
    if len(inside) > most:
        inside = inside[np.linspace(0, len(inside) - 1, most).astype(np.int64)]
    return MetricPoints(points.steps[inside], points.values[inside], points.times_ms[inside])


def _without_empty(dataset: _Dataset) -> dict[str, str]:
    told: dict[str, str] = msgspec.to_builtins(dataset)
    return {name: text for name, text in told.items() if text}

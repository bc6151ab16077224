"""Records of the house as MLflow's messages have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tensorrepo.api.content.artifacts import ArtifactPlace
from tensorrepo.api.content.experiments import Experiment
from tensorrepo.api.content.logged_models import LoggedModel
from tensorrepo.api.content.registry_records import ModelRecord, VersionRecord
from tensorrepo.api.content.run_files import ListedFile
from tensorrepo.api.content.tracking import TrackedRun
from tensorrepo.api.mlflow.messages import number, pairs
from tensorrepo.formats.runs.metrics import MetricPoints

Json = dict[str, Any]
_DATASET = ("name", "digest", "source_type", "source", "schema", "profile")


def stage_of_life(*, is_deleted: bool) -> str:
    return "deleted" if is_deleted else "active"


def experiment_json(one: Experiment) -> Json:
    return {
        "experiment_id": one.id,
        "name": one.name,
        "artifact_location": "mlflow-artifacts:/runs",
        "lifecycle_stage": stage_of_life(is_deleted=one.is_deleted),
        "creation_time": one.created_ms,
        "last_update_time": one.updated_ms,
        "tags": pairs(one.tags),
    }


def run_info_json(run: TrackedRun) -> Json:
    info = {
        "run_id": run.id,
        "run_uuid": run.id,
        "run_name": run.name,
        "experiment_id": run.experiment,
        "user_id": run.user,
        "status": run.status,
        "start_time": run.start_ms,
        "artifact_uri": ArtifactPlace("runs", run.id).uri,
        "lifecycle_stage": stage_of_life(is_deleted=run.is_deleted),
    }
    return info if run.end_ms is None else info | {"end_time": run.end_ms}


def run_json(run: TrackedRun) -> Json:
    document = run.stored.document
    written_ms = document.written_ns // 10**6
    metrics = [
        {
            "key": one.name,
            "value": number(one.last.value),
            "step": one.last.step,
            "timestamp": written_ms,
        }
        for one in document.metrics
    ]
    return {
        "info": run_info_json(run),
        "data": {"metrics": metrics, "params": pairs(run.params), "tags": pairs(run.tags)},
        "inputs": {
            "dataset_inputs": [
                {
                    "dataset": {name: told[name] for name in _DATASET if told.get(name)},
                    "tags": told.get("tags", []),
                }
                for told in run.datasets
            ],
            "model_inputs": [{"model_id": id_} for id_ in run.model_inputs],
        },
        "outputs": {"model_outputs": run.outputs},
    }


def points_json(metric: str, points: MetricPoints, run_id: str) -> list[Json]:
    rows = zip(points.steps.tolist(), points.values.tolist(), points.times_ms.tolist(), strict=True)
    return [
        {"key": metric, "value": number(value), "step": step, "timestamp": at, "run_id": run_id}
        for step, value, at in rows
    ]


def version_json(record: VersionRecord) -> Json:
    info = record.info
    return {
        "name": info.name,
        "version": str(info.number),
        "creation_timestamp": record.made_ms,
        "last_updated_timestamp": record.made_ms,
        "user_id": info.author.partition(" <")[0],
        "current_stage": record.stage,
        "description": info.description,
        "source": record.source,
        "run_id": record.run,
        "status": "READY",
        "tags": pairs(record.tags),
        "aliases": info.aliases,
        "model_id": record.model,
    }


def model_json(record: ModelRecord) -> Json:
    info = record.info
    return {
        "name": info.name,
        "creation_timestamp": record.made_ms,
        "last_updated_timestamp": record.changed_ms,
        "description": info.description,
        "latest_versions": [version_json(one) for one in record.newest],
        "tags": pairs(record.tags),
        "aliases": [
            {"alias": alias, "version": str(number)} for alias, number in info.aliases.items()
        ],
    }


def logged_model_json(model: LoggedModel) -> Json:
    metrics = [
        {**msgspec.to_builtins(one), "value": "NaN" if one.value is None else one.value}
        for one in model.metrics
    ]
    return {
        "info": {
            "model_id": model.model_id,
            "experiment_id": model.experiment_id,
            "name": model.name,
            "creation_timestamp_ms": model.created_ms,
            "last_updated_timestamp_ms": model.updated_ms,
            "artifact_uri": ArtifactPlace("models", model.model_id).uri,
            "status": model.status,
            "model_type": model.model_type,
            "source_run_id": model.source_run_id,
            "tags": pairs(model.tags),
        },
        "data": {
            "params": pairs(model.params),
            "metrics": [
                {name: value for name, value in one.items() if value is not None}
                | {"model_id": model.model_id}
                for one in metrics
            ],
        },
    }


def files_json(files: Iterable[ListedFile], folder: str = "") -> list[Json]:
    """Files as a list; `folder` is put before their names."""
    above = f"{folder}/" if folder else ""
    return [
        {"path": f"{above}{one.name}", "is_dir": True}
        if one.is_folder
        else {"path": f"{above}{one.name}", "is_dir": False, "file_size": one.bytes}
        for one in files
    ]

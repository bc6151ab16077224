"""Runs as trackers know them: one that was deleted takes nothing until it is brought back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.servers.service import RunningService

BASE = "/team/photos/api/2.0/mlflow/runs"
TAG = {"key": "k", "value": "v"}


@pytest.fixture(scope="module")
def deleted(service: RunningService) -> Iterator[tuple[httpx.Client, str]]:
    """A client, and the id of a run that it deleted."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        made = client.post(f"{BASE}/create", json={"experiment_id": "0"}).json()
        run = made["run"]["info"]["run_id"]
        metric = {"run_id": run, "key": "loss", "value": 0.5}
        client.post(f"{BASE}/log-metric", json=metric).raise_for_status()
        client.post(f"{BASE}/delete", json={"run_id": run}).raise_for_status()
        yield client, run


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        ("log-metric", {"key": "loss", "value": 1.0}),
        ("log-batch", {"metrics": [{"key": "loss", "value": 1.0, "timestamp": 1, "step": 1}]}),
        ("log-parameter", TAG),
        ("set-tag", TAG),
        ("delete-tag", {"key": "k"}),
        ("log-inputs", {"models": [{"model_id": "m-1"}]}),
        ("outputs", {"models": [{"model_id": "m-1"}]}),
        ("log-model", {"model_json": "{}"}),
        ("update", {"status": "FINISHED"}),
    ],
)
def test_a_deleted_run_takes_nothing(
    deleted: tuple[httpx.Client, str], verb: str, told: dict[str, Any]
) -> None:
    client, run = deleted
    refused = client.post(f"{BASE}/{verb}", json={"run_id": run, **told})
    assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")
    assert "must be in the 'active' state. Current state is deleted" in refused.json()["message"]


def test_a_run_that_was_brought_back_goes_on(deleted: tuple[httpx.Client, str]) -> None:
    client, run = deleted
    client.post(f"{BASE}/restore", json={"run_id": run}).raise_for_status()
    metric = {"run_id": run, "key": "loss", "value": 0.25, "step": 1}
    client.post(f"{BASE}/log-metric", json=metric).raise_for_status()
    told = client.get(f"{BASE}/get", params={"run_id": run}).json()["run"]
    assert [one["value"] for one in told["data"]["metrics"]] == [0.25]
    client.post(f"{BASE}/delete", json={"run_id": run}).raise_for_status()

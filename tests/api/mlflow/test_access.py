"""Who may do what through the routes of MLflow, and how a caller proves who they are."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tests.support.servers.service import RunningService

BASE = "/team/photos/api/2.0"
ID = {"run_id": "exp-1"}
OF_MODEL = {"name": "net"}
OF_VERSION = {"name": "net", "version": "1"}
TAG = {"key": "k", "value": "v"}

# Every route that changes something, with a body that it would take.
WRITES: list[tuple[str, str, Any]] = [
    ("POST", "mlflow/experiments/create", {"name": "x"}),
    ("POST", "mlflow/experiments/update", {"experiment_id": "0", "new_name": "x"}),
    ("POST", "mlflow/experiments/delete", {"experiment_id": "0"}),
    ("POST", "mlflow/experiments/restore", {"experiment_id": "0"}),
    ("POST", "mlflow/experiments/set-experiment-tag", {"experiment_id": "0", **TAG}),
    ("POST", "mlflow/experiments/delete-experiment-tag", {"experiment_id": "0", "key": "k"}),
    ("POST", "mlflow/runs/create", {"experiment_id": "0"}),
    ("POST", "mlflow/runs/update", {**ID, "run_name": "x"}),
    ("POST", "mlflow/runs/update", {**ID, "status": "FAILED"}),
    ("POST", "mlflow/runs/update", {**ID, "status": "RUNNING"}),
    ("POST", "mlflow/runs/delete", ID),
    ("POST", "mlflow/runs/restore", ID),
    ("POST", "mlflow/runs/log-batch", {**ID, "metrics": [{"key": "m", "value": 1.0}]}),
    ("POST", "mlflow/runs/log-metric", {**ID, "key": "m", "value": 1.0}),
    ("POST", "mlflow/runs/log-parameter", {**ID, **TAG}),
    ("POST", "mlflow/runs/set-tag", {**ID, **TAG}),
    ("POST", "mlflow/runs/delete-tag", {**ID, "key": "there"}),
    ("POST", "mlflow/runs/log-inputs", {**ID, "models": [{"model_id": "m-1"}]}),
    ("POST", "mlflow/runs/outputs", {**ID, "models": [{"model_id": "m-1"}]}),
    ("POST", "mlflow/runs/log-model", {**ID, "model_json": "{}"}),
    ("POST", "mlflow/registered-models/create", {"name": "other"}),
    ("POST", "mlflow/registered-models/rename", {**OF_MODEL, "new_name": "x"}),
    ("PATCH", "mlflow/registered-models/update", {**OF_MODEL, "description": "x"}),
    ("DELETE", "mlflow/registered-models/delete", OF_MODEL),
    ("POST", "mlflow/registered-models/set-tag", {**OF_MODEL, **TAG}),
    ("DELETE", "mlflow/registered-models/delete-tag", {**OF_MODEL, "key": "k"}),
    ("POST", "mlflow/registered-models/alias", {**OF_VERSION, "alias": "a"}),
    ("DELETE", "mlflow/registered-models/alias", {**OF_MODEL, "alias": "live"}),
    ("POST", "mlflow/model-versions/create", {**OF_MODEL, "source": "runs:/exp-1/model"}),
    ("PATCH", "mlflow/model-versions/update", {**OF_VERSION, "description": "x"}),
    ("POST", "mlflow/model-versions/transition-stage", {**OF_VERSION, "stage": "Staging"}),
    ("DELETE", "mlflow/model-versions/delete", OF_VERSION),
    ("POST", "mlflow/model-versions/set-tag", {**OF_VERSION, **TAG}),
    ("DELETE", "mlflow/model-versions/delete-tag", {**OF_VERSION, "key": "k"}),
    ("POST", "mlflow/logged-models", {"experiment_id": "0", "name": "x"}),
    ("PATCH", "mlflow/logged-models/MODEL", {"status": "LOGGED_MODEL_READY"}),
    ("DELETE", "mlflow/logged-models/MODEL", {}),
    ("PATCH", "mlflow/logged-models/MODEL/tags", {"tags": [TAG]}),
    ("DELETE", "mlflow/logged-models/MODEL/tags/k", {}),
    ("POST", "mlflow/logged-models/MODEL/params", {"params": [TAG]}),
    ("PUT", "mlflow-artifacts/artifacts/runs/exp-1/artifacts/a.txt", {}),
    ("DELETE", "mlflow-artifacts/artifacts/runs/exp-1/artifacts/model", {}),
    ("POST", "mlflow-artifacts/mpu/create/runs/exp-1/artifacts/a.txt", {}),
]


@pytest.fixture(scope="module")
def photos(service: RunningService) -> RunningService:
    """A repository with a run that has a file, and a model of two versions."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        client.post(
            "/api/v1/repositories/team/photos/-/runs", json={"name": "exp-1"}
        ).raise_for_status()
        tell(client, "POST", "mlflow/runs/set-tag", {**ID, "key": "there", "value": "x"})
        place = f"{BASE}/mlflow-artifacts/artifacts/runs/exp-1/artifacts/model/weights.txt"
        client.put(place, content=b"1 2 3").raise_for_status()
        tell(client, "POST", "mlflow/registered-models/create", OF_MODEL)
        source = {**OF_MODEL, "source": "runs:/exp-1/model"}
        tell(client, "POST", "mlflow/model-versions/create", source)
        tell(client, "POST", "mlflow/registered-models/alias", {**OF_VERSION, "alias": "live"})
    return service


@pytest.fixture(scope="module")
def model_id(photos: RunningService) -> str:
    with photos.client() as client:
        made = tell(client, "POST", "mlflow/logged-models", {"name": "logged"})
    return str(made["model"]["info"]["model_id"])


@pytest.fixture(scope="module")
def reading(photos: RunningService) -> Iterator[httpx.Client]:
    """Whoever may read all, and change nothing."""
    with photos.client(photos.user("rea", Grant("team/photos", Action.READ))) as client:
        yield client


def tell(client: httpx.Client, method: str, path: str, body: Any) -> Any:
    answer = client.request(method, f"{BASE}/{path}", json=body)
    answer.raise_for_status()
    return answer.json()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    WRITES,
    ids=[f"{one[0]} {one[1]} {at}" for at, one in enumerate(WRITES)],
)
def test_who_may_only_read_changes_nothing(
    reading: httpx.Client, model_id: str, method: str, path: str, body: Any
) -> None:
    answer = reading.request(method, f"{BASE}/{path.replace('MODEL', model_id)}", json=body)
    assert answer.status_code == 403, answer.text
    assert answer.json()["error_code"] == "PERMISSION_DENIED"


def test_an_unknown_caller_is_told_so_in_the_words_of_mlflow(photos: RunningService) -> None:
    with photos.client("") as client:
        answer = client.get(f"{BASE}/mlflow/runs/get", params=ID)
    assert answer.status_code == 401
    assert answer.json()["error_code"] == "UNAUTHENTICATED"
    assert answer.json()["message"]


def test_a_token_may_come_as_a_password(photos: RunningService) -> None:
    proof = base64.b64encode(f"ada:{photos.token}".encode()).decode()
    with photos.client("") as client:
        headers = {"Authorization": f"Basic {proof}"}
        answer = client.get(f"{BASE}/mlflow/runs/get", params=ID, headers=headers)
    assert answer.json()["run"]["info"]["run_id"] == "exp-1"


@pytest.mark.parametrize("proof", ["x", "!", base64.b64encode(b"no colon").decode()])
def test_a_header_that_holds_no_token_is_refused(photos: RunningService, proof: str) -> None:
    with photos.client("") as client:
        headers = {"Authorization": f"Basic {proof}"}
        assert client.get(f"{BASE}/mlflow/runs/get", headers=headers).status_code == 401


def test_a_route_that_there_is_not_is_told_by_its_own_code(reading: httpx.Client) -> None:
    answer = reading.get(f"{BASE}/mlflow/traces/search")
    assert answer.status_code == 404
    assert answer.json()["error_code"] == "ENDPOINT_NOT_FOUND"


def test_runs_are_seen_by_who_may_read_their_refs(photos: RunningService) -> None:
    token = photos.user("nina", Grant("team/photos", Action.READ, "runs/none/*"))
    with photos.client(token) as client:
        answer = client.get(f"{BASE}/mlflow/runs/get", params=ID)
        files = client.get(
            f"{BASE}/mlflow-artifacts/artifacts", params={"path": "runs/exp-1/artifacts"}
        )
    assert answer.status_code == 404
    assert files.status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "runs/exp-1/artifacts/../../secret",
        "runs/exp-1/artifacts/a//b",
        "runs/exp-1/artifacts/a%00b",
        "runs/exp-1/artifacts/%2e%2e/x",
        "elsewhere/x",
        "commits/abc/x",
    ],
)
def test_a_path_that_escapes_is_refused(photos: RunningService, path: str) -> None:
    with photos.client() as client:
        url = httpx.URL(f"{photos.url}{BASE}/mlflow-artifacts/artifacts/{path}")
        assert client.put(url, content=b"x").status_code in {400, 404}


@pytest.mark.parametrize(
    "source", ["s3://bucket/model", "file:///etc", "/etc/passwd", "http" + "://127.0.0.1/x"]
)
def test_the_service_reads_no_model_from_elsewhere(photos: RunningService, source: str) -> None:
    with photos.client() as client:
        body = {**OF_MODEL, "source": source}
        answer = client.post(f"{BASE}/mlflow/model-versions/create", json=body)
    assert answer.status_code == 400
    assert answer.json()["error_code"] == "INVALID_PARAMETER_VALUE"


def test_what_is_written_is_in_the_audit_log(photos: RunningService) -> None:
    with photos.client() as client:
        tell(client, "POST", "mlflow/runs/set-tag", {**ID, **TAG})
        tell(client, "POST", "mlflow/runs/search", {"experiment_ids": ["0"]})
    paths = [path for event in photos.audited() for path in event.get("paths", ())]
    assert f"{BASE}/mlflow/runs/set-tag" in paths
    assert f"{BASE}/mlflow/runs/search" not in paths


@pytest.mark.parametrize("before", ["", "/team/photos/more"])
def test_a_url_that_names_no_repository_says_what_one_looks_like(
    service: RunningService, before: str
) -> None:
    with service.client() as client:
        told = client.get(f"{before}/api/2.0/mlflow/experiments/search").json()
    assert told["error_code"] == "RESOURCE_DOES_NOT_EXIST"
    assert "MLFLOW_TRACKING_URI is the URL of the service and a name" in told["message"]

"""Flavours of MLflow against a service: models of torch and sklearn, logged, registered, loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.mlflow.test_client import NAMED, ask, environment
from tests.support.clients.environments import client_python
from tests.support.clients.process import run_client
from tests.support.servers.service_process import ServiceProcess

pytestmark = pytest.mark.soak

TORCH = r"""
import json, mlflow, mlflow.pytorch, torch
from mlflow import MlflowClient

client, seen = MlflowClient(), {}
experiment = mlflow.set_experiment("torch")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
given = torch.randn(2, 64)
with mlflow.start_run() as run:
    info = mlflow.pytorch.log_model(
        net, name="model", registered_model_name="net", serialization_format="pickle",
        pip_requirements=["torch"],
    )
    mlflow.pytorch.log_state_dict(net.state_dict(), artifact_path="weights")
    mlflow.log_metric("accuracy", 0.9, model_id=info.model_id)
logged = mlflow.get_logged_model(info.model_id)
seen["logged"] = [str(logged.status), logged.name, logged.source_run_id == run.info.run_id]
seen["metrics"] = {one.key: one.value for one in logged.metrics}
client.set_registered_model_alias("net", "champion", info.registered_model_version)
names = [info.model_uri, "models:/net@champion", f"models:/net/{info.registered_model_version}"]
seen["loaded"] = [
    torch.equal(mlflow.pytorch.load_model(name)(given), net(given)) for name in names
]
weights = mlflow.pytorch.load_state_dict(f"runs:/{run.info.run_id}/weights")
seen["weights"] = all(torch.equal(weights[name], net.state_dict()[name]) for name in weights)
run = client.get_run(run.info.run_id)
seen["outputs"] = [one.model_id == info.model_id for one in run.outputs.model_outputs]
found = mlflow.search_logged_models(
    experiment_ids=[experiment.experiment_id], filter_string="metrics.accuracy > 0.5",
    output_format="list",
)
seen["found"] = [one.model_id == info.model_id for one in found]
seen["run id"] = run.info.run_id
print(json.dumps(seen))
"""
SKLEARN = r"""
import json, mlflow, mlflow.sklearn
from mlflow import MlflowClient
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

mlflow.set_experiment("sklearn")
mlflow.sklearn.autolog()
rows, labels = load_iris(return_X_y=True)
with mlflow.start_run() as run:
    model = LogisticRegression(max_iter=200).fit(rows, labels)
run = MlflowClient().get_run(run.info.run_id)
(made,) = run.outputs.model_outputs
loaded = mlflow.sklearn.load_model(f"models:/{made.model_id}")
found = mlflow.search_runs(
    experiment_names=["sklearn"],
    filter_string="metrics.training_score > 0.5 and datasets.context = 'train'",
)
seen = {
    "params": run.data.params["max_iter"],
    "score": run.data.metrics["training_score"] > 0.9,
    "files": sorted(one.path for one in MlflowClient().list_artifacts(run.info.run_id)),
    "context": [tag.value for one in run.inputs.dataset_inputs for tag in one.tags],
    "same": (loaded.predict(rows) == model.predict(rows)).all().item(),
    "found": len(found),
    "run id": run.info.run_id,
}
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service")).start()
    process.create()
    yield process
    process.stop()


def told_by(server: ServiceProcess, script: str, home: Path) -> Any:
    python = client_python(NAMED, borrows=True)
    told = run_client(python, script, environment=environment(server), cwd=home, seconds=1200)
    return json.loads(told.splitlines()[-1])


def test_a_model_of_torch_is_logged_registered_and_loaded(
    server: ServiceProcess, tmp_path: Path
) -> None:
    seen = told_by(server, TORCH, tmp_path)
    assert seen.pop("run id")
    assert seen == {
        "logged": ["READY", "model", True],
        "metrics": {"accuracy": 0.9},
        "loaded": [True, True, True],
        "weights": True,
        "outputs": [True],
        "found": [True],
    }


def test_state_dicts_become_tensors(server: ServiceProcess, tmp_path: Path) -> None:
    seen = told_by(server, TORCH, tmp_path)
    ref = f"runs/{seen['run id']}/files"
    tensors = ask(server, f"models/weights/state_dict.pth/-/tensors?ref={ref}")["items"]
    assert {one["name"]: one["shape"] for one in tensors} == {
        "0.weight": [256, 64],
        "0.bias": [256],
        "2.weight": [10, 256],
        "2.bias": [10],
    }


def test_autolog_of_sklearn_is_a_run_with_its_model(server: ServiceProcess, tmp_path: Path) -> None:
    seen = told_by(server, SKLEARN, tmp_path)
    run = ask(server, f"runs/{seen.pop('run id')}")
    # The script predicts when its run has ended, which autolog adds.
    assert [edge["relation"] for edge in run["inputs"]] == ["trained-on", "evaluated-on"]
    assert seen == {
        "params": "200",
        "score": True,
        "files": ["estimator.html", "training_confusion_matrix.png"],
        "context": ["train"],
        "same": True,
        "found": 1,
    }

"""MLflow's own client against a service: what it is told is what MLflow's own server tells it.

One process of the client does all of it and says what it saw; each test looks at one part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.clients.environments import client_python
from tests.support.clients.process import run_client
from tests.support.servers.service_process import NAME, ServiceProcess

pytestmark = pytest.mark.long

SCRIPT = r"""
import json, math, os, tempfile, mlflow
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

seen, client = {}, MlflowClient()

def error_of(call, *given, **named):
    try:
        call(*given, **named)
    except MlflowException as error:
        return error.error_code
    return None

experiment = mlflow.set_experiment("learning rates")
seen["experiment"] = [experiment.experiment_id, experiment.name, experiment.lifecycle_stage]
seen["again"] = mlflow.set_experiment("learning rates").experiment_id == experiment.experiment_id
with mlflow.start_run(run_name="first run", tags={"team": "vision"}) as run:
    run_id = run.info.run_id
    mlflow.log_params({"lr": 0.1, "layers": 3})
    for step in range(5):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
    mlflow.log_metric("odd", math.nan)
    mlflow.set_tag("note", "hello")
    mlflow.log_text("hello", "notes/a file.txt")
    mlflow.log_dict({"a": 1}, "config.json")
    seen["while running"] = client.get_run(run_id).info.status
run = client.get_run(run_id)
seen["run"] = {
    "status": run.info.status, "name": run.info.run_name, "params": run.data.params,
    "loss": run.data.metrics["loss"], "odd": str(run.data.metrics["odd"]),
    "tags": {name: run.data.tags[name] for name in ("team", "note")},
    "ended": run.info.end_time >= run.info.start_time > 0,
}
seen["history"] = [[one.step, one.value] for one in client.get_metric_history(run_id, "loss")]
seen["no history"] = client.get_metric_history(run_id, "never")
files = client.list_artifacts(run_id)
seen["files"] = sorted([one.path, one.is_dir, one.file_size] for one in files)
seen["inner files"] = [one.path for one in client.list_artifacts(run_id, "notes")]
seen["text"] = mlflow.artifacts.load_text(f"runs:/{run_id}/notes/a file.txt")

batch = client.create_run(experiment.experiment_id, run_name="second")
client.log_batch(
    batch.info.run_id,
    metrics=[Metric("m", at / 7, 1_700_000_000_000 + at, at) for at in range(1000)],
    params=[Param("p", "1")], tags=[RunTag("t", "2")],
)
client.set_terminated(batch.info.run_id, "FAILED")
seen["batch"] = len(client.get_metric_history(batch.info.run_id, "m"))
client.log_metric(batch.info.run_id, "late", 3.0)
late = client.get_run(batch.info.run_id)
seen["late"] = [late.info.status, late.data.metrics["late"]]
client.update_run(batch.info.run_id, name="third")
with mlflow.start_run(run_id=batch.info.run_id):
    seen["resumed"] = client.get_run(batch.info.run_id).info.status
seen["ended anew"] = client.get_run(batch.info.run_id).info.status

def found(filter_string="", **more):
    runs = client.search_runs([experiment.experiment_id], filter_string, **more)
    return [one.info.run_name for one in runs]

seen["found"] = {
    "all": sorted(found()),
    "fitting": found("metrics.loss < 0.5 and params.lr = '0.1' and tags.team LIKE 'vis%'"),
    "by id": found(f"attributes.run_id IN ('{run_id}')"),
    "ordered": found(order_by=["metrics.late DESC"]),
    "page": len(client.search_runs([experiment.experiment_id], max_results=1)),
    "next": len(client.search_runs([experiment.experiment_id], max_results=1,
        page_token=client.search_runs([experiment.experiment_id], max_results=1).token)),
    "elsewhere": [one.info.run_id for one in client.search_runs(["0"])],
}
client.delete_run(run_id)
seen["deleted"] = found()
client.restore_run(run_id)
seen["restored"] = sorted(found())
seen["errors"] = {
    "filter": error_of(client.search_runs, [experiment.experiment_id], "metrics.loss << 1"),
    "attribute": error_of(client.search_runs, [experiment.experiment_id], "nonsense = 'x'"),
    "run": error_of(client.get_run, "nope"),
    "param": error_of(client.log_param, run_id, "lr", "0.2"),
    "experiment": error_of(client.create_experiment, "learning rates"),
    "no experiment": error_of(client.get_experiment, "999"),
    "model": error_of(client.get_registered_model, "nope"),
    "order": error_of(client.search_runs, ["0"], order_by=["metrics.loss SIDEWAYS"]),
}
other = client.create_experiment("other", tags={"a": "b"})
client.rename_experiment(other, "another")
client.set_experiment_tag(other, "c", "d")
seen["experiments"] = [one.name for one in client.search_experiments(filter_string="tags.c = 'd'")]
client.delete_experiment(other)
seen["after deletion"] = sorted(one.name for one in client.search_experiments())
client.restore_experiment(other)

client.create_registered_model("net", tags={"kind": "small"}, description="words")
seen["errors"]["name"] = error_of(client.create_registered_model, "net")
with tempfile.TemporaryDirectory() as folder:
    os.makedirs(f"{folder}/data")
    with open(f"{folder}/MLmodel", "w") as file:
        file.write("flavors: {}\n")
    with open(f"{folder}/data/weights.bin", "wb") as file:
        file.write(bytes(range(256)) * 40)
    client.log_artifacts(run_id, folder, "model")
version = mlflow.register_model(f"runs:/{run_id}/model", "net", tags={"k": "v"})
seen["version"] = [version.version, version.status, version.run_id, version.tags]
client.set_registered_model_alias("net", "champion", version.version)
seen["alias"] = client.get_model_version_by_alias("net", "champion").version
for name in ("latest", "V1"):
    seen["errors"][name] = error_of(client.set_registered_model_alias, "net", name, "1")
seen["errors"]["alias"] = error_of(client.get_model_version_by_alias, "net", "nope")
of_run = f"runs:/{run_id}/model"
for name in ("models:/net@champion", "models:/net/1", "models:/net/latest", of_run):
    place = mlflow.artifacts.download_artifacts(name)
    with open(os.path.join(place, "data", "weights.bin"), "rb") as file:
        seen[name] = file.read() == bytes(range(256)) * 40
seen["second"] = mlflow.register_model(f"runs:/{run_id}/model", "net").version
seen["copied"] = client.copy_model_version("models:/net/1", "copy").version
client.transition_model_version_stage("net", "1", "Production")
client.transition_model_version_stage("net", "2", "Production", archive_existing_versions=True)
seen["stages"] = [client.get_model_version("net", one).current_stage for one in ("1", "2")]
seen["latest"] = [one.version for one in client.get_latest_versions("net", ["Production"])]
client.update_model_version("net", "1", "first of all")
client.set_model_version_tag("net", "1", "done", "yes")
client.delete_model_version_tag("net", "1", "k")
version = client.get_model_version("net", "1")
seen["words"] = [version.description, version.tags]
client.set_registered_model_tag("net", "size", "s")
client.delete_registered_model_tag("net", "kind")
client.update_registered_model("net", "other words")
seen["search"] = {
    "names": [one.name for one in client.search_registered_models()],
    "like": [one.name for one in client.search_registered_models("name ILIKE 'N%'")],
    "tag": [one.name for one in client.search_registered_models("tags.size = 's'")],
    "versions": sorted(one.version for one in client.search_model_versions("name = 'net'")),
    "of run": len(client.search_model_versions(f"run_id = '{run_id}'")),
}
client.rename_registered_model("net", "renamed")
model = client.get_registered_model("renamed")
former = error_of(client.get_registered_model, "net")
seen["renamed"] = [model.description, model.tags, model.aliases, former]
client.delete_registered_model_alias("renamed", "champion")
client.delete_model_version("renamed", "1")
seen["left"] = [one.version for one in client.search_model_versions("name = 'renamed'")]
client.delete_model_version("renamed", "2")
try:
    client.get_model_version("renamed", "2")
except MlflowException as error:
    seen["none left"] = error.message
client.delete_registered_model("renamed")
seen["errors"]["gone"] = error_of(client.get_registered_model, "renamed")
seen["run id"] = run_id
print(json.dumps(seen))
"""
NEWEST = "mlflow-skinny"
NAMED = "mlflow-skinny==3.17.2"  # that the contract was written down from


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("service")).start()
    process.create()
    yield process
    process.stop()


@pytest.fixture(scope="module", params=[NEWEST, pytest.param(NAMED, marks=pytest.mark.soak)])
def seen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What the client saw, of a service of its own."""
    process = ServiceProcess(tmp_path_factory.mktemp("service")).start()
    process.create()
    try:
        python = client_python(request.param)
        # A client that would send in parts is told to send in one piece.
        parts = {
            "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "true",
            "MLFLOW_MULTIPART_UPLOAD_MINIMUM_FILE_SIZE": "1000",
        }
        told = run_client(
            python,
            SCRIPT,
            environment=environment(process, **parts),
            cwd=tmp_path_factory.mktemp("home"),
        )
        yield json.loads(told.splitlines()[-1]) | {"server": process}
    finally:
        process.stop()


def environment(process: ServiceProcess, **more: str) -> dict[str, str]:
    return {
        "MLFLOW_TRACKING_URI": process.repository,
        "MLFLOW_TRACKING_TOKEN": process.token,
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
        "GIT_PYTHON_REFRESH": "quiet",
        **more,
    }


def ask(process: ServiceProcess, path: str) -> Any:
    headers = {"Authorization": f"Bearer {process.token}"}
    url = f"{process.url}/api/v1/repositories/{NAME}/-/{path}"
    answer = httpx.get(url, headers=headers, timeout=60)
    answer.raise_for_status()
    return answer.json()


def test_an_experiment_is_made_once(seen: dict[str, Any]) -> None:
    assert seen["experiment"] == ["1", "learning rates", "active"]
    assert seen["again"]


def test_a_run_is_what_was_logged(seen: dict[str, Any]) -> None:
    assert seen["while running"] == "RUNNING"
    assert seen["run"] == {
        "status": "FINISHED",
        "name": "first run",
        "params": {"lr": "0.1", "layers": "3"},
        "loss": 0.2,
        "odd": "nan",
        "tags": {"team": "vision", "note": "hello"},
        "ended": True,
    }


def test_a_metric_has_its_history(seen: dict[str, Any]) -> None:
    assert seen["history"] == [[step, 1 / (step + 1)] for step in range(5)]
    assert seen["no history"] == []


def test_files_of_a_run_are_listed_and_read(seen: dict[str, Any]) -> None:
    assert seen["files"] == [["config.json", False, 12], ["notes", True, None]]
    assert seen["inner files"] == ["notes/a file.txt"]
    assert seen["text"] == "hello"


def test_a_batch_of_a_thousand_is_kept(seen: dict[str, Any]) -> None:
    assert seen["batch"] == 1000


def test_a_run_that_ended_takes_a_late_word_and_stays_ended(seen: dict[str, Any]) -> None:
    assert seen["late"] == ["FAILED", 3.0]


def test_a_run_goes_on_and_ends_anew(seen: dict[str, Any]) -> None:
    assert seen["resumed"] == "RUNNING"
    assert seen["ended anew"] == "FINISHED"


def test_runs_are_found_by_filters_ordered_and_in_pages(seen: dict[str, Any]) -> None:
    assert seen["found"] == {
        "all": ["first run", "third"],
        "fitting": ["first run"],
        "by id": ["first run"],
        "ordered": ["third", "first run"],
        "page": 1,
        "next": 1,
        "elsewhere": [],
    }


def test_a_deleted_run_comes_back(seen: dict[str, Any]) -> None:
    assert seen["deleted"] == ["third"]
    assert seen["restored"] == ["first run", "third"]


def test_errors_have_the_codes_that_the_client_knows(seen: dict[str, Any]) -> None:
    assert seen["errors"] == {
        "filter": "INVALID_PARAMETER_VALUE",
        "attribute": "INVALID_PARAMETER_VALUE",
        "run": "RESOURCE_DOES_NOT_EXIST",
        "param": "INVALID_PARAMETER_VALUE",
        "experiment": "RESOURCE_ALREADY_EXISTS",
        "no experiment": "RESOURCE_DOES_NOT_EXIST",
        "model": "RESOURCE_DOES_NOT_EXIST",
        "name": "RESOURCE_ALREADY_EXISTS",
        "alias": "INVALID_PARAMETER_VALUE",
        "gone": "RESOURCE_DOES_NOT_EXIST",
        "order": "INVALID_PARAMETER_VALUE",
        "latest": "INVALID_PARAMETER_VALUE",
        "V1": "INVALID_PARAMETER_VALUE",
    }


def test_experiments_are_renamed_tagged_found_and_deleted(seen: dict[str, Any]) -> None:
    assert seen["experiments"] == ["another"]
    assert seen["after deletion"] == ["Default", "learning rates"]


def test_a_version_is_registered_at_once(seen: dict[str, Any]) -> None:
    assert seen["version"] == ["1", "READY", seen["run id"], {"k": "v"}]
    assert seen["second"] == "2"
    assert seen["copied"] == "1"


@pytest.mark.parametrize("name", ["models:/net@champion", "models:/net/1", "models:/net/latest"])
def test_a_version_comes_back_byte_for_byte(seen: dict[str, Any], name: str) -> None:
    assert seen["alias"] == "1"
    assert seen[name]


def test_files_that_went_into_a_model_are_found_under_their_old_names_and_stay(
    seen: dict[str, Any],
) -> None:
    assert seen[f"runs:/{seen['run id']}/model"]
    server = seen["server"]
    path = f"/api/2.0/mlflow-artifacts/artifacts/runs/{seen['run id']}/artifacts/model/data"
    headers = {"Authorization": f"Bearer {server.token}"}
    answer = httpx.delete(server.repository + path, headers=headers, timeout=60)
    assert (answer.status_code, "went into model" in answer.json()["message"]) == (400, True)


def test_a_stage_moves_to_another_version(seen: dict[str, Any]) -> None:
    assert seen["stages"] == ["Archived", "Production"]
    assert seen["latest"] == ["2"]


def test_versions_have_words_and_tags(seen: dict[str, Any]) -> None:
    assert seen["words"] == ["first of all", {"done": "yes"}]


def test_models_and_versions_are_found(seen: dict[str, Any]) -> None:
    assert seen["search"] == {
        "names": ["copy", "net"],
        "like": ["net"],
        "tag": ["net"],
        "versions": ["1", "2"],
        "of run": 3,
    }


def test_a_renamed_model_keeps_versions_aliases_and_words(seen: dict[str, Any]) -> None:
    tags = {"size": "s"}
    gone = "RESOURCE_DOES_NOT_EXIST"
    assert seen["renamed"] == ["other words", tags, {"champion": "1"}, gone]
    assert seen["left"] == ["2"]
    assert "renamed has no version 2" in seen["none left"]


def test_what_the_client_logged_is_a_run_of_ours(seen: dict[str, Any]) -> None:
    run = ask(seen["server"], f"runs/{seen['run id']}")
    assert run["state"] == "finished"
    assert run["metrics"]["loss"] == 0.2
    assert run["params"] == {"lr": "0.1", "layers": "3"}
    assert run["tags"]["team"] == "vision"
    assert [one["path"] for one in run["outputs"]] == ["models/model"]


def test_what_the_client_registered_is_a_model_of_ours(seen: dict[str, Any]) -> None:
    version = ask(seen["server"], "registry/copy/-/versions/1")
    assert version["source_path"] == "models/net"

"""The typed client, against a real service."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.client import runs as runs_module
from tensorrepo.client.client import Client, RepositoryClient
from tensorrepo.client.connection import Connection
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.repo.errors import UnauthenticatedError
from tests.support.servers.scripted_answers import answering
from tests.support.servers.service import RunningService, running_service

WEIGHTS = np.arange(600_000, dtype=np.float32).reshape(600, 1000)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: RunningService) -> Iterator[Client]:
    with Client(service.url, token=service.token) as opened:
        yield opened


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "net.safetensors"
    save_file({"weight": WEIGHTS, "bias": WEIGHTS[0]}, path)
    return path


@pytest.fixture(scope="module")
def nets(service: RunningService, client: Client, file: Path) -> RepositoryClient:
    """A repository with a dataset and a model, which came from `file`."""
    client.create_repository("team/nets", description="Nets")
    repo = tr.open(service.service.directory.find("team/nets").url, author="Ann <ann@example.org>")
    with repo.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": list(range(1000)), "name": ["a", "b"] * 500})
        tx.save_model("vision/net", read_model(file), metrics={"accuracy": 0.9})
    return client.repository("team/nets")


def test_repositories_are_listed_with_what_the_token_may(
    client: Client, nets: RepositoryClient
) -> None:
    assert [(one.name, one.may) for one in client.repositories()] == [("team/nets", "admin")]
    assert nets.info().id is not None


@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (tr.NotFoundError, lambda one: one.registry.get("nothing")),
        (tr.NotFoundError, lambda one: next(one.models.list_models(ref="nothing"))),
        (tr.InvalidInputError, lambda one: list(one.registry.search(metrics=["much"]))),
        (tr.ConflictError, lambda one: [one.registry.create("twice") for _ in range(2)]),
    ],
)
def test_errors_of_the_service_are_ours(
    nets: RepositoryClient, kind: type[Exception], call: object
) -> None:
    assert callable(call)
    with pytest.raises(kind):
        call(nets)


def test_who_is_unknown_or_may_less_is_told_so(
    service: RunningService, nets: RepositoryClient
) -> None:
    token = service.user("bob", Grant("team/nets", Action.READ))
    with Client(service.url, token="trp_none") as nobody, pytest.raises(UnauthenticatedError):
        list(nobody.repositories())
    with Client(service.url, token=token) as bob, pytest.raises(tr.PermissionDenied):
        bob.repository(nets.name).registry.create("bobs")


def test_a_service_that_is_not_there_is_told_so() -> None:
    with Client("http://127.0.0.1:9", token="x") as client, pytest.raises(tr.StorageError) as told:
        list(client.repositories())
    assert told.value.transient


def test_a_token_is_shown_in_no_repr(service: RunningService, client: Client) -> None:
    made = client.create_token("nightly")
    assert made.token.startswith("trp_")
    assert made.token not in repr(made)
    assert service.token not in f"{client!r} {client.connection!r} {client.repository('x')!r}"
    client.revoke_token(made.id)
    with Client(service.url, token=made.token) as revoked, pytest.raises(UnauthenticatedError):
        list(revoked.repositories())


def test_rows_come_as_json_and_as_arrow(nets: RepositoryClient) -> None:
    page = nets.datasets.rows("numbers", where="x >= 990", columns=["x"], limit=5)
    with nets.datasets.arrow("numbers", columns=["x", "name"]) as reader:
        table = reader.read_all()
    assert [row["values"] for row in page.items] == [{"x": x} for x in range(990, 995)]
    assert table.column("x").to_pylist() == list(range(1000))
    assert table.column_names == ["x", "name"]


def test_models_tensors_and_files_are_read(
    nets: RepositoryClient, file: Path, tmp_path: Path
) -> None:
    (model,) = nets.models.list_models()
    (stored,) = nets.models.files(model.name)
    nets.models.download_file(model.name, stored.name, tmp_path / "copy")
    nets.models.download_safetensors(model.name, tmp_path / "some", tensors=["bias"])
    assert {one.name: one.shape for one in nets.models.tensors(model.name)} == {
        "bias": [1000], "weight": [600, 1000],
    }  # fmt: skip
    assert np.array_equal(nets.models.tensor(model.name, "weight"), WEIGHTS)
    assert np.array_equal(
        nets.models.tensor(model.name, "weight", rows=slice(10, 20)), WEIGHTS[10:20]
    )
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    assert np.array_equal(load_file(tmp_path / "some")["bias"], WEIGHTS[0])


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("X-Tensor-Dtype: F32\r\nX-Tensor-Shape: [1\r\n", b"1234"),
        ("X-Tensor-Dtype: F32\r\nX-Tensor-Shape: [2]\r\n", b"1234"),
        ("X-Tensor-Dtype: F33\r\nX-Tensor-Shape: [1]\r\n", b"1234"),
        ("", b"event: end\ndata: {\n\n"),
        ("", b"event: end\ndata: 5\n\n"),
    ],
)
def test_what_no_service_of_ours_answers_is_told_as_such(headers: str, body: bytes) -> None:
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode()
    with answering([head + body], closes=True) as (url, _), Client(url, token=None) as odd:
        nets = odd.repository("team/nets")
        with pytest.raises(tr.StorageError, match="answer is not as expected: "):
            nets.models.tensor("net", "w") if headers else [*nets.runs.follow("exp1")]


def test_what_is_there_is_not_written_over(nets: RepositoryClient, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(tr.InvalidInputError):
        nets.models.download_safetensors("vision/net", tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_versions_are_registered_and_found_by_alias(nets: RepositoryClient) -> None:
    registry = nets.registry
    made = registry.register("net", "vision/net", message="good", alias="live")
    registry.register("net", "vision/net")
    registry.describe("net", description="A net", labels={"task": "vision"})
    registry.set_stage("net", 1, "Production")
    registry.set_alias("net", "live", 2)
    found = registry.version("net", "live")
    assert (made.number, made.message, made.metrics) == (1, "good", {"accuracy": 0.9})
    assert (found.number, registry.version("net", 1).stage) == (2, "Production")
    assert [one.version for one in registry.alias_history("net", "live")] == [2, 1]
    assert [one.name for one in registry.search(labels={"task": "vision"})] == ["net"]
    assert [one.number for one in registry.versions("net")] == [2, 1]
    assert registry.card("net") == "A net"
    assert registry.compare("net", [1, "live"])["metrics"] == {"accuracy": [0.9, 0.9]}


def test_a_training_tells_of_itself_and_is_followed(nets: RepositoryClient) -> None:
    with nets.runs.begin("exp1", params={"lr": 0.1}) as run:
        for value in (3.0, math.nan, 1.0):
            run.log({"loss": value})
        run.flush()
        (series,) = nets.runs.metrics("exp1", ["loss"])
        run.change(params={"seed": 1})
    found = nets.runs.get("exp1")
    assert (series.steps, series.values) == ([0, 1, 2], [3.0, "NaN", 1.0])
    assert (found.state, found.params, found.metrics) == (
        "finished", {"lr": 0.1, "seed": 1}, {"loss": 1.0},
    )  # fmt: skip
    assert [event for event, _ in nets.runs.follow("exp1")] == ["end"]


def test_points_whose_answer_was_lost_count_once(
    nets: RepositoryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_module, "_TRIES", 1)
    monkeypatch.setattr(runs_module, "SEND_SECONDS", 1000)
    real = Connection.call

    def lose_answer(connection: Connection, method: str, path: str, *more: Any) -> Any:
        real(connection, method, path, *more)
        raise tr.StorageError("the line broke", transient=True)

    with nets.runs.begin("exp3") as run:
        run.log({"loss": 1.0})
        with monkeypatch.context() as patched:
            patched.setattr(Connection, "call", lose_answer)
            with pytest.raises(tr.StorageError, match="the line broke"):
                run.flush()
        run.log({"loss": 2.0})
    (series,) = nets.runs.metrics("exp3", ["loss"])
    assert (series.steps, series.values) == ([0, 1], [1.0, 2.0])


def _fail(nets: RepositoryClient) -> None:
    with nets.runs.begin("exp2") as run:
        run.log({"loss": 1.0}, 7)
        raise ZeroDivisionError("by zero")


def test_a_training_that_fails_says_why(nets: RepositoryClient) -> None:
    with pytest.raises(ZeroDivisionError):
        _fail(nets)
    found = nets.runs.get("exp2")
    assert (found.state, found.error) == ("failed", "ZeroDivisionError: by zero")
    assert found.summaries[0]["last"] == {"step": 7, "value": 1.0}

"""Errors as callers are told of them: nothing of where the service keeps things."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect

import tensorrepo as tr
from tensorrepo.api.errors import install_handlers
from tests.support.servers.service import RunningService

BASE = "/api/v1/repositories/team/photos/-"
UNKNOWN = f"objects/ab/{'c' * 62}"


@pytest.fixture(scope="module")
def photos(service: RunningService) -> RunningService:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
    url = service.service.directory.find("team/photos").url
    with tr.open(url, author="Ann <a@example.org>").transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": list(range(1000))})
    return service


def _place(photos: RunningService) -> Path:
    return photos.service.settings.data


def test_a_client_that_left_before_its_body_is_no_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = FastAPI()
    install_handlers(app)

    @app.put("/piece")
    def put() -> None:
        raise ClientDisconnect

    with TestClient(app) as client:
        assert client.put("/piece").status_code == 499
    assert caplog.records == []


@pytest.mark.parametrize(
    "path",
    [f"{BASE}/store/{UNKNOWN}", f"{BASE}/store/copy.json", f"{BASE}/commits/{'ab' * 32}"],
)
def test_what_is_missing_is_missing_in_a_repository_and_not_in_a_folder(
    photos: RunningService, path: str
) -> None:
    with photos.client() as client:
        answer = client.get(path)
    assert answer.status_code == 404
    assert str(_place(photos)) not in answer.text


def test_what_is_damaged_is_told_without_its_place(photos: RunningService) -> None:
    store = Path(photos.service.directory.find("team/photos").url) / "objects"
    for path in store.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(b"damaged")
    with photos.client() as client:
        answers = [
            client.get(f"{BASE}/datasets/numbers/-/rows"),
            client.get("/team/photos/-/datasets/numbers", headers={"Accept": "text/html"}),
            client.post(f"{BASE}/sql", json={"query": "SELECT sum(x) FROM numbers"}),
        ]
    assert max(answer.status_code for answer in answers) == 500
    told = "".join(answer.text for answer in answers)
    assert str(_place(photos)) not in told
    assert json.loads(answers[0].text)["kind"] == "corrupt"

"""Clients that are too old, and what a service says of itself."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import tensorrepo as tr
from tensorrepo.api.routes.health import FEATURES
from tensorrepo.client.client import Client
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import CLIENT_HEADER, REVISION
from tests.support.servers.service import RunningService, running_service


def test_a_service_says_what_it_has_and_reads(service: RunningService) -> None:
    about = httpx.get(f"{service.url}/api/v1").json()
    assert set(FEATURES) <= set(about["features"])
    assert {"repository", "dataset", "model"} <= set(about["formats"])
    assert about["oldest_client"] <= REVISION == about["newest_client"]


def test_a_client_that_is_too_old_is_told_what_to_install(tmp_path: Path) -> None:
    with running_service(tmp_path, oldest_client=REVISION + 1) as running:
        with pytest.raises(tr.UnsupportedError, match="pip install --upgrade tensorrepo"):
            open_http(f"{running.url}/team/photos", {"token": running.token}, environment={})
        with (
            Client(running.url, token=running.token) as client,
            pytest.raises(tr.UnsupportedError, match="pip install --upgrade tensorrepo"),
        ):
            list(client.repositories())


@pytest.mark.parametrize("said", ["", "-1", "x", "\u00b2", "9" * 400])
def test_what_is_no_revision_is_no_reason_to_refuse(service: RunningService, said: str) -> None:
    headers = {CLIENT_HEADER.encode(): said.encode("latin-1")}
    with service.client() as client:
        assert client.get("/api/v1/me", headers=headers).status_code == 200

"""Values that one database takes and another one does not are refused alike, and never fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import server
from tests.support.servers.service import RunningService, running_service

NUL = "a\0b"


@pytest.fixture(scope="module")
def over_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with (
        server() as postgres,
        running_service(tmp_path_factory.mktemp("pg"), database=postgres.database()) as running,
        running.client() as client,
    ):
        client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        yield running


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/api/v1/repositories/team/photos", {"description": NUL}),
        ("POST", "/api/v1/tokens", {"label": NUL}),
        ("POST", "/api/v1/groups", {"name": "ok", "description": NUL}),
        ("GET", "/api/v1/users/a%00b", None),
        ("DELETE", "/api/v1/tokens/a%00b", None),
        ("POST", "/api/v1/session", {"user": NUL, "password": "x"}),
        ("GET", "/api/v1/repositories/team/photos/-/runs/a%00b", None),
        ("GET", "/api/v1/audit?after=4611686018427387904", None),
    ],
)
def test_no_value_fails_in_postgresql(
    over_postgres: RunningService, method: str, path: str, body: object
) -> None:
    with over_postgres.client() as client:
        answer = client.request(method, path, json=body)
    assert answer.status_code < 500, answer.text

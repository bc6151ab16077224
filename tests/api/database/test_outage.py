"""PostgreSQL goes down and comes back."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.support.servers.postgres import server
from tests.support.servers.service import running_service

PATHS = ("/health", "/health/ready", "/api/v1/repositories")


def _statuses(client: httpx.Client) -> list[int]:
    return [client.get(path).status_code for path in PATHS]


def test_the_service_says_so_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    with server() as postgres:
        url = postgres.database()
        with running_service(tmp_path, database=url) as running, running.client() as client:
            client.post(PATHS[2], json={"name": "before"}).raise_for_status()
            before = _statuses(client)
            postgres.stop("fast")
            down = _statuses(client)
            problem = client.get(PATHS[2]).json()
            told = [client.get(path).text for path in PATHS]
            postgres.start()
            after = _statuses(client)
            client.post(PATHS[2], json={"name": "after"}).raise_for_status()
            names = [one["name"] for one in client.get(PATHS[2]).json()["items"]]
    assert before == after == [200, 200, 200]
    assert down == [200, 503, 503]
    assert problem["kind"] == "storage"
    assert not any(str(postgres.port) in text or "127.0.0.1" in text for text in told)
    assert names == ["after", "before"]

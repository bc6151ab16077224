"""A served repository, and ways to open it as a remote one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tensorrepo as tr
from tests.support.servers.service import RunningService, running_service


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[RunningService]:
    """A service of one test alone, with an empty repository team/photos."""
    with running_service(tmp_path / "service") as running:
        with running.client() as client:
            client.post("/api/v1/repositories", json={"name": "team/photos"}).raise_for_status()
        yield running


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tr.Repository]:
    """Opens the repository of a service as a client does, who has his own home."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def open_remote(service: RunningService, token: str | None = None) -> tr.Repository:
        monkeypatch.setenv("TENSORREPO_SERVER", service.url)
        monkeypatch.setenv("TENSORREPO_TOKEN", service.token if token is None else token)
        return tr.open(f"{service.url}/team/photos", author="Ann <ann@example.org>")

    return open_remote

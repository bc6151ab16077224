"""Catalogs of a service mend themselves, and lie where its own database does."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.support.effort import soaking
from tests.support.servers.catalogs import catalog_url
from tests.support.servers.service import RunningService, running_service

MESSAGES = {"query": "SELECT message FROM catalog.commit ORDER BY message"}


def _serve(service: RunningService, name: str) -> tr.Repository:
    service.service.directory.create(name)
    repo = tr.open(service.service.directory.find(name).url, author="Ann <ann@example.org>")
    with repo.transaction(message=f"of {name}") as tx:
        tx.save_file("x", b"1")
    return repo


def _messages(service: RunningService, name: str, token: str | None = None) -> list[list[str]]:
    with service.client(token) as client:
        answer = client.post(f"/api/v1/repositories/{name}/-/sql", json=MESSAGES)
    answer.raise_for_status()
    rows: list[list[str]] = answer.json()["rows"]
    return rows


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_each_repository_has_a_catalog_of_its_own(kind: str, tmp_path: Path) -> None:
    with (
        catalog_url(kind, tmp_path) as database,
        running_service(tmp_path / "data", database=database) as service,
    ):
        for name in ("one", "two"):
            _serve(service, name)
        assert [_messages(service, name) for name in ("one", "two")] == [[["of one"]], [["of two"]]]
        token = service.user("reader", Grant("one", Action.READ, "heads/other"))
        with service.client(token) as client:
            hidden = client.post("/api/v1/repositories/one/-/sql", json=MESSAGES)
        assert hidden.status_code == 404


def test_a_catalog_that_does_not_fit_is_made_anew(tmp_path: Path) -> None:
    harms = ["damaged", "half-migrated", "of-another-repository"]
    harms = harms if soaking() else harms[-1:]  # the others: tests/tensorrepo/catalog
    with running_service(tmp_path) as service:
        ids = {harm: _serve(service, harm).context.core.id for harm in harms}
        before = [_messages(service, harm) for harm in harms]
    for harm in harms:
        _harm(tmp_path / "catalogs" / f"{ids[harm]}.db", harm)
    with running_service(tmp_path) as service:
        assert [_messages(service, harm) for harm in harms] == before
    assert before == [[[f"of {harm}"]] for harm in harms]


def _harm(file: Path, harm: str) -> None:
    if harm == "damaged":
        file.write_bytes(b"no database" * 1000)
        return
    with sqlite3.connect(file) as connection:
        if harm == "half-migrated":
            connection.execute("DROP TABLE entry")
        else:
            connection.execute("UPDATE cursor SET repository = 'another'")

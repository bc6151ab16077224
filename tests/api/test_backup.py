"""Backup of a service: what is restored answers as before."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.backup import back_up, restore
from tensorrepo.api.service import open_service
from tensorrepo.api.settings import make_settings
from tensorrepo.repo.errors import ConflictError, NotFoundError
from tests.support.servers.catalogs import catalog_url
from tests.support.servers.service import RunningService, running_service

PATHS = (
    "/api/v1/repositories",
    "/api/v1/repositories/team/photos/-/refs",
    "/api/v1/repositories/team/photos/-/commits/main",
    "/api/v1/repositories/team/photos/-/webhooks",
    "/api/v1/repositories/team/photos/-/requests/1",
    "/api/v1/repositories/outside/-/refs",
)


def _filled(running: RunningService, folder: Path) -> str:
    """A token of a user; repositories with commits, a webhook and a merge request."""
    with running.client() as client:
        made = client.post("/api/v1/repositories", json={"name": "team/photos"})
        made.raise_for_status()
        repo = tr.open(running.service.directory.find("team/photos").url, author="Ann <a@x>")
        with repo.transaction(message="first") as tx:
            tx.create_dataset("numbers", {"x": [1, 2, 3]})
        repo.create_branch("more")
        with repo.transaction("more", message="second") as tx:
            tx.create_dataset("others", {"x": [4]})
        hook = {"url": "https://example.org/hook"}
        client.post(f"{PATHS[3]}", json=hook).raise_for_status()
        new = {"source": "more", "title": "More"}
        client.post("/api/v1/repositories/team/photos/-/requests", json=new).raise_for_status()
    outside = tr.init(folder / "outside", author="Ann <a@x>")
    with outside.transaction(message="there") as tx:
        tx.create_dataset("numbers", {"x": [1]})
    running.service.directory.add("outside", str(folder / "outside"))
    return running.user("bob", Grant("team/photos", Action.READ, "heads/main"))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def test_what_is_restored_answers_as_before(tmp_path: Path, kind: str) -> None:
    with running_service(tmp_path / "before") as running:
        token = _filled(running, tmp_path)
        with running.client() as client:
            before = [client.get(path).json() for path in PATHS]
        with running.client(token) as client:
            of_bob = [client.get(path).status_code for path in PATHS]
        back_up(running.service, tmp_path / "backup", {})
        with running.client() as client:  # what comes later is not in it
            client.post("/api/v1/repositories", json={"name": "later"}).raise_for_status()
        admin = running.token
    with catalog_url(kind, tmp_path) as database:
        given: dict[str, object] = {"data": tmp_path / "after", "database": database, "port": 0}
        restore(make_settings(**given), tmp_path / "backup", {})
        with running_service(tmp_path / "after", database=database) as again:
            with again.client(admin) as client:
                after = [client.get(path).json() for path in PATHS]
            with again.client(token) as client:
                assert [client.get(path).status_code for path in PATHS] == of_bob
            url = again.service.directory.find("team/photos").url
    assert after == before
    assert url.startswith(str(tmp_path / "after"))
    with tr.open(url, author="Ann <a@x>").transaction(message="goes on") as tx:
        tx.create_dataset("third", {"x": [1]})


def test_a_backup_goes_to_a_new_folder_and_comes_back_to_a_new_service(tmp_path: Path) -> None:
    with running_service(tmp_path / "before") as running:
        back_up(running.service, tmp_path / "backup", {})
        with pytest.raises(ConflictError):
            back_up(running.service, tmp_path / "backup", {})
        with pytest.raises(ConflictError, match="not empty"):
            restore(running.service.settings, tmp_path / "backup", {})


def test_half_a_backup_is_none(tmp_path: Path) -> None:
    service = open_service(make_settings(data=tmp_path / "before"), {})
    back_up(service, tmp_path / "backup", {})
    service.close()
    (tmp_path / "backup" / "service.json").unlink()
    with pytest.raises(NotFoundError, match="no whole backup"):
        restore(make_settings(data=tmp_path / "after"), tmp_path / "backup", {})

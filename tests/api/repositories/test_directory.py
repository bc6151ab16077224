"""Repositories of a service: described, renamed, deleted, brought back, forgotten."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.repositories import directory
from tensorrepo.api.repositories.directory import UNDELETE_DAYS, UNDELETE_NS, Directory, place_of
from tensorrepo.api.repositories.opening import erase, open_served
from tensorrepo.client.client import Client
from tensorrepo.repo.changes.repository import RepositoryCore
from tests.support.servers.service import RunningService

PATH = "/api/v1/repositories"


def _made(service: RunningService, name: str) -> str:
    """The URL of a new repository with one dataset."""
    with service.client() as client:
        client.post(PATH, json={"name": name}).raise_for_status()
    url = service.service.directory.find(name).url
    with tr.open(url, author="Ann <a@example.org>").transaction(message="first") as tx:
        tx.create_dataset("x", {"x": [1]})
    return url


def test_a_repository_is_described(service: RunningService) -> None:
    _made(service, "described")
    with service.client() as client:
        client.patch(f"{PATH}/described", json={"description": "Cats."}).raise_for_status()
        listed = client.get(PATH).json()["items"]
    assert "Cats." in {one["description"] for one in listed}


def test_an_old_name_leads_to_the_new_one_for_who_may_read(service: RunningService) -> None:
    _made(service, "team/old")
    reader = service.user("reader", Grant("team/old", Action.READ))
    scope = (Grant("team/old", Action.READ),)
    scoped = service.service.accounts.add_token("reader", "scoped", scope=scope)
    stranger = service.user("stranger", Grant("else", Action.READ))
    with service.client() as client:
        client.patch(f"{PATH}/team/old", json={"name": "team/new"}).raise_for_status()
        moved = client.get(f"{PATH}/team/old/-/refs", params={"limit": 3})
    for token in (reader, scoped):
        with service.client(token) as client:
            assert client.get(f"{PATH}/team/new/-/refs").json()["items"]
    with service.client(stranger) as client:
        refused = client.get(f"{PATH}/team/old/-/refs")
    assert moved.status_code == 308
    assert moved.headers["Location"] == f"{PATH}/team/new/-/refs?limit=3"
    assert refused.status_code == 403
    assert "team/new" not in refused.text


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/repositories/{}",
        "/api/v1/repositories/{}/-/store/repo.json",
        "/{}",
        "/{}/repo.json",
        "/{}/-/commits",
    ],
)
def test_every_path_of_an_old_name_leads_to_the_same_of_the_new_one(
    service: RunningService, path: str
) -> None:
    name = f"team/was{abs(hash(path)) % 10**6}"
    _made(service, name)
    with service.client() as client:
        client.patch(f"{PATH}/{name}", json={"name": f"{name}-new"}).raise_for_status()
        moved = client.get(path.format(name))
        followed = client.get(moved.headers["Location"])
    assert moved.headers["Location"] == path.format(f"{name}-new")
    assert (moved.status_code, followed.status_code) == (308, 200)


@pytest.mark.parametrize(
    "letters", ["%0D%0AX-Own%3A%20y", "%3Flimit%3D1%23", "%F0%9F%98%80", "%25"]
)
def test_whatever_a_path_holds_a_header_says_where_it_leads(
    service: RunningService, letters: str
) -> None:
    name = f"team/had{abs(hash(letters)) % 10**6}"
    _made(service, name)
    with service.client() as client:
        client.patch(f"{PATH}/{name}", json={"name": f"{name}-new"}).raise_for_status()
        moved = client.get(f"{PATH}/{name}/-/datasets/{letters}")
    assert moved.status_code == 308
    assert moved.headers["Location"] == f"{PATH}/{name}-new/-/datasets/{letters}"
    assert "X-Own" not in moved.headers


def test_clients_follow_to_the_new_name(
    service: RunningService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _made(service, "team/before")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TENSORREPO_SERVER", service.url)
    monkeypatch.setenv("TENSORREPO_TOKEN", service.token)
    opened = tr.open(f"{service.url}/team/before", author="Ann <a@example.org>")
    with service.client() as client:
        client.patch(f"{PATH}/team/before", json={"name": "team/after"}).raise_for_status()
    again = tr.open(f"{service.url}/team/before", author="Ann <a@example.org>")
    with Client(service.url, token=service.token) as typed:
        named = typed.repository("team/before").info().name
    assert again.dataset("x").shape == (1, 1)
    assert named == "team/after"
    with again.transaction(message="second") as tx:
        tx.create_dataset("y", {"y": [1]})
    with pytest.raises(tr.NotFoundError, match="is called team/after now"):
        _commit(opened)


def _commit(repo: tr.Repository) -> None:
    with repo.transaction(message="third") as tx:
        tx.create_dataset("z", {"z": [1]})


def test_grants_for_both_names_become_one(service: RunningService) -> None:
    _made(service, "team/one")
    grants = (Grant("team/one", Action.READ), Grant("team/two", Action.WRITE))
    token = service.user("both", *grants)
    with service.client() as client:
        answer = client.patch(f"{PATH}/team/one", json={"name": "team/two"})
    with service.client(token) as client:
        may = client.get(f"{PATH}/team/two").json()["may"]
    assert (answer.status_code, may) == (200, "read")


def test_no_repository_lies_within_another_one(service: RunningService) -> None:
    outer = _made(service, "outer")
    inner = [_made(service, name) for name in ("outer/objects", "outer/log", "outer/photos")]
    assert not any(Path(one).is_relative_to(outer) for one in inner)
    erase(outer, environment={})
    with service.client() as client:
        assert client.get(f"{PATH}/outer/objects/-/refs").json()["items"]


def test_what_a_killed_process_made_and_did_not_list_keeps_no_name(
    service: RunningService,
) -> None:
    running = service.service
    url = place_of(running.settings.storage_url, "team/half")
    open_served(url, data=running.settings.data, environment={}, create=True).close()
    assert _made(service, "team/half").startswith(f"{url}.")
    with service.client() as client:
        assert client.get(f"{PATH}/team/half/-/refs").json()["items"]


def test_of_many_who_make_the_same_one_does(service: RunningService) -> None:
    def make(_: int) -> int:
        with service.client() as client:
            return client.post(PATH, json={"name": "team/race"}).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = sorted(pool.map(make, range(6)))
    assert statuses == [201, *[409] * 5]


def test_a_former_name_can_be_given_anew(service: RunningService) -> None:
    _made(service, "given")
    with service.client() as client:
        client.patch(f"{PATH}/given", json={"name": "taken"}).raise_for_status()
        client.post(PATH, json={"name": "given"})
        assert client.patch(f"{PATH}/given", json={"name": "taken"}).status_code == 409


def test_what_is_deleted_is_gone_and_comes_back(service: RunningService) -> None:
    _made(service, "passing")
    with service.client() as client:
        client.delete(f"{PATH}/passing").raise_for_status()
        gone = client.get(f"{PATH}/passing/-/refs").status_code
        taken = client.post(PATH, json={"name": "passing"}).status_code
        removed = client.get("/api/v1/removed-repositories").json()["items"]
        client.post(f"{PATH}/passing/-/undelete").raise_for_status()
        back = client.get(f"{PATH}/passing/-/refs").json()["items"]
    assert (gone, taken) == (404, 409)
    assert [one["name"] for one in removed] == ["passing"]
    assert [one["name"] for one in back] == ["heads/main"]


def test_only_admins_rename_delete_and_bring_back(service: RunningService) -> None:
    _made(service, "kept")
    token = service.user("writer", Grant("kept", Action.WRITE))
    with service.client(token) as client:
        statuses = [
            client.patch(f"{PATH}/kept", json={"name": "mine"}).status_code,
            client.delete(f"{PATH}/kept").status_code,
            client.post(f"{PATH}/kept/-/undelete").status_code,
        ]
    assert statuses == [403, 403, 403]


def test_who_renames_needs_the_new_name_too(service: RunningService) -> None:
    _made(service, "movable")
    token = service.user("mover", Grant("movable", Action.ADMIN))
    with service.client(token) as client:
        answer = client.patch(f"{PATH}/movable", json={"name": "other/place"})
    assert answer.status_code == 403


def test_another_process_sees_it_within_a_second(service: RunningService) -> None:
    _made(service, "shared")
    running = service.service
    other = Directory(running.database, running.settings, {}, timer=iter(range(100)).__next__)
    other.open("shared")
    running.directory.remove("shared")
    with pytest.raises(tr.NotFoundError):
        other.open("shared")
    running.directory.undelete("shared")
    assert other.open("shared").name == "shared"
    other.close()


def test_a_store_that_gives_no_answer_holds_up_no_other_repository(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, urls = service.service, [_made(service, name) for name in ("hanging", "answering")]
    asked, may_answer = list[str](), Event()
    is_asked = Event()

    def open_slowly(url: str, *, data: Path, **options: Any) -> RepositoryCore:
        asked.append(url)
        if url == urls[0]:
            is_asked.set()
            may_answer.wait(20)
        return open_served(url, data=data, **options)

    monkeypatch.setattr(directory, "open_served", open_slowly)
    other = Directory(running.database, running.settings, {})
    with ThreadPoolExecutor(3) as threads:
        hanging = [threads.submit(other.open, "hanging") for _ in range(2)]
        try:
            assert is_asked.wait(20)
            assert threads.submit(other.open, "answering").result(5).name == "answering"
            assert len(other.opened()) == 1
        finally:
            may_answer.set()
        assert hanging[0].result(20).core is hanging[1].result(20).core
    assert sorted(asked) == sorted(urls)
    other.close()


def test_after_a_fortnight_it_is_erased_and_its_name_is_free(
    service: RunningService, tmp_path: Path
) -> None:
    running, url = service.service, _made(service, "brief")
    service.user("heir", Grant("brief", Action.ADMIN))
    elsewhere = tr.init(tmp_path / "elsewhere")
    running.directory.add("foreign", str(tmp_path / "elsewhere"))
    for name in ("brief", "foreign"):
        running.directory.remove(name)
    now = running.directory.removed()[0].until_ns - UNDELETE_NS
    soon = Directory(running.database, running.settings, {}, clock=lambda: now + 10**9)
    assert soon.expire() == []
    late = Directory(
        running.database,
        running.settings,
        {},
        clock=lambda: now + (UNDELETE_DAYS + 1) * 86400 * 10**9,
    )
    assert late.expire() == ["brief", "foreign"]
    assert running.people.held_grants("brief") == []
    assert not (Path(url) / "repo.json").exists()
    assert tr.open(elsewhere.url).url == elsewhere.url
    with service.client() as client:
        assert client.post(PATH, json={"name": "brief"}).status_code == 201


def test_one_that_cannot_be_erased_keeps_no_other(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    def erase_some(url: str, **_: object) -> None:
        if url == urls[0]:
            raise tr.StorageError("no answer")

    running, urls = service.service, [_made(service, name) for name in ("far/away", "near/by")]
    monkeypatch.setattr(directory, "erase", erase_some)
    for name in ("far/away", "near/by"):
        running.directory.remove(name)
    later = UNDELETE_NS + 10**9
    at = running.directory.removed()[-1].until_ns - UNDELETE_NS + later
    late = Directory(running.database, running.settings, {}, clock=lambda: at)
    assert late.expire() == ["near/by"]
    monkeypatch.undo()
    assert late.expire() == ["far/away"]


def test_what_settings_name_stays_renamed_and_deleted_and_moves(service: RunningService) -> None:
    running = service.service
    url = _made(service, "settled")
    directory = Directory(running.database, running.settings, {})
    directory.settle("settled", url)
    directory.rename("settled", "other")
    directory.settle("settled", url)
    assert directory.renamed("settled") == "other"
    directory.remove("other")
    directory.settle("other", url)
    with pytest.raises(tr.NotFoundError):
        directory.find("other")
    with pytest.raises(tr.ConflictError, match="was deleted"):
        directory.settle("other", f"{url}-moved")
    directory.undelete("other")
    directory.settle("other", f"{url}-moved")
    assert directory.find("other").url == f"{url}-moved"
    with service.client() as client:
        answer = client.get(f"{PATH}/other/-/refs")
    assert answer.status_code == 503
    assert "moved" not in answer.text  # where it should be is nobody's business
    directory.settle("other", url)
    with service.client() as client:
        assert client.get(f"{PATH}/other/-/refs").status_code == 200
    directory.close()

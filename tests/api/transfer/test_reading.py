"""A server URL is a repository URL: opening, reading and streaming."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.errors import UnauthenticatedError
from tests.support.servers.service import RunningService
from tests.support.servers.web import web_server

Open = Callable[..., tr.Repository]


def place(service: RunningService) -> str:
    return service.service.directory.find("team/photos").url


def test_a_repository_is_made_at_a_service(service: RunningService) -> None:
    url = f"{service.url}/team/made"
    options = {"token": service.token}
    tr.init(url, storage_options=options)
    made = tr.open(url, storage_options=options, author="A <a@b.c>")
    with made.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": [1, 2]})
    assert len(made.dataset("numbers")) == 2
    with pytest.raises(tr.ConflictError, match="already"):
        tr.init(url, storage_options=options)
    reader = {"token": service.user("onlooker", Grant("team/*", Action.WRITE))}
    with pytest.raises(tr.PermissionDenied):
        tr.init(f"{service.url}/team/another", storage_options=reader)
    with pytest.raises(tr.InvalidInputError):
        tr.init(f"{service.url}/team/no..t", storage_options=options)
    for act in (tr.init, tr.open):
        with pytest.raises((tr.NotFoundError, tr.InvalidInputError), match="no repository"):
            act(service.url, storage_options=options)


def test_nobody_makes_a_repository_at_a_plain_web_server(tmp_path: Path) -> None:
    with (
        web_server(tmp_path) as plain,
        pytest.raises(tr.UnsupportedError, match="service alone"),
    ):
        tr.init(f"{plain.url}/new")


def test_a_dataset_is_read_through_the_service(fresh: RunningService, opened: Open) -> None:
    with tr.open(place(fresh), author="A <a@b.c>").transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": np.arange(100_000)})
    remote = opened(fresh)
    read = remote.dataset("numbers").to_numpy()["x"]
    assert (np.sort(read) == np.arange(100_000)).all()


def test_a_dataset_streams_through_the_service(fresh: RunningService, opened: Open) -> None:
    with tr.open(place(fresh), author="A <a@b.c>").transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": np.arange(50_000)})
    batches = opened(fresh).dataset("numbers").stream(batch_size=1000, shuffle=True)
    assert sum(int(batch["x"].sum()) for batch in batches) == sum(range(50_000))


def test_a_clone_of_a_service_is_a_clone(
    fresh: RunningService, opened: Open, tmp_path: Path
) -> None:
    with tr.open(place(fresh), author="A <a@b.c>").transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": np.arange(1000)})
        tx.save_file("notes.txt", b"words")
    remote = opened(fresh)
    clone = tr.clone(remote.url, tmp_path / "clone", author="Ann <ann@example.org>")
    assert clone.file("notes.txt") == b"words"
    assert clone.dataset("numbers").to_numpy()["x"].sum() == 499_500
    assert clone.branches() == remote.branches()


def test_a_mirror_follows_a_service(fresh: RunningService, opened: Open, tmp_path: Path) -> None:
    with tr.open(place(fresh), author="A <a@b.c>").transaction(message="first") as tx:
        tx.save_file("notes.txt", b"words")
    remote = opened(fresh)
    mirror = tr.clone(remote.url, tmp_path / "mirror", mirror=True, author="Ann <a@b.c>")
    assert (mirror.id, mirror.file("notes.txt")) == (remote.id, b"words")


def test_a_pickled_repository_opens_the_service_again(fresh: RunningService, opened: Open) -> None:
    with tr.open(place(fresh), author="A <a@b.c>").transaction(message="first") as tx:
        tx.save_file("notes.txt", b"words")
    assert pickle.loads(pickle.dumps(opened(fresh))).file("notes.txt") == b"words"


def test_who_has_no_token_is_told_to_log_in(fresh: RunningService) -> None:
    with pytest.raises(UnauthenticatedError, match="tensorrepo login"):
        tr.open(f"{fresh.url}/team/photos")


def test_a_token_is_in_no_repr(fresh: RunningService) -> None:
    url = f"{fresh.url}/team/photos"
    backend = open_http(url, {"token": fresh.token}, environment={})
    assert fresh.token not in repr(backend) + repr(vars(backend)["_place"])


@pytest.mark.soak
def test_readers_who_take_nothing_hold_nobody_up(fresh: RunningService) -> None:
    key = "objects/ab/" + "cd" * 31
    LocalBackend(Path(place(fresh))).create(key, [bytes(64 << 20)])
    parts = urlsplit(fresh.url)
    path = f"/api/v1/repositories/team/photos/-/store/{key}"
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {fresh.token}\r\n\r\n"
    with ExitStack() as stack:
        for _ in range(3 * fresh.service.settings.threads):
            link = socket.create_connection((parts.hostname, parts.port))
            stack.enter_context(closing(link)).sendall(head.encode())
        with fresh.client() as client:
            answers = [client.get("/health/ready").status_code for _ in range(20)]
    assert answers == [200] * 20


@pytest.mark.together
@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=0-3", 206, b"word"),
        ("bytes=3-", 206, b"ds"),
        ("bytes=-2", 206, b"ds"),
        ("bytes=4-99", 206, b"s"),
        ("bytes=9-", 416, b""),
        ("bytes=3-1", 200, b"words"),
        ("bytes=0-1,3-4", 200, b"words"),
        ("lines=1-2", 200, b"words"),
    ],
)
def test_a_range_is_answered_as_http_says(
    fresh: RunningService, asked: str, status: int, content: bytes
) -> None:
    key = "objects/ab/" + "cd" * 31
    LocalBackend(Path(place(fresh))).create(key, [b"words"])
    path = f"/api/v1/repositories/team/photos/-/store/{key}"
    with fresh.client() as client:
        answer = client.get(path, headers={"Range": asked})
        head = client.head(path)
    assert (answer.status_code, answer.content) == (status, content)
    assert (head.status_code, head.headers["Content-Length"], head.content) == (200, "5", b"")


@pytest.mark.parametrize(
    "key", ["log/hint/../../server.db", "..%2f..%2fserver.db", "tmp/part-x", "log/queue", "%00"]
)
def test_nothing_but_the_repository_is_read(fresh: RunningService, key: str) -> None:
    with fresh.client() as client:
        answer = client.get(f"/api/v1/repositories/team/photos/-/store/{key}")
    assert answer.status_code == 404


def test_objects_are_listed_page_by_page_in_order(fresh: RunningService) -> None:
    keys = [f"objects/{number:02x}/{'cd' * 31}" for number in range(0, 256, 9)]
    store = LocalBackend(Path(place(fresh)))
    for key in keys:
        store.create(key, [b"x"])
    found: list[str] = []
    cursor: str | None = None
    path = "/api/v1/repositories/team/photos/-/store"
    with fresh.client() as client:
        for _ in range(-(-len(keys) // 7)):
            more = {} if cursor is None else {"cursor": cursor}
            page = client.get(path, params={"prefix": "objects/", "limit": 7} | more).json()
            found += [item["key"] for item in page["items"]]
            cursor = page["next"]
    assert (found, cursor) == (keys, None)

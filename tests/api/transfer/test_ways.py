"""Callers who may read some refs open, clone and stream those, and learn of nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.repo.backends.service import open_http
from tensorrepo.repo.backends.service_format import (
    MEDIA_TYPE,
    MessageHead,
    encode_message,
    way_text,
)
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, encode_object
from tests.api.transfer.test_appending import commit_object, moving, send, tree_with
from tests.support.builders.repositories import tip_of
from tests.support.servers.service import RunningService

Open = Callable[..., tr.Repository]
ANN = "Ann <ann@example.org>"
STORE = "/api/v1/repositories/team/photos/-/store"


@pytest.fixture
def shared(fresh: RunningService) -> RunningService:
    """A repository with a branch for all, and a secret one with a file of its own."""
    repo = tr.open(fresh.service.directory.find("team/photos").url, author=ANN)
    with repo.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": np.arange(300_000)})
        tx.save_file("notes.txt", b"words" * 100)
    repo.create_branch("secret")
    with repo.transaction("secret", message="hidden") as tx:
        tx.save_file("secret.txt", b"nobody may know")
    return fresh


@pytest.fixture
def reader(shared: RunningService) -> str:
    return shared.user("rita", Grant("team/photos", Action.READ, "heads/main"))


def test_a_reader_of_one_branch_reads_it(shared: RunningService, reader: str, opened: Open) -> None:
    remote = opened(shared, reader)
    assert list(remote.branches()) == ["main"]
    assert remote.file("notes.txt") == b"words" * 100
    assert remote.dataset("numbers").to_numpy()["x"].sum() == sum(range(300_000))


def test_a_reader_of_one_branch_streams_it(
    shared: RunningService, reader: str, opened: Open
) -> None:
    batches = opened(shared, reader).dataset("numbers").stream(batch_size=1000, shuffle=True)
    assert sum(int(batch["x"].sum()) for batch in batches) == sum(range(300_000))


def test_a_reader_of_one_branch_clones_it(
    shared: RunningService, reader: str, opened: Open, tmp_path: Path
) -> None:
    remote = opened(shared, reader)
    clone = tr.clone(remote.url, tmp_path / "clone", author=ANN)
    assert list(clone.branches()) == ["main"]
    assert clone.dataset("numbers").to_numpy()["x"].sum() == sum(range(300_000))


def test_the_log_is_for_those_who_read_everything(shared: RunningService, reader: str) -> None:
    with shared.client(reader) as client:
        answers = [
            client.get(f"{STORE}/log/00000000000000000001.json"),
            client.get("/api/v1/repositories/team/photos/-/log", params={"after": 0}),
        ]
    assert [answer.status_code for answer in answers] == [403, 403]


def test_an_object_of_a_hidden_branch_is_as_one_that_is_not_there(
    shared: RunningService, reader: str
) -> None:
    core = shared.service.directory.open("team/photos").core
    secret, main = tip_of(core, "secret"), tip_of(core, "main")
    assert secret is not None
    assert main is not None
    names = [way_text(bytes.fromhex(digest)) for digest in (main, secret, "ab" * 32)]
    with shared.client(reader) as client:
        known = client.get(f"{STORE}/reach/{names[0]}")
        direct = client.get(f"{STORE}/reach/{names[1]}")
        behind = client.get(f"{STORE}/reach/{names[0]}/{names[1]}")
        nowhere = client.get(f"{STORE}/reach/{names[2]}")
        key = client.get(f"{STORE}/objects/{secret[:2]}/{secret[2:]}")
    assert known.status_code == 200
    assert (direct.status_code, behind.status_code, nowhere.status_code) == (404, 404, 404)
    assert key.status_code == 403
    assert direct.json()["detail"].replace(secret[:12], "") == nowhere.json()["detail"].replace(
        "ab" * 6, ""
    )


def test_what_was_read_before_is_hidden_once_its_ref_is_gone(
    shared: RunningService, reader: str
) -> None:
    backend = open_http(f"{shared.url}/team/photos", {"token": reader}, environment={})
    core = open_repository(backend, drivers={})
    main = tip_of(core)
    assert main is not None
    core.objects.fetch(main)
    served = shared.service.directory.open("team/photos")
    tr.open(served.core.url, author=ANN).delete_branch("main")
    served.core.log.refresh()
    with pytest.raises(NotFoundError):
        backend.read(f"objects/{main[:2]}/{main[2:]}")
    backend.close()


@pytest.fixture
def contributor(shared: RunningService) -> str:
    """Reads main, writes branches of his own, and knows of no other."""
    grants = (
        Grant("team/photos", Action.READ, "heads/main"),
        Grant("team/photos", Action.WRITE, "heads/cleo/*"),
    )
    return shared.user("cleo", *grants)


def test_a_contributor_of_some_refs_commits_on_what_he_may_read(
    shared: RunningService, contributor: str, opened: Open
) -> None:
    remote = opened(shared, contributor)
    remote.create_branch("cleo/idea", "main")
    with remote.transaction("cleo/idea", message="an idea") as tx:
        tx.save_file("large.bin", bytes(range(256)) * 20_000)
        tx.save_file("small.txt", b"an idea")
    there = tr.open(shared.service.directory.find("team/photos").url, author=ANN)
    assert there.file("large.bin", "cleo/idea") == bytes(range(256)) * 20_000
    assert there.dataset("numbers", "cleo/idea").shape == (300_000, 1)


def test_a_contributor_pushes_from_a_clone(
    shared: RunningService, contributor: str, opened: Open, tmp_path: Path
) -> None:
    remote = opened(shared, contributor)
    clone = tr.clone(remote.url, tmp_path / "clone", author=ANN)
    with clone.transaction(message="an idea") as tx:
        tx.save_file("large.bin", bytes(range(256)) * 20_000)
    clone.push("origin", ["main:cleo/idea"])
    assert opened(shared, contributor).file("large.bin", "cleo/idea")[:3] == b"\0\1\2"


def test_who_names_a_hidden_object_cannot_build_upon_it(
    shared: RunningService, contributor: str
) -> None:
    core = shared.service.directory.open("team/photos").core
    hidden = encode_object(Kind.BLOB, b"nobody may know").link
    assert core.objects.stored_bytes(hidden.digest, 0) is not None
    commit = commit_object(tree_with(hidden.digest), [hidden])
    entry = moving("heads/cleo/mine", commit.link.digest, kind="ref-create")
    answer = send(shared, [entry], [commit], token=contributor)
    assert (answer.status_code, answer.json()["missing"]) == (410, [hidden.digest])


def test_nothing_that_is_sent_tells_whether_an_object_is_there(
    shared: RunningService, contributor: str
) -> None:
    """What is stored for others and what nobody stored: every answer is the same."""
    hidden, unknown = (
        encode_object(Kind.BLOB, data) for data in (b"nobody may know", b"nobody ever wrote")
    )
    core = shared.service.directory.open("team/photos").core
    assert core.objects.stored_bytes(hidden.link.digest, 0) is not None
    told = [_probe(shared, contributor, one) for one in (hidden, unknown)]
    assert told[0] == told[1]


def _probe(shared: RunningService, token: str, one: EncodedObject) -> list[tuple[int, str]]:
    """Answers to all that names an object, without its name."""
    digest, base = one.link.digest, "/api/v1/repositories/team/photos/-"
    placements = {"placements": {digest: "ab" * 32}}
    entries = [
        LogEntry("p1", "supersede", "Eve <eve@example.org>", 1, data=placements),
        LogEntry(
            "p2", "lease-open", "Eve <eve@example.org>", 1, data={"id": "l", "keep": [digest]}
        ),
        LogEntry("p3", "shallow", "Eve <eve@example.org>", 1, data={"add": [digest]}),
        moving("heads/cleo/mine", digest, kind="ref-create"),
    ]
    message = encode_message(
        MessageHead(((digest, sum(map(len, one.parts))),)), [bytes(part) for part in one.parts]
    )
    with shared.client(token) as client:
        answers = [
            *(send(shared, [entry], token=token) for entry in entries),
            client.get(f"{base}/uploads/{digest}", params={"bytes": one.link.bytes}),
            client.get(f"{base}/store/objects/{digest[:2]}/{digest[2:]}"),
            client.get(f"{base}/store/reach/{way_text(bytes.fromhex(digest))}"),
            client.get(f"{base}/commits/{digest}"),
            client.get(f"{base}/commits/{digest[:16]}"),
            client.post(f"{base}/objects", content=message, headers={"Content-Type": MEDIA_TYPE}),
        ]
    parts = [(answer.status_code, answer.json()) for answer in answers]
    for _, body in parts:
        body.pop("request_id", None)
        body.pop("receipts", None)
    names = re.compile(f"{digest}|{digest[:16]}|{digest[:12]}")
    return [(status, names.sub("", str(body))) for status, body in parts]


def test_nobody_branches_off_a_hidden_commit(shared: RunningService, contributor: str) -> None:
    core = shared.service.directory.open("team/photos").core
    secret = tip_of(core, "secret")
    assert secret is not None
    answer = send(shared, [moving("heads/cleo/mine", secret, kind="ref-create")], token=contributor)
    assert answer.status_code == 410

"""A pushed dataset that points at local files, or at addresses that only the service reaches, gets
nobody a byte of them through the service, and lets it ask nobody."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.servers.service import RunningService

PATH = "/api/v1/repositories/pointing/-"
MARK = 1234567891


@pytest.fixture(scope="module")
def pointing(service: RunningService, tmp_path_factory: pytest.TempPathFactory) -> RunningService:
    """A repository with a dataset adopted of this machine's file, and one of links to it."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "pointing"}).raise_for_status()
    folder = tmp_path_factory.mktemp("secret")
    np.save(folder / "secret.npy", np.full((4, 2), MARK))
    (folder / "secret.txt").write_text(f"hidden {MARK}")
    url = service.service.directory.find("pointing").url
    repo = tr.open(url, author="Eve <eve@example.org>", outside=[folder])
    links = [str(folder / "secret.txt"), "file:///etc/passwd"]
    with repo.transaction(message="bait") as tx:
        tx.adopt("adopted", folder / "secret.npy")
        tx.create_dataset("linked", columns={"file": tr.Link()}).append({"file": links})
    return service


@pytest.mark.parametrize(
    "path",
    [
        "datasets/adopted/-/rows",
        "datasets/adopted/-/arrow",
        "datasets/linked/-/rows",
        "datasets/linked/-/arrow",
        "datasets/linked/-/profile",
        "datasets/adopted/-/profile",
        "datasets/linked/-/cell?column=file&row=0",
        "datasets/adopted/-/cell?column=x&row=0",
        "datasets/adopted/-/image?column=x&row=0",
        "datasets/linked/-/image?column=file&row=0",
    ],
)
def test_no_byte_of_a_local_file_leaves(pointing: RunningService, path: str) -> None:
    with pointing.client() as client:
        answer = client.get(f"{PATH}/{path}")
    held = np.array([MARK]).tobytes()
    assert str(MARK).encode() not in answer.content
    assert held not in answer.content
    assert b"root:" not in answer.content


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM adopted",
        "SELECT * FROM linked",
        "SELECT * FROM read_text('/etc/passwd')",
        # Other ways that tests/query/untrusted asks, too.
        pytest.param("SELECT * FROM read_csv('file:///etc/passwd')", marks=pytest.mark.soak),
        pytest.param("SELECT * FROM '/etc/passwd'", marks=pytest.mark.soak),
    ],
)
def test_no_query_reads_a_local_file(pointing: RunningService, query: str) -> None:
    with pointing.client() as client:
        answers = [
            client.post(f"{PATH}/{way}", json={"query": query}) for way in ("sql", "sql/arrow")
        ]
    for answer in answers:
        assert str(MARK).encode() not in answer.content
        assert np.array([MARK]).tobytes() not in answer.content
        assert b"root:" not in answer.content


@pytest.fixture
def private() -> Iterator[socket.socket]:
    """A server of this machine that nobody may ask: whoever connects is seen."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.5)
        yield listening


def test_the_service_asks_no_address_that_a_dataset_names(
    service: RunningService, private: socket.socket
) -> None:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "asking"}).raise_for_status()
    url = service.service.directory.find("asking").url
    repo = tr.open(url, author="Eve <eve@example.org>")
    port = private.getsockname()[1]
    hosts = ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433")
    links = [f"http://{host}:{port}/latest/meta-data" for host in hosts]
    with repo.transaction(message="bait") as tx:
        tx.create_dataset("linked", columns={"file": tr.Link()}).append({"file": links})
    base, ways = "/api/v1/repositories/asking/-", ("rows", "arrow", "profile")
    with service.client() as client:
        answers = [client.get(f"{base}/datasets/linked/-/{way}") for way in ways]
        for row in range(len(links)):
            asked = {"column": "file", "row": row}
            answers += [
                client.get(f"{base}/datasets/linked/-/{way}", params=asked)
                for way in ("cell", "image")
            ]
        answers.append(client.post(f"{base}/sql", json={"query": "SELECT * FROM linked"}))
        page = client.get("/asking/-/datasets/linked", headers={"Accept": "text/html"})
    with pytest.raises(TimeoutError):
        private.accept()
    assert all(answer.status_code < 500 for answer in (*answers, page))


def test_the_service_says_that_it_may_not(pointing: RunningService) -> None:
    with pointing.client() as client:
        answer = client.get(f"{PATH}/datasets/adopted/-/rows")
    assert answer.status_code == 403

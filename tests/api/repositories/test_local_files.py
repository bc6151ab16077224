"""A pushed dataset that points at local files gets nobody a byte of them through the service."""

from __future__ import annotations

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


def test_the_service_says_that_it_may_not(pointing: RunningService) -> None:
    with pointing.client() as client:
        answer = client.get(f"{PATH}/datasets/adopted/-/rows")
    assert answer.status_code == 403

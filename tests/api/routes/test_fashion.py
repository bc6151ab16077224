"""A whole dataset of Debian through the service: 60,000 pictures looked at and asked about."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import tensorrepo as tr
from tests.support.servers.service import RunningService

FASHION = Path("/usr/share/datasets/fashion-mnist")
BASE = "/api/v1/repositories/team/fashion/-"
pytestmark = pytest.mark.skipif(
    not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)


@pytest.fixture(scope="module")
def fashion(service: RunningService) -> RunningService:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/fashion"}).raise_for_status()
    url = service.service.directory.find("team/fashion").url
    repo = tr.open(url, author="Ann <ann@example.org>")
    with repo.transaction(message="fashion") as tx:
        tx.create_dataset("fashion", tr.read(FASHION / "train-images-idx3-ubyte.gz"))
    return service


def test_every_class_is_there_as_often_by_profile_sql_and_rows(fashion: RunningService) -> None:
    with fashion.client() as client:
        info = client.get(f"{BASE}/datasets/fashion").json()
        names = [one["name"] for one in info["columns"]]
        label = next(name for name in names if name.startswith("label"))
        profile = client.get(f"{BASE}/datasets/fashion/-/profile", params={"column": label}).json()
        query = f'SELECT "{label}", count(*) AS n FROM fashion GROUP BY 1 ORDER BY 1'
        counts = client.post(f"{BASE}/sql", json={"query": query}).json()["rows"]
    assert info["rows"] == 60_000
    assert sum(profile["counts"]) == profile["rows"]
    assert [count for _, count in counts] == [6000] * 10


def test_pictures_are_those_of_the_file(fashion: RunningService) -> None:
    with fashion.client() as client:
        info = client.get(f"{BASE}/datasets/fashion").json()
        image = next(one["name"] for one in info["columns"] if one["type"] == "uint8[28, 28]")
        answer = client.get(
            f"{BASE}/datasets/fashion/-/image", params={"column": image, "row": 59_999}
        )
        stream = client.get(
            f"{BASE}/datasets/fashion/-/arrow", params={"column": image, "start": 59_990}
        )
    last = np.asarray(Image.open(io.BytesIO(answer.content)))
    rows = pa.ipc.open_stream(stream.content).read_all()[image].combine_chunks()
    assert len(rows) == 10
    assert np.array_equal(rows.to_numpy_ndarray()[-1], last)
    assert last.any()

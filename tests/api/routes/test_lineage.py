"""Lineage over HTTP, and that it tells nothing of refs that a caller may not read."""

from __future__ import annotations

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.support.servers.service import RunningService

NAME = "team/lineage"
BASE = f"/api/v1/repositories/{NAME}/-"


@pytest.fixture(scope="module")
def family(service: RunningService) -> RunningService:
    """main: raw -> clean -> net; secret: a model tuned from net, from data that only it has."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": NAME}).raise_for_status()
    repo = tr.open(service.service.directory.find(NAME).url, author="Ann <ann@example.org>")
    with repo.transaction(message="raw") as tx:
        tx.create_dataset("raw", {"x": [1, 2, 3]}, derived_from="https://example.org/raw.csv")
    with repo.transaction(message="clean") as tx:
        tx.create_dataset("clean", {"x": [1, 2]}, derived_from="main:datasets/raw")
    with repo.transaction(message="net") as tx:
        weights = {"weight": np.ones((8, 8), np.float32)}
        tx.save_model("net", weights, derived_from="main:datasets/clean")
    repo.create_branch("secret")
    with repo.transaction("secret", message="hidden") as tx:
        tx.create_dataset("hidden", {"x": [9]})
    with repo.transaction("secret", message="tuned") as tx:
        weights = {"weight": np.full((8, 8), 2, np.float32)}
        tx.save_model(
            "tuned", weights, derived_from=["secret:datasets/hidden", "secret:models/net"]
        )
    return service


def paths_of(
    service: RunningService, path: str, token: str | None = None, **asked: object
) -> set[str]:
    with service.client(token) as client:
        answer = client.get(f"{BASE}/lineage", params={"path": path, **asked})
    answer.raise_for_status()
    return {one["path"] for one in answer.json()["things"]} - {path}


def test_a_model_has_what_it_came_from_and_what_came_from_it(family: RunningService) -> None:
    assert paths_of(family, "models/net") == {
        "datasets/clean", "datasets/raw", "https://example.org/raw.csv", "models/tuned",
    }  # fmt: skip
    assert paths_of(family, "models/net", direction="down") == {"models/tuned"}
    assert paths_of(family, "models/net", direction="up", depth=1) == {"datasets/clean"}
    assert paths_of(family, "datasets/raw", direction="down", relation="derived-from") == {
        "datasets/clean"
    }


def test_edges_tell_how(family: RunningService) -> None:
    with family.client() as client:
        found = client.get(f"{BASE}/lineage", params={"path": "datasets/clean", "depth": 1}).json()
    keys = {one["path"]: one["key"] for one in found["things"]}
    told = {(one["subject"], one["relation"], one["origin"]) for one in found["edges"]}
    assert told == {
        (keys["datasets/clean"], "derived-from", keys["datasets/raw"]),
        (keys["models/net"], "trained-on", keys["datasets/clean"]),
    }
    assert found["complete"]


def test_a_reader_of_main_is_told_of_nothing_on_secret(family: RunningService) -> None:
    token = family.user("lineage-reader", Grant(NAME, Action.READ, "heads/main"))
    assert paths_of(family, "models/net", token) == {
        "datasets/clean", "datasets/raw", "https://example.org/raw.csv",
    }  # fmt: skip
    assert paths_of(family, "models/net", token, every_version=True, direction="down") == set()
    with family.client(token) as client:
        hidden = client.get(f"{BASE}/lineage", params={"path": "models/tuned"})
    assert hidden.status_code == 404


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"path": "models/net", "relation": "made-up"}, 404),
        ({"path": "models/nothing"}, 404),
        ({"path": "runs/nothing"}, 404),
        ({"path": "models/net", "depth": 0}, 400),
        ({"path": "../x"}, 400),
    ],
)
def test_what_is_no_lineage_is_a_problem(
    asked: dict[str, object], status: int, family: RunningService
) -> None:
    with family.client() as client:
        assert client.get(f"{BASE}/lineage", params=asked).status_code == status

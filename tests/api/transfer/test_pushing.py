"""Commits and pushes through a service: what lands is whole, and in the caller's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

import tensorrepo as tr
from tests.support.servers.service import RunningService

Open = Callable[..., tr.Repository]
ANN = "Ann <ann@example.org>"


def test_a_commit_through_the_service_is_a_commit(fresh: RunningService, opened: Open) -> None:
    remote = opened(fresh)
    with remote.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": np.arange(1_000_000)})
        tx.save_file("notes.txt", b"words")
    place = fresh.service.directory.find("team/photos").url
    there = tr.open(place, author=ANN)
    assert there.file("notes.txt") == b"words"
    assert there.dataset("numbers").to_numpy()["x"].sum() == sum(range(1_000_000))
    assert remote.log()[0].commit.message == "first"


def test_a_repository_with_registered_versions_is_cloned_into_the_service(
    fresh: RunningService, opened: Open, tmp_path: Path
) -> None:
    assert opened(fresh).branches() == {}
    here = tr.init(tmp_path / "here", author=ANN)
    with here.transaction(message="first") as tx:
        tx.save_model("net", {"w": np.ones(4, np.float32)})
    here.registry.register("net", here.model("net"), alias="champion")
    place = f"{fresh.url}/team/copy"
    there = tr.clone(tmp_path / "here", place, author=ANN)
    assert there.model("net").tensor("w")[:].tolist() == [1.0] * 4
    assert [*there.registry] == []


def test_a_clone_pushes_to_the_service(fresh: RunningService, opened: Open, tmp_path: Path) -> None:
    remote = opened(fresh)
    with remote.transaction(message="first") as tx:
        tx.save_file("notes.txt", b"words")
    clone = tr.clone(remote.url, tmp_path / "clone", author=ANN)
    with clone.transaction(message="second") as tx:
        tx.save_file("more.bin", bytes(range(256)) * 40_000)
    clone.push("origin", ["main"])
    assert opened(fresh).file("more.bin") == bytes(range(256)) * 40_000

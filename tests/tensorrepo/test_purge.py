"""Purges as people ask for them: command, SDK, copies, views, catalog, caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ZSTD_MAGIC, expand
from tests.support.processes.shell import ADA, Shell
from tests.support.servers.object_stores import s3_on_ours

SECRET = "zebra-quixote-77"
WHERE = f"name = '{SECRET}'"


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


def people(first: int, count: int) -> list[dict[str, Any]]:
    numbers = range(first, first + count)
    return [
        {
            "name": SECRET if at == 3 else f"person {at}",
            "kind": "Ann" if at == 3 else "other",
            "age": at,
        }
        for at in numbers
    ]


COLUMNS = {"name": tr.Text(), "kind": tr.ClassLabel(("other", "Ann")), "age": "int64"}


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    """Two versions of a dataset, views of it, and a dataset and a model made of it."""
    repo = tr.init(tmp_path / "store", author=ADA)
    with repo.transaction("main", "one") as tx:
        draft = tx.create_dataset("people", columns=COLUMNS)
        draft.append(people(0, 10), codec="none")
    with repo.transaction("main", "two") as tx:
        tx.dataset("people").append(people(10, 5), codec="none")
    with repo.transaction("main", "views") as tx:
        tx.create_view("young", "SELECT row_id FROM people WHERE age < 5")
        tx.create_view("not", f"SELECT row_id FROM people WHERE name <> '{SECRET}'")
        tx.create_dataset("less", [{"age": 1}], derived_from=[repo.dataset("people")])
        tx.save_model("net", {"w": np.ones(2, "f4")}, derived_from=[repo.dataset("people")])
    return repo


def says(folder: Path, text: str = SECRET) -> set[str]:
    """First folders below `folder` with files that hold a text, those that are compressed too."""
    found = set()
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if data.startswith(ZSTD_MAGIC) and len(path.name) >= 62:
            data = bytes(expand(data, Digest(path.parent.name + path.name)))
        if text.encode() in data:
            found.add(path.relative_to(folder).parts[0])
    return found


def test_nothing_is_left_in_store_catalog_and_caches(repo: tr.Repository, tmp_path: Path) -> None:
    repo.catalog.catch_up()
    assert says(tmp_path) == {"store", "CACHE"}
    repo.purge("people", where=WHERE, reason="request 17")
    assert says(tmp_path) == set()
    assert repo.catalog.verify() == []
    assert {name: len(repo.dataset("people", name)) for name in ("main", "main~1", "main~2")} == {
        "main": 14,
        "main~1": 14,
        "main~2": 9,
    }
    assert repo.dataset("people").schema["kind"].type == tr.ClassLabel(("other", "purged-1"))


def test_views_lose_the_rows_and_what_their_query_told(repo: tr.Repository) -> None:
    repo.purge("people", where=WHERE, reason="request 17")
    assert [row["age"] for row in repo.view("young")] == [0, 1, 2, 4]
    assert repo.view("young").sql.startswith("SELECT")
    assert (len(repo.view("not")), repo.view("not").sql) == (14, "")


def test_a_plan_names_what_is_not_reached(repo: tr.Repository) -> None:
    with repo.transaction("main", f"about {SECRET}") as tx:
        tx.save_file("notes.txt", b"hello")
    plan = repo.purge_plan("people", where=WHERE)
    assert (plan.rows, dict(plan.versions)) == (1, {"datasets/people": 2})
    told = "\n".join(plan.beyond)
    assert "models/net" in told
    assert "datasets/less, made of datasets/people" in told
    assert "whose message or metadata repeats" in told
    assert "clones" in told
    assert len(repo.dataset("people")) == 15


def test_readers_of_what_was_purged_are_told(repo: tr.Repository) -> None:
    dataset = repo.dataset("people")
    (row,) = dataset.find(WHERE)
    (purged,) = dataset.row_ids([row])
    repo.purge("people", where=WHERE, reason="request 17")
    repo.purge("people", columns=["kind"], reason="never agreed to")
    fresh = repo.dataset("people", "main~1")
    with pytest.raises(tr.PurgedError, match=r"row .* was purged"):
        fresh.rows_by_id([purged])
    with pytest.raises(tr.PurgedError, match="column 'kind'"):
        fresh["kind"]
    with pytest.raises(tr.PurgedError, match="column 'kind'"):
        fresh.select(["age", "kind"])
    with pytest.raises(tr.NotFoundError, match="no column 'knd'"):
        fresh["knd"]


def test_copies_take_the_twins_and_do_not_bring_the_old_back(
    repo: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(repo.url, tmp_path / "stale", author=ADA)
    mirror = tr.clone(repo.url, tmp_path / "mirror", mirror=True)
    repo.purge("people", where=WHERE, reason="request 17")
    fresh = tr.clone(repo.url, tmp_path / "fresh", author=ADA)
    assert len(fresh.dataset("people", "main~2")) == 9
    with stale.transaction("main", "late") as tx:
        tx.dataset("people").append(people(20, 1))
    for target in (repo, fresh):
        with pytest.raises(tr.PurgedError, match="datasets/people holds 1 row"):
            stale.push(target.url)
    mirror.fetch(repo.url)
    assert says(tmp_path / "mirror") == set()
    assert len(mirror.dataset("people", "main~2")) == 9


def test_a_clone_that_changed_something_else_still_pushes(
    repo: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(repo.url, tmp_path / "stale", author=ADA)
    repo.purge("people", where=WHERE, reason="request 17")
    with stale.transaction("main", "notes") as tx:
        tx.save_file("notes.txt", b"hello")
    stale.push(repo.url)
    assert len(repo.dataset("people")) == 14
    assert repo.file("notes.txt") == b"hello"


def test_a_bundle_of_a_purged_repository_has_the_twins(repo: tr.Repository, tmp_path: Path) -> None:
    repo.purge("people", where=WHERE, reason="request 17")
    repo.bundle(tmp_path / "all.bundle")
    assert len(tr.clone(tmp_path / "all.bundle", tmp_path / "out").dataset("people", "main")) == 14


def test_packs_of_history_before_and_after_lose_the_rows(
    repo: tr.Repository, tmp_path: Path
) -> None:
    repo.gc(compact=True)
    repo.purge("people", where=WHERE, reason="request 17")
    assert says(tmp_path) == set()
    repo.gc(compact=True)
    assert says(tmp_path) == set()
    assert [len(tr.open(repo.url).dataset("people", ref)) for ref in ("main", "main~2")] == [14, 9]


def test_pages_of_a_store_far_away_go_from_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        repo = tr.init(f"{bucket.url}/people", author=ADA)
        large = [{"name": f"{SECRET} {at}" * 3000, "age": at} for at in range(3)]
        with repo.transaction("main", "one") as tx:
            tx.create_dataset("people", large, codec="none")
        for batch in tr.open(repo.url).dataset("people").stream(batch_size=1):
            assert batch
        assert says(tmp_path) == {"CACHE", "s3"}
        report = repo.purge("people", where="age >= 1", reason="request 17")
        assert report.cached > 0
        assert len(repo.dataset("people")) == 1
        repo.purge("people", where="age = 0", reason="request 18")
        assert says(tmp_path) == set()


def test_the_command_asks_and_lists(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    told = shell("purge", "points", "--where", "label = 1", "--dry-run")
    assert "in datasets/points: " in told
    words = ("purge", "points", "--where", "label = 1")
    assert "-m TEXT" in shell.fails(2, *words)
    assert "--yes" in shell.fails(2, *words, "-m", "request 17")
    done = json.loads(shell(*words, "-m", "request 17", "--yes", "--json").splitlines()[-1])
    assert done["record"] > 0
    assert "request 17" in shell("purge", "--list")
    assert shell("purge", "points", "--where", "label = 1", "-m", "again", "--yes").startswith(
        "nothing was purged"
    )
    assert "ok" in shell("fsck", "--deep")


@pytest.fixture
def models(tmp_path: Path) -> tr.Repository:
    """A model, and two that were made of it by small changes: their tensors are deltas."""
    repo = tr.init(tmp_path / "store", author=ADA)
    rng = np.random.default_rng(0)
    tensors = {name: rng.standard_normal((200, 300)).astype("f4") for name in ("w", "v")}
    with repo.transaction("main", "one") as tx:
        tx.save_model("net", tensors)
    for name in ("tuned", "again"):
        tensors = {key: (each * np.float32(1.0001)) for key, each in tensors.items()}
        with repo.transaction("main", name) as tx:
            tx.save_model(name, {**tensors, "v": tensors["v"]}, base=repo.model("net"))
    return repo


def test_a_tensor_goes_and_deltas_against_it_stand_alone(
    models: tr.Repository, tmp_path: Path
) -> None:
    tuned = {name: models.model("tuned")[name].copy() for name in ("w", "v")}
    kept, erased = models.model("net")["v"].copy(), models.model("net")["w"].tobytes()
    held = [one for one in (tmp_path / "store").rglob("*") if one.is_file()]
    plan = models.purge_plan("net", tensors=["w"])
    assert (plan.tensors, dict(plan.versions)) == (("w",), {"models/net": 1})
    report = models.purge("net", tensors=["w"], reason="learned from request 17")
    assert report.record is not None
    purged = {digest for digest, twin in report.record.erased.items()}
    left = [one for one in held if one.exists() and one.parent.name + one.name in purged]
    assert left == []
    assert "packs of models" in report.record.where.values()
    assert not any(
        erased[:64] in one.read_bytes() for one in (tmp_path / "store").rglob("*") if one.is_file()
    )
    fresh = tr.open(models.url)
    assert (fresh.model("net", "main~2")["v"] == kept).all()
    assert all((fresh.model("tuned")[name] == tuned[name]).all() for name in ("w", "v"))
    with pytest.raises(tr.PurgedError, match="tensor 'w' of models/net was purged"):
        fresh.model("net")["w"]
    with pytest.raises(tr.PurgedError, match="tensor 'w' of models/net was purged"):
        fresh.model("net").load(["v", "w"], output="numpy")
    assert list(tr.clone(models.url, tmp_path / "copy").model("net")) == ["v"]


def test_a_model_that_holds_a_purged_tensor_is_not_taken_back(
    models: tr.Repository, tmp_path: Path
) -> None:
    stale = tr.clone(models.url, tmp_path / "stale", author=ADA)
    models.purge("net", tensors=["w"], reason="learned from request 17")
    with stale.transaction("main", "late") as tx:
        tx.save_model("other", {"x": stale.model("net")["w"]})
    with pytest.raises(tr.PurgedError, match="was purged"):
        stale.push(models.url)

"""Clone, fetch, push, pull, promotion and bundles, as people call them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.this_machine import machine
from tensorrepo.verbs.fsck import fsck
from tests.support.processes.shell import ADA, Shell
from tests.support.servers.object_stores import s3_on_ours

ROWS = 50_000


@pytest.fixture(autouse=True)
def _settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a dataset and a model that do not compress."""
    folder = tmp_path_factory.mktemp("made") / "store"
    rng = np.random.default_rng(0)
    repo = tr.init(folder, author=ADA)
    columns = {"x": "float64", "label": tr.ClassLabel(("cat", "dog"))}
    with repo.transaction("main", "all") as tx:
        rows = {"x": rng.standard_normal(ROWS), "label": np.arange(ROWS) % 2}
        tx.create_dataset("photos", columns=columns).append(rows)
        tx.save_model("net", {"w": rng.standard_normal((1000, 500)).astype("f4")})
    return folder


@pytest.fixture
def origin(made: Path, tmp_path: Path) -> tr.Repository:
    """A clone of it, which a test may change."""
    return tr.clone(made, tmp_path / "origin", author=ADA)


def stored_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "objects").rglob("*") if path.is_file())


def test_one_changed_label_moves_kilobytes(origin: tr.Repository, tmp_path: Path) -> None:
    here = tr.clone(origin.url, tmp_path / "here", author=ADA)
    whole = stored_bytes(tmp_path / "here")
    with origin.transaction("main", "label") as tx:
        tx.dataset("photos").update("x > 4.0", {"label": "cat"})
    report = here.fetch()
    grown = stored_bytes(tmp_path / "here") - whole
    assert whole > 2_000_000
    assert grown < 20_000
    assert report.totals.bytes < 20_000
    assert here.resolve("origin/main").digest == origin.resolve("main").digest


def test_a_fine_tune_moves_its_delta_alone(origin: tr.Repository, tmp_path: Path) -> None:
    here = tr.clone(origin.url, tmp_path / "here", author=ADA)
    before = stored_bytes(tmp_path / "origin")
    tensor = np.array(here.model("net")["w"])
    tensor[3] += 1
    with here.transaction("main", "tuned") as tx:
        tx.save_model("tuned", {"w": tensor}, derived_from=[here.model("net")])
    report = here.push()
    assert stored_bytes(tmp_path / "origin") - before < 40_000
    assert report.totals.bytes < 40_000
    assert (np.array(origin.model("tuned")["w"]) == tensor).all()


def test_a_promotion_brings_one_entry_and_a_second_one_the_difference(
    origin: tr.Repository, tmp_path: Path
) -> None:
    serving = tr.init(tmp_path / "serving", author=ADA)
    first = origin.promote("models/net", tmp_path / "serving", named="classifier")
    assert list(serving.models()) == ["classifier"]
    assert first.landed is not None
    assert first.landed.commit.metadata["promoted"] == {
        "repository": origin.id,
        "commit": origin.resolve("main").digest,
        "path": "models/net",
    }
    tensor = np.array(origin.model("net")["w"])
    tensor[3] += 1
    with origin.transaction("main", "tuned") as tx:
        tx.save_model("net", {"w": tensor}, derived_from=[origin.model("net")])
    second = origin.promote("models/net", tmp_path / "serving", named="classifier")
    assert second.totals.bytes < 40_000 < first.totals.bytes
    assert (np.array(serving.model("classifier")["w"]) == tensor).all()
    assert len(serving.log()) == 2
    again = origin.promote("models/net", tmp_path / "serving", named="classifier")
    assert again.landed is None


def test_a_lazy_clone_reads_from_s3_and_keeps_what_it_read(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        there = tr.clone(made, f"{bucket.url}/team", author=ADA)
        here = tr.clone(there.url, tmp_path / "lazy", lazy=True, author=ADA)
        assert stored_bytes(tmp_path / "lazy") < 100_000
        expected = tr.open(made).dataset("photos")["x"][:]
        again = pickle.loads(pickle.dumps(here))
        assert (again.dataset("photos")["x"][:] == expected).all()
        assert bucket.server is not None
        before = len(bucket.server.requests)
        assert (tr.open(tmp_path / "lazy").dataset("photos")["x"][:] == expected).all()
        assert len(bucket.server.requests) - before < 6
        here.fetch_data()
    assert (tr.open(tmp_path / "lazy").model("net")["w"] == tr.open(made).model("net")["w"]).all()


def test_a_mirror_follows_and_takes_no_commit(origin: tr.Repository, tmp_path: Path) -> None:
    mirror = tr.clone(origin.url, tmp_path / "mirror", mirror=True, author=ADA)
    assert mirror.id == origin.id
    with origin.transaction("main", "file") as tx:
        tx.save_file("notes", b"new")
    mirror.fetch()
    assert mirror.file("notes") == b"new"
    with pytest.raises(tr.PermissionDenied, match="mirror"), mirror.transaction("main", "x") as tx:
        tx.save_file("notes", b"mine")


def test_a_log_moves_to_a_database_and_back_by_cloning(
    origin: tr.Repository, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/log.db"
    there = tr.clone(origin.url, tmp_path / "there", log=database, author=ADA)
    assert not (tmp_path / "there" / "log").exists()
    with there.transaction("main", "file") as tx:
        tx.save_file("notes", b"new")
    again = pickle.loads(pickle.dumps(tr.open(there.url, log=database)))
    assert again.file("notes") == b"new"
    for number in range(64):  # each checkpoint marks the store
        there.create_tag(f"t{number}")
    assert (tmp_path / "there" / "sql-log.json").exists()
    totals = ObjectTotals()
    assert not [*fsck(again.context.core, totals)]
    assert not totals.unknown
    back = tr.clone(there.url, tmp_path / "back", author=ADA)
    assert [each.digest for each in back.log()] == [each.digest for each in there.log()]
    with pytest.raises(tr.InvalidInputError, match="mirror"):
        tr.clone(there.url, tmp_path / "mirror", mirror=True, log=database)
    mirror = tr.clone(there.url, tmp_path / "mirror", mirror=True, author=ADA)
    assert (tmp_path / "mirror" / "log").exists()
    assert mirror.file("notes") == b"new"


def test_a_new_repository_names_one_database(tmp_path: Path) -> None:
    with pytest.raises(tr.InvalidInputError, match="needs the URL of one database"):
        tr.init(tmp_path / "store", log=f"sqlite:///{tmp_path}/{{id}}.db")
    assert not (tmp_path / "store").exists()


def test_a_handle_finds_its_log_without_any_setting(tmp_path: Path) -> None:
    made = tr.init(tmp_path / "store", log=f"sqlite:///{tmp_path}/log.db", author=ADA)
    with made.transaction("main", "file") as tx:
        tx.save_file("notes", b"new")
    machine().config_file.unlink()
    with pytest.raises(tr.InvalidInputError, match="TENSORREPO_LOG"):
        tr.open(made.url)
    assert tr.open(made.url, log=f"sqlite:///{tmp_path}/log.db").file("notes") == b"new"
    assert pickle.loads(pickle.dumps(made)).file("notes") == b"new"
    assert "log.db" not in repr(made)


def test_a_bundle_is_cloned_like_a_repository(origin: tr.Repository, tmp_path: Path) -> None:
    report = origin.bundle(tmp_path / "all.bundle", everything=True)
    assert report.contents.refs["heads/main"] == origin.resolve("main").digest
    copy = tr.clone(tmp_path / "all.bundle", tmp_path / "copy", author=ADA)
    assert (copy.dataset("photos")["x"][:] == origin.dataset("photos")["x"][:]).all()


def test_a_secret_in_a_url_is_refused_and_not_shown(origin: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError) as caught:
        origin.add_remote("backup", "s3://ada:hunter2@bucket/team")
    assert "hunter2" not in str(caught.value)
    assert list(origin.remotes()) == ["origin"]


@pytest.fixture
def shells(made: Path, tmp_path: Path) -> tuple[Shell, Shell]:
    """Two people with clones of one origin."""
    ada = Shell(tmp_path, tmp_path / "home")
    ada("clone", str(made), "team")
    ada("clone", "team", "ada")
    ada("clone", "team", "bob")
    bob = Shell(tmp_path / "bob", tmp_path / "home", "Bob <bob@example.org>")
    return Shell(tmp_path / "ada", tmp_path / "home"), bob


def test_two_people_push_and_pull(shells: tuple[Shell, Shell]) -> None:
    ada, bob = shells
    ada("update", "photos", "--row", "1", "--set", "label=cat")
    ada("commit", "-m", "mine")
    assert "main: " in ada("push")
    assert "Everything is there already" in ada("push")
    bob("update", "photos", "--row", "3", "--set", "label=cat")
    bob("commit", "-m", "his")
    assert "would not move forward" in bob.fails(4, "push")
    assert "Merge origin/main into main" in bob("pull")
    bob("push")
    assert "moved forward" in ada("pull")
    ada("switch", "-c", "other", "HEAD~1")
    ada("push", "origin", "other:main", "--force")
    moves = ada.records("reflog", "main", "--repo", "../team/.tensorrepo/store")
    why = [move["why"] for move in moves]
    assert why == ["push: forced-update", "push: fast-forward", "push: fast-forward",
                   "clone origin: new"]  # fmt: skip
    assert ada.records("reflog", "origin/main")[0]["why"] == "push origin: forced-update"
    ada("switch", "main")
    labels = ada("sql", "SELECT label FROM photos WHERE row_number IN (1, 3)", "--json")
    assert [json.loads(line)["label"] for line in labels.splitlines()] == ["cat", "cat"]


def test_remotes_are_listed_renamed_and_forgotten(shells: tuple[Shell, Shell]) -> None:
    ada, _ = shells
    ada("remote", "add", "backup", "../team")
    assert [one["name"] for one in ada.records("remote", "ls")] == ["backup", "origin"]
    ada("remote", "rename", "origin", "team")
    assert "team/main" in ada("log", "-n", "1")
    ada("remote", "rm", "team")
    assert "team/main" not in ada("log", "-n", "1")
    assert "no remote 'tem'" in ada.fails(3, "push", "tem")


@pytest.mark.soak
def test_both_sides_tell_of_a_promotion(shells: tuple[Shell, Shell]) -> None:
    ada, bob = shells
    ada("update", "photos", "--row", "1", "--set", "label=cat")
    ada("commit", "-m", "better")
    ada("tag", "v2")
    ada("promote", "photos@v2", "../bob", "--as", "golden")
    assert "From:   datasets/photos of commit" in bob("show", "--stat")
    assert "promoted from datasets/photos" in bob("lineage", "datasets/golden")
    assert "as datasets/golden" in ada("lineage", "datasets/photos", "--down")
    assert "golden" in bob("ls")


def test_a_clone_says_which_runs_stay_and_how_they_come(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "team", author=ADA)
    with repo.run("exp1", system_seconds=None) as run:
        run.log_metric("loss", 0.5)
        run.save_model("net", {"w": np.zeros(4, np.float32)})
    shell = Shell(tmp_path, tmp_path / "home")
    told = shell("clone", "team", "copy")
    assert "Left there: 1 run, with files and checkpoints" in " ".join(told.split())
    copy = Shell(tmp_path / "copy", tmp_path / "home")
    assert "exp1" not in copy("runs", "ls")
    copy("fetch", "../team", "runs/exp1/record")
    assert "exp1" in copy("runs", "ls")
    assert "Left there" not in shell("clone", "team", "backup", "--mirror")


def test_a_clone_that_is_repeated_says_what_to_do(shells: tuple[Shell, Shell]) -> None:
    ada, _ = shells
    told = Shell(ada.folder.parent, ada.home).fails(4, "clone", "team", "ada")
    assert "tensorrepo fetch" in told
    (ada.folder.parent / "full").mkdir()
    (ada.folder.parent / "full" / "file").write_text("mine")
    told = Shell(ada.folder.parent, ada.home).fails(4, "clone", "team", "full")
    assert "not empty" in told


def test_bundles_carry_what_is_new(shells: tuple[Shell, Shell]) -> None:
    ada, bob = shells
    ada("rm", "net")
    ada("commit", "-m", "less")
    file = str(ada.folder.parent / "week.bundle")
    ada("bundle", "create", file, "HEAD~1..main")
    assert "there is no folder" in ada.fails(3, "bundle", "create", "none/week.bundle")
    assert "neither a repository nor a bundle" in ada.fails(3, "clone", "none.bundle")
    assert "Whole:" in bob("bundle", "verify", file)
    bob("bundle", "unbundle", file)
    bob("merge", "week/main")
    assert "net" not in bob("ls")


def test_what_is_damaged_comes_back_from_the_remotes(shells: tuple[Shell, Shell]) -> None:
    ada, _ = shells
    store = ada.folder / ".tensorrepo/store"
    mirror = ada.folder.parent / "mirror"
    ada("clone", ".", str(mirror), "--mirror")
    ada("remote", "add", "mirror", str(mirror))
    objects = [path for path in (store / "objects").rglob("*") if path.is_file()]
    for path in [*objects, store / "log/00000000000000000001.json"]:
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    told = ada("fsck", "--deep", "--repair")
    assert "log record 1 is back" in told
    assert told.count(" is back, from ") == len(objects) + 1
    assert "ok: " in ada("fsck", "--deep")
    (report,) = ada.records("fsck", "--repair")  # nothing was repaired, and each thing is a line
    assert report["faults"] == []


def test_a_branch_of_the_remote_is_switched_to_by_its_name(shells: tuple[Shell, Shell]) -> None:
    ada, bob = shells
    ada("branch", "cleaning")
    ada("push", "origin", "cleaning")
    bob("fetch")
    assert {one["name"] for one in bob.records("branch", "-r")} == {
        "origin/cleaning",
        "origin/main",
    }
    assert "On branch cleaning" in bob("switch", "cleaning")

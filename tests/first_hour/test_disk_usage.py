"""F14: `du` tells what datasets, models and files take: shared, alone, older, and all together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.backends.local import LocalBackend
from tests.support.processes.shell import Shell, write_points
from tests.tensorrepo.conftest import workplace


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """Datasets a and b of the same rows, two versions of a file, a dataset removed, one staged."""
    shell = workplace(tmp_path_factory.mktemp("work"))
    shell("init")
    for seed, name in enumerate(("a", "gone", "staged")):
        write_points(shell.folder / f"{name}.npz", 60_000, seed=seed)
    _write_notes(shell, 5000)
    shell("add", "a.npz", "--dataset", "a", "--codec", "none")
    shell("add", "gone.npz", "--dataset", "gone", "--codec", "none")
    shell("commit", "-m", "first")
    _write_notes(shell, 3000)
    shell("add", "a.npz", "--dataset", "b", "--codec", "none")
    shell("rm", "gone")
    shell("commit", "-m", "second")
    shell("add", "staged.npz", "--dataset", "staged", "--codec", "none")
    return shell


def _write_notes(shell: Shell, size: int) -> None:
    (shell.folder / "notes.bin").write_bytes(np.random.default_rng(0).bytes(size))
    shell("add", "notes.bin", "--file", "notes.bin", "--replace")


@pytest.fixture(scope="module")
def told(work: Shell) -> Any:
    return work.json("du")


def _in_store(work: Shell) -> int:
    folder: Path = work.folder / ".tensorrepo/store/objects"
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_parts_are_all_that_lies_in_the_store(work: Shell, told: Any) -> None:
    parts = ("stored_bytes", "history_bytes", "commit_bytes", "other_bytes")
    assert sum(told[part] for part in parts) == told["total_bytes"] == _in_store(work)


def test_equal_rows_under_two_names_are_shared(told: Any) -> None:
    a, b = (one for one in told["entries"] if one["kind"] == "dataset")
    assert a["shared_bytes"] == b["shared_bytes"] > 60_000 * 16
    assert max(a["unique_bytes"], b["unique_bytes"]) < 10_000


def test_python_tells_the_same(work: Shell, told: Any) -> None:
    repo = work.repository()
    taken = repo.disk_usage()
    assert taken.to_json()["entries"] == [{**one, "ref": "main"} for one in told["entries"]]
    assert taken.other_bytes == told["other_bytes"]
    assert f"store, {told['objects']} objects" in str(taken)
    assert repo.disk_usage("a").entries == (taken["datasets/a"],)
    assert [one.path for one in repo.disk_usage("datasets/").entries] == [
        "datasets/a",
        "datasets/b",
    ]
    with pytest.raises(tr.NotFoundError, match="no entry nothing"):
        repo.disk_usage("nothing")
    assert repo.disk_usage("gone", "main~1")["datasets/gone"].unique_bytes > 60_000 * 16


def test_older_versions_are_history(told: Any) -> None:
    history = {one["path"]: one["history_bytes"] for one in told["entries"]}
    assert history["files/notes.bin"] >= 5000
    assert history["datasets/a"] == history["datasets/b"] == 0
    assert told["history_bytes"] > 60_000 * 16  # of what was removed, too


def test_a_file_and_what_is_staged_are_counted(told: Any) -> None:
    (file,) = (one for one in told["entries"] if one["path"] == "files/notes.bin")
    assert file["unique_bytes"] == file["stored_bytes"] >= 3000
    assert told["other_bytes"] > 60_000 * 16


@pytest.mark.parametrize("what", ["a", "datasets/a", "HEAD:a", "main:datasets/a"])
def test_one_entry_is_told_as_among_all(work: Shell, told: Any, what: str) -> None:
    (one,) = work.json("du", what)["entries"]
    expected = next(each for each in told["entries"] if each["path"] == "datasets/a")
    assert {**one, "ref": "HEAD"} == expected


def test_a_folder_and_another_commit_are_told(work: Shell) -> None:
    assert len(work.json("du", "HEAD:datasets")["entries"]) == 2
    assert [one["path"] for one in work.json("du", "HEAD~1")["entries"]] == [
        "datasets/a",
        "datasets/gone",
        "files/notes.bin",
    ]


def test_branches_are_looked_at_together(work: Shell) -> None:
    work("branch", "old", "HEAD~1")
    told = work.json("du", "--all")
    work("branch", "-d", "old")
    assert [(one["ref"], one["path"]) for one in told["entries"]][-2] == ("old", "datasets/gone")
    assert told["history_bytes"] == 0


def test_people_read_a_table_and_the_parts(work: Shell) -> None:
    lines = work("du").splitlines()
    assert lines[0].split() == ["path", "kind", "stored", "shared", "unique", "history"]
    assert {line.split()[1] for line in lines if line.startswith("files/")} == {"file"}
    assert any(line.startswith("older versions") for line in lines)


def test_a_name_that_is_not_there_leads_to_one_that_is(work: Shell) -> None:
    assert "Did you mean files/notes.bin?" in work.fails(3, "du", "note.bin")


def test_sizes_come_by_listing_and_not_by_a_request_each(
    work: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalBackend, key: str) -> int:
        raise AssertionError(f"asked for the size of {key}")

    monkeypatch.setattr(LocalBackend, "size", refuse)
    assert work.json("du")["entries"]


def test_storage_by_owner_tells_what_would_go(work: Shell) -> None:
    work("branch", "old", "HEAD~1")
    refs = {one["owner"]: one for one in work.json("du", "--by", "ref")["owners"]}
    work("branch", "-d", "old")
    main, old = refs["heads/main"], refs["heads/old"]
    assert old["unique_bytes"] == 0
    assert main["shared_bytes"] == old["stored_bytes"]
    data = {one["owner"]: one for one in work.json("du", "--by", "dataset")["owners"]}
    assert list(data) == ["datasets/a", "datasets/b", "datasets/gone"]
    assert data["datasets/a"]["shared_bytes"] > 60_000 * 16
    # Only a commit has it; the branch that was deleted keeps that for the retention.
    assert data["datasets/gone"]["unique_bytes"] > 60_000 * 16
    assert data["datasets/gone"]["reclaimable_bytes"] == 0
    alone = work.repository().storage_usage("ref")["heads/main"]
    assert alone.stored_bytes == alone.unique_bytes == main["stored_bytes"]
    assert 3000 < alone.reclaimable_bytes < alone.unique_bytes - 60_000 * 16
    assert alone.logical_bytes > 3000
    assert work("du", "--by", "model").splitlines()[-1].startswith("store")
    assert "give nothing beside it" in work.fails(2, "du", "a", "--by", "ref")

"""Purges of what lies beside branches: stashes, synced datasets, files in place."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tests.support.processes.shell import Shell
from tests.tensorrepo.test_purge import SECRET, says

ROWS = "id,name\n1,one\n2,{}\n3,three\n"


def store(shell: Shell) -> Path:
    return Path(shell.repository().url)


def is_whole(shell: Shell) -> bool:
    core = shell.repository().context.core
    state = core.log.refresh().state
    return [*check_objects(core.objects, state, ObjectTotals(), deep=True)] == []


def purge(shell: Shell, *words: str) -> str:
    return shell("purge", "people", *words, "-m", "request 17", "--yes")


@pytest.fixture
def people(shell: Shell) -> Shell:
    """A dataset of three rows, the second of which is to go."""
    (shell.folder / "people.csv").write_text(ROWS.format(SECRET))
    shell("add", "people.csv")
    shell("commit", "-m", "First")
    (shell.folder / "people.csv").unlink()
    return shell


def names(shell: Shell, *words: str) -> list[str]:
    return [json.loads(line)["name"] for line in shell("cat", *words, "--json").splitlines()]


def test_rows_in_a_stash_go_and_the_stash_comes_back_without_them(people: Shell) -> None:
    people("update", "people", "--where", "id = 1", "--set", "name='uno'")
    people("stash")
    told = purge(people, "--where", "id = 2")
    assert "in datasets/people" in told
    assert SECRET not in people("stash", "show")
    people("stash", "pop")
    assert names(people, "people", "--staged") == ["uno", "three"]
    people("commit", "-m", "Uno")
    assert names(people, "people") == ["uno", "three"]
    assert says(store(people)) == set()
    assert is_whole(people)


def test_rows_that_are_staged_go_too(people: Shell) -> None:
    people("update", "people", "--where", "id = 1", "--set", "name='uno'")
    purge(people, "--where", "id = 2")
    assert says(store(people)) == set()
    people("commit", "-m", "Uno")
    assert names(people, "people") == ["uno", "three"]
    assert is_whole(people)


def test_a_synced_dataset_forgets_the_row_and_says_that_the_file_has_it(shell: Shell) -> None:
    source = shell.folder / "source.csv"
    source.write_text(ROWS.format(SECRET))
    shell("add", "source.csv", "--dataset", "people", "--sync", "--key", "id")
    shell("commit", "-m", "First")
    source.write_text(ROWS.format(SECRET).replace("three", "tres"))
    shell("add", "source.csv", "--dataset", "people", "--sync", "--key", "id")
    shell("commit", "-m", "Second")
    told = purge(shell, "--where", "id = 2")
    assert "source.csv, which rows were read from" in told
    assert says(store(shell)) == set()
    assert names(shell, "people") == ["one", "tres"]
    assert is_whole(shell)
    source.write_text("id,name\n1,one\n3,tria\n")
    shell("add", "source.csv", "--dataset", "people", "--sync", "--key", "id")
    shell("commit", "-m", "Third")
    assert names(shell, "people") == ["one", "tria"]
    assert is_whole(shell)


def test_rows_that_a_command_left_behind_go_too(people: Shell) -> None:
    people("update", "people", "--where", "id = 1", "--set", "name='uno'")
    people("restore", "--staged", "people")
    people("gc")
    purge(people, "--where", "id = 2")
    assert says(store(people)) == set()
    assert is_whole(people)


def test_rows_of_files_in_place_are_hidden_and_the_files_named(tmp_path: Path) -> None:
    table = pa.table({"id": list(range(100)), "name": [f"name {at}" for at in range(100)]})
    pq.write_table(table, tmp_path / "people.parquet")
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    repo = tr.open(repo.url, author="Ada <ada@example.org>", outside=[str(tmp_path)])
    with repo.transaction("main", "one") as tx:
        tx.adopt("people", tmp_path / "people.parquet")
    before = (tmp_path / "people.parquet").read_bytes()
    plan = repo.purge_plan("people", where="id = 7")
    assert "people.parquet" in "\n".join(plan.beyond)
    repo.purge("people", where="id = 7", reason="request 17")
    fresh = tr.open(repo.url, outside=[str(tmp_path)])
    assert sorted(row["id"] for row in fresh.dataset("people")) == [*range(7), *range(8, 100)]
    assert (tmp_path / "people.parquet").read_bytes() == before

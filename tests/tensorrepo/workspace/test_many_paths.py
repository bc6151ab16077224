"""However many paths a command is about, it reads and writes the files of a workspace as often."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.workspace import add, checkout
from tensorrepo.workspace import state as workspace_state
from tests.support.processes.shell import Shell


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each file of the workspace was read or written."""
    counted: Counter[str] = Counter()
    for name in ("_read", "_write"):
        real = getattr(workspace_state, name)

        def count(path: Path, *rest: Any, real: Any = real, name: str = name) -> Any:
            counted[f"{name} {path.name}"] += 1
            return real(path, *rest)

        monkeypatch.setattr(workspace_state, name, count)
    return counted


def _files(shell: Shell, folder: str, number: int, text: str) -> list[str]:
    place = shell.folder / folder
    place.mkdir(exist_ok=True)
    for at in range(number):
        (place / f"{at}.txt").write_text(f"{text} {at}")
    return [f"files/{folder}/{at}.txt" for at in range(number)]


def test_the_files_of_a_workspace_are_read_a_few_times_for_all_paths(
    shell: Shell, touched: Counter[str]
) -> None:
    paths = _files(shell, "many", 40, "first")
    most = {}
    for words in (
        ["add", "many", "--file", "many"],
        ["status"],
        ["diff"],
        ["commit", "-m", "first"],
        ["checkout", "HEAD", "--", "files/many"],
        ["add", *paths],
        ["rm", *paths],
        ["restore", "--staged", "."],
        ["commit", "-a", "-m", "second"],
    ):
        if "-a" in words:
            _files(shell, "files/many", 40, "second")
        touched.clear()
        shell(*words)
        most[words[0]] = max(touched.values())
    assert max(most.values()) < 20, most


def _tables(folder: Path, number: int, text: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    for at in range(number):
        (folder / f"d{at}.csv").write_text(f"id,text\n1,{text}\n2,{at}\n")
    return [str(folder / f"d{at}.csv") for at in range(number)]


def test_datasets_that_are_stored_within_a_while_are_staged_together(
    shell: Shell, touched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add, "STAGED_SECONDS", 600)
    touched.clear()
    shell("add", *_tables(shell.folder / "given", 25, "first"))
    most = {"add": max(touched.values())}
    shell("commit", "-m", "first")
    shell("checkout", "HEAD", "--", *(f"datasets/d{at}" for at in range(25)))
    _tables(shell.folder / "datasets", 25, "second")
    touched.clear()
    shell("commit", "-a", "-m", "second")
    most["commit -a"] = max(touched.values())
    assert max(most.values()) < 20, most
    assert "second" in shell("cat", "datasets/d24")
    assert json.loads(shell("status", "--json"))["changed"] == []


def test_datasets_that_take_long_are_staged_one_by_one(
    shell: Shell, touched: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(add, "STAGED_SECONDS", 0)
    shell("add", *_tables(shell.folder / "given", 5, "first"))
    assert touched["_write staged.json"] >= 5


def test_a_dataset_that_cannot_be_read_leaves_none_of_those_with_it_staged(shell: Shell) -> None:
    paths = _tables(shell.folder / "given", 3, "first")
    (shell.folder / "given/d2.csv").write_bytes(b"PAR1 is no table")
    (shell.folder / "given/d2.csv").rename(shell.folder / "given/d2.parquet")
    assert "d2.parquet" in shell.run("add", *paths[:2], "given/d2.parquet").stderr
    assert json.loads(shell("status", "--json"))["staged"] == []


def test_who_was_killed_before_written_files_were_noted_checks_them_out_again(
    shell: Shell,
) -> None:
    _files(shell, "many", 3, "text")
    shell("add", "many", "--file", "many")
    shell("commit", "-m", "first")
    shell("checkout", "HEAD", "--", "files/many")
    (shell.folder / ".tensorrepo/tracked.json").unlink()
    shell("checkout", "HEAD", "--", "files/many")
    assert shell("status", "--json").count("files/many/") == 0
    (shell.folder / ".tensorrepo/tracked.json").unlink()
    (shell.folder / "files/many/1.txt").write_text("mine 1")  # as many bytes, not the same
    told = shell.run("checkout", "HEAD", "--", "files/many")
    assert (told.exit_code, "1.txt exists and was not written" in told.stderr) == (4, True)
    assert (shell.folder / "files/many/1.txt").read_text() == "mine 1"


def test_what_was_written_before_an_error_is_tracked(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    _files(shell, "many", 3, "text")
    shell("add", "many", "--file", "many")
    shell("commit", "-m", "first")
    real = checkout.write_entry

    def stop(objects: Any, entry: Any, target: Path, *rest: Any, **options: Any) -> None:
        if target.name == "2.txt":
            raise KeyboardInterrupt
        real(objects, entry, target, *rest, **options)

    monkeypatch.setattr(checkout, "write_entry", stop)
    assert shell.run("checkout", "HEAD", "--", "files/many").exit_code != 0
    monkeypatch.undo()
    (shell.folder / "files/many/0.txt").write_text("changed")
    assert "files/many/0.txt" in shell("status")

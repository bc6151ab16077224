"""Entries as ordinary files: checkout, what it tracks, add that knows, export."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.support.processes.shell import Shell, write_pictures


@pytest.fixture
def pets(shell: Shell) -> Shell:
    """A workspace with a dataset of six pictures, committed."""
    write_pictures(shell.folder / "pets")
    shell("add", "pets", "--dataset", "pets")
    shell("commit", "-m", "pets")
    return shell


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.png")
    }


def test_files_come_back_byte_for_byte(pets: Shell) -> None:
    pets("checkout", "main", "pets", "--to", "out")
    assert contents(pets.folder / "out/datasets/pets") == contents(pets.folder / "pets")


def test_a_safetensors_file_comes_back_byte_for_byte(full: Shell) -> None:
    full("checkout", "main", "net")
    written = (full.folder / "models/net.safetensors").read_bytes()
    assert written == (full.folder / "net.safetensors").read_bytes()


def test_checkout_of_an_entry_without_a_commit_says_what_to_type(full: Shell) -> None:
    told = " ".join(full.fails(3, "checkout", "net").split())
    assert "but an entry: `tensorrepo checkout HEAD models/net` writes it" in told
    assert "no branch, tag or commit 'gone'" in full.fails(3, "checkout", "gone")


def test_checkout_of_a_path_does_not_move_the_branch(full: Shell) -> None:
    full("branch", "side")
    full("checkout", "v1", "files/notes.txt")
    assert full.json("status")["branch"] == "main"
    assert full.json("status")["clean"] is True


def test_status_tells_what_changed_on_disk_and_add_knows_its_name(pets: Shell) -> None:
    pets("checkout", "main", "pets")
    (pets.folder / "datasets/pets/cat/00.png").unlink()
    changed = pets.json("status")["changed"]
    assert changed[0]["files"] == {"cat/00.png": "deleted"}
    assert "deleted" in pets("diff")
    pets("add", "datasets/pets")
    pets("commit", "-m", "one cat less")
    assert len(pets.repository().dataset("pets")) == 5
    assert pets.json("status")["clean"] is True


def test_a_changed_file_is_overwritten_by_force_only(full: Shell) -> None:
    full("checkout", "main", "notes.txt")
    path = full.folder / "files/notes.txt"
    path.write_text("my work\n")
    before = full.snapshot()
    assert "--force" in full.fails(4, "checkout", "main", "notes.txt")
    assert full.snapshot() == before
    full("checkout", "main", "notes.txt", "--force")
    assert path.read_text() == "line one\n"


def test_a_file_of_somebody_else_is_not_overwritten(full: Shell) -> None:
    (full.folder / "files").mkdir()
    (full.folder / "files/notes.txt").write_text("not ours\n")
    full.fails(4, "checkout", "main", "notes.txt")
    assert (full.folder / "files/notes.txt").read_text() == "not ours\n"


def test_nothing_is_written_through_a_link(full: Shell, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (full.folder / "files").symlink_to(tmp_path / "outside")
    full.fails(4, "checkout", "main", "notes.txt")
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("to", ["../elsewhere", ".tensorrepo/store", ".git"])
def test_nothing_is_written_outside_or_into_version_control(full: Shell, to: str) -> None:
    before = full.snapshot()
    full.fails(2, "checkout", "main", "notes.txt", "--to", to)
    assert full.snapshot() == before


def test_a_folder_of_entries_is_written_whole(full: Shell) -> None:
    written = full.records("checkout", "main", "datasets", "models", "--to", "out")
    assert [one["entry"] for one in written] == ["datasets/points", "models/net"]


def test_export_writes_a_foreign_format_untracked(full: Shell) -> None:
    full("export", "points@v1", "--format", "parquet", "--to", "p.parquet")
    import pyarrow.parquet as pq

    assert pq.read_metadata(full.folder / "p.parquet").num_rows == 20
    assert full.json("status")["changed"] == []


def test_export_takes_the_options_of_a_format(shell: Shell) -> None:
    (shell.folder / "t.csv").write_text("a,b\n1,2\n")
    shell("add", "t.csv", "--dataset", "t")
    shell("commit", "-m", "t")
    shell("export", "t", "--to", "u.csv", "-o", "delimiter=;")
    with (shell.folder / "u.csv").open() as file:
        assert list(csv.reader(file, delimiter=";")) == [["a", "b"], ["1", "2"]]


def test_export_keeps_what_is_there_unless_forced(full: Shell) -> None:
    (full.folder / "net2.safetensors").write_text("precious")
    full.fails(2, "export", "net", "--to", "net2.safetensors")
    assert (full.folder / "net2.safetensors").read_text() == "precious"
    full("export", "net", "--to", "net2.safetensors", "--force")


def test_export_names_the_column_that_a_format_cannot_hold(full: Shell) -> None:
    assert "'point'" in full.fails(2, "export", "points", "--to", "p.csv")
    assert not (full.folder / "p.csv").exists()

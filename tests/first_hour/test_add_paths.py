"""F35: `add` of several paths, of standard input, and without a name."""

from __future__ import annotations

import shutil

import pytest

from tests.support.processes.shell import Shell

CSV = b"id,label\n1,a\n2,b\n"


@pytest.fixture
def files(shell: Shell) -> Shell:
    """a.csv and b.csv of two rows each, and bad.parquet."""
    (shell.folder / "a.csv").write_bytes(CSV)
    (shell.folder / "b.csv").write_bytes(CSV.replace(b"1,", b"3,").replace(b"2,", b"4,"))
    (shell.folder / "bad.parquet").write_bytes(b"PAR1, and nothing more")
    return shell


def staged(shell: Shell) -> list[str]:
    return [each["path"] for each in shell.json("status")["staged"]]


def test_several_paths_are_added_under_their_names(full: Shell) -> None:
    shutil.copy(full.folder / "points.npz", full.folder / "more.npz")
    shutil.copy(full.folder / "net.safetensors", full.folder / "web.v2.safetensors")
    (full.folder / "table.csv").write_bytes(CSV)
    told = full("add", "more.npz", "web.v2.safetensors", "table.csv")
    assert staged(full) == ["datasets/more", "datasets/table", "models/web.v2"]
    assert "staged datasets/table (2 rows" in told
    assert "exists" in full.fails(4, "add", "points.npz")


def test_rows_of_several_files_come_one_after_the_other(files: Shell) -> None:
    files("add", "a.csv", "b.csv", "--dataset", "both")
    files("commit", "-m", "Both")
    assert list(files.repository().dataset("both")["id"][:]) == [1, 2, 3, 4]
    files("add", "a.csv", "b.csv", "--dataset", "both", "--append")
    assert "8 rows" in files("status")


def test_two_paths_of_one_name_are_told_apart(shell: Shell) -> None:
    for folder in ("one", "two"):
        (shell.folder / folder).mkdir()
        (shell.folder / folder / "t.csv").write_text("a\n1\n")
    told = shell.fails(2, "add", "one/t.csv", "two/t.csv")
    assert "would both be datasets/t" in told
    assert "datasets/t" not in shell("status")


def test_all_of_several_paths_are_staged_or_none(files: Shell) -> None:
    assert "bad.parquet" in files.fails(2, "add", "a.csv", "bad.parquet")
    assert staged(files) == []
    files.fails(3, "add", "a.csv", "nothing.csv", "--dataset", "both")
    assert staged(files) == []


@pytest.mark.together
@pytest.mark.parametrize(
    "words",
    [
        ("a.csv", "b.csv", "--model", "x"),
        ("a.csv", "b.csv", "--dataset", "x", "--sync"),
        ("a.csv", "--append"),
        ("-",),
        ("-", "--dataset", "x"),
        ("-", "a.csv", "--dataset", "x", "--format", "csv"),
    ],
)
def test_what_cannot_be_meant_is_refused(files: Shell, words: tuple[str, ...]) -> None:
    files.fails(2, "add", *words)


def test_what_has_no_known_content_or_name_is_asked_for(files: Shell) -> None:
    (files.folder / "readme").write_text("hello\n")
    assert "--file NAME" in files.fails(2, "add", "readme")
    shutil.copy(files.folder / "a.csv", files.folder / "mein Bild.csv")
    assert "--dataset NAME" in files.fails(2, "add", "mein Bild.csv")


def test_standard_input_is_added_and_synced(files: Shell) -> None:
    files.piped = CSV
    files("add", "-", "--format", "csv", "--dataset", "people")
    files("commit", "-m", "People")
    files.piped = CSV + b"3,c\n"
    told = files("add", "-", "--format", "csv", "--dataset", "people", "--sync")
    assert "(1 row," in told
    files("commit", "-m", "One more")
    assert len(files.repository().dataset("people")) == 3
    assert "from -" in files("lineage", "people")
    assert not any((files.folder / ".tensorrepo/stdin").iterdir())
    files.piped = b"any bytes"
    files("add", "-", "--file", "notes")
    assert "9 B" in files("status")

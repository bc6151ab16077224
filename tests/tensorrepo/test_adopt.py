"""Adopting files in place, as people type and call it."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import pytest

import tensorrepo as tr
from tests.support.adopted import ROWS, write_npy, write_parquet, write_tar

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.shell import Shell


def test_a_file_is_staged_and_committed_without_its_rows(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    assert f"{ROWS} rows" in shell("adopt", "x.npy", "--dataset", "points")
    shell("commit", "-m", "adopt")
    assert len(shell.repository().dataset("points")) == ROWS


def test_a_folder_stands_for_its_files(shell: Shell) -> None:
    (shell.folder / "shards").mkdir()
    write_npy(shell.folder / "shards/b.npy")
    write_npy(shell.folder / "shards/a.npy")
    (shell.folder / "shards/notes.txt").write_text("no rows")
    told = shell.json("adopt", "shards", "--dataset", "points")
    assert told["rows"] == 2 * ROWS


def test_a_name_that_exists_needs_a_mode(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    shell("adopt", "x.npy", "--dataset", "points")
    assert shell.run("adopt", "x.npy", "--dataset", "points").exit_code == 4
    assert shell.json("adopt", "x.npy", "--dataset", "points", "--append")["rows"] == ROWS
    assert shell.json("adopt", "x.npy", "--dataset", "points", "--replace")["rows"] == ROWS
    both = shell.run("adopt", "x.npy", "--dataset", "points", "--append", "--replace")
    assert both.exit_code == 2


def test_columns_are_chosen_and_hashing_left_out(shell: Shell) -> None:
    write_parquet(shell.folder / "t.parquet")
    shell("adopt", "t.parquet", "--dataset", "t", "--columns", "id,text", "--no-hash")
    shell("commit", "-m", "adopt")
    assert shell.repository().dataset("t").schema.names == ("id", "text")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("nowhere.npy",), 3),
        (("points.npz",), 2),
        (("s3://key:secret@bucket/x.tar",), 2),
    ],
)
def test_what_cannot_be_adopted_is_refused_and_nothing_staged(
    words: tuple[str, ...], code: int, shell: Shell
) -> None:
    done = shell.run("adopt", *words, "--dataset", "points")
    assert done.exit_code == code
    assert "secret" not in done.output
    assert shell.json("status")["staged"] == []


def test_the_sdk_adopts_in_a_transaction(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    path = write_tar(tmp_path / "x.tar")
    with repo.transaction("main", message="adopt") as tx:
        assert len(tx.adopt("photos", path)) == ROWS
        with pytest.raises(tr.ConflictError):
            tx.adopt("photos", path)
        assert len(tx.adopt("photos", [path], append=True)) == 2 * ROWS
    assert len(repo.dataset("photos")) == 2 * ROWS


# ------------------------------------------------------------------------------ permission


def test_a_setting_allows_places_for_this_user_alone(shell: Shell) -> None:
    shell("config", "outside.allow", "/data, S3A://bucket/raw")
    assert shell("config", "outside.allow").strip() == "/data, S3A://bucket/raw"
    assert shell.run("config", "--local", "outside.allow", "/data").exit_code == 2
    for wrong in ("data", "s3://key:secret@bucket", "/data/../etc"):
        done = shell.run("config", "outside.allow", wrong)
        assert done.exit_code == 2
        assert "secret" not in done.output


def test_a_repository_knows_what_it_may_read(tmp_path: Path) -> None:
    tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    closed = tr.open(tmp_path / "store")
    allowed = tr.open(tmp_path / "store", outside=[tmp_path / "x", "gs://bucket/raw/"])
    assert closed.outside.prefixes == ()
    assert allowed.outside.prefixes == (f"file://{tmp_path}/x", "gs://bucket/raw")
    assert pickle.loads(pickle.dumps(allowed)).outside.prefixes == allowed.outside.prefixes

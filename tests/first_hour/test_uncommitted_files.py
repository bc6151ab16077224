"""F4: a working file that is in no commit is never overwritten without --force."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.processes.shell import Shell, write_pictures


@pytest.fixture
def checked_out(full: Shell) -> Path:
    """A file that was checked out, edited, added and unstaged."""
    full("checkout", "HEAD", "points")
    path = full.folder / "datasets/points.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    full("add", "datasets/points.parquet")
    return path


def test_an_edit_that_was_unstaged_is_kept(full: Shell, checked_out: Path) -> None:
    full("restore", "--staged", "points")
    edited = checked_out.read_bytes()
    assert "datasets/points.parquet" in full("status").partition("Changed on disk")[2]
    told = full.fails(4, "checkout", "HEAD", "points")
    assert "in no commit" in told
    assert checked_out.read_bytes() == edited
    full("checkout", "HEAD", "points", "--force")
    assert pq.read_table(checked_out).num_rows == 20


def test_an_edit_that_is_staged_alone_is_kept_and_one_that_is_committed_may_go(
    full: Shell, checked_out: Path
) -> None:
    assert "Changed on disk" not in full("status")
    full.fails(4, "checkout", "HEAD", "points")
    full("commit", "-m", "One row less")
    assert "Changed on disk" not in full("status")
    full("checkout", "v1", "points")
    assert pq.read_table(checked_out).num_rows == 20


def test_the_same_cell_may_be_edited_again_before_the_commit(
    full: Shell, checked_out: Path
) -> None:
    for label in (7, 8):
        table = pq.read_table(checked_out).to_pandas()
        table.loc[0, "label"] = label
        table.to_parquet(checked_out, index=False)
        full("add", "datasets/points.parquet")
    full("commit", "-m", "Edited")
    assert full.repository().dataset("points")["label"][0] == 8


def test_pictures_that_were_added_and_removed_stay_so(shell: Shell) -> None:
    write_pictures(shell.folder / "photos", ("cat",), each=2)
    shell("add", "photos", "--dataset", "photos")
    shell("commit", "-m", "Photos")
    shell("checkout", "HEAD", "photos")
    written = shell.folder / "datasets/photos"
    pictures = sorted(path for path in written.rglob("*") if path.is_file())
    shutil.copy(pictures[0], pictures[0].with_name("new.png"))
    pictures[1].unlink()
    shell("add", "datasets/photos")
    shell("restore", "--staged", "photos")
    shell.fails(4, "checkout", "HEAD", "photos")
    assert pictures[0].with_name("new.png").exists()
    assert not pictures[1].exists()

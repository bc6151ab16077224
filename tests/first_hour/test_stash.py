"""F35: `stash`: nothing that was put aside is lost, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tensorrepo.workspace import stash
from tests.support.processes.shell import Shell, write_pictures


def edit(path: Path, label: int) -> bytes:
    """Give the first row another label; gives what the file holds then."""
    table = pq.read_table(path).to_pandas()
    table.loc[0, "label"] = label
    table.to_parquet(path, index=False)
    return path.read_bytes()


@pytest.fixture
def changed(full: Shell) -> Shell:
    """net is staged for removal; points was checked out and edited."""
    full("checkout", "HEAD", "points")
    edit(full.folder / "datasets/points.parquet", 7)
    full("rm", "net")
    return full


def points(shell: Shell) -> Path:
    return shell.folder / "datasets/points.parquet"


def test_what_was_put_aside_comes_back(changed: Shell) -> None:
    mine = points(changed).read_bytes()
    told = changed("stash", "-m", "half of it")
    assert "1 staged entry and 1 path changed on disk" in told
    assert changed.json("status")["clean"]
    assert pq.read_table(points(changed)).to_pandas().label[0] != 7
    listed = changed.records("stash", "list")
    assert [(each["message"], each["branch"], each["staged"]) for each in listed] == [
        ("half of it", "main", ["models/net"])
    ]
    shown = changed("stash", "show")
    assert "D models/net" in shown
    assert "modified datasets/points.parquet" in shown
    changed("stash", "pop")
    assert points(changed).read_bytes() == mine
    status = changed.json("status")
    assert [each["path"] for each in status["staged"]] == ["models/net"]
    assert [each["path"] for each in status["changed"]] == ["datasets/points.parquet"]
    assert changed("stash", "list") == ""
    assert "nothing is stashed" in changed.fails(3, "stash", "pop")


def test_the_log_is_not_asked_for_each_stash_that_was_put_aside_before(
    full: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    hold = stash.hold
    monkeypatch.setattr(stash, "hold", lambda *args: held.append(1) or hold(*args))
    for at in range(4):
        (full.folder / "note.txt").write_text(f"{at}")
        full("add", "note.txt", "--file", f"note{at}")
        full("stash")
    assert not held
    monkeypatch.setattr(stash, "RENEW_SECONDS", -1)
    full("stash", "drop")
    assert len(held) == 3


def test_nothing_to_stash_ends_with_1(full: Shell) -> None:
    assert "nothing to stash" in full.fails(1, "stash")
    full.fails(2, "stash", "away")
    full.fails(2, "stash", "pop", "-m", "x")
    full.fails(2, "stash", "pop", "first")


def test_staged_entries_outlive_the_commits_and_leases_of_others(changed: Shell) -> None:
    changed("stash")
    changed("rm", "notes.txt")
    changed("commit", "-m", "No notes")
    changed("rm", "points")
    changed("restore", "--staged")
    leases = changed.repository().context.core.log.refresh().state.leases
    assert len(leases) == 1
    changed("stash", "pop")
    changed("commit", "-a", "-m", "All of it")
    assert [entry["path"] for entry in changed.records("ls")] == ["datasets/points"]
    assert changed.repository().dataset("points")["label"][0] == 7
    assert changed.repository().context.core.log.refresh().state.leases == {}


def test_an_edit_is_merged_with_what_came_meanwhile(changed: Shell) -> None:
    changed("stash")
    changed("update", "points", "--row", "1", "--set", "label=9")
    changed("commit", "-m", "Row 1")
    changed("checkout", "HEAD", "points")
    changed("stash", "pop")
    changed("commit", "-a", "-m", "Row 0")
    assert list(changed.repository().dataset("points")["label"][:2]) == [7, 9]


def test_a_file_in_the_way_stops_it_and_loses_nothing(changed: Shell) -> None:
    changed("stash")
    other = edit(points(changed), 8)
    before = changed.snapshot()
    told = changed.fails(4, "stash", "pop")
    assert "was changed since" in told
    assert "the stash is kept" in told
    assert changed.snapshot() == before
    assert points(changed).read_bytes() == other
    assert len(changed.records("stash", "list")) == 1


def test_an_entry_that_is_staged_otherwise_stops_it(full: Shell) -> None:
    full("update", "points", "--row", "0", "--set", "label=7")
    full("stash")
    full("rm", "points")
    before = full.snapshot()
    assert "is staged otherwise" in full.fails(4, "stash", "pop")
    assert full.snapshot() == before
    full("restore", "--staged")
    full("switch", "-c", "other")
    full("update", "points", "--row", "0", "--set", "label=8")
    full("commit", "-m", "Mine first")
    full("stash", "pop")
    told = full.fails(4, "commit", "-m", "Both")
    assert "datasets/points" in told
    assert [each["path"] for each in full.json("status")["staged"]] == ["datasets/points"]


def test_applied_stashes_stay_and_dropped_ones_go(changed: Shell) -> None:
    mine = points(changed).read_bytes()
    changed("stash")
    changed("stash", "apply")
    assert points(changed).read_bytes() == mine
    changed("restore", "--staged")
    changed("checkout", "HEAD", "points", "--force")
    changed("update", "points", "--row", "0", "--set", "label=5")
    changed("stash")
    assert [each["staged"] for each in changed.records("stash", "list")] == [
        ["datasets/points"],
        ["models/net"],
    ]
    changed("stash", "pop", "stash@{1}")
    assert points(changed).read_bytes() == mine
    changed("stash", "drop")
    assert not any((changed.folder / ".tensorrepo/stash").iterdir())
    assert [each["path"] for each in changed.json("status")["staged"]] == ["models/net"]


def test_folders_come_back_with_all_that_is_in_them(shell: Shell) -> None:
    write_pictures(shell.folder / "photos", ("cat",), each=2)
    shell("add", "photos", "--dataset", "photos")
    shell("commit", "-m", "Photos")
    shell("checkout", "HEAD", "photos")
    folder = shell.folder / "datasets/photos"
    (folder / "notes.txt").write_text("not a picture")
    gone = next(iter(sorted(folder.rglob("*.png"))))
    gone.unlink()
    shell("stash")
    assert gone.exists()
    assert not (folder / "notes.txt").exists()
    shell("stash", "apply")
    shell("checkout", "HEAD", "photos", "--force")
    shell("stash", "pop")
    assert (folder / "notes.txt").read_text() == "not a picture"
    assert not gone.exists()


def test_a_stash_needs_a_workspace(full: Shell) -> None:
    outside = Shell(full.home, full.home)
    assert "no workspace" in outside.fails(3, "stash", "list")

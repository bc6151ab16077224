"""Branches, tags, merges and the ways back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.shell import Shell, write_points

BOB = "Bob <bob@example.org>"


def commit_points(shell: Shell, rows: int, mode: str = "--append", message: str = "more") -> None:
    write_points(shell.folder / "more.npz", rows, seed=rows)
    shell("add", "more.npz", "--dataset", "points", mode)
    shell("commit", "-m", message)


def rows(shell: Shell, ref: str = "main") -> int:
    return len(shell.repository().dataset("points", ref))


def joined(shell: Shell, tmp_path: Path) -> Shell:
    """Somebody else's workspace on the same repository."""
    other = Shell(tmp_path / "bob", tmp_path / "bobs-home", author=BOB)
    other.folder.mkdir()
    other.home.mkdir()
    other("init", str(shell.folder / ".tensorrepo/store"))
    return other


def test_branches_are_made_renamed_and_deleted(full: Shell) -> None:
    full("branch", "side", "v1")
    full("branch", "--rename", "side", "aside")
    assert [each["name"] for each in full.records("branch")] == ["aside", "main"]
    full("branch", "-d", "aside")
    assert [each["name"] for each in full.records("branch")] == ["main"]


def test_renaming_the_current_branch_takes_the_workspace_along(full: Shell) -> None:
    full("branch", "--rename", "trunk")
    assert full.json("status")["branch"] == "trunk"


def test_of_branches_whose_rules_give_up_commits_some_are_named(
    full: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.cli.keep.SHOWN_EXPIRED", 1)
    commit_points(full, 3)
    for name in ("one", "two"):
        full("branch", name)
    full("rule", "set", "*", "--history", "1")
    told = full("gc", "--dry-run")
    assert "main would keep 1 commit" in told
    assert "and 2 more branches: --json names them" in told
    assert "one would keep" not in told
    assert [each["name"] for each in full.records("branch", "--merged", "v1")] == []


def test_undo_of_a_rename_takes_the_workspace_back_to_the_old_name(full: Shell) -> None:
    full("branch", "--rename", "trunk")
    assert "trunk is main again" in full("undo")
    assert full.json("status")["branch"] == "main"
    assert full.json("redo")["branch"] == "trunk"
    assert full.json("status")["branch"] == "trunk"


def test_the_branch_that_one_stands_on_is_not_deleted(full: Shell) -> None:
    assert "switch" in full.fails(4, "branch", "-d", "main")


def test_a_branch_that_was_deleted_can_be_brought_back(full: Shell) -> None:
    full("branch", "side")
    digest = full.json("branch", "-d", "side")["commit"]
    full("branch", "side", digest[:12])
    assert full.records("branch")[1] == {"name": "side", "commit": digest, "current": False}


def test_a_tag_never_moves_and_goes_by_force_only(full: Shell) -> None:
    commit_points(full, 2)
    assert "exists already" in full.fails(4, "tag", "v1")
    assert "--force" in full.fails(4, "tag", "-d", "v1")
    full("tag", "-d", "v1", "--force")
    assert full.records("tag") == []


@pytest.mark.parametrize("name", ["bad name", "a..b", "-x", "HEAD~1", "x.lock", "ünï"])
def test_names_of_refs_follow_gits_rules(full: Shell, name: str) -> None:
    before = full.snapshot()
    full.fails(2, "branch", "--", name)
    assert full.snapshot() == before


def test_switching_writes_no_data(full: Shell) -> None:
    files = sorted(path.name for path in full.folder.iterdir())
    full("switch", "-c", "side")
    full("switch", "main")
    assert sorted(path.name for path in full.folder.iterdir()) == files


def test_a_tag_or_commit_needs_detach(full: Shell) -> None:
    full.fails(2, "switch", full.json("status")["commit"])
    full("switch", "--detach", "v1")
    assert full.json("status")["detached"] is True
    full("checkout", "main")
    assert full.json("status")["branch"] == "main"


def test_checkout_of_a_tag_detaches(full: Shell) -> None:
    assert "detached" in full("checkout", "v1")


def test_staged_changes_refuse_a_switch_unless_kept(full: Shell) -> None:
    full("branch", "side")
    full("rm", "net")
    before = full.snapshot()
    assert "--keep" in full.fails(4, "switch", "side")
    assert full.snapshot() == before
    full("switch", "side", "--keep")
    full("commit", "-m", "less")
    assert "models/net" not in full.repository().entries("side")


def test_kept_changes_bring_no_history_of_the_other_branch_along(full: Shell) -> None:
    full("branch", "side")
    commit_points(full, 2)
    full("rm", "net")
    full("switch", "side", "--keep")
    full("commit", "-m", "less")
    assert rows(full, "side") == 20
    assert set(full.repository().entries("side")) == {"datasets/points", "files/notes.txt"}


def test_changes_of_what_the_other_branch_has_otherwise_are_not_carried_over(full: Shell) -> None:
    full("branch", "side")
    commit_points(full, 2)
    write_points(full.folder / "more.npz", 3)
    full("add", "more.npz", "--dataset", "points", "--append")
    before = full.snapshot()
    assert "restore --staged" in full.fails(4, "switch", "side", "--keep")
    assert full.snapshot() == before


def test_a_commit_on_a_detached_head_is_refused_with_the_way_out(full: Shell) -> None:
    full("checkout", "v1")
    full("rm", "net")
    assert "switch -c NAME --keep" in full.fails(4, "commit", "-m", "lost?")
    full("switch", "-c", "kept", "--keep")
    full("commit", "-m", "not lost")
    assert "models/net" not in full.repository().entries("kept")


def test_a_new_branch_before_the_first_commit_is_made_by_it(shell: Shell) -> None:
    shell.fails(2, "switch", "-c", "bad name")
    shell("switch", "-c", "trunk")
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "one")
    assert [each["name"] for each in shell.records("branch")] == ["trunk"]


def test_the_branch_moves_on_and_a_commit_merges_onto_it(full: Shell, tmp_path: Path) -> None:
    bob = joined(full, tmp_path)
    full("rm", "net")
    bob("rm", "notes.txt")
    bob("commit", "-m", "Bob's")
    assert "moved by 1" in full("status")
    told = full("commit", "-m", "Ada's")
    assert "merged onto" in told
    assert set(full.repository().entries()) == {"datasets/points"}


def test_a_conflict_changes_nothing_and_keeps_what_is_staged(full: Shell, tmp_path: Path) -> None:
    bob = joined(full, tmp_path)
    full("rm", "points")
    commit_points(bob, 3)
    before = full.snapshot()
    assert "datasets/points" in full.fails(4, "commit", "-m", "Ada's")
    assert full.snapshot() == before


def test_appends_of_two_people_are_joined(full: Shell, tmp_path: Path) -> None:
    bob = joined(full, tmp_path)
    write_points(full.folder / "more.npz", 2)
    full("add", "more.npz", "--dataset", "points", "--append")
    commit_points(bob, 3)
    full("commit", "-m", "Ada's")
    assert rows(full) == 25


def test_merge_makes_one_commit_or_moves_forward_or_does_nothing(full: Shell) -> None:
    full("switch", "-c", "side")
    commit_points(full, 2)
    full("switch", "main")
    assert full.json("merge", "side")["forwarded"] is True
    assert "already" in full("merge", "side")
    full("switch", "side")
    commit_points(full, 3)
    full("switch", "main")
    full("rm", "net")
    full("commit", "-m", "less")
    assert "datasets/points" in full("merge", "side")
    assert rows(full) == 25


def test_merge_without_fast_forward_makes_a_commit(full: Shell) -> None:
    full("switch", "-c", "side")
    commit_points(full, 2)
    full("switch", "main")
    full("merge", "side", "--no-ff", "-m", "Joined")
    assert "Joined" in full("log", "-n", "1")


@pytest.mark.parametrize(("strategy", "expected"), [("ours", 4), ("theirs", 5)])
def test_a_conflict_is_settled_by_a_strategy_or_not_at_all(
    full: Shell, strategy: str, expected: int
) -> None:
    full("switch", "-c", "side")
    full("update", "points", "--row", "0", "--set", "label=5")
    full("commit", "-m", "Five")
    full("switch", "main")
    full("update", "points", "--row", "0", "--set", "label=4")
    full("commit", "-m", "Four")
    before = full.snapshot()
    told = full.fails(4, "merge", "side")
    assert "cannot merge 'side' (" in told
    assert "--strategy" in told
    full.fails(2, "merge", "side", "--strategy", "guess")
    assert full.snapshot() == before
    full("merge", "side", "--strategy", strategy)
    assert full.repository().dataset("points")["label"][0] == expected


def test_merge_with_staged_changes_is_refused(full: Shell) -> None:
    full("branch", "side")
    full("rm", "net")
    full.fails(4, "merge", "side")


def test_undo_and_redo_walk_back_and_forth(full: Shell) -> None:
    commit_points(full, 2)
    full("undo")
    assert rows(full) == 20
    full("redo")
    assert rows(full) == 22
    full.fails(3, "redo")


def test_undo_is_refused_when_somebody_else_came_after(full: Shell, tmp_path: Path) -> None:
    commit_points(joined(full, tmp_path), 3)
    before = full.snapshot()
    assert "Bob" in full.fails(4, "undo")
    assert full.snapshot() == before


def test_what_was_undone_does_not_come_back_with_the_next_commit(full: Shell) -> None:
    commit_points(full, 2)
    full("rm", "net")
    full("undo")
    full("commit", "-m", "less")
    assert rows(full) == 20
    assert "models/net" not in full.repository().entries()


def test_staged_changes_outlive_an_undo_of_the_first_commit(full: Shell) -> None:
    full("add", "points.npz", "--dataset", "other")
    full("undo")
    full("commit", "-m", "anew")
    assert set(full.repository().entries()) == {"datasets/other"}
    assert len(full("log", "--oneline").splitlines()) == 1


def test_two_first_commits_of_one_name_conflict(shell: Shell, tmp_path: Path) -> None:
    bob = joined(shell, tmp_path)
    shell("add", "points.npz", "--dataset", "points")
    write_points(bob.folder / "points.npz", 3)
    bob("add", "points.npz", "--dataset", "points")
    bob("commit", "-m", "Bob's")
    before = shell.snapshot()
    shell.fails(4, "commit", "-m", "Ada's")
    assert shell.snapshot() == before
    assert rows(shell) == 3


def test_reset_moves_the_branch_and_the_reflog_remembers(full: Shell) -> None:
    commit_points(full, 2)
    full("reset", "HEAD~1")
    assert rows(full) == 20
    full("reset", "main@{1}")
    assert rows(full) == 22


def test_undo_on_no_branch_says_so(full: Shell) -> None:
    full("checkout", "v1")
    full.fails(2, "undo")


@pytest.mark.together
@pytest.mark.parametrize("ref", ["main", "v1", "HEAD", "HEAD~0", "main~1", "main^1", "main@{1}"])
def test_every_form_of_a_ref_names_a_commit(full: Shell, ref: str) -> None:
    commit_points(full, 2)
    assert len(full.json("show", ref)["commit"]) == 64


def test_a_short_digest_names_a_commit_when_it_is_the_only_one(full: Shell) -> None:
    digest = full.json("status")["commit"]
    assert full.json("show", digest[:8])["commit"] == digest
    full.fails(3, "show", digest[:7])


def test_a_name_that_is_a_branch_and_a_tag_is_the_branch_with_a_warning(full: Shell) -> None:
    full("branch", "both")
    full("tag", "both")
    done = full.run("show", "both")
    assert "warning: 'both' is both a branch and a tag" in done.stderr


def test_an_unknown_ref_suggests_near_ones(full: Shell) -> None:
    assert "Did you mean main?" in full.fails(3, "show", "mian")


def test_switch_update_writes_clean_tracked_files_anew(full: Shell) -> None:
    full("switch", "-c", "side")
    (full.folder / "notes.txt").write_text("line two\n")
    full("add", "notes.txt", "--file", "notes.txt", "--replace")
    full("commit", "-m", "two")
    full("switch", "main")
    full("checkout", "main", "files/notes.txt")
    full("switch", "side", "--update")
    assert (full.folder / "files/notes.txt").read_text() == "line two\n"
    (full.folder / "files/notes.txt").write_text("mine\n")
    assert "changed on disk" in full.run("switch", "main", "--update").stderr
    assert (full.folder / "files/notes.txt").read_text() == "mine\n"

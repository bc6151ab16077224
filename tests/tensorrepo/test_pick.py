"""`revert`, `cherry-pick` and `restore`: back to what was, and over from elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensorrepo as tr
from tests.support.processes.shell import Shell, write_points

BOB = "Bob <bob@example.org>"
NAMES = ("datasets/points", "files/notes.txt", "models/net")


def commit_notes(shell: Shell, text: str, message: str = "notes") -> str:
    """A commit that sets files/notes.txt; gives its digest."""
    (shell.folder / "notes.txt").write_text(text)
    shell("add", "notes.txt", "--file", "notes.txt", "--replace")
    return str(shell.json("commit", "-m", message)["commit"])


def commit_file(shell: Shell, name: str, message: str) -> str:
    """A commit that adds files/NAME; gives its digest."""
    (shell.folder / name).write_text(name)
    shell("add", name, "--file", name)
    return str(shell.json("commit", "-m", message)["commit"])


def commit_rows(shell: Shell, rows: int, mode: str = "--replace") -> str:
    write_points(shell.folder / "more.npz", rows, seed=rows)
    shell("add", "more.npz", "--dataset", "points", mode)
    return str(shell.json("commit", "-m", f"{rows} rows")["commit"])


def subjects(shell: Shell) -> list[str]:
    """First lines of the messages, the newest first."""
    commits = [json.loads(line) for line in shell("log", "--json").splitlines()]
    return [commit["message"].partition("\n")[0] for commit in commits]


def side(shell: Shell) -> tuple[str, str, str]:
    """Branch side with three commits of Bob's: a file, notes that main has otherwise, a file."""
    shell("switch", "-c", "side")
    bob = Shell(shell.folder, shell.home, author=BOB)
    made = (
        commit_file(bob, "one.txt", "One"),
        commit_notes(bob, "theirs\n", "Theirs"),
        commit_file(bob, "two.txt", "Two"),
    )
    shell("switch", "main")
    return made


def test_a_revert_takes_back_one_commit_and_keeps_the_later_ones(full: Shell) -> None:
    mistake = commit_rows(full, 3)
    commit_notes(full, "two\n")
    told = full("revert", mistake[:12])
    assert 'Revert "3 rows"' in told
    assert len(full.repository().dataset("points")) == 20
    assert full.repository().file("notes.txt") == b"two\n"
    assert f"This reverts commit {mistake}." in full("log", "-n", "1")


def test_appended_rows_are_reverted(full: Shell) -> None:
    commit_rows(full, 3, "--append")
    before = full.repository().dataset("points", "v1").digest
    full("revert", "HEAD", "-m", "Without them")
    assert full.repository().dataset("points").digest == before
    assert "Without them" in full("log", "-n", "1")


def test_a_model_comes_back_as_it_was(full: Shell) -> None:
    save_file({"w": np.ones(3, "f4")}, full.folder / "net.safetensors")
    full("add", "net.safetensors", "--model", "net", "--replace")
    full("commit", "-m", "ones")
    full("revert", "HEAD")
    assert np.array_equal(full.repository().model("net")["w"], np.arange(6, dtype="f4"))


def test_an_entry_that_was_removed_comes_back(full: Shell) -> None:
    full("rm", "points")
    full("commit", "-m", "less")
    assert full.json("revert", "HEAD")["changed"] == ["datasets/points"]
    assert len(full.repository().dataset("points")) == 20


def test_reverting_twice_ends_with_1_and_words(full: Shell) -> None:
    mistake = commit_notes(full, "two\n")
    full("revert", mistake)
    before = full.snapshot()
    assert "nothing left" in full.fails(1, "revert", mistake)
    assert full.snapshot() == before


def commit_label(shell: Shell, label: int) -> str:
    shell("update", "points", "--row", "0", "--set", f"label={label}")
    return str(shell.json("commit", "-m", f"Label {label}")["commit"])


def test_a_conflict_changes_nothing_until_a_side_is_chosen(full: Shell) -> None:
    first = full.repository().dataset("points")["label"][0]
    mistake = commit_label(full, 5)
    commit_label(full, 4)
    before = full.snapshot()
    told = full.fails(4, "revert", mistake)
    assert "datasets/points" in told
    assert "--strategy theirs" in told
    full.fails(2, "revert", mistake, "--strategy", "guess")
    full.fails(1, "revert", mistake, "--strategy", "ours")
    assert full.snapshot() == before
    full("revert", mistake, "--strategy", "theirs")
    assert full.repository().dataset("points")["label"][0] == first


def test_a_merge_is_reverted_with_a_mainline_only(full: Shell) -> None:
    full("switch", "-c", "aside")
    commit_file(full, "one.txt", "One")
    full("switch", "main")
    full("merge", "aside", "--no-ff")
    assert "--mainline" in full.fails(2, "revert", "HEAD")
    assert "not a parent 3" in full.fails(2, "revert", "HEAD", "--mainline", "3")
    full("revert", "HEAD", "--mainline", "1")
    assert set(full.repository().entries()) == set(NAMES)


def test_a_revert_is_undone_like_any_commit(full: Shell) -> None:
    commit_notes(full, "two\n")
    full("revert", "HEAD")
    full("undo")
    assert full.repository().file("notes.txt") == b"two\n"


def test_cherry_picks_come_in_the_order_given_with_their_authors(full: Shell) -> None:
    one, _, two = side(full)
    told = full.records("cherry-pick", two, one)
    assert [each["picked"] for each in told] == [two, one]
    assert subjects(full)[:3] == ["One", "Two", "First"]
    shown = full("log", "-n", "1")
    assert f"Author: {BOB}" in shown
    assert f"(cherry picked from commit {one})" in shown
    assert full.repository().file("notes.txt") == b"line one\n"


def test_who_picked_may_undo_it(full: Shell) -> None:
    one, _, _ = side(full)
    full("cherry-pick", one)
    full("undo")
    assert set(full.repository().entries()) == set(NAMES)


def test_a_range_is_picked_from_the_oldest_on(full: Shell) -> None:
    side(full)
    full("cherry-pick", "main..side")
    assert subjects(full)[:4] == ["Two", "Theirs", "One", "First"]
    assert "has all commits" in full.fails(2, "cherry-pick", "side..v1")


def test_the_first_conflict_stops_and_says_what_was_done_and_what_is_left(full: Shell) -> None:
    _, theirs, two = side(full)
    commit_notes(full, "ours\n", "Ours")
    told = full.fails(4, "cherry-pick", "v1..side")
    assert "1 of 3 commits were picked, and stay" in told
    assert f"`tensorrepo cherry-pick {theirs:.12} {two:.12}`" in told
    assert "conflict files/notes.txt" in told
    assert subjects(full)[:2] == ["One", "Ours"]
    full("cherry-pick", theirs, two, "--strategy", "theirs")
    assert subjects(full)[:3] == ["Two", "Theirs", "One"]


def test_programs_learn_what_was_picked_before_a_conflict(full: Shell) -> None:
    one, _, _ = side(full)
    commit_notes(full, "ours\n", "Ours")
    done = full.run("cherry-pick", "v1..side", "--json")
    assert done.exit_code == 4
    assert f'"picked": "{one}"' in done.stdout


def test_what_the_branch_has_is_left_out_and_alone_ends_with_1(full: Shell) -> None:
    one, _, two = side(full)
    full("cherry-pick", one)
    assert "has all that" in full.fails(1, "cherry-pick", one)
    done = full.run("cherry-pick", one, two)
    assert done.exit_code == 0
    assert "has all that" in done.stderr
    assert subjects(full)[:2] == ["Two", "One"]


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (3, ("side~2", "missing"), "no branch, tag or commit"),
        (2, ("side~2", "side~2"), "named twice"),
        (2, ("side~2", "side", "-m", "both"), "one by one"),
        (2, ("side~2", "side", "--mainline", "2"), "not a parent 2"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_picked(
    full: Shell, code: int, words: tuple[str, ...], told: str
) -> None:
    side(full)
    before = full.snapshot()
    assert told in full.fails(code, "cherry-pick", *words)
    assert full.snapshot() == before


@pytest.mark.parametrize("verb", ["revert", "cherry-pick"])
def test_staged_changes_are_not_mixed_in(full: Shell, verb: str) -> None:
    full("rm", "net")
    before = full.snapshot()
    assert "restore --staged" in full.fails(4, verb, "v1")
    assert full.snapshot() == before


@pytest.mark.parametrize("verb", ["revert", "cherry-pick"])
def test_a_detached_head_is_refused_with_the_branch_command(full: Shell, verb: str) -> None:
    full("checkout", "v1")
    assert "switch -c NAME" in full.fails(2, verb, "v1")


@pytest.mark.parametrize("verb", ["revert", "cherry-pick"])
def test_the_branch_must_have_a_commit(shell: Shell, verb: str) -> None:
    shell.fails(3, verb, "HEAD")


@pytest.mark.parametrize("path", NAMES)
@pytest.mark.parametrize("form", ["full", "short", "with ref"])
def test_restore_brings_back_what_head_lacks(full: Shell, path: str, form: str) -> None:
    before = full.repository().entries()[path]
    full("rm", path)
    full("commit", "-m", "less")
    short = path.partition("/")[2]
    words = {
        "full": (path, "--source", "v1"),
        "short": (short, "--source", "v1"),
        "with ref": (f"v1:{short}",),
    }[form]
    assert full.json("restore", *words) == {"path": path, "source": "v1", "changed": True}
    full("commit", "-m", "back")
    assert full.repository().entries()[path] == before


def test_restore_names_what_there_is_when_nothing_is_found(full: Shell) -> None:
    told = full.fails(3, "restore", "pionts", "--source", "v1")
    assert "no entry 'pionts' in v1" in told
    assert "Did you mean datasets/points?" in told
    assert "did you mean" in full.fails(3, "restore", "points", "--source", "v2").lower()


def test_restore_wants_the_commit_said_once(full: Shell) -> None:
    assert "--source REF" in full.fails(2, "restore", "points")
    assert "`restore points --source v1`" in full.fails(2, "restore", "v1:points", "--source", "v1")


def test_restore_of_what_is_so_already_stages_nothing(full: Shell) -> None:
    assert "already" in full("restore", "v1:points")
    assert full.json("status")["clean"] is True
    full("rm", "points")
    full("restore", "v1:points")
    assert full.json("status")["clean"] is True


def test_the_sdk_reverts_and_picks(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    for text in (b"one", b"two"):
        with repo.transaction("main", message=text.decode()) as tx:
            tx.save_file("notes.txt", text)
    repo.create_branch("side")
    with repo.transaction("side", message="more") as tx:
        tx.save_file("more.txt", b"more")
    picked = repo.cherry_pick("side")
    assert picked is not None
    assert picked.commit.message.startswith("more\n\n(cherry picked")
    reverted = repo.revert("main~1", message="back")
    assert reverted is not None
    assert repo.file("notes.txt") == b"one"
    assert repo.file("more.txt") == b"more"
    assert repo.revert("main~2") is None
    with pytest.raises(tr.ConflictError) as caught:
        repo.cherry_pick("main~3", branch="side")
    assert [conflict.path for conflict in caught.value.conflicts] == ["files/notes.txt"]


def test_a_transaction_restores_an_entry_as_it_was(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with repo.transaction() as tx:
        tx.save_file("notes.txt", b"one")
    repo.create_tag("v1")
    with repo.transaction() as tx:
        tx.remove("files/notes.txt")
    with repo.transaction() as tx:
        tx.restore("files/notes.txt", "v1")
    assert repo.file("notes.txt") == b"one"
    with (
        pytest.raises(tr.NotFoundError, match=r"no files/other in commit .* \(v1\)"),
        repo.transaction() as tx,
    ):
        tx.restore("files/other", "v1")

"""F35: `switch -c NAME START`, `checkout -b`, `branch -v`, `branch --merged`."""

from __future__ import annotations

import pytest

from tests.support.processes.shell import Shell


@pytest.fixture
def forked(full: Shell) -> Shell:
    """main and `side`, one commit further each; `old` at the first."""
    full("branch", "old")
    full("switch", "-c", "side")
    full("rm", "net")
    full("commit", "-m", "Remove the net")
    full("switch", "main")
    full("rm", "notes.txt")
    full("commit", "-m", "Remove the notes")
    return full


def test_a_branch_starts_where_it_is_said(forked: Shell) -> None:
    forked("switch", "-c", "mended", "v1")
    assert forked.json("status")["branch"] == "mended"
    assert forked.json("show")["message"] == "First"
    forked("checkout", "-b", "again", "side~1")
    forked("checkout", "-b", "more")
    commits = {each["name"]: each["commit"] for each in forked.records("branch")}
    assert commits["more"] == commits["old"]
    assert "is where a new branch starts" in forked.fails(2, "switch", "main", "v1")
    assert "no branch, tag or commit" in forked.fails(3, "switch", "-c", "x", "nothing")
    assert "say what to check out" in forked.fails(2, "checkout")


def test_staged_changes_come_along_only_where_they_fit(forked: Shell) -> None:
    forked("rm", "points")
    before = forked.snapshot()
    assert "tensorrepo stash" in forked.fails(4, "switch", "-c", "x", "v1")
    assert forked.snapshot() == before
    forked("switch", "-c", "x", "v1", "--keep")
    forked("commit", "-m", "No points")
    assert [entry["path"] for entry in forked.records("ls")] == ["files/notes.txt", "models/net"]


def test_branches_are_listed_with_their_last_commits(forked: Shell) -> None:
    told = forked("branch", "-v")
    assert [line[:6].split()[-1] for line in told.splitlines()] == ["main", "old", "side"]
    assert "Ada: Remove the net" in told
    told = {each["name"]: each for each in forked.records("branch", "-v")}
    assert told["side"]["subject"] == "Remove the net"
    assert [name for name, each in told.items() if each["current"]] == ["main"]


def test_branches_are_chosen_by_what_is_merged(forked: Shell) -> None:
    def listed(*words: str) -> list[str]:
        return [each["name"] for each in forked.records("branch", *words)]

    assert listed("--merged") == ["main", "old"]
    assert listed("--no-merged") == ["side"]
    assert listed("--merged", "side") == ["old", "side"]
    forked.fails(2, "branch", "--merged", "--no-merged")


def test_the_branch_before_is_a_dash(forked: Shell) -> None:
    forked("switch", "side")
    forked("switch", "-")
    assert forked.json("status")["branch"] == "main"
    forked("checkout", "-")
    assert forked.json("status")["branch"] == "side"
    forked("branch", "-d", "main")
    forked.fails(3, "switch", "-")


def test_a_fresh_workspace_has_no_branch_before(full: Shell) -> None:
    assert "no other branch" in full.fails(3, "switch", "-")


def test_a_branch_with_a_slash_is_a_revision_with_steps_too(forked: Shell) -> None:
    forked("branch", "team/side", "side")
    assert forked("log", "--oneline", "team/side~1").count("\n") == 1
    assert forked("log", "--oneline", "team/side@{now}").count("\n") == 2


def test_the_status_tells_of_what_is_put_aside(forked: Shell) -> None:
    forked("rm", "points")
    forked("stash")
    forked("bisect", "start")
    forked("checkout", "v1")
    status = forked("status")
    assert "put aside 1 time" in status
    assert "A bisection is going on" in status
    commit = forked.json("status")["commit"][:12]
    assert status.splitlines()[0] == f"HEAD is detached at {commit}, on no branch"

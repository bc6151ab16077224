"""F35: `bisect` finds the commit that broke something, by hand and by a command."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes.prepared import prepared_commands
from tests.support.processes.shell import Shell


@pytest.fixture(scope="module")
def _ten(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    from tests.tensorrepo.conftest import workplace

    shell = workplace(tmp_path_factory.mktemp("ten"))
    shell("init")
    for number in range(10):
        value = "good" if number < 6 else "bad"
        (shell.folder / "state.txt").write_text(f"{value} {number}\n")
        shell("add", "state.txt", "--file", "state.txt", *(["--replace"] if number else []))
        shell("commit", "-m", f"Commit {number}")
    shell("tag", "v0", "HEAD~9")
    return shell


@pytest.fixture
def ten(_ten: Shell) -> Shell:
    """Ten commits; from the seventh on files/state.txt is bad."""
    _ten.run("bisect", "reset")
    _ten("switch", "main")
    return _ten


def state(shell: Shell) -> str:
    return shell("cat", "state.txt").split()[0]


def test_a_person_finds_it_in_a_few_steps(ten: Shell) -> None:
    told = ten("bisect", "start", "main", "v0")
    assert "Bisecting: 9 commits left, about 4 steps." in told
    steps = 0
    while "is the first bad commit" not in told:
        told = ten("bisect", state(ten))
        steps += 1
    assert steps <= 4
    assert "Commit 6" in told
    assert [each["verdict"] for each in ten.records("bisect", "log")][:2] == ["bad", "good"]
    assert "On branch main." in ten("bisect", "reset")
    assert "no bisection" in ten.fails(3, "bisect", "reset")


def test_a_command_finds_it_by_itself(ten: Shell) -> None:
    ten("bisect", "start")
    assert "must be known" in ten.fails(2, "bisect", "run", "true")
    ten("bisect", "bad")
    ten("bisect", "good", "v0")
    # The workspace is not locked while the command runs: it may look at HEAD.
    with prepared_commands(ten.home / "bin") as commands:
        look = f'! "{commands}/tensorrepo" -C "{ten.folder}" cat state.txt | grep -q bad'
        told = ten("bisect", "run", "sh", "-c", look)
    assert "is the first bad commit" in told
    assert "Commit 6" in told
    ten("bisect", "reset")


@pytest.mark.soak
def test_what_cannot_be_tried_is_skipped(ten: Shell) -> None:
    ten("bisect", "start", "main", "main~3")
    done = ten.run("bisect", "run", sys.executable, "-c", "exit(125)")
    assert done.exit_code == 1
    assert "is one of" in done.stdout
    assert done.stdout.count("Commit") == 3
    ten("bisect", "reset")


@pytest.mark.soak
def test_a_command_that_breaks_stops_it(ten: Shell) -> None:
    ten("bisect", "start", "main", "v0")
    at = ten.json("status")["commit"]
    assert "neither good" in ten.fails(2, "bisect", "run", sys.executable, "-c", "exit(200)")
    assert "No such file" in ten.fails(2, "bisect", "run", "there-is-no-such-program")
    assert ten.json("status")["commit"] == at


def test_staged_changes_are_in_the_way(ten: Shell) -> None:
    ten("rm", "state.txt")
    assert "tensorrepo stash" in ten.fails(4, "bisect", "start", "main", "v0")
    ten("restore", "--staged")
    ten.fails(2, "bisect", "sideways")
    ten("bisect", "start")
    assert "is going on" in ten.fails(4, "bisect", "start")
    ten("bisect", "bad", "main")
    assert ten.json("bisect", "good", "main")["next"] is None  # the last word counts

"""The command `watch`: a command for every new commit."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.support.processes.shell import Shell

TELL = (
    "import os, pathlib\n"
    "told = [os.environ['TENSORREPO_' + name] for name in ('COMMIT', 'BEFORE', 'REF')]\n"
    "with open('told', 'a') as file: print(*told, file=file)\n"
)


@pytest.fixture
def grown(full: Shell) -> Shell:
    """The workspace with two more commits."""
    for number in range(2):
        (full.folder / "notes.txt").write_text(f"{number}\n")
        full("add", "notes.txt", "--file", "notes.txt", "--replace")
        full("commit", "-m", f"number {number}")
    return full


def commits(shell: Shell) -> list[str]:
    return [each["commit"] for each in shell.records("log")][::-1]


def test_the_command_finds_the_commit_in_its_environment(grown: Shell) -> None:
    first, one, two = commits(grown)
    grown("watch", "--behind", "v1", "-n", "2", "--", sys.executable, "-c", TELL)
    told = (grown.folder / "told").read_text().splitlines()
    assert told == [f"{one} {first} heads/main", f"{two} {one} heads/main"]


def test_commits_are_printed_where_there_is_no_command(grown: Shell) -> None:
    _, one, two = commits(grown)
    shown = grown("watch", "main", "--behind", "v1", "-n", "2").splitlines()
    assert [line.split()[0] for line in shown] == [one[:12], two[:12]]
    records = grown.run("watch", "main", "--behind", "v1", "-n", "2", "--json").stdout.splitlines()
    assert [json.loads(line)["commit"] for line in records] == [one, two]
    newest = grown("watch", "main", "--behind", "v1", "-n", "1", "--newest")
    assert newest.split()[0] == two[:12]


def test_it_ends_when_nothing_comes(full: Shell) -> None:
    assert full.run("watch", "--timeout", "1s", "--poll", "0.1").exit_code == 1


def test_a_command_that_fails_stops_it_and_says_where_to_go_on(grown: Shell) -> None:
    first, *_ = commits(grown)
    fail = [sys.executable, "-c", "raise SystemExit(7)"]
    told = grown.fails(7, "watch", "--behind", "v1", "--", *fail)
    assert f"--behind {first[:12]}" in told


def test_it_goes_on_after_a_command_that_fails(grown: Shell) -> None:
    fail = [sys.executable, "-c", TELL + "raise SystemExit(7)"]
    words = ("watch", "--behind", "v1", "-n", "2", "--on-failure", "continue", "--", *fail)
    assert grown.run(*words).exit_code == 0
    assert len((grown.folder / "told").read_text().splitlines()) == 2


def test_a_command_that_fails_is_run_again(grown: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorrepo.cli.watch._FIRST_RETRY_SECONDS", 0.01)
    some = TELL + "raise SystemExit(len(open('told').readlines()) < 3)"
    words = ("--behind", "main~1", "-n", "1", "--on-failure", "retry")
    grown("watch", *words, "--", sys.executable, "-c", some)
    told = (grown.folder / "told").read_text().splitlines()
    assert len(told) == 3
    assert len(set(told)) == 1


def test_ctrl_c_waits_for_the_command_and_says_where_to_go_on(grown: Shell) -> None:
    slow = "import signal, sys, time, pathlib\n"
    slow += "signal.signal(signal.SIGINT, lambda *_: (pathlib.Path('ended').touch(), sys.exit()))\n"
    slow += "pathlib.Path('begun').touch()\ntime.sleep(60)"
    quick = f"import os\nif not os.path.exists('one'): open('one', 'w')\nelse:\n exec({slow!r})"
    running = grown.start(
        "watch", "--behind", "v1", "--", sys.executable, "-c", quick, session=True
    )
    while not (grown.folder / "begun").exists():
        assert running.poll() is None, running.communicate()
    os.killpg(running.pid, signal.SIGINT)  # as a terminal sends it
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert f"go on with --behind {commits(grown)[1][:12]}" in errors
    assert (grown.folder / "ended").exists()


def test_words_that_are_wrong_are_named(full: Shell, tmp_path: Path) -> None:
    assert "stop, continue, retry" in full.fails(2, "watch", "--on-failure", "no")
    assert "no branch 'mian'" in full.fails(3, "watch", "mian")
    words = ("watch", "--repo", str(tmp_path / "none"))
    assert "none" in full.fails(3, *words)

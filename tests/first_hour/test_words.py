"""F26, F34, F39: a conflict is told once, a name is a workspace's, flags have no type in help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell


def conflicting(shell: Shell, rows: int) -> str:
    """What a merge says where both sides changed a cell of so many rows."""
    table = shell.folder / "people.csv"
    table.write_text("id,label\n" + "".join(f"{at},a\n" for at in range(5)))
    shell("add", "people.csv", "--dataset", "people")
    shell("dataset", "set", "people", "key=id")
    shell("commit", "-m", "People")
    shell("branch", "side")
    for branch, label in (("main", "ours"), ("side", "theirs")):
        shell("switch", branch)
        shell("update", "people", "--where", f"id < {rows}", "--set", f"label={label}")
        shell("commit", "-m", label)
    return shell.fails(4, "merge", "main")


def test_a_conflict_is_told_once(shell: Shell) -> None:
    told = conflicting(shell, rows=1)
    assert told.count("(id=0)") == 1
    assert told.count("datasets/people") == 1
    assert "--strategy ours" in told


def test_each_of_several_conflicts_is_told_once(shell: Shell) -> None:
    told = conflicting(shell, rows=3)
    assert [told.count(f"(id={at})") for at in range(3)] == [1, 1, 1]
    assert told.count("datasets/people") == 1


def test_a_name_is_that_of_a_workspace_unless_it_is_global(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Shell(tmp_path / "other", shell.home)
    other("init")
    shell("config", "user.name", "Ada of here")
    assert other.run("config", "user.name").exit_code == 1
    shell("config", "--global", "user.name", "Ada")
    assert other("config", "user.name") == "Ada\n"
    assert shell("config", "user.name") == "Ada of here\n"
    assert shell("config", "--global", "user.name") == "Ada\n"
    shell("config", "--unset", "user.name")
    assert shell("config", "user.name") == "Ada\n"
    shell("config", "cache.limit", "1GB")
    assert other.json("config") == {"cache.limit": "1GB", "user.name": "Ada"}


def test_a_name_without_a_workspace_is_global_or_refused(empty: Shell) -> None:
    assert "--global user.name" in empty.fails(3, "config", "user.name", "Ada")
    empty("config", "--global", "user.name", "Ada")
    assert empty("config", "user.name") == "Ada\n"


@pytest.mark.parametrize("words", [("log",), ("model", "add"), ("dataset", "stream"), ()])
def test_help_shows_no_types_of_python(empty: Shell, words: tuple[str, ...]) -> None:
    shown = empty(*words, "--help")
    assert not re.search(r"<\w+(\[\w+\])?( range)?>", shown)


def test_help_says_what_to_type(empty: Shell) -> None:
    lines = [line.split() for line in empty("dataset", "stream", "--help").splitlines()]
    after = {words[1]: words[2] for words in lines if len(words) > 2 and words[1].startswith("--")}
    assert (after["--shuffle"], after["--seed"], after["--step-ms"]) == ("TEXT", "N", "NUMBER")
    assert after["--explain"] == "Say"


def test_the_name_of_a_workspace_is_known_to_python_too(shell: Shell) -> None:
    shell("config", "user.name", "Grace")
    shell("config", "user.email", "grace@example.org")
    repo = tr.open(shell.folder / ".tensorrepo" / "store")
    assert repo.context.author == "Grace <grace@example.org>"

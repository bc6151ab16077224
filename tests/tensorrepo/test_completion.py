"""What the shell offers at the tab key."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from tensorrepo.cli.main import app
from tests.support.processes.shell import Shell


def offered(shell: Shell, line: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What bash would be told to offer at the end of `line`."""
    monkeypatch.chdir(shell.folder)
    variables = {
        **shell.variables,
        "_TENSORREPO_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
    }
    done = CliRunner().invoke(app, [], prog_name="tensorrepo", env=variables)
    assert done.stderr == ""
    return [word for word in done.stdout.split(os.linesep) if word]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tensorrepo ch", {"checkout", "cherry-pick"}),
        ("tensorrepo switch ", {"main", "side"}),
        ("tensorrepo checkout v", {"v1"}),
        ("tensorrepo log main..s", {"main..side"}),
        ("tensorrepo tag ", {"v1"}),
        ("tensorrepo cat dat", {"datasets/points"}),
        ("tensorrepo rm po", {"points"}),
        ("tensorrepo show v1:", {"v1:models/net", "v1:net", "v1:points", "v1:datasets/points",
                                 "v1:files/notes.txt", "v1:notes.txt"}),
        ("tensorrepo merge --str", {"--strategy"}),
    ],
)  # fmt: skip
def test_refs_entries_commands_and_options_are_offered(
    full: Shell, monkeypatch: pytest.MonkeyPatch, line: str, expected: set[str]
) -> None:
    full("branch", "side")
    assert set(offered(full, line, monkeypatch)) == expected


@pytest.mark.parametrize("line", ["tensorrepo switch ", "tensorrepo cat x", "tensorrepo show v1:"])
def test_outside_of_a_workspace_nothing_is_offered_and_nothing_said(
    empty: Shell, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    assert offered(empty, line, monkeypatch) == []

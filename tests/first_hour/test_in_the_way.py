"""F35: commands as git has them behave as all do: locked, interrupted, refused, no workspace."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import PermissionDenied
from tensorrepo.workspace.state import Workspace
from tests.support.processes.shell import Shell

CHANGING = [
    ("commit", "--amend", "-m", "Again"),
    ("commit", "-a", "-m", "All"),
    ("stash",),
    ("stash", "pop"),
    ("stash", "drop"),
    ("bisect", "start"),
    ("bisect", "reset"),
    ("switch", "-c", "x", "v1"),
    ("add", "points.npz", "net.safetensors"),
]


@pytest.fixture
def busy(full: Shell) -> Shell:
    """One stash, a bisection, and something staged."""
    full("rm", "net")
    full("stash")
    full("bisect", "start")
    full("rm", "notes.txt")
    return full


@pytest.mark.parametrize("words", CHANGING, ids=" ".join)
def test_two_commands_at_once_are_one_and_a_refusal(busy: Shell, words: tuple[str, ...]) -> None:
    before = busy.snapshot()
    with Workspace(busy.folder).locked():
        assert "is at work" in busy.fails(4, *words)
    assert busy.snapshot() == before


@pytest.fixture
def read_only(full: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A stash of changed rows; from now on the store is read-only."""

    def refuse(*_: object, **__: object) -> bool:
        raise PermissionDenied("the store is read-only")

    full("update", "points", "--row", "0", "--set", "label=7")
    full("stash")
    monkeypatch.setattr(LocalBackend, "create", refuse)
    return full


@pytest.mark.parametrize(
    "words",
    [("commit", "--amend", "-m", "Again"), ("stash", "pop"), ("switch", "-c", "x", "v1")],
    ids=" ".join,
)
def test_a_store_that_is_read_only_changes_nothing(
    read_only: Shell, words: tuple[str, ...]
) -> None:
    before = read_only.snapshot()
    read_only.fails(6, *words)
    assert read_only.snapshot() == before
    assert len(read_only.records("stash", "list")) == 1


def test_what_needs_no_store_works_with_one_that_is_read_only(read_only: Shell) -> None:
    read_only("bisect", "start")
    read_only("bisect", "reset")
    done = read_only.run("stash", "drop")
    assert done.exit_code == 0
    assert "stays until it expires" in done.stderr


@pytest.mark.together
@pytest.mark.parametrize("words", [*CHANGING, ("reflog",), ("log", "-p")], ids=" ".join)
def test_without_a_workspace_it_says_so(empty: Shell, words: tuple[str, ...]) -> None:
    assert "tensorrepo init" in empty.fails(3, *words)


@pytest.mark.parametrize("words", [("reflog", "main"), ("log", "--since", "yesterday", "-p")])
def test_commands_that_look_need_no_workspace_with_repo(
    full: Shell, words: tuple[str, ...]
) -> None:
    outside = Shell(full.home, full.home)
    assert outside(*words, "--repo", str(full.folder / ".tensorrepo/store"))


@pytest.mark.parametrize("words", [("stash",), ("commit", "-a", "-m", "x"), ("log", "-p")])
def test_an_interruption_is_a_line(
    busy: Shell, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = busy.snapshot()
    monkeypatch.setattr("tensorrepo.workspace.session.WorkspaceSession.tip", interrupt)
    monkeypatch.setattr("tensorrepo.cli.history.changes_of", interrupt)
    monkeypatch.setattr("tensorrepo.workspace.stash.keep_alive", interrupt)
    assert busy.fails(130, *words).startswith("interrupted. ")
    assert busy.snapshot() == before

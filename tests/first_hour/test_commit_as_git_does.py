"""F35: `commit` with an editor, `-a`, `--amend` and several `-m`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.support.processes.shell import Shell

Editing = Callable[[str], None]


@pytest.fixture
def editing(full: Shell) -> Editing:
    """Somebody without a terminal, whose editor is a Python expression of `text`."""

    def edit_by(expression: str) -> None:
        code = (
            "import sys; from pathlib import Path; file = Path(sys.argv[1]); "
            f"text = file.read_text(); file.write_text({expression})"
        )
        full.environment = {"GIT_EDITOR": shlex.join([sys.executable, "-c", code])}

    return edit_by


def edited(full: Shell) -> Path:
    """points, checked out, with its first label changed on disk."""
    full("checkout", "HEAD", "points")
    path = full.folder / "datasets/points.parquet"
    table = pq.read_table(path).to_pandas()
    table.loc[0, "label"] = 7
    table.to_parquet(path, index=False)
    return path


def test_an_editor_asks_for_the_message(full: Shell, editing: Editing) -> None:
    full("rm", "net")
    editing("'Remove the net\\n\\nNobody used it.\\n' + text")
    full("commit")
    assert full.json("show")["message"] == "Remove the net\n\nNobody used it."
    shown = (full.folder / ".tensorrepo/COMMIT_EDITMSG").read_text()
    assert "#   deleted   models/net" in shown


def test_an_empty_message_commits_nothing(full: Shell, editing: Editing) -> None:
    full("rm", "net")
    before = full.snapshot()
    editing("text")
    assert "the message is empty" in full.fails(2, "commit")
    full.environment = {"EDITOR": "false"}
    assert "ended with 1" in full.fails(2, "commit")
    full.environment = {"EDITOR": "there-is-no-such-editor"}
    assert "No such file" in full.fails(2, "commit")
    assert full.snapshot() == before


def test_a_message_that_would_be_for_nothing_is_not_asked_for(
    full: Shell, editing: Editing
) -> None:
    editing("'never' + 1")
    assert "nothing to commit" in full.fails(1, "commit")
    full("checkout", "v1")
    full("rm", "net")
    assert "HEAD is detached" in full.fails(4, "commit")


def test_without_a_terminal_a_message_must_be_given(full: Shell) -> None:
    full("rm", "net")
    full.environment = {"GIT_EDITOR": "", "EDITOR": "", "VISUAL": "true", "TERM": "dumb"}
    assert "no terminal" in full.fails(2, "commit")
    assert "--no-edit" in full.fails(2, "commit", "--amend")


def test_several_messages_are_paragraphs(full: Shell) -> None:
    full("rm", "net")
    full("commit", "-m", "Remove the net", "-m", "Nobody used it.")
    assert full.json("show")["message"] == "Remove the net\n\nNobody used it."


def test_all_that_changed_on_disk_is_committed(full: Shell) -> None:
    edited(full)
    full("commit", "-a", "-m", "Edited")
    assert full.repository().dataset("points")["label"][0] == 7
    assert "updated" in full("show")
    assert "nothing changed on disk" in full("status")


def test_a_file_that_is_gone_from_disk_removes_nothing(full: Shell) -> None:
    edited(full).unlink()
    told = full.fails(1, "commit", "-a", "-m", "Nothing")
    assert "left datasets/points.parquet: it is gone" in told
    assert "datasets/points" in full("ls")


def test_the_last_commit_is_amended_in_one_entry(full: Shell) -> None:
    full("rm", "net")
    full("commit", "-m", "Remove the nat")
    old = full.json("show")
    records = len(full.records("reflog"))
    full("rm", "notes.txt")
    full("commit", "--amend", "-m", "Remove the net and notes")
    new = full.json("show")
    assert new["parents"] == old["parents"]
    assert new["changed"] == ["files/notes.txt", "models/net"]
    moves = full.records("reflog")
    assert len(moves) == records + 1
    assert (moves[0]["was"], moves[0]["why"]) == (
        old["commit"],
        "reset: amend: Remove the net and notes",
    )
    assert full.json("status")["clean"]
    assert full("sql", "SELECT count(*) AS n FROM points", "--json")
    full("undo")
    assert full.json("show")["commit"] == old["commit"]


def test_the_first_commit_is_amended_too(full: Shell, editing: Editing) -> None:
    editing("text.replace('First', 'The very first')")
    full("commit", "--amend")
    new = full.json("show")
    assert (new["message"], new["parents"]) == ("The very first", [])
    assert full.run("commit", "--amend", "--no-edit").exit_code == 1


def test_what_is_somebody_elses_is_not_amended(full: Shell) -> None:
    before = full.snapshot()
    full.author = "Bob <bob@example.org>"
    told = full.fails(4, "commit", "--amend", "-m", "Mine now")
    assert "is not yours but Ada" in told
    assert "tensorrepo revert" in told
    assert full.snapshot() == before


def test_a_head_that_moved_is_not_amended(full: Shell) -> None:
    full("rm", "net")
    full("commit", "-m", "Mine")
    full("rm", "notes.txt")
    full("undo")
    full("commit", "--amend", "-m", "First and no notes")
    assert [entry["path"] for entry in full.records("ls")] == ["datasets/points", "models/net"]
    full("rm", "net")
    full("reset", "v1")
    full("commit", "--amend", "-m", "First without a net")
    assert [entry["path"] for entry in full.records("ls")] == ["datasets/points", "files/notes.txt"]


def test_a_commit_is_signed_afterwards(full: Shell) -> None:
    key = Ed25519PrivateKey.from_private_bytes(bytes(32))
    form = (Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (full.folder / "key").write_bytes(key.private_bytes(*form))
    full("config", "user.signingkey", "key")
    full("commit", "--amend", "--no-edit", "-S")
    assert "by a key that nobody is known to have" in full("log", "--show-signature")
    assert "nothing to amend" in full.fails(1, "commit", "--amend", "--no-edit", "-S")

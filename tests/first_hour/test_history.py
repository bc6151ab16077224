"""F14, F22, F35: the reflog, refs by date, `log` by author and time, long answers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.processes.shell import Shell

BOB = "Bob <bob@example.org>"


@pytest.fixture
def two(full: Shell) -> Shell:
    """A second commit on main, by Bob."""
    full("rm", "net")
    full.author = BOB
    full("commit", "-m", "Remove the net")
    full.author = "Ada <ada@example.org>"
    return full


def test_the_reflog_lists_each_move_and_the_way_back(two: Shell) -> None:
    two("reset", "HEAD~1")
    done = two.run("reflog")
    places = [line.split()[0] for line in done.stdout.splitlines()]
    assert places == ["place", "main@{0}", "main@{1}", "main@{2}"]
    assert "commit: Remove the net" in done.stdout
    assert "`tensorrepo reset main@{n}`" in done.stderr
    now, before, first = two.records("reflog")
    assert (now["commit"], now["was"]) == (first["commit"], before["commit"])
    assert before["actor"] == BOB
    two("reset", "main@{1}")
    assert two.json("show")["commit"] == before["commit"]


def test_a_branch_that_is_gone_has_a_reflog(full: Shell) -> None:
    full("branch", "side")
    full("branch", "-d", "side")
    done = full.run("reflog", "side")
    assert "brings it back" in done.stderr
    assert "never was" in full.fails(3, "reflog", "nothing")


def test_a_renamed_branch_has_the_reflog_of_its_former_names(two: Shell) -> None:
    two("branch", "--rename", "trunk")
    two("branch", "--rename", "stem")
    now, renamed, second, first = two.records("reflog", "stem")
    assert [now["why"], renamed["why"]] == [
        "renamed: rename from trunk",
        "renamed: rename from main",
    ]
    assert [second["why"], first["why"]] == ["commit: Remove the net", "commit: First"]
    assert two.json("show", "stem@{3}")["commit"] == first["commit"] == second["was"]
    assert "2 older" not in two.fails(3, "show", "stem@{4}")
    two("undo")
    assert [each["why"] for each in two.records("reflog")][-2:] == [second["why"], first["why"]]


def test_a_checkpoint_has_removed_nothing(full: Shell) -> None:
    repo = full.repository()
    with repo.checkpointer("exp") as checkpointer:
        checkpointer.save(1, {"w": np.zeros(3, "f4")})
    told = full.json("show", "runs/exp/1")
    changes = [(each["mark"], each["path"]) for each in told["diff"]["changes"]]
    assert changes == [("A", "models/state"), ("A", "runs/exp")]
    assert told["changed"] == ["models/state", "runs/exp"]
    assert told["parents"] == [full.json("show")["commit"]]


def test_a_ref_is_named_by_date_wherever_a_ref_is(two: Shell) -> None:
    newest = two.json("show")["commit"]
    assert two.json("show", "main@{now}")["commit"] == newest
    assert two.json("show", "@{2099-01-01 12:00}")["commit"] == newest
    assert two.json("show", "main@{2099-01-01 12:00}:points")["path"] == "datasets/points"
    assert two("log", "--oneline", "main@{1}..main@{now}").count("\n") == 1
    told = two.fails(3, "show", "main@{2001-01-01}")
    assert "is known from 20" in told


def test_commits_are_chosen_by_author_message_and_time(two: Shell) -> None:
    assert "Remove the net" in two("log", "--oneline", "--author", "bob")
    assert two("log", "--oneline", "--author", "bob", "--grep", "first") == ""
    assert two("log", "--oneline", "--since", "1 hour ago").count("\n") == 2
    assert two("log", "--oneline", "--until", "2001-01-01") == ""
    assert "no moment" in two.fails(2, "log", "--since", "soon")
    assert "no regular expression" in two.fails(2, "log", "--author", "[")


def test_a_log_shows_what_each_commit_changed(two: Shell) -> None:
    assert "D models/net (1 tensor)" in two("log", "--stat", "-n", "1")
    whole = two("log", "-p", "--", "points")
    assert "A datasets/points" in whole
    assert "    label: int64" in whole
    assert "models/net" not in whole
    assert two.json("log", "-n", "1", "-p")["diff"]["changes"][0]["path"] == "models/net"
    assert "leave out -p" in two.fails(2, "log", "--graph", "-p")


def test_a_new_model_is_summed_up(full: Shell) -> None:
    tensors = {f"layer.{at}.weight": np.full((2, 3), at, "f4") for at in range(40)}
    save_file(tensors, full.folder / "deep.safetensors")
    full("add", "deep.safetensors", "--model", "deep")
    for told in (full("diff"), full("commit", "-m", "Deep") and full("show")):
        assert "A models/deep (40 tensors)" in told
        assert "240 parameters (F32)" in told
        assert len(told.splitlines()) < 20
        assert "more (--full)" in told
    assert "layer.39.weight" in full("show", "--full")
    assert "layer.39.weight" in full("diff", "v1", "HEAD", "--full")
    assert len(full("show", "HEAD:deep").splitlines()) < 14


def test_a_pager_shows_long_answers_on_a_terminal_alone(
    two: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = tmp_path / "shown"
    code = f"import sys; open({str(shown)!r}, 'wb').write(sys.stdin.buffer.read())"
    two.environment = {"TENSORREPO_PAGER": f'{sys.executable} -c "{code}"', "TERM": "xterm"}
    plain = two("log")
    assert not shown.exists()
    monkeypatch.setattr("tensorrepo.cli.output.is_terminal", lambda: True)
    assert two("log") == ""
    assert "Remove the net" in shown.read_text()
    assert "\x1b[" in shown.read_text()
    shown.unlink()
    assert two("--no-pager", "log") == plain
    assert two.json("show")["message"] == "Remove the net"
    assert two("status")
    assert not shown.exists()


def test_a_pager_that_is_quit_early_ends_quietly(
    two: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    two.environment = {"PAGER": "true", "TERM": "xterm"}
    monkeypatch.setattr("tensorrepo.cli.output.is_terminal", lambda: True)
    done = two.run("cat", "points", "--limit", "20")
    assert (done.exit_code, done.output) == (0, "")
    two.environment = {"PAGER": "there-is-no-such-program", "TERM": "xterm"}
    done = two.run("log")
    assert "Remove the net" in done.stdout
    assert "warning: pager there-is-no-such-program" in done.stderr


def test_a_number_alone_is_a_limit(two: Shell) -> None:
    assert two("log", "-1", "--oneline").count("\n") == 1
    assert len(two.records("reflog", "-1")) == 1
    assert two("log", "--oneline", "--", "-1") == ""


def test_only_what_is_staged_is_shown(two: Shell) -> None:
    two("checkout", "HEAD", "points")
    (two.folder / "datasets/points.parquet").write_bytes(b"changed")
    two("rm", "notes.txt")
    assert "on disk" in two("diff")
    assert two("diff", "--staged") == two("diff", "--cached") == "D files/notes.txt (9 bytes)\n"
    two.fails(2, "diff", "--staged", "HEAD")
    assert two("show", "v1", "--stat").count("\n    ") == 1

"""Every command that prints answers programs in JSON, and nothing else stands beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensorrepo.cli.main import COMMANDS, load_command
from tests.support.processes.shell import Shell

LINES = {"log", "cat"}
OF_A_RUN = {"runs show", "runs compare"}
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "init": (("init", "--force"),),
    "config": (("config", "user.name", "Bob"), ("config", "user.name")),
    "add": (("add", "points.npz", "--dataset", "other"),),
    "adopt": (("adopt", "net.safetensors", "--dataset", "weights"),),
    "update": (("update", "points", "--row", "1", "--set", "label=7"),),
    "delete": (("delete", "points", "--row", "0"),),
    "column": (("column", "add", "points", "z", "float32", "--default", "0.5"),),
    "compact": (("compact", "points"),),
    "rm": (("rm", "net"),),
    "mv": (("mv", "net", "web"),),
    "restore": (("restore", "net", "--source", "v1"),),
    "commit": (("rm", "net"), ("commit", "-m", "less")),
    "merge": (("branch", "side"), ("merge", "side")),
    "revert": (("revert", "HEAD"),),
    "cherry-pick": (
        ("switch", "-c", "side"),
        ("rm", "net"),
        ("commit", "-m", "less"),
        ("switch", "main"),
        ("cherry-pick", "side"),
    ),
    "status": (("status",),),
    "log": (("log",),),
    "reflog": (("reflog",),),
    "bisect": (("bisect", "start"),),
    "diff": (("diff", "v1", "main"),),
    "show": (("show",),),
    "blame": (("blame", "points", "--row", "1"),),
    "ls": (("ls",),),
    "cat": (("cat", "points"),),
    "set": (("set", "points", "licence=CC0"),),
    "stream": (("stream", "points"),),
    "lineage": (("lineage", "models/net"),),
    "report": (("report", "--to", "report.html"),),
    "runs ls": (("runs", "ls"),),
    "runs show": (("runs", "show", "exp1"),),
    "runs compare": (("runs", "compare", "exp1", "exp1"),),
    "catalog status": (("catalog", "status"),),
    "catalog upgrade": (("catalog", "upgrade"),),
    "catalog rebuild": (("catalog", "rebuild"),),
    "catalog verify": (("catalog", "verify"),),
    "model ls": (("model", "ls"),),
    "model desc": (("model", "desc", "net"),),
    "model diff": (("model", "diff", "v1:net", "net"),),
    "model verify": (("model", "verify", "net"),),
    "model du": (("model", "du"),),
    "model similar": (("model", "similar", "net"),),
    "model repack": (("model", "repack", "--dry-run"),),
    "model find": (("model", "find", ".*"),),
    "model donors": (("model", "donors", "net"),),
    "model owners": (("model", "owners", "net", "w"),),
    "model add": (("model", "add", "net.safetensors", "other"),),
    "model export": (("model", "export", "net", "--out", "out.safetensors"),),
    "model slice": (
        ("model", "slice", "net", "--from", "(root)", "--to", "(root)", "--as", "part"),
    ),
    "model construct": (("model", "construct", "--like", "net", "--from", "net", "--as", "twin"),),
    "model merge": (("model", "merge", "net", "v1:net", "--as", "mean"),),
    "sql": (("sql", "SELECT count(*) AS n FROM points"),),
    "view create": (("view", "create", "few", "SELECT row_id FROM points"),),
    "view ls": (("view", "create", "few", "SELECT row_id FROM points"), ("view", "ls")),
    "view show": (
        ("view", "create", "few", "SELECT row_id FROM points"),
        ("commit", "-m", "few"),
        ("view", "show", "few"),
    ),
    "view refresh": (
        ("view", "create", "few", "SELECT row_id FROM points"),
        ("commit", "-m", "few"),
        ("view", "refresh", "few"),
    ),
    "registry ls": (("registry", "ls"),),
    "registry show": (("registry", "register", "net"), ("registry", "show", "net")),
    "registry create": (("registry", "create", "net"),),
    "registry register": (("registry", "register", "net", "--alias", "best"),),
    "registry alias": (("registry", "register", "net"), ("registry", "alias", "net", "best", "1")),
    "registry history": (
        ("registry", "register", "net", "--alias", "best"),
        ("registry", "history", "net", "best"),
    ),
    "registry protect": (("registry", "register", "net"), ("registry", "protect", "net", "best")),
    "registry describe": (
        ("registry", "create", "net"),
        ("registry", "describe", "net", "-d", "Reads digits."),
    ),
    "registry rm": (("registry", "register", "net"), ("registry", "rm", "net", "--force")),
    "branch": (("branch", "side"),),
    "tag": (("tag", "v2"),),
    "switch": (("switch", "-c", "side"),),
    "checkout": (("checkout", "v1"),),
    "export": (("export", "net", "--to", "out.safetensors"),),
    "stash": (("rm", "net"), ("stash",)),
    "undo": (("undo",),),
    "redo": (("undo",), ("redo",)),
    "reset": (("reset", "v1"),),
    "doctor": (("doctor",),),
    "fsck": (("fsck",),),
    "resolve": (("resolve",),),
    "version": (("version",),),
}


def test_every_command_is_tried() -> None:
    assert set(CASES) == set(COMMANDS)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in OF_A_RUN])
def test_a_command_answers_in_json(full: Shell, command: str) -> None:
    *before, words = CASES[command]
    for earlier in before:
        full(*earlier)
    told = full(*words, "--json")
    documents: list[Any] = (
        [json.loads(line) for line in told.splitlines()] if command in LINES else [json.loads(told)]
    )
    assert all(isinstance(one, (dict, list, str)) for one in documents)
    assert documents


@pytest.mark.parametrize("command", sorted(OF_A_RUN))
def test_a_command_about_a_run_answers_in_json(full: Shell, command: str) -> None:
    with full.repository().run("exp1") as run:
        run.log_metric("loss", 1.0)
    assert json.loads(full(*CASES[command][-1], "--json"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_so_in_its_help(command: str) -> None:
    options = [
        option for one in load_command(command).params for option in getattr(one, "opts", [])
    ]
    assert "--json" in options


def test_numbers_that_json_lacks_become_null(shell: Shell) -> None:
    (shell.folder / "t.csv").write_text("a\n1.5\nnan\n")
    shell("add", "t.csv", "--dataset", "t")
    shell("commit", "-m", "t")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in
            shell("cat", "t", "--json").splitlines()]  # fmt: skip
    assert rows[0] == {"a": 1.5}


def test_a_failure_prints_nothing_on_standard_output(full: Shell) -> None:
    done = full.run("show", "nothing", "--json")
    assert (done.exit_code, done.stdout) == (3, "")

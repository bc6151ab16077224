"""Every command that prints answers programs in JSON, and nothing else stands beside it."""

from __future__ import annotations

import json
from hashlib import sha256

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.cli.command_table import COMMANDS
from tensorrepo.cli.main import load_command
from tests.support.effort import sampled
from tests.support.processes.shell import Shell

# Of lists that are empty in the repository that is tried.
MAY_BE_SILENT = {
    "verify-signatures",
    "catalog verify",
    "resolve",
    "lineage",
    "model find",
    "model donors",
    "cache ls",
}
ENDLESS = {"serve", "ui", "watch"}  # see test_serve, test_ui, test_cli_watch
# See filesystem/test_mount, runs/test_board_import, test_cli_import.
OF_FILES = {"mount", "unmount", "runs import", "import"}
# They need a server: tests/tensorrepo/test_cli_server.py tries them.
OF_A_SERVER = {
    name
    for name in COMMANDS
    if name.split()[0] in {"login", "logout", "token", "user", "group", "grant", "audit"}
}
OF_A_RUN = {"runs ls", "runs show", "runs compare"}
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHhT6fbJlxwiqqHGFUoBrOMD/qtL11+ybF4BAp6cCFQ9"
CASES: dict[str, tuple[tuple[str, ...], ...]] = {
    "init": (("init", "--force"), ("init", "there", "--force", "--log", "sqlite:///log.db")),
    "clone": (("clone", ".", "copy", "--log", "sqlite:///copy.db"),),
    "fetch": (("clone", ".", "copy"), ("fetch", "copy")),
    "pull": (("clone", ".", "copy"), ("pull", "copy/.tensorrepo/store")),
    "push": (("clone", ".", "copy"), ("push", "copy", "main")),
    "promote": (("clone", ".", "copy"), ("promote", "net@v1", "copy", "--as", "web")),
    "remote ls": (("remote", "add", "origin", "../copy"), ("remote", "ls")),
    "remote add": (("remote", "add", "origin", "../copy"),),
    "remote rm": (("remote", "add", "origin", "../copy"), ("remote", "rm", "origin")),
    "remote rename": (
        ("remote", "add", "origin", "../copy"),
        ("remote", "rename", "origin", "team"),
    ),
    "bundle create": (("bundle", "create", "all.bundle", "--all"),),
    "bundle verify": (("bundle", "create", "a.bundle"), ("bundle", "verify", "a.bundle")),
    "bundle unbundle": (("bundle", "create", "a.bundle"), ("bundle", "unbundle", "a.bundle")),
    "config": (("config", "user.name", "Bob"), ("config", "user.name")),
    "add": (("add", "points.npz", "--dataset", "other"),),
    "dataset ls": (("dataset", "ls"),),
    "dataset adopt": (("dataset", "adopt", "net.safetensors", "--dataset", "weights"),),
    "update": (("update", "points", "--row", "1", "--set", "label=7"),),
    "delete": (("delete", "points", "--row", "0"),),
    "dataset column": (("dataset", "column", "add", "points", "z", "float32", "--default", "0.5"),),
    "dataset compact": (("dataset", "compact", "points"),),
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
    "dataset set": (("dataset", "set", "points", "licence=CC0"),),
    "dataset stream": (("dataset", "stream", "points"),),
    "du": (("du",), ("du", "--by", "ref")),
    "rule ls": (("rule", "set", "side", "--forward"), ("rule", "ls")),
    "rule set": (("rule", "set", "side", "--forward"),),
    "rule retention": (("rule", "retention", "30d"), ("rule", "retention")),
    "rule rm": (("rule", "set", "side", "--forward"), ("rule", "rm", "side")),
    "signer ls": (("signer", "add", "ann", PUBLIC_KEY), ("signer", "ls")),
    "signer add": (("signer", "add", "ann", PUBLIC_KEY),),
    "signer rm": (("signer", "add", "ann", PUBLIC_KEY), ("signer", "rm", "ann")),
    "verify-signatures": (("verify-signatures", "v1..main"),),
    "gc": (("gc", "--compact"), ("gc", "--dry-run", "--compact")),
    "expire": (("expire", "main", "30d", "--dry-run"), ("expire", "main", "30d,100")),
    "purge": (("purge", "points", "--column", "label", "-m", "why", "--yes"), ("purge", "--list")),
    "lineage": (("lineage", "models/net"),),
    "report": (("report", "--to", "report.html"),),
    "runs ls": (("runs", "ls"),),
    "runs show": (("runs", "show", "exp1"),),
    "runs compare": (("runs", "compare", "exp1", "exp1"),),
    "cache ls": (("cache", "warm", "points"), ("cache", "ls")),
    "cache trim": (("cache", "trim", "1GB"),),
    "cache warm": (("cache", "warm", "points"),),
    "plan-pipeline": (("plan-pipeline", "points", "--seconds", "0.1"),),
    "catalog status": (("catalog", "status"),),
    "catalog upgrade": (("catalog", "upgrade"),),
    "catalog rebuild": (("catalog", "rebuild"),),
    "catalog verify": (("catalog", "verify"),),
    "model ls": (("model", "ls"),),
    "model desc": (("model", "desc", "net"),),
    "model diff": (("model", "diff", "v1:net", "net"),),
    "model verify": (("model", "verify", "net"),),
    "model similar": (("model", "similar", "net"),),
    "model repack": (("model", "repack", "--dry-run"),),
    "model find": (("model", "find", ".*"),),
    "model donors": (("model", "donors", "net"),),
    "model owners": (("model", "owners", "net", "w"),),
    "model add": (("model", "add", "net.safetensors", "other"),),
    "model export": (("model", "export", "net", "--to", "out.safetensors"),),
    "model slice": (
        ("model", "slice", "net", "--first", "(root)", "--last", "(root)", "--as", "part"),
    ),
    "model construct": (("model", "construct", "--like", "net", "--from", "net", "--as", "twin"),),
    "model merge": (("model", "merge", "net", "v1:net", "--as", "mean"),),
    "bench": (("bench", "disk", "--clean"),),
    "dql": (("dql", "select m where m.tensors > 0"),),
    "search": (("search", "points", "point", "--like", "0", "-k", "3"),),
    "index create": (("index", "create", "points", "point"),),
    "index ls": (
        ("index", "create", "points", "point"),
        ("commit", "-m", "index"),
        ("index", "ls"),
    ),
    "sql": (("sql", "SELECT count(*) AS n FROM points"),),
    "view create": (("view", "create", "few", "SELECT row_id FROM points"),),
    "view ls": (
        ("view", "create", "few", "SELECT row_id FROM points"),
        ("commit", "-m", "few"),
        ("view", "ls"),
    ),
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
    "registry ls": (("registry", "register", "net"), ("registry", "ls")),
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
        ("registry", "describe", "net", "--description", "Reads digits."),
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
    assert set(CASES) | OF_A_SERVER | ENDLESS | OF_FILES == set(COMMANDS)


@pytest.mark.parametrize("command", sampled([name for name in CASES if name not in OF_A_RUN], 30))
def test_a_command_answers_in_lines_of_json(full: Shell, command: str) -> None:
    *before, words = CASES[command]
    for earlier in before:
        full(*earlier)
    records = full.records(*words)
    assert all(isinstance(record, dict) and record for record in records)
    assert records or command in MAY_BE_SILENT


@pytest.mark.parametrize("command", sorted(OF_A_RUN))
def test_a_command_about_a_run_answers_in_lines_of_json(full: Shell, command: str) -> None:
    with full.repository().run("exp1") as run:
        run.log_metric("loss", 1.0)
    assert all(isinstance(record, dict) for record in full.records(*CASES[command][-1]))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_says_so_in_its_help(command: str) -> None:
    options = [
        option for one in load_command(command).params for option in getattr(one, "opts", [])
    ]
    assert "--json" in options


@pytest.mark.together
@pytest.mark.parametrize(
    ("exit_code", "kind", "words"),
    [
        (3, "not-found", ("show", "nothing")),
        (2, "invalid-input", ("cat", "net", "--where", "x > 1")),
        (2, "invalid-input", ("cat", "--no-such-option", "net")),
        (2, "invalid-input", ("cat",)),
        (2, "invalid-input", ("clone",)),
        (2, "invalid-input", ("remote", "add", "x", "s3://a:b@bucket/c")),
        (3, "not-found", ("sql", "SELECT * FROM pionts")),
        (4, "conflict", ("tag", "v1", "HEAD")),
    ],
)
def test_a_failure_is_an_object_on_standard_error(
    full: Shell, exit_code: int, kind: str, words: tuple[str, ...]
) -> None:
    done = full.run(*words, "--json")
    (line,) = done.stderr.splitlines()
    error = json.loads(line)["error"]
    assert done.stdout == ""
    assert (error["kind"], error["exit_code"], done.exit_code) == (kind, exit_code, exit_code)
    assert error["message"]


def test_a_conflict_names_its_paths_once(full: Shell) -> None:
    full("branch", "side")
    full("update", "points", "--row", "1", "--set", "label=7")
    full("commit", "-m", "seven")
    full("switch", "side")
    full("update", "points", "--row", "1", "--set", "label=8")
    full("commit", "-m", "eight")
    done = full.run("merge", "main", "--json")
    (line,) = done.stderr.splitlines()
    (conflict,) = json.loads(line)["error"]["conflicts"]
    assert (done.exit_code, done.stdout, conflict["path"]) == (4, "", "datasets/points")


def test_a_remark_is_an_object_on_standard_error(full: Shell) -> None:
    done = full.run("revert", "HEAD", "--json")
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert all(len(each) == 1 and each.keys() <= {"note", "warning", "error"} for each in told)


def test_columns_are_described_by_data(full: Shell) -> None:
    (listed,) = full.records("ls", "HEAD:datasets")
    assert (listed["rows"], listed["column_count"]) == (
        20,
        len(full.json("show", "HEAD:points")["columns"]),
    )
    (entry,) = full.records("dataset", "ls")
    assert entry["rows"] == 20
    assert entry["columns"][0] == {
        "name": "point",
        "type": {"type": "tensor", "dtype": "float32", "shape": [2]},
        "nullable": False,
    }


def test_values_are_whole_and_bytes_are_counted(shell: Shell) -> None:
    table = pa.table(
        {
            "n": pa.array([2**64 - 1], pa.uint64()),
            "short": [b"\x00\xff"],
            "long": [b"\x00" * 2000],
            "none": pa.array([None], pa.string()),
            "at": pa.array([1_700_000_000_000_000_001], pa.timestamp("ns")),
            "x": pa.array([float("nan")]),
        }
    )
    pq.write_table(table, shell.folder / "t.parquet")
    shell("add", "t.parquet", "--dataset", "t")
    shell("commit", "-m", "t")
    expected = {
        "n": 2**64 - 1,
        "short": {"bytes": 2, "base64": "AP8="},
        "long": {"bytes": 2000, "sha256": sha256(bytes(2000)).hexdigest()},
        "none": None,
        "at": "2023-11-14T22:13:20.000000001",
        "x": "NaN",
    }
    assert shell.json("cat", "t") == expected
    assert shell.json("sql", "SELECT * FROM t") == expected
    assert "base64" in shell.json("cat", "t", "--bytes", "2KB")["long"]

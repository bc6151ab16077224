"""`add` of much data: killed, it goes on; rows that do not fit are skipped when told."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.repo.errors import StorageError
from tensorrepo.sdk import open_repository
from tensorrepo.workspace import add
from tests.support.processes.forked import FORKED
from tests.support.processes.prepared import finish_command
from tests.support.processes.shell import Shell, write_pictures

ROWS = 40_000
CHECKPOINT_BYTES = 200_000
COMMAND = ("add", "many.csv", "--dataset", "many")
# What makes its stretches small, and slow enough to be killed between two of them.
SLOW = f"""
import time
from tensorrepo.workspace import add as ingest
ingest.CHECKPOINT_BYTES = {CHECKPOINT_BYTES}
note = ingest._note
def slow(*given):
    note(*given)
    time.sleep(0.3)
ingest._note = slow
"""


@pytest.fixture
def many(shell: Shell) -> Shell:
    """A workspace beside a CSV file of many rows."""
    lines = "".join(f"{at},{at * at}\n" for at in range(ROWS))
    (shell.folder / "many.csv").write_text("n,square\n" + lines)
    return shell


@pytest.fixture
def _small_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add, "CHECKPOINT_BYTES", CHECKPOINT_BYTES)


def _killed(shell: Shell, by: signal.Signals = signal.SIGKILL) -> str:
    """Run `add` in a process of its own, and end it after its first checkpoint; what it said."""
    printed = [shell.home / "out", shell.home / "errors"]
    environment = {**os.environ, **shell.variables}
    command = FORKED.Process(
        target=finish_command, args=(printed, COMMAND, shell.folder, environment, SLOW)
    )
    command.start()
    note = shell.folder / ".tensorrepo/unfinished.json"
    deadline = time.monotonic() + 60
    while not note.exists() and command.is_alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert command.pid is not None
    os.kill(command.pid, by)
    command.join()
    assert note.exists(), "it was killed before its first checkpoint"
    return printed[1].read_text()


@pytest.mark.usefixtures("_small_stretches")
def test_ctrl_c_tells_how_to_go_on(many: Shell) -> None:
    errors = _killed(many, signal.SIGINT)
    assert "Repeat the command to go on behind the" in errors
    assert "Traceback" not in errors
    assert "went on behind" in many.run("add", "many.csv", "--dataset", "many").stderr


def _numbers(shell: Shell) -> Any:
    store = shell.folder / ".tensorrepo/store"
    return open_repository(str(store)).dataset("many")["n"][:]


@pytest.mark.usefixtures("_small_stretches")
def test_an_add_that_was_killed_goes_on(many: Shell) -> None:
    _killed(many)
    told = many("add", "many.csv", "--dataset", "many", "--json")
    assert "went on behind" in json.loads(told)["notes"][-1]
    many("commit", "-m", "many")
    assert np.array_equal(_numbers(many), np.arange(ROWS))
    assert json.loads((many.folder / ".tensorrepo/unfinished.json").read_text()) == {}


@pytest.mark.usefixtures("_small_stretches")
def test_a_source_that_changed_is_read_anew(many: Shell) -> None:
    _killed(many)
    source: Path = many.folder / "many.csv"
    source.write_text(source.read_text() + "-1,1\n")
    told = many("add", "many.csv", "--dataset", "many", "--json")
    assert json.loads(told)["notes"] == []
    many("commit", "-m", "many")
    assert np.array_equal(_numbers(many), [*range(ROWS), -1])


@pytest.mark.usefixtures("_small_stretches")
def test_what_no_lease_keeps_is_not_gone_on_from(many: Shell) -> None:
    _killed(many)
    (many.folder / "note.txt").write_text("x")
    many("add", "note.txt", "--file", "note")
    many("restore", "--staged")  # nothing is staged any more: the lease is given back
    told = many("add", "many.csv", "--dataset", "many", "--json")
    assert json.loads(told)["notes"] == []


@pytest.mark.usefixtures("_small_stretches")
def test_a_checkpoint_that_fails_ends_the_add(many: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(add, "_note", fail)
    assert "the disk is full" in many.run("add", "many.csv", "--dataset", "many").stderr
    assert json.loads(many("status", "--json"))["staged"] == []


@pytest.mark.usefixtures("_small_stretches")
def test_what_was_read_before_damage_is_kept(shell: Shell) -> None:
    path = shell.folder / "many.parquet"
    table = pa.table({"n": np.arange(ROWS), "square": np.arange(ROWS) ** 2})
    pq.write_table(table, path, row_group_size=ROWS // 8, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(7).column(1)
    with path.open("r+b") as file:
        file.seek(chunk.data_page_offset)
        file.write(b"\xff" * chunk.total_compressed_size)
    assert "many.parquet" in shell.run("add", "many.parquet", "--dataset", "many").stderr
    unfinished = json.loads((shell.folder / ".tensorrepo/unfinished.json").read_text())
    (known,) = unfinished.values()
    assert known["rows"] == ROWS * 3 // 4
    assert json.loads(shell("status", "--json"))["staged"] == []


def test_rows_that_do_not_fit_are_skipped_and_told(shell: Shell) -> None:
    (shell.folder / "first.jsonl").write_text('{"n": 1, "t": "a"}\n{"n": 2, "t": "b"}\n')
    shell("add", "first.jsonl", "--dataset", "d")
    shell("commit", "-m", "first")
    (shell.folder / "more.jsonl").write_text('{"n": 3, "t": "c"}\n{"n": 4.5, "t": "d"}\n')
    assert shell.run("add", "more.jsonl", "--dataset", "d", "--append").exit_code != 0
    done = shell.run("add", "more.jsonl", "--dataset", "d", "--append", "--on-error", "bogus")
    assert done.exit_code == 2
    told = shell("add", "more.jsonl", "--dataset", "d", "--append", "--on-error", "skip", "--json")
    added = json.loads(told)
    assert added["rows"] == 1
    assert [each["row"] for each in added["misfits"]] == [1]
    assert "1 row skipped" in added["notes"]


def test_rows_are_updated_by_key_and_others_added(shell: Shell) -> None:
    (shell.folder / "all.csv").write_text("id,score\n1,0.5\n2,0.25\n")
    shell("add", "all.csv", "--dataset", "d")
    shell("commit", "-m", "all")
    (shell.folder / "some.csv").write_text("id,score\n2,0.75\n3,1.0\n")
    told = json.loads(shell("add", "some.csv", "--dataset", "d", "--upsert", "id", "--json"))
    assert told["rows"] == 1
    shell("commit", "-m", "some")
    found = open_repository(str(shell.folder / ".tensorrepo/store")).dataset("d")
    assert dict(zip(found["id"][:].tolist(), found["score"][:].tolist(), strict=True)) == {
        1: 0.5,
        2: 0.75,
        3: 1.0,
    }
    again = json.loads(shell("add", "some.csv", "--dataset", "d", "--upsert", "id", "--json"))
    assert not again["changed"]
    done = shell.run("add", "some.csv", "--dataset", "d", "--upsert", "id", "--on-error", "skip")
    assert done.exit_code == 2


def test_pages_are_compressed_when_told(shell: Shell) -> None:
    lines = "".join(f"{at % 7}\n" for at in range(50_000))
    (shell.folder / "n.csv").write_text("n\n" + lines)
    for codec in ("none", "bitpack", "auto"):
        shell("add", "n.csv", "--dataset", codec, "--codec", codec)
    shell("commit", "-m", "n")
    repository = open_repository(str(shell.folder / ".tensorrepo/store"))
    sizes = {name: repository.dataset(name).stored.stored_bytes for name in ("none", "bitpack")}
    assert sizes["bitpack"] < sizes["none"] // 10
    assert repository.dataset("auto")["n"][:10].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert shell.run("add", "n.csv", "--dataset", "x", "--codec", "bogus").exit_code == 2


def test_who_skips_rows_that_do_not_fit_skips_damaged_records_too(shell: Shell) -> None:
    write_pictures(shell.folder / "pets")
    picture = next((shell.folder / "pets").rglob("*.png"))
    picture.write_bytes(picture.read_bytes()[:60])
    assert shell.run("add", "pets", "--dataset", "pets").exit_code == 2
    told = json.loads(shell("add", "pets", "--dataset", "pets", "--on-error", "skip", "--json"))
    assert told["rows"] == 5
    assert any(picture.name in note for note in told["notes"])

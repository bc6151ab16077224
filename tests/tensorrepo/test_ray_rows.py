"""Rows that workers of Ray store: `add`, `compact` and derivations, on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.verification import verify_dataset
from tests.support.clients.environments import client_python
from tests.support.clients.process import run_client

pytestmark = pytest.mark.soak  # Ray starts for ten seconds

ANN = "Ann <ann@example.org>"
ROWS = 3000
_BEGIN = """
import json, logging, os, signal, subprocess, sys
from pathlib import Path
import numpy as np
import psutil
import ray
import tensorrepo as tr

url, folder = sys.argv[1:3]
ray.init(num_cpus=4, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
address = ray.get_runtime_context().gcs_address
told = {}

def command(*words, fails=False):
    done = subprocess.run(
        [sys.executable, "-m", "tensorrepo", *words], cwd=folder, capture_output=True, text=True
    )
    assert bool(done.returncode) == fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout

command("init")
RAY = ("--executor", "ray", "--ray-address", address)
"""
_END = """
print("TOLD" + json.dumps(told))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python("ray[data]>=2.60", ours=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a workspace will be, with tables: a folder of three files, and a CSV."""
    made = tmp_path / "work"
    (made / "tables").mkdir(parents=True)
    for number in range(3):
        x = np.arange(number * 1000, (number + 1) * 1000)
        table = pa.table({"x": x, "name": [f"row {each}" for each in x]})
        pq.write_table(table, made / "tables" / f"{number}.parquet")
    lines = [f"{each},{each / 4}" for each in range(ROWS)]
    (made / "numbers.csv").write_text("\n".join(["a,b", *lines]) + "\n")
    return made


def run(python: Path, folder: Path, script: str, cwd: Path) -> Any:
    home = cwd / "home"
    home.mkdir()
    config = home / ".config" / "tensorrepo"
    config.mkdir(parents=True)
    out = run_client(
        python,
        _BEGIN + script + _END,
        str(folder / ".tensorrepo" / "store"),
        str(folder),
        environment={"TENSORREPO_AUTHOR": ANN},
        cwd=home,
        seconds=400,
    )
    (line,) = (each for each in out.splitlines() if each.startswith("TOLD"))
    return json.loads(line.removeprefix("TOLD"))


_ADDING = """
files = [f"tables/{number}.parquet" for number in (2, 0, 1)]
command("add", *files, "--dataset", "files", *RAY)
command("add", "tables", "--dataset", "folder", *RAY)
command("add", "tables", "--dataset", "here")
command("add", "numbers.csv", "--dataset", "numbers", *RAY)
command("add", "numbers.csv", "--dataset", "numbers", "--append", *RAY)
told["mode"] = command("add", "tables", "--dataset", "here", "--sync", *RAY, fails=True)
told["names"] = command("add", "tables", "numbers.csv", *RAY, fails=True)
told["alone"] = command("add", "tables", "--dataset", "new", "--ray-address", "1:1", fails=True)
command("commit", "-m", "added")
"""


def test_added_rows_are_those_of_one_process(python: Path, folder: Path, tmp_path: Path) -> None:
    told = run(python, folder, _ADDING, tmp_path)
    repo = tr.open(folder / ".tensorrepo" / "store")
    here = repo.dataset("here")
    assert repo.dataset("folder").schema == here.schema
    assert repo.dataset("folder").to_arrow() == here.to_arrow()
    wanted = [*range(2000, 3000), *range(2000)]
    assert repo.dataset("files")["x"][:].tolist() == wanted
    assert repo.dataset("files")["name"][:] == [f"row {each}" for each in wanted]
    numbers = repo.dataset("numbers")
    assert numbers["a"][:].tolist() == [*range(ROWS)] * 2
    assert numbers["b"][:].tolist() == [each / 4 for each in range(ROWS)] * 2
    for name in ("files", "folder", "numbers"):
        assert list(verify_dataset(repo.dataset(name).stored)) == []
    paths = [edge["path"] for edge in repo.dataset("files").stored.root.lineage]
    assert sum(path.endswith(".parquet") for path in paths) >= 3
    assert repo.context.core.log.refresh().state.leases == {}
    assert "a new dataset, or of --append" in told["mode"]
    assert "--dataset NAME" in told["names"]
    assert "--executor ray: give both" in told["alone"]


_COMPACTING = """
import functools
from tensorrepo.verbs import on_workers

repo = tr.open(url, author="Ann <ann@example.org>")
for name in ("d", "e"):
    with repo.transaction(message=name) as tx:
        draft = tx.create_dataset(name, columns={"x": "int64", "name": tr.Text()})
        for number in range(12):
            x = np.arange(number * 100, (number + 1) * 100)
            draft.append({"x": x, "name": [f"row {each}" for each in x]})
    with repo.transaction(message="worn") as tx:
        tx.dataset(name).update("x % 3 == 0", {"name": "third"}).delete("x % 7 == 1")
        tx.dataset(name).add_column("y", "int8", default=3)
told["before"] = repo.log()[0].digest
command("dataset", "compact", "d", *RAY)
command("commit", "-m", "compacted")
told["again"] = command("dataset", "compact", "d", *RAY)

marks = Path.home()

class Killed(on_workers.CompactionTask):
    def __call__(self, rows):
        mark = marks / f"{rows[0]}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(rows)

on_workers.CompactionTask = Killed
on_workers.row_pieces = functools.partial(on_workers.row_pieces, piece_bytes=1)
with repo.transaction("main", "again") as tx:
    tx.dataset("e").compact(executor="ray")
told["kills"] = len([each for each in marks.iterdir() if each.name.isdigit()])
"""


def test_compacted_rows_keep_ids_and_order_whoever_writes_them(
    python: Path, folder: Path, tmp_path: Path
) -> None:
    told = run(python, folder, _COMPACTING, tmp_path)
    repo = tr.open(folder / ".tensorrepo" / "store")
    for name in ("d", "e"):
        before, after = repo.dataset(name, ref=told["before"]), repo.dataset(name)
        assert after.digest != before.digest
        assert after.to_arrow() == before.to_arrow()
        assert after.row_ids() == before.row_ids()
        assert after.stored.root.deleted == 0
        assert list(verify_dataset(after.stored)) == []
    assert repo.dataset("d").stored.root.leaves[0].fragments == 1
    assert "unchanged" in told["again"]
    assert told["kills"] == 12
    assert repo.context.core.log.refresh().state.leases == {}


_DERIVING = """
repo = tr.open(url, author="Ann <ann@example.org>")
with repo.transaction(message="rows") as tx:
    x = np.arange(2000)
    tx.create_dataset("d", columns={"x": "int64"}).append({"x": x})
marks = Path.home()

def double(batch):
    x = batch["x"].to_numpy()
    for number in x[x % 300 == 0].tolist():
        mark = marks / f"{number}"
        if mark.exists():
            continue
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"twice": x * 2, "pid": np.full(len(x), os.getpid())}

with repo.transaction(message="derived") as tx:
    made = tx.derive("twice", "d", double, batch=100, version="1", executor="ray").derived
told["made"], told["pid"] = made.made, os.getpid()
told["kills"] = len([each for each in marks.iterdir() if each.name.isdigit()])

def failing(batch):
    raise LookupError(f"no sense in {batch['x'][3]}")

try:
    with repo.transaction() as tx:
        tx.derive("none", "d", failing, version="1", executor="ray")
except LookupError as error:
    told["error"] = [str(error), *error.__notes__]
"""


def test_a_derivation_by_workers_is_that_of_one_process(
    python: Path, folder: Path, tmp_path: Path
) -> None:
    told = run(python, folder, _DERIVING, tmp_path)
    repo = tr.open(folder / ".tensorrepo" / "store")
    source, twice = repo.dataset("d"), repo.dataset("twice")
    assert twice["twice"][:].tolist() == list(range(0, 4000, 2))
    assert twice.row_ids() == source.row_ids()
    assert told["pid"] not in twice["pid"][:]
    assert (told["made"], told["kills"]) == (2000, 7)
    assert told["error"][0] == "no sense in 3"
    assert any("failing failed on" in note for note in told["error"][1:])

"""Datasets read and written by Ray, on this machine with two workers, in a client's environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.clients.environments import client_python
from tests.support.clients.process import run_client

pytestmark = pytest.mark.soak  # Ray starts for ten seconds

ROWS = 4000
_BEGIN = """
import json, logging, os, signal, sys
from pathlib import Path
import numpy as np
import ray
import tensorrepo as tr
import tensorrepo.ray
from ray.data.expressions import col

url = sys.argv[1]
ray.init(num_cpus=2, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
context = ray.data.DataContext.get_current()
context.execution_options.preserve_order = True
context.enable_progress_bars = False
logging.getLogger("ray.data").setLevel(logging.ERROR)
repo = tr.open(url, author="Ann <ann@example.org>")
photos = repo.dataset("photos")
told = {}
"""
_END = """
print("TOLD" + json.dumps(told))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python("ray[data]>=2.60", ours=True)


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ann <ann@example.org>")
    x = np.arange(ROWS)
    with made.transaction(message="photos") as tx:
        tx.create_dataset(
            "photos",
            columns={
                "x": "int64",
                "name": tr.Text(),
                "picture": tr.Tensor("u1", (32, 32)),
                "label": tr.ClassLabel(("cat", "dog")),
            },
        ).append(
            {
                "x": x,
                "name": [f"{at}" for at in x],
                "picture": np.repeat(x % 251, 1024).reshape(-1, 32, 32).astype("u1"),
                "label": x % 2,
            },
            page_bytes="64KiB",
        )
    return made


def run(python: Path, repo: tr.Repository, script: str, *words: str, cwd: Path) -> Any:
    home = cwd / "home"
    home.mkdir()
    out = run_client(
        python, _BEGIN + script + _END, repo.url, *words, environment={}, cwd=home, seconds=400
    )
    (line,) = (each for each in out.splitlines() if each.startswith("TOLD"))
    return json.loads(line.removeprefix("TOLD"))


_READING = """
def source(dataset=photos):
    return ray.data.read_datasource(tensorrepo.ray.Source(dataset), override_num_blocks=5)

told["rows"] = source().count()
told["x"] = [row["x"] for row in source().select_columns(["x"]).iter_rows()]
some = source().filter(expr=(col("x") >= 1000) & (col("x") < 1010)).select_columns(["name"])
told["plan"] = some.explain() or ""
told["names"] = [row["name"] for row in some.iter_rows()]
both = source().filter(expr=(col("label") == 1) & (col("x") < 20))
told["shape"] = list(np.asarray(both.take_batch(20)["picture"]).shape)
told["pictures"] = [int(np.asarray(row["picture"])[3, 3]) for row in both.iter_rows()]
chosen = photos.filter("x % 1000 == 7").select(["x"])
told["selected"] = [row["x"] for row in source(chosen).iter_rows()]
told["none"] = source().filter(expr=col("x") > 10**6).count()
sink = tensorrepo.ray.Sink(repo, "main", "sums", derived_from=photos)
mapped = source().map_batches(
    lambda batch: {"x": batch["x"], "sum": batch["picture"].sum(axis=(1, 2))}, batch_format="numpy"
)
mapped.write_datasink(sink)
told["commit"] = sink.commit.digest
again = tensorrepo.ray.Sink(repo, "main", "photos", message="more of them")
source(photos.head(100)).write_datasink(again)
told["again"] = again.commit.digest
"""


def test_a_dataset_is_read_and_written(python: Path, repo: tr.Repository, tmp_path: Path) -> None:
    told = run(python, repo, _READING, cwd=tmp_path)
    assert told["rows"] == ROWS
    assert told["x"] == list(range(ROWS))
    assert told["names"] == [f"{at}" for at in range(1000, 1010)]
    assert told["shape"] == [10, 32, 32]
    assert told["pictures"] == list(range(1, 20, 2))
    assert told["selected"] == [7, 1007, 2007, 3007]
    assert told["none"] == 0
    sums = repo.dataset("sums", ref=told["commit"])
    assert sums["x"][:].tolist() == list(range(ROWS))
    assert sums["sum"][:].tolist() == (np.arange(ROWS) % 251 * 1024).tolist()
    assert "datasets/photos" in repo.lineage("datasets/sums").ancestors().paths
    photos = repo.dataset("photos")
    assert len(photos) == ROWS + 100
    assert photos["name"][ROWS:] == [f"{at}" for at in range(100)]
    assert repo.log()[0].commit.message == "more of them"
    assert not repo.context.core.log.refresh().state.leases


_KILLED = """
chance = np.random.default_rng(int(sys.argv[2]))
fates = {at: ["over rows", "after it stored", ""][chance.integers(3)] for at in range(8)}
marks = Path.home()

def once(number, fate):
    mark = marks / f"{number} {fate}"
    if fates[number] == fate and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def work(batch):
    number = int(batch["x"][0]) * 8 // 4000
    once(number, "over rows")
    return {"x": batch["x"], "double": batch["x"] * 2}

class Killed(tensorrepo.ray.Sink):
    def write(self, blocks, ctx):
        part = super().write(blocks, ctx)
        once(ctx.task_idx, "after it stored")
        return part

def write(branch, sink_class):
    repo.create_branch(branch)
    sink = sink_class(repo, branch, "doubled", key="one")
    return sink

killed = write("killed", Killed)
source = tensorrepo.ray.Source(photos.select(["x", "picture"]))
ray.data.read_datasource(source, override_num_blocks=8).map_batches(
    work, batch_format="numpy", batch_size=None
).write_datasink(killed)
told["kills"] = len(list(marks.glob("* *")))
told["expected"] = sum(bool(fate) for fate in fates.values())
told["killed"] = repo.dataset("doubled", ref="killed").digest

class Alone:
    def __init__(self, number):
        self.task_idx = number

alone = write("alone", tensorrepo.ray.Sink)
alone.on_write_start()
import pyarrow as pa
parts = []
for number, task in enumerate(source.get_read_tasks(8)):
    tables = [pa.table({"x": t["x"], "double": pa.array(t["x"].to_numpy() * 2)}) for t in task()]
    parts.append(alone.write(tables, Alone(number)))
from ray.data.datasource import WriteResult
alone.on_write_complete(WriteResult(0, 0, parts))
told["alone"] = repo.dataset("doubled", ref="alone").digest
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_workers_that_are_killed_at_random_give_the_bytes_of_one_process(
    python: Path, repo: tr.Repository, tmp_path: Path, seed: int
) -> None:
    told = run(python, repo, _KILLED, f"{seed}", cwd=tmp_path)
    assert told["kills"] == told["expected"] > 0
    assert told["killed"] == told["alone"]
    doubled = repo.dataset("doubled", ref="killed")
    assert doubled["double"][:].tolist() == list(range(0, 2 * ROWS, 2))

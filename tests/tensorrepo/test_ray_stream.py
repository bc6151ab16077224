"""Streams whose batches workers of Ray make, on this machine, in a client's environment."""

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
import itertools, json, logging, os, signal, sys, time, warnings
from pathlib import Path
import numpy as np
import ray
import tensorrepo as tr

url = sys.argv[1]
ray.init(num_cpus=6, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
photos = tr.open(url).dataset("photos")
told = {}
WORKERS = tr.Loading(workers="ray", processes=4)

def rows(batches):
    return [[batch.position, batch.rows.tolist(), batch["x"].tolist()] for batch in batches]
"""
_END = """
print("TOLD" + json.dumps(told))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def python() -> Path:
    return client_python("ray[data]>=2.60", ours=True)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    made = tr.init(tmp_path_factory.mktemp("ray") / "store", author="Ann <ann@example.org>")
    x = np.arange(ROWS)
    with made.transaction(message="photos") as tx:
        columns = {"x": "int64", "name": tr.Text(), "picture": tr.Tensor("u1", (32, 32))}
        tx.create_dataset("photos", columns=columns).append(
            {
                "x": x,
                "name": [f"{at}" for at in x],
                "picture": np.repeat(x % 251, 1024).reshape(-1, 32, 32).astype("u1"),
            },
            page_bytes="64KiB",
        )
    return made


def run(python: Path, repo: tr.Repository, script: str, *words: str, cwd: Path) -> Any:
    home = cwd / "home"
    home.mkdir()
    out = run_client(
        python, _BEGIN + script + _END, repo.url, *words, environment={}, cwd=home, seconds=500
    )
    (line,) = (each for each in out.splitlines() if each.startswith("TOLD"))
    return json.loads(line.removeprefix("TOLD"))


_KILLED = """
def work(batch):
    time.sleep(0.01)
    return {
        "position": batch.position,
        "rows": batch.rows,
        "x": batch["x"],
        "sum": batch["picture"].sum(axis=(1, 2), dtype="i8"),
        "name": batch["name"],
        "pid": os.getpid(),
    }

def seen(item):
    plain = {key: np.asarray(value).tolist() for key, value in item.items() if key != "pid"}
    return json.dumps(plain)

chance = np.random.default_rng(int(sys.argv[2]))
told["kills"] = told["differing"] = told["steps"] = 0
several = photos.stream(batch_size=32, seed=5, transform=work, loading=WORKERS)
one = photos.stream(batch_size=32, seed=5, transform=work)
pids = {}
while told["kills"] < 20:
    for step, (item, expected) in enumerate(zip(several, one, strict=True)):
        told["steps"] += 1
        told["differing"] += seen(item) != seen(expected)
        pids[step % 4] = item["pid"]
        if told["kills"] < 20 and step > 4 and chance.random() < 0.1:
            victim = pids[int(chance.integers(4))]
            try:
                os.kill(victim, signal.SIGKILL)
                told["kills"] += 1
            except ProcessLookupError:  # it was killed before, and another goes on
                pass
    told["states"] = several.state_dict() == one.state_dict()
told["rows"] = several.stats().rows
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_workers_that_are_killed_at_random_twenty_times_give_the_rows_of_one_process(
    python: Path, repo: tr.Repository, tmp_path: Path, seed: int
) -> None:
    told = run(python, repo, _KILLED, f"{seed}", cwd=tmp_path)
    assert told["kills"] == 20
    assert told["steps"] % (ROWS // 32) == 0
    assert told["differing"] == 0
    assert told["states"]
    assert told["rows"] >= ROWS


_ORDINARY = """
plain = photos.stream(batch_size=100, seed=3)
whole, second = rows(plain), rows(plain)
several = photos.stream(batch_size=100, seed=3, loading=WORKERS)
told["epochs"] = rows(several) == whole and rows(several) == second
told["batches"] = several.stats().batches

first = photos.stream(batch_size=100, seed=3, loading=WORKERS)
batches = iter(first)
begun = rows(itertools.islice(batches, 7))
rest = photos.stream(batch_size=100, loading=tr.Loading(workers="ray", processes=3))
rest.load_state_dict(first.state_dict())
batches.close()
told["resumed"] = begun + rows(rest) == whole

tensors = next(iter(photos.stream(batch_size=8, loading=tr.Loading(workers="ray"))))
tensors["x"][0] = 7  # what comes over may be changed
told["changed"] = int(tensors["x"][0])

share = tr.Ranks(rank=1, world_size=2)
mine = photos.stream(batch_size=100, seed=3, ranks=share, loading=WORKERS)
told["shares"] = rows(mine) == rows(photos.stream(batch_size=100, seed=3, ranks=share))

def failing(batch):
    if batch.position > 200:
        raise LookupError(f"no sense in {batch.position}")
    return batch.position

found = []
try:
    for position in photos.stream(batch_size=100, transform=failing, loading=WORKERS):
        found.append(position)
except LookupError as error:
    told["error"] = [str(error), "failing" in "".join(error.__notes__)]
told["found"] = found

slow = Path.home() / "slow"

def late(batch):
    if batch.position == 1000 and not slow.exists():
        slow.touch()
        time.sleep(200)
    return [batch.position, batch["x"].sum()]

began = time.monotonic()
overtaken = list(photos.stream(batch_size=100, seed=3, transform=late, loading=WORKERS))
told["seconds"] = time.monotonic() - began
told["overtaken"] = [int(total) for _, total in overtaken] == [sum(x) for _, _, x in whole]
told["slow"] = slow.exists()

lock = __import__("threading").Lock()
try:
    list(photos.stream(batch_size=100, transform=lambda batch: lock, loading=WORKERS))
except tr.InvalidInputError as error:
    told["refused"] = str(error)

def dying(batch):
    os.kill(os.getpid(), signal.SIGKILL)

try:
    list(photos.stream(batch_size=100, transform=dying, loading=WORKERS))
except tr.Error as error:
    told["dead"] = str(error)

with warnings.catch_warnings(record=True):
    both = tr.Mix([photos.stream(batch_size=64, seed=1, loading=WORKERS), photos.stream(
        batch_size=64, seed=2, loading=WORKERS)])
    plain = tr.Mix([photos.stream(batch_size=64, seed=1), photos.stream(batch_size=64, seed=2)])
    told["mixed"] = rows(both) == rows(plain)
"""


def test_order_batches_states_and_errors_are_those_of_one_process(
    python: Path, repo: tr.Repository, tmp_path: Path
) -> None:
    told = run(python, repo, _ORDINARY, cwd=tmp_path)
    assert told["epochs"]
    assert told["batches"] == ROWS // 100
    assert told["resumed"]
    assert told["changed"] == 7
    assert told["shares"]
    assert told["found"] == [100, 200]
    assert told["error"] == ["no sense in 300", True]
    assert told["slow"]
    assert told["overtaken"]
    assert told["seconds"] < 100
    assert "could not pass the work to the cluster" in told["refused"]
    assert "4 workers died of this step" in told["dead"]
    assert told["mixed"]

"""Transfer between repositories, against the link and against the log.

    python benchmarks/bench_transfer.py [case ...] [--folder DIR] [--rounds N] [--scale S]

``clone``: a model and files of 512 MiB x scale from an S3 server behind a link of 1 Gbit/s and
20 ms. ``push``: nothing new to a repository with 1,000 branches, and one commit, within a running
process. ``difference``: one changed file of a commit with 100,000.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import link
from harness import MIB, Case, Options, ratio, run, take_turns

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import LocalState, RepositoryCore, create_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.transfer.exchange import clone as clone_repository
from tensorrepo.repo.transfer.exchange import push as push_refs
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions

AUTHOR = "Bench <bench@example.org>"
MBIT = 1000
LATENCY_MS = 20.0
PACK_BYTES = 64 * MIB
BRANCHES = 1000
FILES = 100_000


def clone(folder: Path, options: Options) -> dict[str, Any]:
    """Packs of 64 MiB, and as many bytes in chunks of 256 KiB, over the link."""
    source = repository(LocalBackend(folder / "s3" / "bucket" / "team"))
    packs = max(1, int(4 * options.scale))
    chance = random.Random(7)
    content = {f"files/pack{n}": chance.randbytes(PACK_BYTES) for n in range(packs)}
    content |= {f"files/c{n}": chance.randbytes(256 << 10) for n in range(256 * packs)}
    commit(source, content)
    told: dict[str, list[dict[str, Any]]] = {"plain": [], "clone": []}
    with link.namespace(MBIT) as inside, link.server(folder / "s3", LATENCY_MS, inside) as url:

        def side(how: str) -> float:
            script = str(Path(__file__).parent / "transfer_clone.py")
            command = [*inside, sys.executable, script, url, how, str(folder / "copy")]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            shutil.rmtree(folder / "copy", ignore_errors=True)
            told[how].append(json.loads(done.stdout))
            return float(told[how][-1]["seconds"])

        seconds = take_turns(
            options.rounds, {"plain": lambda: side("plain"), "clone": lambda: side("clone")}
        )
    size = told["clone"][0]["bytes"]
    best = statistics.median(seconds["clone"])
    return {
        "mib": size >> 20,
        "bounded": bool(inside),
        "clone_s": round(best, 2),
        "plain_s": round(statistics.median(seconds["plain"]), 2),
        "of_link": round(size * 8 / best / (MBIT * 1e6), 2),
        "of_plain": ratio(seconds["plain"], seconds["clone"]),
        "cpu_s": round(statistics.median(one["cpu_seconds"] for one in told["clone"]), 2),
        "peak_mib": max(one["peak_mib"] for one in told["clone"]),
    }


def push(folder: Path, options: Options) -> dict[str, Any]:
    """Pushes within a running process: nothing new, and one small commit."""
    here = repository(LocalBackend(folder / "here"))
    there = repository(LocalBackend(folder / "there"))
    tip = commit(here, {f"files/{n}": b"%d" % n for n in range(100)})
    for number in range(int(BRANCHES * options.scale)):
        refs.create_branch(here, f"b{number}", tip, actor=AUTHOR)
    how = TransferOptions(AUTHOR, folder / "parts")
    names = [ref.removeprefix("heads/") for ref in here.log.refresh().state.refs]
    push_refs(here, there, names, how)
    found: dict[str, list[float]] = {"nothing": [], "one": []}
    for number in range(options.rounds):
        found["nothing"].append(timed(here, there, names, how))
        commit(here, {"files/1": b"changed %d" % number})
        found["one"].append(timed(here, there, ["main"], how))
    return {f"{name}_ms": round(statistics.median(each) * 1e3, 1) for name, each in found.items()}


def difference(folder: Path, options: Options) -> dict[str, Any]:
    """One changed file of many: reading what the change is, and moving it."""
    here = repository(LocalBackend(folder / "here"))
    there = repository(LocalBackend(folder / "there"))
    commit(here, {f"files/{n % 300}/{n}": b"%d" % n for n in range(int(FILES * options.scale))})
    how = TransferOptions(AUTHOR, folder / "parts")
    began = time.perf_counter()
    _, report = clone_repository(HistorySource.of(here), there, "origin", how)
    whole = time.perf_counter() - began
    found = []
    for number in range(options.rounds):
        commit(here, {"files/7/7": b"changed %d" % number})
        found.append(timed(here, there, ["main"], how))
    return {
        "objects": report.totals.objects,
        "clone_objects_per_s": round(report.totals.objects / whole),
        "one_changed_ms": round(statistics.median(found) * 1e3, 1),
    }


def repository(backend: Backend) -> RepositoryCore:
    return create_repository(backend, drivers={}, local=LocalState())


def commit(repository: RepositoryCore, files: dict[str, bytes]) -> Any:
    with begin(repository, "main") as transaction:
        for path, content in files.items():
            link = transaction.objects.put(Kind.BLOB, content)
            transaction.stage(path, Entry(Kind.BLOB, link.digest))
        landed = transaction.commit("change", author=AUTHOR)
    assert landed is not None
    return landed.digest


def timed(
    here: RepositoryCore, there: RepositoryCore, names: list[str], how: TransferOptions
) -> float:
    began = time.perf_counter()
    push_refs(here, there, names, how)
    return time.perf_counter() - began


CASES: dict[str, Case] = {"clone": clone, "push": push, "difference": difference}

if __name__ == "__main__":
    run(CASES, "Measure transfers.", rounds=3)

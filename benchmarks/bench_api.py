"""The service: commits of many clients, bytes down and up against nginx, streams, pages, starting.

    python benchmarks/bench_api.py [case ...] [--folder DIR] [--rounds N] [--scale S]

Server and load on the same machine. ``commits``: 8 processes, one branch, files of 1 KiB under
paths of their own, 10 s x scale. ``download`` and ``upload``: an object of 2 GiB x scale, one
and 16 connections, and the most anonymous memory of the service meanwhile; ``uploads``: 16 at
once, 32 GiB of disk x scale; ``original``: as ``download``, of a model's file; ``decoded``: of one
that is stored as a difference, beside `model.load`. A client reads from its socket and drops what
came. ``stream``: shuffled batches from an S3 server with a latency, straight, through the service,
and by addresses that the service signs. ``page``: all HTML of a dataset of 10 million rows x scale.
``start``: from `tensorrepo serve` to its first answer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from api_cases.first_answers import page, start
from api_cases.model_files import decoded, original
from api_cases.served import Server, served
from api_cases.stored_objects import API, REPOSITORY, download, upload, uploads
from api_cases.training import stream
from harness import Case, Options, run

HERE = Path(__file__).resolve().parent
CLIENTS = 8
SECONDS = 10.0


def commits(folder: Path, options: Options) -> dict[str, Any]:
    """Commits that were acknowledged, and that all of them are in the history."""
    seconds = SECONDS * options.scale
    with served(folder / "service") as server, server.administrator() as client:
        made = client.post("/api/v1/repositories", json={"name": REPOSITORY})
        made.raise_for_status()
        before = server.cpu_seconds()
        rates = [round_of_commits(server, folder, seconds) for _ in range(options.rounds)]
        cpu = server.cpu_seconds() - before
        tip = client.get(f"{API}/commits/main").json()
        records = client.get(f"{API}/log", params={"after": 0}).json()["records"]
    total = sum(done for done, _ in rates)
    return {
        "per_second": round(statistics.median(done / took for done, took in rates)),
        "commits": total,
        "server_cpu_ms": round(cpu / total * 1e3, 2),
        "lost": total - tip["generation"],
        "records": None if records is None else len(records),
    }


def round_of_commits(server: Server, folder: Path, seconds: float) -> tuple[int, float]:
    """Commits of all clients, and in how long."""
    script = str(HERE / "api_cases" / "committer.py")
    environment = os.environ | {"TENSORREPO_TOKEN": server.token, "HOME": str(folder)}
    clients = [
        subprocess.Popen(
            [sys.executable, script, f"{server.url}/{REPOSITORY}", str(number), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(CLIENTS)
    ]  # fmt: skip
    for each in clients:
        assert each.stdout is not None, "it is a pipe"
        each.stdout.readline()
    began = time.monotonic()
    for each in clients:
        assert each.stdin is not None, "it is a pipe"
        each.stdin.write("go\n")
        each.stdin.flush()
    done = sum(int(each.communicate()[0].split()[-1]) for each in clients)
    return done, time.monotonic() - began


CASES: dict[str, Case] = {
    "commits": commits,
    "download": download,
    "upload": upload,
    "uploads": uploads,
    "original": original,
    "decoded": decoded,
    "stream": stream,
    "page": page,
    "start": start,
}

if __name__ == "__main__":
    run(CASES, __doc__ or "", rounds=3)

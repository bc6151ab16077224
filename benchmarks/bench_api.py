"""The service: commits of many clients, bytes down and up against nginx, streams, pages, starting.

    python benchmarks/bench_api.py [case ...] [--folder DIR] [--rounds N] [--scale S]

Server and load on the same machine. ``commits``: 8 processes, one branch, files of 1 KiB under
paths of their own, 10 s x scale; ``empty``: the same clients with a server that answers at once,
which is the limit; ``floor``: their groups' files and syncs alone, one group after the other.
``download`` and ``upload``: an object of 2 GiB x scale, one and 16 connections,
and the most anonymous memory of the service meanwhile; ``uploads``: 16 at once, 32 GiB of disk x
scale; ``original``: as ``download``, of a model's file; ``decoded``: of one that is stored as a
difference, beside `model.load`. A client reads from its socket and drops what came. ``stream``:
shuffled batches from an S3 server with a latency, straight, through the service, and by addresses
that the service signs. ``page``: all HTML of a dataset of 10 million rows x scale. ``start``: from
`tensorrepo serve` to its first answer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from api_cases.first_answers import page, start
from api_cases.group_syncs import commits_per_second
from api_cases.model_files import decoded, original
from api_cases.served import Server, answering, served
from api_cases.stored_objects import API, REPOSITORY, download, upload, uploads
from api_cases.training import stream
from harness import Case, Options, run

HERE = Path(__file__).resolve().parent
CLIENTS = 8
SECONDS = 10.0


def commits(folder: Path, options: Options) -> dict[str, Any]:
    """Commits that were acknowledged, and that all of them are in the history.

    The first round is not measured: in it the service builds its routes, and the paths come to be.
    """
    seconds = SECONDS * options.scale
    with served(folder / "service") as server, server.administrator() as client:
        made = client.post("/api/v1/repositories", json={"name": REPOSITORY})
        made.raise_for_status()
        url = f"{server.url}/{REPOSITORY}"
        first, *rounds = [a_round(server, url, folder, seconds) for _ in range(1 + options.rounds)]
        tip = client.get(f"{API}/commits/main").json()
        records = client.get(f"{API}/state").json()["generation"]
    total = sum(CLIENTS + each.done for each in (first, *rounds))  # each client began with one
    return told_of(rounds) | {
        "commits": total,
        "lost": total - tip["generation"],
        "records": records,
    }


def empty(folder: Path, options: Options) -> dict[str, Any]:
    """The limit of `commits`: as many bytes, from the same clients, to a server that answers."""
    with answering() as server:
        rounds = [
            a_round(server, server.url, folder, SECONDS * options.scale, "empty")
            for _ in range(options.rounds)
        ]
    return told_of(rounds)


def floor(folder: Path, options: Options) -> dict[str, Any]:
    """What the disk allows `commits`, if nothing were computed and no group overlapped another."""
    seconds = SECONDS * options.scale
    rounds = [commits_per_second(folder / str(each), seconds) for each in range(options.rounds)]
    return {"per_second": round(statistics.median(rounds))}


@dataclass(frozen=True)
class Round:
    """What all clients did together: how often, in how long, with how much of the processor."""

    done: int
    seconds: float
    client_seconds: float
    server_seconds: float


def told_of(rounds: list[Round]) -> dict[str, float]:
    """What each second brought, and what each time cost both sides."""
    done = sum(each.done for each in rounds)
    client = sum(each.client_seconds for each in rounds)
    server = sum(each.server_seconds for each in rounds)
    return {
        "per_second": round(statistics.median(each.done / each.seconds for each in rounds)),
        "client_cpu_ms": round(client / done * 1e3, 2),
        "server_cpu_ms": round(server / done * 1e3, 2),
    }


def a_round(server: Server, url: str, folder: Path, seconds: float, *words: str) -> Round:
    """Let all clients do what they do, at once."""
    script = str(HERE / "api_cases" / "committer.py")
    environment = os.environ | {"TENSORREPO_TOKEN": server.token, "HOME": str(folder)}
    clients = [
        subprocess.Popen(
            [sys.executable, script, url, str(number), str(seconds), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(CLIENTS)
    ]  # fmt: skip
    for each in clients:
        assert each.stdout is not None, "it is a pipe"
        each.stdout.readline()
    began, before = time.monotonic(), server.cpu_seconds()
    for each in clients:
        assert each.stdin is not None, "it is a pipe"
        each.stdin.write("go\n")
        each.stdin.flush()
    told = [each.communicate()[0].split()[-2:] for each in clients]
    took, cpu = time.monotonic() - began, server.cpu_seconds() - before
    done, own = sum(int(each) for each, _ in told), sum(float(each) for _, each in told)
    return Round(done, took, own, cpu)


CASES: dict[str, Case] = {
    "commits": commits,
    "empty": empty,
    "floor": floor,
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

"""The service's metadata: versions, aliases, points of metrics, and streams of them.

    python benchmarks/bench_api_metadata.py [case ...] [--peers .bench/bin/python] [--scale S]

Server and load on the same machine, the load made by ``wrk``: one thread, 8 connections. ``reads``
asks for a version and an alias of a registered model, 10 s x scale each, with a token whose grants
are asked; with ``--peers`` it asks MLflow's own server, of 4 workers and SQLite, for the same in
turns (an environment with mlflow beside that python). ``log`` sends 1,000 points at once, by our
route, by that of MLflow, and to MLflow's own server.
``streams`` opens 1,000 event streams, and measures reads while they wait.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from api_cases.served import Server, served
from harness import Case, Options, Skipped, run

import tensorrepo as tr

CONNECTIONS = 8
SECONDS = 10.0
STREAMS = 1000
POINTS = 1000
REPOSITORY = "bench/nets"
API = f"/api/v1/repositories/{REPOSITORY}/-"
_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_P99 = re.compile(r"99%\s+([\d.]+)(us|ms|s)")
_FAILED = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def reads(folder: Path, options: Options) -> dict[str, Any]:
    """Requests a second for a version and for an alias, and MLflow's beside them."""
    seconds = SECONDS * options.scale
    found: dict[str, list[float]] = {}
    with service_with_a_model(folder / "service") as server, mlflow(folder, options) as peer:
        paths = {
            "version": f"{server.url}{API}/registry/net/-/versions/1",
            "alias": f"{server.url}{API}/registry/net/-/aliases/live",
        }
        if peer is not None:
            base = f"{peer}/api/2.0/mlflow"
            paths["mlflow_version"] = f"{base}/model-versions/get?name=net&version=1"
            paths["mlflow_alias"] = f"{base}/registered-models/alias?name=net&alias=live"
        before = server.cpu_seconds()
        asked = 0.0
        for _ in range(options.rounds):
            for name, url in paths.items():
                rate, _ = load(url, server.token, seconds)
                found.setdefault(name, []).append(rate)
                asked += 0 if name.startswith("mlflow") else rate * seconds
        cpu = server.cpu_seconds() - before
    told: dict[str, Any] = {name: round(statistics.median(all_)) for name, all_ in found.items()}
    told["cpu_us"] = round(cpu / asked * 1e6)
    if "mlflow_version" in told:
        told["ratio"] = round(told["version"] / told["mlflow_version"], 1)
    return told


def log(folder: Path, options: Options) -> dict[str, Any]:
    """Milliseconds until 1,000 points of 10 metrics are durable."""
    points = [{"metric": f"m{at % 10}", "step": at, "value": at / 7} for at in range(POINTS)]
    batch = [
        {"key": f"m{at % 10}", "step": at, "value": at / 7, "timestamp": 1_700_000_000_000 + at}
        for at in range(POINTS)
    ]
    with service_with_a_model(folder / "service") as server, mlflow(folder, options) as peer:
        with administrator(server) as client:
            client.post(f"{API}/runs", json={"name": "exp"}).raise_for_status()
            url, body = f"{API}/runs/exp/points", {"points": points}
            ours = [milliseconds(client, url, body) for _ in range(10 * options.rounds)]
            base = f"/{REPOSITORY}/api/2.0/mlflow/runs"
            made = client.post(f"{base}/create", json={"experiment_id": "0"})
            of_run = made.json()["run"]["info"]["run_id"]
            url, body = f"{base}/log-batch", {"run_id": of_run, "metrics": batch}
            same = [milliseconds(client, url, body) for _ in range(10 * options.rounds)]
        told: dict[str, Any] = {
            "ms": round(statistics.median(ours), 1),
            "by_mlflow_route_ms": round(statistics.median(same), 1),
        }
        if peer is not None:
            with httpx.Client(base_url=peer, timeout=60) as client:
                made = client.post("/api/2.0/mlflow/runs/create", json={"experiment_id": "0"})
                of_run = made.json()["run"]["info"]["run_id"]
                url, body = "/api/2.0/mlflow/runs/log-batch", {"run_id": of_run, "metrics": batch}
                theirs = [milliseconds(client, url, body) for _ in range(10 * options.rounds)]
            told["mlflow_ms"] = round(statistics.median(theirs), 1)
            told["ratio"] = round(told["mlflow_ms"] / told["by_mlflow_route_ms"], 1)
    return told


def streams(folder: Path, options: Options) -> dict[str, Any]:
    """Reads while 1,000 streams of a run's metrics wait, and when what is logged reaches all."""
    with service_with_a_model(folder / "service") as server:
        with administrator(server) as client:
            client.post(f"{API}/runs", json={"name": "exp"}).raise_for_status()
        return asyncio.run(_streams(server, SECONDS * options.scale))


async def _streams(server: Server, seconds: float) -> dict[str, Any]:
    url, headers = f"{server.url}{API}/runs/exp/events", {"Authorization": f"Bearer {server.token}"}
    limits = httpx.Limits(max_connections=STREAMS + 10)
    arrived: list[float] = []
    opened = asyncio.Event()
    count = 0

    async def listen(client: httpx.AsyncClient) -> None:
        nonlocal count
        async with client.stream("GET", url, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("retry"):
                    count += 1
                    if count == STREAMS:
                        opened.set()
                if line == "event: points":
                    arrived.append(time.monotonic())
                    return

    async with httpx.AsyncClient(timeout=120, limits=limits) as client:
        tasks = [asyncio.create_task(listen(client)) for _ in range(STREAMS)]
        await asyncio.wait_for(opened.wait(), 120)
        await asyncio.sleep(1)
        path = f"{server.url}{API}/registry/net/-/versions/1"
        rate, p99 = await asyncio.to_thread(load, path, server.token, seconds, 2)
        body = {"points": [{"metric": "loss", "value": 1.0}]}
        began = time.monotonic()
        await client.post(f"{server.url}{API}/runs/exp/points", json=body, headers=headers)
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        threads = len(os.listdir(f"/proc/{server.pid}/task"))
    return {
        "streams": STREAMS,
        "reads_per_second": round(rate),
        "p99_ms": p99,
        "all_told_s": round(max(arrived) - began, 2),
        "server_threads": threads,
        "server_mib": server.anonymous_mib(),
    }


@contextmanager
def service_with_a_model(data: Path) -> Iterator[Server]:
    """A service with a repository, in which a model has a version and an alias."""
    with served(data) as server:
        with administrator(server) as client:
            client.post("/api/v1/repositories", json={"name": REPOSITORY}).raise_for_status()
        repo = tr.open(str(data / "repositories" / REPOSITORY), author="Ann <ann@example.org>")
        with repo.transaction(message="net") as tx:
            tx.save_model("net", {"w": np.zeros((64, 64), np.float32)}, metrics={"accuracy": 0.9})
        repo.registry.register("net", "main:models/net", alias="live")
        yield server


@contextmanager
def mlflow(folder: Path, options: Options) -> Iterator[str | None]:
    """MLflow's server with a model that has a version and an alias; None without the peer."""
    command = None if options.peers is None else Path(options.peers).parent / "mlflow"
    if command is None or not command.exists():
        yield None
        return
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    home = folder / "mlflow"
    home.mkdir()
    words = [
        "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "4",
        "--backend-store-uri", f"sqlite:///{home}/mlflow.db",
        "--artifacts-destination", str(home / "artifacts"),
    ]  # fmt: skip
    with subprocess.Popen(
        [str(command), *words], cwd=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            with httpx.Client(base_url=url, timeout=60) as client:
                _register_in_mlflow(client, home)
            yield url
        finally:
            process.terminate()


def _register_in_mlflow(client: httpx.Client, home: Path) -> None:
    stop_at = time.monotonic() + 180
    while True:
        try:
            client.get("/health").raise_for_status()
            break
        except httpx.HTTPError:
            assert time.monotonic() < stop_at, "mlflow does not start"
            time.sleep(0.5)
    base = "/api/2.0/mlflow"
    client.post(f"{base}/registered-models/create", json={"name": "net"}).raise_for_status()
    source = {"name": "net", "source": f"mlflow-artifacts:/{home.name}"}
    client.post(f"{base}/model-versions/create", json=source).raise_for_status()
    alias = {"name": "net", "alias": "live", "version": "1"}
    client.post(f"{base}/registered-models/alias", json=alias).raise_for_status()


def load(
    url: str, token: str, seconds: float, connections: int = CONNECTIONS
) -> tuple[float, float]:
    """Requests a second that `wrk` gets answered by 200, and milliseconds that 99% wait."""
    if shutil.which("wrk") is None:
        raise Skipped("wrk is not installed: apt-get install wrk")
    shown = subprocess.run(
        [
            "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", "--latency",
            "-H", f"Authorization: Bearer {token}", url,
        ],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rate, p99, failed = _RATE.search(shown), _P99.search(shown), _FAILED.search(shown)
    assert rate is not None, shown
    assert p99 is not None, shown
    assert failed is None, shown
    return float(rate[1]), float(p99[1]) * _UNITS[p99[2]]


def milliseconds(client: httpx.Client, url: str, body: object) -> float:
    content = json.dumps(body).encode()
    began = time.perf_counter()
    answer = client.post(url, content=content, headers={"Content-Type": "application/json"})
    took = (time.perf_counter() - began) * 1e3
    answer.raise_for_status()
    return took


def administrator(server: Server) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


CASES: dict[str, Case] = {"reads": reads, "log": log, "streams": streams}

if __name__ == "__main__":
    run(CASES, __doc__ or "", rounds=3)

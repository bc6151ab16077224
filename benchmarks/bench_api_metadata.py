"""The service's metadata: versions, aliases, points of metrics, and streams of them.

    python benchmarks/bench_api_metadata.py [case ...] [--peers .bench/bin/python] [--scale S]

Server and load on the same machine, the load made by ``wrk``: one thread, 8 connections. ``reads``
asks for a version and an alias of a registered model, 10 s x scale each, with a token whose grants
are asked, the audit log on; with ``--peers`` it asks MLflow's own server, of 4 workers and SQLite,
for the same in turns (an environment with mlflow beside that python). Then it asks at half of that
rate, by 32 connections that pause, for the longest waits. ``reads_s3`` is the same of a repository
in an S3 server with a latency of 20 ms. ``log`` sends 1,000 points at once, by our route, by that
of MLflow, and to MLflow's own server. ``streams`` opens 1,000 event streams and 100 downloads at
10 KB/s, and measures reads while they wait.
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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from api_cases.served import Server, served
from api_cases.slow_readers import slow_readers
from api_cases.stored_objects import large_object, send
from harness import Case, Options, Skipped, ratio, run, slow_s3

import tensorrepo as tr
from tensorrepo.repo.objects.incarnations import object_key

HERE = Path(__file__).resolve().parent
CONNECTIONS = 8
PACED = 32
LATENCY_MS = 20
_ANSWER_MS = 0.5  # that a connection waits for an answer beside its pause, about
SECONDS = 10.0
STREAMS = 1000
DOWNLOADS = 100
DOWNLOAD_BYTES = 64 << 20
POINTS = 1000
REPOSITORY = "bench/nets"
API = f"/api/v1/repositories/{REPOSITORY}/-"
_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_P99 = re.compile(r"99%\s+([\d.]+)(us|ms|s)")
_FAILED = re.compile(r"Non-2xx or 3xx responses: (\d+)")
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


def reads(folder: Path, options: Options) -> dict[str, Any]:
    """Requests a second for a version and for an alias, and MLflow's beside them."""
    with service_with_a_model(folder / "service") as server:
        return measured_reads(server, folder, options) | {"goal": "ratios >= 10, p99 < 20 ms"}


def reads_s3(folder: Path, options: Options) -> dict[str, Any]:
    """The same of a repository that lies in S3, every answer of which takes 20 ms."""
    with slow_s3(folder, LATENCY_MS) as (url, environment):
        access = {
            "endpoint": environment["AWS_ENDPOINT_URL"], "key": "bench", "secret": "bench",
            "region": environment["AWS_REGION"],
        }  # fmt: skip
        storage = f"{url}/repositories"
        with served(folder / "service", environment, storage=storage) as server:
            make_model(server, f"{storage}/{REPOSITORY}", access)
            return measured_reads(server, folder, options) | {"goal": "ratios >= 5, p99 < 20 ms"}


def measured_reads(server: Server, folder: Path, options: Options) -> dict[str, Any]:
    """Rates of both, in turns; then the waits of ours at half of its rate."""
    seconds = SECONDS * options.scale
    rates: dict[str, list[float]] = {}
    with mlflow(folder, options) as peer:
        paths = {
            "version": f"{server.url}{API}/registry/net/-/versions/1",
            "alias": f"{server.url}{API}/registry/net/-/aliases/live",
        }
        if peer is not None:
            base = f"{peer}/api/2.0/mlflow"
            paths["mlflow_version"] = f"{base}/model-versions/get?name=net&version=1"
            paths["mlflow_alias"] = f"{base}/registered-models/alias?name=net&alias=live"
        before, asked = server.cpu_seconds(), 0.0
        for _ in range(options.rounds):
            for name, url in paths.items():
                rate, _ = load(url, server.token, seconds)
                rates.setdefault(name, []).append(rate)
                asked += 0 if name.startswith("mlflow") else rate * seconds
        cpu = server.cpu_seconds() - before
    peak = statistics.median(rates["version"])
    half = [
        load(paths["version"], server.token, seconds, PACED, per_second=peak / 2)
        for _ in range(options.rounds)
    ]
    told: dict[str, Any] = {name: round(statistics.median(each)) for name, each in rates.items()}
    told["cpu_us"] = round(cpu / asked * 1e6)
    told["half_rate"] = round(statistics.median(rate for rate, _ in half))
    told["half_p99_ms"] = round(statistics.median(p99 for _, p99 in half), 1)
    if peer is not None:
        told["ratio"] = ratio(rates["version"], rates["mlflow_version"])
        told["ratio_alias"] = ratio(rates["alias"], rates["mlflow_alias"])
    return told


def log(folder: Path, options: Options) -> dict[str, Any]:
    """Milliseconds until 1,000 points of 10 metrics are durable."""
    points = [{"metric": f"m{at % 10}", "step": at, "value": at / 7} for at in range(POINTS)]
    batch = [
        {"key": f"m{at % 10}", "step": at, "value": at / 7, "timestamp": 1_700_000_000_000 + at}
        for at in range(POINTS)
    ]
    with service_with_a_model(folder / "service") as server, mlflow(folder, options) as peer:
        with server.administrator() as client:
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
    return told | {"goal": "ratio >= 5"}


def streams(folder: Path, options: Options) -> dict[str, Any]:
    """Reads while 1,000 streams of metrics wait and 100 downloads go on slowly."""
    with service_with_a_model(folder / "service") as server:
        with server.administrator() as client:
            client.post(f"{API}/runs", json={"name": "exp"}).raise_for_status()
            encoded = large_object(DOWNLOAD_BYTES)
            send(client, encoded, API)
        key = object_key(encoded.link.digest, 0)
        with slow_readers(server, f"{API}/store/{key}", DOWNLOADS) as got:
            told = asyncio.run(_streams(server, SECONDS * options.scale))
            told["slow_kb_per_s"] = round(got.per_second() / 1e3 / DOWNLOADS, 1)
    return told | {"downloads": DOWNLOADS, "goal": "p99 < 50 ms"}


async def _streams(server: Server, seconds: float) -> dict[str, Any]:
    opened, arrived = asyncio.Semaphore(0), list[float]()
    tasks = [asyncio.create_task(_listen(server, opened, arrived)) for _ in range(STREAMS)]
    for _ in range(STREAMS):
        await asyncio.wait_for(opened.acquire(), 120)
    await asyncio.sleep(1)
    path = f"{server.url}{API}/registry/net/-/versions/1"
    rate, p99 = await asyncio.to_thread(load, path, server.token, seconds, 2)
    body = {"points": [{"metric": "loss", "value": 1.0}]}
    with server.administrator() as client:
        began = time.monotonic()
        await asyncio.to_thread(client.post, f"{API}/runs/exp/points", json=body)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    return {
        "streams": STREAMS,
        "reads_per_second": round(rate),
        "p99_ms": p99,
        "all_told_s": round(max(arrived) - began, 2),
        "server_threads": len(os.listdir(f"/proc/{server.pid}/task")),
        "server_mib": server.anonymous_mib(),
    }


async def _listen(server: Server, opened: asyncio.Semaphore, arrived: list[float]) -> None:
    """Open a stream of events, and note when points come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"GET {API}/runs/exp/events HTTP/1.1\r\nHost: x\r\n"
    writer.write(f"{head}Authorization: Bearer {server.token}\r\n\r\n".encode())
    while line := await reader.readline():
        if line.startswith(b"retry"):
            opened.release()
        if line.rstrip() == b"event: points":
            arrived.append(time.monotonic())
            break
    assert line, "a stream ended before points came"
    writer.close()


@contextmanager
def service_with_a_model(data: Path) -> Iterator[Server]:
    """A service with a repository, in which a model has a version and an alias."""
    with served(data) as server:
        make_model(server, str(data / "repositories" / REPOSITORY), None)
        yield server


def make_model(server: Server, url: str, access: Mapping[str, str] | None) -> None:
    """Make the repository, which then lies at `url`, and what is asked for in it."""
    with server.administrator() as client:
        client.post("/api/v1/repositories", json={"name": REPOSITORY}).raise_for_status()
    repo = tr.open(url, author="Ann <ann@example.org>", storage_options=access)
    with repo.transaction(message="net") as tx:
        tx.save_model("net", {"w": np.zeros((64, 64), np.float32)}, metrics={"accuracy": 0.9})
    repo.registry.register("net", "main:models/net", alias="live")


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
                _register_in_mlflow(client)
            yield url
        finally:
            process.terminate()


def _register_in_mlflow(client: httpx.Client) -> None:
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
    source = {"name": "net", "source": "s3://bench/net"}  # it refuses local ones of no run
    client.post(f"{base}/model-versions/create", json=source).raise_for_status()
    alias = {"name": "net", "alias": "live", "version": "1"}
    client.post(f"{base}/registered-models/alias", json=alias).raise_for_status()


def load(
    url: str,
    token: str,
    seconds: float,
    connections: int = CONNECTIONS,
    *,
    per_second: float | None = None,
) -> tuple[float, float]:
    """Requests a second that `wrk` gets answered by 200, and milliseconds that 99% wait.

    With `per_second` connections pause between requests so that about so many are asked.
    """
    if shutil.which("wrk") is None:
        raise Skipped("wrk is not installed: apt-get install wrk")
    paced: list[str] = []
    if per_second is not None:
        pause_ms = max(1.0, connections / per_second * 1e3 - _ANSWER_MS)
        paced = ["-s", str(HERE / "api_cases" / "paced.lua"), url, "--", str(pause_ms)]
    shown = subprocess.run(
        [
            "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}", "--latency",
            "-H", f"Authorization: Bearer {token}", *(paced or [url]),
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


CASES: dict[str, Case] = {"reads": reads, "reads_s3": reads_s3, "log": log, "streams": streams}

if __name__ == "__main__":
    run(CASES, __doc__ or "", rounds=3)

"""First answers: the page of a large dataset, and that of a service that has just been started."""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from api_cases.served import served
from harness import Options

import tensorrepo
from tensorrepo.formats.dataset.schema.types import Text

NAME = "bench/rows"
ROWS = 10_000_000
_BATCH = 1_000_000
_UP_SECONDS = 5.0


def page(folder: Path, options: Options) -> dict[str, Any]:
    """Milliseconds of the whole HTML of a dataset's page: for the first time, and again.

    The service runs for some seconds by then, and has not opened the repository.
    """
    rows = round(ROWS * options.scale)
    _store(folder / "repository", rows)
    first, again = [], []
    for number in range(options.rounds):
        place = folder / f"service-{number}"
        repositories = {NAME: str(folder / "repository")}
        with served(place, repositories=repositories) as server, server.administrator() as client:
            client.get("/api/v1").raise_for_status()  # connected; nothing of it was read
            time.sleep(_UP_SECONDS)
            first.append(_milliseconds(client, rows))
            again += [_milliseconds(client, rows) for _ in range(10)]
    return {
        "rows": rows,
        "first_ms": round(statistics.median(first)),
        "again_ms": round(statistics.median(again), 1),
        "goal": "first < 300 ms",
    }


def _milliseconds(client: httpx.Client, rows: int) -> float:
    began = time.perf_counter()
    answer = client.get(f"/{NAME}/-/datasets/clicks")
    took = (time.perf_counter() - began) * 1e3
    answer.raise_for_status()
    assert f"{rows:,}" in answer.text, "the page says how many rows there are"
    return took


def _store(place: Path, rows: int) -> None:
    repository = tensorrepo.init(place, author="Bench <bench@example.org>")
    rng = np.random.default_rng(7)
    types = {"user": "int64", "price": "float32", "country": tensorrepo.ClassLabel(["de", "fr"])}
    with repository.transaction(message="Rows") as change:
        draft = change.create_dataset("clicks", columns=types | {"word": Text()})
        for at in range(0, rows, _BATCH):
            count = min(_BATCH, rows - at)
            draft.append(
                {
                    "user": np.arange(at, at + count),
                    "price": rng.standard_normal(count, dtype="f4"),
                    "country": rng.integers(0, 2, count),
                    "word": [f"w{one}" for one in rng.integers(0, 5000, count).tolist()],
                }
            )


def start(folder: Path, options: Options) -> dict[str, Any]:
    """Milliseconds from the command to its first answer: with a new folder, and with that again.

    One start goes before, which compiles what is not compiled: whoever installs a package has that.
    """
    with _started(folder / "service"):
        pass
    first, again = [], []
    for number in range(options.rounds):
        place = folder / f"service-{number}"
        with _started(place) as took:
            first.append(took)
        with _started(place) as took:
            again.append(took)
    return {
        "first_ms": round(statistics.median(first)),
        "again_ms": round(statistics.median(again)),
        "goal": "first < 2000 ms",
    }


@contextmanager
def _started(place: Path) -> Iterator[float]:
    """Milliseconds until `tensorrepo serve` answered."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["-m", "tensorrepo", "serve", "--data", str(place), "--port", str(port)]
    # With it every start compiles all modules, for nobody keeps what it made.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, env=kept) as process:
        try:
            _wait(port)
            yield (time.perf_counter() - began) * 1e3
        finally:
            process.terminate()


def _wait(port: int) -> None:
    stop_at = time.monotonic() + 60
    while time.monotonic() < stop_at:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port))) as link:
            link.sendall(b"GET /api/v1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            if link.recv(64).startswith(b"HTTP/1.1 200"):
                return
        time.sleep(0.005)
    raise AssertionError("the service does not answer")

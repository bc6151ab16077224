"""Shuffled batches from S3 behind a link with latency and a bounded bandwidth.

Server and reader are processes in a network namespace of their own, whose loopback is held to a
rate by the kernel (`tc tbf`) while the server holds the first byte of every answer back; both need
root, and without it the link is not bounded. Every reader begins cold, in a process and a folder of
its own: no metadata and no page was read before. Peers read the same rows from the same server in
their own formats, into an empty folder, with as many workers as there are cores.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Options
from link import namespace, server

import tensorrepo
from tensorrepo.formats.dataset.schema.schema import Tensor

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MIB = 1 << 20
BATCH = 256
PEERS = ("mosaic", "litdata")
PATIENCE_SECONDS = 180  # with a peer


@dataclass(frozen=True)
class Net:
    """A link, and the rows that cross it."""

    latency_ms: float
    mbit: int
    rows: int = 100_000
    shape: tuple[int, ...] = (32, 32, 3)

    @property
    def bytes_per_second(self) -> float:
        return self.mbit * 1e6 / 8


def measure(
    folder: Path, peers: str | None, *, latency_ms: float = 20, mbit: int = 1000, scale: float = 1.0
) -> dict[str, Any]:
    """One cold epoch, two with a cache of half the data, and one of each peer, over one link.

    Args:
        folder: an empty one.
        peers: the python of an environment with benchmarks/peers.txt; None: ours alone.
        latency_ms: before the first byte of every answer.
        mbit: a second, of the link.
        scale: of the number of rows.
    """
    net = Net(latency_ms, mbit, round(100_000 * scale))
    values = np.random.default_rng(7).integers(0, 256, (net.rows, *net.shape), np.uint8)
    bucket = folder / "server" / "bucket"
    bucket.mkdir(parents=True)
    _store(bucket / "ours", values)
    with ExitStack() as stack:
        inside = stack.enter_context(namespace(net.mbit))
        endpoint = stack.enter_context(server(folder / "server", net.latency_ms, inside))
        cold = _ours(folder, endpoint, net, inside, epochs=1, cache_bytes=0)
        cached = _ours(folder, endpoint, net, inside, epochs=2, cache_bytes=values.nbytes // 2)
        theirs = {
            name: _peer(name, peers, folder, values, endpoint, inside)
            for name in PEERS
            if peers is not None
        }
    return _told(net, values.nbytes, cold, cached, theirs, bounded=bool(inside))


def _told(
    net: Net,
    size_bytes: int,
    cold: dict[str, Any],
    cached: dict[str, Any],
    theirs: dict[str, dict[str, Any] | None],
    *,
    bounded: bool,
) -> dict[str, Any]:
    first, second = cold["epochs"][0], cached["epochs"][1]
    run_bytes = cold["read_bytes"] / cold["runs"]
    least = 3 * net.latency_ms / 1000
    least += (cold["lanes"] / 2 + 1) * run_bytes / net.bytes_per_second
    found = {
        "latency_ms": net.latency_ms,
        "mbit": net.mbit if bounded else None,
        "rows_per_s": round(net.rows / first["seconds"]),
        "goodput_mb_s": round(first["goodput"] / 1e6, 1),
        "share_of_link": round(size_bytes / first["seconds"] / net.bytes_per_second, 3),
        "goodput_share_of_link": round(first["goodput"] / net.bytes_per_second, 3),
        "open_ms": round(1e3 * cold["open_seconds"]),
        "first_batch_ms": round(1e3 * first["first_batch_seconds"]),
        "first_batch_least_ms": round(1e3 * least),
        "first_batch_cpu_ms": round(1e3 * first["first_batch_cpu_seconds"]),
        "requests": first["requests"],
        "hedged": first["hedged_requests"],
        "concurrency": first["concurrency_reached"],
        "cpu_seconds": round(first["cpu_seconds"], 2),
        "peak_mib": cold["peak_mib"],
        "hit_rate_epoch_2": round(second["cache_hit_rate"], 3),
        "epoch_2_rows_per_s": round(net.rows / second["seconds"]),
        "goal": "share_of_link >= 0.9, first_batch_ms <= first_batch_least_ms, "
        "hit_rate_epoch_2 >= 0.45",
    }
    for name, each in theirs.items():
        if each is None:
            found[f"{name}_rows_per_s"] = None
            continue
        found[f"{name}_rows_per_s"] = round(each["rows"] / each["seconds"])
        found[f"ratio_{name}"] = round(each["seconds"] / first["seconds"], 2)
    return found


# ------------------------------------------------------------------------------ the readers


def _store(place: Path, values: np.ndarray) -> None:
    """A repository in a folder, which the server gives out as a part of its bucket."""
    repository = tensorrepo.init(place, author="Bench <bench@example.org>")
    labels = np.arange(len(values))
    step = max(1, 16 * MIB // values[0].nbytes)
    types = {"x": Tensor(values.dtype, values.shape[1:]), "y": "int64"}
    with repository.transaction(message="Rows") as change:
        draft = change.create_dataset("x", columns=types)
        for at in range(0, len(values), step):
            draft.append({"x": values[at : at + step], "y": labels[at : at + step]})


def _ours(
    folder: Path, endpoint: str, net: Net, inside: list[str], *, epochs: int, cache_bytes: int
) -> dict[str, Any]:
    place = folder / f"reader-{time.monotonic_ns()}"
    place.mkdir()
    arguments = [str(place), endpoint, str(net.rows), str(BATCH), str(epochs), str(cache_bytes)]
    command = [*inside, sys.executable, str(HERE / "remote_ours.py"), *arguments]
    folders = {f"XDG_{kind}_HOME": str(place / kind) for kind in ("CACHE", "STATE", "CONFIG")}
    found = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | folders
    ).stdout
    shutil.rmtree(place)
    told: dict[str, Any] = json.loads(found)
    return told


def _peer(
    name: str, peers: str, folder: Path, values: np.ndarray, endpoint: str, inside: list[str]
) -> dict[str, Any] | None:
    """One cold epoch of a peer, whose data is prepared on the server's disk; None: it failed."""
    bucket = folder / "server" / "bucket"
    np.save(bucket / "x.npy", values)
    np.save(bucket / "y.npy", np.arange(len(values)))
    script = str(HERE / f"remote_{name}.py")
    ours = {"PYTHONPATH"}  # what is found there is for another environment
    environment = {name: each for name, each in os.environ.items() if name not in ours} | {
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "S3_ENDPOINT_URL": endpoint,
    }
    place = folder / f"{name}-local"
    asked = [
        {"what": "prepare"},
        {"what": "epoch", "epoch": 0, "batch_size": BATCH, "workers": os.cpu_count()},
    ]
    try:
        run = subprocess.run(
            [*inside, peers, script, str(bucket), str(place)],
            input="".join(json.dumps(each) + "\n" for each in asked),
            env=environment, stdout=subprocess.PIPE, text=True, check=True,
            timeout=PATIENCE_SECONDS,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        print(f"{name} did not read from this server: {error}", file=sys.stderr)
        return None
    finally:
        shutil.rmtree(place, ignore_errors=True)
    told: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert told["rows"] == len(values), f"{name} gave {told['rows']} rows of {len(values)}"
    return told


def _case(latency_ms: float, mbit: int, folder: Path, options: Options) -> dict[str, Any]:
    return measure(folder, options.peers, latency_ms=latency_ms, mbit=mbit, scale=options.scale)


CASES = {
    f"remote_{latency_ms}ms_{mbit}mbit": partial(_case, latency_ms, mbit)
    for latency_ms, mbit in ((20, 1000), (50, 1000), (20, 4000))
}

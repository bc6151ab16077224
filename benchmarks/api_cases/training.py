"""A training's stream: from an S3 server straight, through the service, by signed addresses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from api_cases.served import Server, served
from harness import Options, ratio, slow_s3, take_turns

import tensorrepo
from tensorrepo.formats.dataset.schema.schema import Tensor

HERE = Path(__file__).resolve().parent
NAME = "bench/rows"
LATENCY_MS = 20
ROWS, SHAPE = 100_000, (32, 32, 3)
PRESIGNED_BYTES = 64 << 10


def stream(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of one cold epoch of each way, every reader in a process of its own."""
    rows = max(1, round(ROWS * options.scale))
    values = np.random.default_rng(7).integers(0, 256, (rows, *SHAPE), np.uint8)
    with ExitStack() as stack:
        url, environment = stack.enter_context(slow_s3(folder, LATENCY_MS))
        access = {
            "endpoint": environment["AWS_ENDPOINT_URL"], "key": "bench", "secret": "bench",
            "region": environment["AWS_REGION"],
        }  # fmt: skip
        _store(folder / "s3" / "bucket" / "rows", values)
        repositories = {NAME: f"{url}/rows"}
        plain, signing = (
            stack.enter_context(
                served(folder / name, environment, repositories=repositories, **settings)
            )
            for name, settings in (("plain", {}), ("sign", {"presigned_bytes": PRESIGNED_BYTES}))
        )
        straight: tuple[str, dict[str, str]] = (f"{url}/rows", access)
        seconds = take_turns(
            options.rounds,
            {
                "straight": lambda: _epoch(folder, *straight, rows),
                "service": lambda: _epoch(folder, *_through(plain), rows),
                "signed": lambda: _epoch(folder, *_through(signing), rows),
            },
        )
        return {
            "latency_ms": LATENCY_MS,
            "mib": values.nbytes >> 20,
            **{
                f"{name}_s": round(sorted(each)[len(each) // 2], 2)
                for name, each in seconds.items()
            },
            "service_of_straight": ratio(seconds["straight"], seconds["service"]),
            "signed_of_straight": ratio(seconds["straight"], seconds["signed"]),
            "goal": "service >= 0.6, signed >= 0.95",
        }


def _through(server: Server) -> tuple[str, dict[str, str]]:
    return f"{server.url}/{NAME}", {"token": server.token}


def _store(place: Path, values: np.ndarray[Any, Any]) -> None:
    """A repository in a folder, which the S3 server gives out as a part of its bucket."""
    repository = tensorrepo.init(place, author="Bench <bench@example.org>")
    labels = np.arange(len(values))
    step = max(1, (16 << 20) // values[0].nbytes)
    types = {"x": Tensor(values.dtype, values.shape[1:]), "y": "int64"}
    with repository.transaction(message="Rows") as change:
        draft = change.create_dataset("x", columns=types)
        for at in range(0, len(values), step):
            draft.append({"x": values[at : at + step], "y": labels[at : at + step]})


def _epoch(folder: Path, url: str, options: dict[str, str], rows: int) -> float:
    """Seconds of an epoch as a process sees it that has read nothing yet."""
    place = folder / f"reader-{time.monotonic_ns()}"
    place.mkdir()
    folders = {f"XDG_{kind}_HOME": str(place / kind) for kind in ("CACHE", "STATE", "CONFIG")}
    words = [sys.executable, str(HERE / "reader.py"), url, str(rows)]
    done = subprocess.run(
        words, input=json.dumps(options), check=True, stdout=subprocess.PIPE, text=True,
        env=os.environ | folders,
    )  # fmt: skip
    return float(done.stdout.split()[-1])

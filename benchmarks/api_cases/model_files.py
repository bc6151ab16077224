"""Files of models as they came: stored raw beside nginx, as a difference beside `model.load`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from api_cases.bytes_moved import fetch
from api_cases.nginx import nginx
from api_cases.served import served
from api_cases.stored_objects import MANY, OBJECT_BYTES
from harness import MIB, SEED, Options, ratio, take_turns
from model_cases.models import grown, stacked
from safetensors.numpy import save_file

import tensorrepo

NAME = "bench/nets"
DELTA_MIB = 256
_FILE = f"/api/v1/repositories/{NAME}/-/models/net/-/files/net.safetensors"


def original(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of a file of random weights from both, in turns; what came is the file."""
    size = int(OBJECT_BYTES * options.scale)
    rng, rows = np.random.default_rng(SEED), max(1, size // (64 * MIB))
    files = _folder(folder / "files")
    save_file(
        {f"t{at}": rng.integers(0, 256, size // rows, np.uint8) for at in range(rows)},
        files / "net.safetensors",
    )
    size = (files / "net.safetensors").stat().st_size
    _add(folder, files / "net.safetensors", "net")
    repositories = {NAME: str(folder / "work" / "repo")}
    with served(folder / "service", repositories=repositories) as server:
        _prove_equal(server.administrator(), files / "net.safetensors")
        with nginx(folder / "nginx", files) as port, server.watching_memory() as peak:
            ours, theirs = (server.port, _FILE, server.token), (port, "/net.safetensors", "")
            sides = {
                "one": lambda: fetch(*ours, size, 1),
                "one_nginx": lambda: fetch(*theirs, size, 1),
                "many": lambda: fetch(*ours, size, MANY),
                "many_nginx": lambda: fetch(*theirs, size, MANY),
            }
            fetch(*theirs, size, 1)  # into the page cache
            seconds = take_turns(options.rounds, sides)
    return {
        "mib": size >> 20,
        "one_mib_per_s": _rate(size, seconds["one"]),
        "many_mib_per_s": _rate(MANY * size, seconds["many"]),
        "one_of_nginx": ratio(seconds["one_nginx"], seconds["one"]),
        "many_of_nginx": ratio(seconds["many_nginx"], seconds["many"]),
        "anonymous_mib": peak.mib,
        "goal": "of nginx >= 0.7, anonymous memory < 300 MiB",
    }


def decoded(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of a file whose tensors are differences from another model, beside loading it."""
    files = _folder(folder / "files")
    for step, name in ((0, "base"), (1, "net")):
        save_file(stacked(grown(step, DELTA_MIB * options.scale)), files / f"{name}.safetensors")
        _add(folder, files / f"{name}.safetensors", name)
    size = (files / "net.safetensors").stat().st_size
    place = folder / "work" / "repo"
    with served(folder / "service", repositories={NAME: str(place)}) as server:
        _prove_equal(server.administrator(), files / "net.safetensors")
        seconds = take_turns(
            options.rounds,
            {
                "service": lambda: fetch(server.port, _FILE, server.token, size, 1),
                "load": lambda: _load(place),
            },
        )
    return {
        "mib": size >> 20,
        "mib_per_s": _rate(size, seconds["service"]),
        "load_mib_per_s": _rate(size, seconds["load"]),
        "of_load": ratio(seconds["load"], seconds["service"]),
        "goal": "of load >= 0.8",
    }


def _load(place: Path) -> float:
    """Seconds of `model.load` in a handle that has read nothing yet."""
    model = tensorrepo.open(place).model("net")
    began = time.perf_counter()
    model.load(output="numpy")
    return time.perf_counter() - began


def _add(folder: Path, file: Path, name: str) -> None:
    """Commit a file as a model to the repository of a workspace, as a user does."""
    work = folder / "work"
    if not work.exists():
        _command(_folder(work), "init", "repo")
    _command(work, "add", "--model", name, str(file))
    _command(work, "commit", "-m", name)


def _command(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "tensorrepo", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def _prove_equal(client: Any, file: Path) -> None:
    """What the service gives is the file, byte for byte."""
    with client, client.stream("GET", _FILE) as answer, file.open("rb") as expected:
        answer.raise_for_status()
        for piece in answer.iter_raw():
            assert piece == expected.read(len(piece)), "other bytes than came in"
        assert not expected.read(1), "the file goes on"


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _rate(size: int, seconds: list[float]) -> int:
    return round(size / MIB / sorted(seconds)[len(seconds) // 2])

"""Models against this machine's own limits: store, import, load, reuse, memory.

    python benchmarks/bench_model.py [--folder DIR] [--mib 1024] [--rounds 5]

One JSON line for each case: medians in GB/s, and the ratio to a floor measured in the same run,
taken in turns so that a noisy neighbour hits both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.exchange.checkpoints.safetensors import read_safetensors, write_safetensors
from tensorrepo.formats.model.read import open_model
from tensorrepo.formats.model.source import ModelSource
from tensorrepo.formats.model.write import write_model
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.store import ObjectStore
from tensorrepo.repo.writer import ObjectWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.repo.trees import Entry

MIB = 1 << 20
READ_BYTES = 16 * MIB


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure models.")
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--mib", type=int, default=1024, help="size of the model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--import-only", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.import_only:
        _import_alone(chosen.import_only)
        return
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        _measure(Path(folder), chosen.mib, chosen.rounds)


def _measure(folder: Path, mib: int, rounds: int) -> None:
    source = folder / "model.safetensors"
    make_model(source, mib)
    size = source.stat().st_size
    backend, entry = store(folder / "repository", source, whole=False)
    model = open_model(ObjectStore(backend), entry)
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "store tensors / cp + fsync": (
            lambda: store(folder / "new", source, whole=False),
            lambda: copy(source, folder / "copy"),
        ),
        "import, checked byte for byte / cp + fsync": (
            lambda: store(folder / "new", source, whole=True),
            lambda: copy(source, folder / "copy"),
        ),
        "store again, all known / preadv": (
            lambda: store_again(backend, entry, source),
            lambda: read_all(source),
        ),
        "load into memory / preadv": (model.load, lambda: read_all(source)),
        "load views / preadv": (lambda: model.load(copy=False), lambda: read_all(source)),
        "export safetensors / cp + fsync": (
            lambda: export(model, folder / "out.safetensors"),
            lambda: copy(source, folder / "copy"),
        ),
    }
    for name, (ours, floor) in cases.items():
        print(json.dumps({"case": name, **compared(ours, floor, size, rounds), **machine()}))
    print(json.dumps({"case": "peak memory of an import", **peak(source), **machine()}))


def make_model(path: Path, mib: int) -> None:
    """Weights of many sizes, as transformers have them."""
    rng = np.random.default_rng(0)
    tensors: dict[str, Any] = {}
    layers = max(1, mib // 65)
    for layer in range(layers):
        tensors[f"layers.{layer}.w"] = rng.standard_normal((4096, 4096), dtype="f4")
        tensors[f"layers.{layer}.norm"] = rng.standard_normal(4096, dtype="f4")
        tensors[f"layers.{layer}.bias"] = rng.standard_normal(200_000, dtype="f4")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        backend = LocalBackend(Path(folder))
        writer = ObjectWriter(ObjectStore(backend), ())
        entry = write_model(writer, tensors)
        writer.flush()
        write_safetensors(open_model(ObjectStore(backend), entry), path)


def store(folder: Path, source: Path, *, whole: bool) -> tuple[LocalBackend, Entry]:
    shutil.rmtree(folder, ignore_errors=True)
    backend = LocalBackend(folder)
    writer = ObjectWriter(ObjectStore(backend), ())
    reading = read_safetensors(source)
    entry = write_model(writer, reading if whole else ModelSource(reading.tensors))
    writer.flush()
    return backend, entry


def store_again(backend: LocalBackend, entry: Entry, source: Path) -> None:
    writer = ObjectWriter(ObjectStore(backend), ())
    assert entry.storage is not None, "a model has a placement"
    write_model(writer, ModelSource(read_safetensors(source).tensors), known=[entry.storage])
    writer.flush()


def export(model: Any, path: Path) -> None:
    write_safetensors(model, path, overwrite=True)
    os.sync()


def copy(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def read_all(source: Path) -> np.ndarray[Any, Any]:
    """All bytes into fresh memory, on one thread."""
    size = source.stat().st_size
    buffer = np.empty(size, np.uint8)
    file = os.open(source, os.O_RDONLY)
    try:
        for start in range(0, size, READ_BYTES):
            os.preadv(file, [buffer[start : start + READ_BYTES].data], start)
    finally:
        os.close(file)
    return buffer


def compared(
    ours: Callable[[], object], floor: Callable[[], object], size: int, rounds: int
) -> dict[str, Any]:
    pairs = [(timed(ours), timed(floor)) for _ in range(rounds + 1)][1:]  # the first one warms up
    mine, theirs = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {
        "gb_per_second": round(size / 1e9 / mine, 2),
        "floor_gb_per_second": round(size / 1e9 / theirs, 2),
        "share_of_floor": round(theirs / mine, 2),
    }


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak(source: Path) -> dict[str, Any]:
    """Resident memory of a process of its own that imports the model."""
    command = [sys.executable, __file__, "--import-only", str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"mib": round(int(ran.stdout) / 1024), "model_mib": source.stat().st_size // MIB}


def _import_alone(source: Path) -> None:
    store(source.parent / "alone", source, whole=True)
    # Not `ru_maxrss`: on Linux a new program inherits that of the one that started it.
    status = Path("/proc/self/status").read_text("ascii")
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def machine() -> dict[str, Any]:
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "commit": found.stdout.strip(),
    }


if __name__ == "__main__":
    main()

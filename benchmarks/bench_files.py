"""Commits mounted as folders, beside local files and `model.load`.

    python benchmarks/bench_files.py [case ...] [--folder DIR] [--rounds N] [--scale S]

``mount_model``: a model of 1 GiB x scale, stored raw and as byte planes; each round mounts it anew
and reads its file twice, as `dd` does. ``mount_listing``: `ls -lR` of 100,000 images x scale.
The limit beside both is a mount by the same libraries that answers without looking anything up.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch  # noqa: F401  `load` would import it within the time that is measured
from harness import Case, Options, Skipped, ratio, run

import tensorrepo as tr
from tensorrepo.filesystem.libfuse import raise_read_ahead
from tensorrepo.filesystem.mount import mounted_at, unmount

AUTHOR = "Bench <bench@example.org>"
TENSORS = 32
ROWS, COLUMNS = 2048, 4096
IMAGES = 100_000
CLASSES = 100
NOTHING = Path(__file__).resolve().parent / "api_cases" / "mounted_nothing.py"


def mount_model(folder: Path, options: Options) -> dict[str, Any]:
    """GB/s of the first read of a mounted file, of the second, and of what stands beside it."""
    tensors = max(1, int(TENSORS * options.scale))
    rng = np.random.default_rng(7)
    floats = {f"w{n:03}": rng.standard_normal((ROWS, COLUMNS), np.float32) for n in range(tensors)}
    bits = {name: rng.bytes(ROWS * COLUMNS * 4) for name in floats}
    repository = tr.init(folder / "store", author=AUTHOR)
    with repository.transaction(message="models") as tx:
        tx.save_model("raw", {name: np.frombuffer(one, np.int32) for name, one in bits.items()})
        tx.save_model("planes", floats)
    size = tensors * ROWS * COLUMNS * 4
    local = folder / "local"
    local.write_bytes(b"".join(value.tobytes() for value in floats.values()))
    found: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        with mounted(folder / "store", folder / "seen") as place:
            for name in ("raw", "planes"):
                path = place / "models" / name / "model.safetensors"
                for turn in ("first", "second"):
                    found.setdefault(f"{name}_{turn}", []).append(size / read_seconds(path))
        found.setdefault("local", []).append(size / read_seconds(local))
        with nothing_mounted(folder / "limit", size, 1) as place:
            for turn in ("first", "second"):
                found.setdefault(f"limit_{turn}", []).append(size / read_seconds(place / "0"))
        for name in ("raw", "planes"):
            start = time.perf_counter()
            tr.open(folder / "store").model(name).load()
            found.setdefault(f"{name}_load", []).append(size / (time.perf_counter() - start))
    speeds = {name: statistics.median(each) for name, each in found.items()}
    shares = {
        f"{name}_first_to_load": ratio(found[f"{name}_first"], found[f"{name}_load"])
        for name in ("raw", "planes")
    } | {
        f"{name}_second_to_local": ratio(found[f"{name}_second"], found["local"])
        for name in ("raw", "planes", "limit")
    }
    told = {f"{name}_gb_s": round(each / 1e9, 2) for name, each in speeds.items()}
    return told | shares | {"goal": "first 1 GB/s or 0.5 of load, second 0.9 of local"}


def mount_listing(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of `ls -lR` over images by class, of a mount that nobody looked at before."""
    images = max(CLASSES, int(IMAGES * options.scale))
    rng = np.random.default_rng(7)
    names = [f"c{n:03}" for n in range(CLASSES)]
    numbers = np.arange(images) % CLASSES
    columns = {"image": tr.Image("jpeg"), "label": tr.ClassLabel(names), "file": tr.Text()}
    data = {
        "image": [rng.bytes(2000 + at % 1000) for at in range(images)],
        "label": numbers,
        "file": [f"{names[number]}/{at}.jpg" for at, number in enumerate(numbers)],
    }
    with tr.init(folder / "store", author=AUTHOR).transaction(message="images") as tx:
        tx.create_dataset("pets", data, columns=columns)
    seconds, limit = [], []
    for _ in range(options.rounds):
        with mounted(folder / "store", folder / "seen") as place:
            seconds.append(listing_seconds(place, images))
        with nothing_mounted(folder / "limit", 2000, images) as place:
            limit.append(listing_seconds(place, images))
    return {
        "images": images,
        "seconds": round(statistics.median(seconds), 2),
        "limit_seconds": round(statistics.median(limit), 2),
        "goal": "< 10",
    }


@contextmanager
def mounted(store: Path, place: Path) -> Iterator[Path]:
    """The repository's main, mounted by the command."""
    command = [sys.executable, "-m", "tensorrepo"]
    words = ["mount", "main", str(place), "--repo", str(store)]
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Skipped(done.stderr.strip())
    try:
        yield place
    finally:
        subprocess.run([*command, "unmount", str(place)], capture_output=True, check=True)


@contextmanager
def nothing_mounted(place: Path, size: int, files: int) -> Iterator[Path]:
    """Files of zeros, mounted by the libraries that we mount with, in folders of a thousand."""
    place.mkdir(exist_ok=True)
    command = [sys.executable, str(NOTHING), str(place), str(size), str(files)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not mounted_at(place):
        if process.poll() is not None:
            raise Skipped("nothing can be mounted")
        time.sleep(0.05)
    try:
        raise_read_ahead(place)
        yield place
    finally:
        unmount(place)
        process.wait()


def listing_seconds(place: Path, files: int) -> float:
    start = time.perf_counter()
    done = subprocess.run(
        ["/bin/ls", "-lR", str(place)], capture_output=True, text=True, check=True
    )
    taken = time.perf_counter() - start
    assert sum(line.startswith("-") for line in done.stdout.splitlines()) >= files
    return taken


def read_seconds(path: Path) -> float:
    start = time.perf_counter()
    subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], capture_output=True, check=True)
    return time.perf_counter() - start


CASES: dict[str, Case] = {"mount_model": mount_model, "mount_listing": mount_listing}

if __name__ == "__main__":
    run(CASES, __doc__ or "", rounds=3)

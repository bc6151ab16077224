"""Taking data in: a folder of JPEGs and plain arrays, against LitData's and Mosaic's writers.

All sides read the same files with the same two workers and keep the encoded bytes and a label;
peers in processes of their own, ours in threads. What differs is told apart: ours checks each image
to its end, stores sums of rows and pages, the sizes of the images and where each file was, and its
commit is durable when the call returns. Peers leave their files to the page cache; `_synced` times
them with an fsync of each file. `cpu_` is what all threads and processes of a side took: a busy
machine changes it less.
"""

from __future__ import annotations

import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from harness import SEED, Options, Peer, medians_ms, portions, ratio, take_turns

import tensorrepo

IMAGES, CLASSES, SIDE = 20_000, 10, 224
ROW, ARRAY_BYTES = 3072, 1 << 30
WORKERS = 2


def ingest_jpeg(folder: Path, options: Options) -> dict[str, Any]:
    """20,000 JPEGs of about 20 KB in ten class folders."""
    source = folder / "jpegs"
    count = max(CLASSES, int(IMAGES * options.scale))
    size = make_jpegs(source, count)

    def ours() -> float:
        return _store(folder / "ours", lambda: tensorrepo.read(source))

    return _against_peers(folder, options, "jpeg", ours) | {"images": count, "bytes": size}


def ingest_array(folder: Path, options: Options) -> dict[str, Any]:
    """1 GB of rows of 3 KiB with a label, in two npy files."""
    count = max(1024, int(ARRAY_BYTES * options.scale) // ROW)
    rng = np.random.default_rng(SEED)
    np.save(folder / "x.npy", rng.integers(0, 256, (count, ROW), np.uint8))
    np.save(folder / "y.npy", rng.integers(0, 10, count))

    def ours() -> float:
        values, labels = (np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy"))
        return _store(
            folder / "ours",
            lambda: ({"x": values[part], "y": labels[part]} for part in portions(count, 4096)),
            {"x": tensorrepo.Tensor("uint8", (ROW,)), "y": "int64"},
        )

    return _against_peers(folder, options, "array", ours) | {"rows": count, "bytes": count * ROW}


def make_jpegs(folder: Path, count: int) -> int:
    """Gradients with noise; the bytes of all of them."""
    rng = np.random.default_rng(SEED)
    noise = rng.integers(0, 46, (64, SIDE, SIDE, 3), np.uint8)
    slope = np.linspace(0, 200, SIDE, dtype=np.uint8)
    size = 0
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
    for number in range(count):
        pixels = noise[number % len(noise)] + np.roll(slope, number)[:, None, None]
        data = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=80)
        (folder / f"class{number % CLASSES}" / f"{number:06}.jpg").write_bytes(data)
        size += len(data)
    return size


def _store(place: Path, rows: Callable[[], Any], columns: dict[str, Any] | None = None) -> float:
    """Seconds until the commit is durable; as with the peers, removing it all does not count."""
    begun = time.perf_counter()
    repository = tensorrepo.init(place)
    with repository.transaction("main", message="ingest") as change:
        found = rows()
        change.create_dataset("x", columns=columns or found.schema).append(found)
    repository.close()
    seconds = time.perf_counter() - begun
    shutil.rmtree(place)
    return seconds


def _against_peers(
    folder: Path, options: Options, kind: str, ours: Callable[[], float]
) -> dict[str, Any]:
    peers = {
        name: Peer(options, f"dataset_cases/peer_{name}.py", folder)
        for name in ("litdata", "mosaic")
    }
    answers: dict[str, list[dict[str, float]]] = {name: [] for name in peers}

    def ask(name: str) -> float:
        answers[name].append(peers[name].ask("write", kind=kind, workers=WORKERS))
        return answers[name][-1]["seconds"]

    own_cpu: list[float] = []

    def timed() -> float:
        begun = time.process_time()
        seconds = ours()
        own_cpu.append(time.process_time() - begun)
        return seconds

    sides: dict[str, Callable[[], float | None]] = {
        "ours": timed,
        **{name: lambda name=name: ask(name) for name in peers},
    }
    found = take_turns(options.rounds + 1, sides)
    for peer in peers.values():
        peer.close()
    for name, each in answers.items():
        found[f"{name}_synced"] = [answer["synced"] for answer in each]
    found = {name: seconds[1:] for name, seconds in found.items()}  # the first warms up
    cpu = {"cpu_ours": own_cpu[1:]}
    cpu |= {f"cpu_{name}": [answer["cpu"] for answer in each][1:] for name, each in answers.items()}
    return medians_ms(found | cpu) | {
        **{f"ratio_{name}": ratio(found[name], found["ours"]) for name in found if name != "ours"},
        **{name: each[-1]["version"] for name, each in answers.items()},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "workers": WORKERS,
        "goal": "ratio_litdata >= 1, ratio_mosaic >= 1",
    }


CASES = {"ingest_jpeg": ingest_jpeg, "ingest_array": ingest_array}

"""`tensorrepo add` of large inputs, in a process of its own, against what it cannot do without.

A copy reads the same files, writes them into one and calls fsync; `parse` reads the files and takes
them apart, without decoding images and without storing anything. `ratio_limit` is the slower of
both by ours. `cores_busy` is processor time by time: how many cores were busy on average, which
others on the machine make less. `cores_usable` is processor time by that of the busiest thread: how
many cores could have been busy, whatever the others do. `peak_mib` is the largest memory of the
process, mapped files counted, `peak_anon_mib` without them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from harness import MIB, SEED, Options, ratio, take_turns

JPEGS, SIDE, CLASSES = 100_000, 48, 10
PARQUET_BYTES, MODEL_BYTES, SHARD_BYTES = 5 << 30, 20 << 30, 64 << 20
TAR_IMAGES = 50_000
_MEMORY = re.compile(r"^(VmHWM|RssAnon):\s+(\d+)", re.MULTILINE)
# As much of a copy as writing should reach; memory must not grow with the input.
GOAL = "ratio_limit >= 0.8, peak_anon_mib <= 512"


def add_jpegs(folder: Path, options: Options) -> dict[str, Any]:
    """100,000 small JPEGs in ten class folders."""
    source = folder / "input"
    count = max(CLASSES, int(JPEGS * options.scale))
    for label in range(CLASSES):
        (source / f"class{label}").mkdir(parents=True)
    for number, data in enumerate(_jpegs(count)):
        (source / f"class{number % CLASSES}" / f"{number:06}.jpg").write_bytes(data)
    return _added(folder, source, options, _read_files) | {"images": count}


def add_webdataset(folder: Path, options: Options) -> dict[str, Any]:
    """50,000 small JPEGs with labels in shards of WebDataset."""
    source = folder / "input"
    source.mkdir()
    count = max(1, int(TAR_IMAGES * options.scale))
    images = _jpegs(count)
    for shard in range(8):
        with tarfile.open(source / f"train-{shard:06}.tar", "w") as archive:
            for number in range(count * shard // 8, count * (shard + 1) // 8):
                for suffix, data in (("jpg", next(images)), ("cls", str(number % 10).encode())):
                    entry = tarfile.TarInfo(f"{number:08}.{suffix}")
                    entry.size = len(data)
                    archive.addfile(entry, BytesIO(data))
    return _added(folder, source, options, _walk_archives) | {"images": count}


def add_parquet(folder: Path, options: Options) -> dict[str, Any]:
    """A Parquet file of 5 GB: embeddings, numbers, texts."""
    rng = np.random.default_rng(SEED)
    source = folder / "input.parquet"
    rows = 20_000
    noise = rng.random((rows, 384), np.float32)
    writer = None
    while writer is None or source.stat().st_size < PARQUET_BYTES * options.scale:
        vectors = pa.FixedSizeListArray.from_arrays(
            np.roll(noise, int(rng.integers(1e6))).ravel(), 384
        )
        columns = {
            "id": rng.integers(0, 1 << 60, rows),
            "score": rng.random(rows),
            "text": [f"row {number} of many" for number in rng.integers(0, 1 << 40, rows)],
            "vector": vectors,
        }
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(source, table.schema, compression="none")
        writer.write_table(table)
    writer.close()
    return _added(folder, source, options, _read_parquet)


def add_model(folder: Path, options: Options) -> dict[str, Any]:
    """A safetensors model of 20 GB: the same 64 MiB of noise again and again, shifted."""
    source = folder / "input.safetensors"
    noise = np.random.default_rng(SEED).normal(0, 0.02, SHARD_BYTES // 4).astype("<f4")
    bits = (noise.view("<u4") >> 16).astype("<u2")  # as bfloat16
    size = bits.nbytes
    count = max(1, int(MODEL_BYTES * options.scale) // size)
    header = {
        f"layers.{number}.weight": {
            "dtype": "BF16",
            "shape": [len(bits) // 1024, 1024],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with source.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for number in range(count):
            file.write(np.roll(bits, number * 1_000_003).tobytes())
    return _added(folder, source, options, _read_files)


def _jpegs(count: int) -> Any:
    """Gradients with noise, no two alike."""
    rng = np.random.default_rng(SEED)
    noise = rng.integers(0, 46, (64, SIDE, SIDE, 3), np.uint8)
    slope = np.linspace(0, 200, SIDE, dtype=np.uint8)
    for number in range(count):
        pixels = noise[number % len(noise)] + np.roll(slope, number)[:, None, None]
        pixels.reshape(-1)[:4] = np.frombuffer(number.to_bytes(4, "little"), np.uint8)
        yield simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality=80)


@dataclass(frozen=True, slots=True)
class _Usage:
    """What a command took: seconds, and MiB at most.

    `busiest_cpu` is the processor time of the thread that took most of it.
    """

    seconds: float
    cpu: float
    busiest_cpu: float
    peak_mib: float
    peak_anon_mib: float


def _added(
    folder: Path, source: Path, options: Options, parse: Callable[[Path], None]
) -> dict[str, Any]:
    used: list[_Usage] = []

    def ours() -> float:
        place = folder / "ours"
        place.mkdir()
        _run(place, "init")
        used.append(_run(place, "add", str(source)))
        shutil.rmtree(place)
        return used[-1].seconds

    sides: dict[str, Callable[[], float | None]] = {
        "ours": ours,
        "copy": lambda: _copy(source),
        "parse": lambda: parse(source),
    }
    found = take_turns(options.rounds, sides)
    limit = [max(pair) for pair in zip(found["copy"], found["parse"], strict=True)]
    size = sum(file.stat().st_size for file in _files(source))
    best = min(used, key=lambda each: each.seconds)
    return {
        "ours_s": round(best.seconds, 2),
        **{f"{name}_s": round(min(found[name]), 2) for name in ("copy", "parse")},
        "ratio_copy": ratio(found["copy"], found["ours"]),
        "ratio_limit": ratio(limit, found["ours"]),
        "mb_s": round(size / best.seconds / 1e6),
        "cpu_ns_byte": round(min(each.cpu for each in used) / size * 1e9, 2),
        "cores_busy": round(best.cpu / best.seconds, 2),
        "cores_usable": round(max(each.cpu / each.busiest_cpu for each in used), 2),
        "peak_mib": round(max(each.peak_mib for each in used)),
        "peak_anon_mib": round(max(each.peak_anon_mib for each in used)),
        "bytes": size,
        "goal": GOAL,
    }


def _run(place: Path, *arguments: str) -> _Usage:
    """What a command took with its children; it must succeed."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "tensorrepo", *arguments]
    process = subprocess.Popen(command, cwd=place, stdout=subprocess.DEVNULL)
    watched = _Watched(process.pid)
    watcher = Thread(target=watched.watch)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begun
    watched.is_over.set()
    watcher.join()
    assert not status, f"{command} ended with {status}"
    # Nobody waits for the process that parses, so the kernel adds its time to nobody's. What ended
    # between two looks is missing among those watched.
    waited = usage.ru_utime + usage.ru_stime
    cpu = max(waited, sum(watched.cpu_seconds.values()))
    busiest = max(watched.cpu_seconds.values(), default=cpu)
    peak_mib = watched.peak_mib or usage.ru_maxrss * 1024 / MIB
    return _Usage(seconds, cpu, busiest, peak_mib, watched.anon_mib)


@dataclass(slots=True)
class _Watched:
    """Threads of a process and of its children, looked at every 20 ms; on Linux."""

    process: int
    is_over: Event = field(default_factory=Event)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_mib: float = 0.0
    anon_mib: float = 0.0

    def watch(self) -> None:
        while not self.is_over.wait(0.02):
            with suppress(OSError, ValueError):  # it has ended meanwhile
                self._look(self.process)

    def _look(self, process: int) -> None:
        if process == self.process:
            # What `wait4` says of memory begins with that of whoever started the process.
            status = Path(f"/proc/{process}/status").read_text()
            kib = {name: int(size) for name, size in _MEMORY.findall(status)}
            self.peak_mib = max(self.peak_mib, kib.get("VmHWM", 0) / 1024)
            self.anon_mib = max(self.anon_mib, kib.get("RssAnon", 0) / 1024)
        for thread in Path(f"/proc/{process}/task").iterdir():
            spent = int((thread / "schedstat").read_text().split()[0]) / 1e9
            self.cpu_seconds[str(thread)] = spent
            for child in (thread / "children").read_text().split():
                self._look(int(child))


def _read_files(source: Path) -> None:
    for path in _files(source):
        with path.open("rb", buffering=0) as file:
            while file.read(8 * MIB):
                pass


def _walk_archives(source: Path) -> None:
    for path in _files(source):
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None, "each member is a file"
                content.read()


def _read_parquet(source: Path) -> None:
    for _ in pq.ParquetFile(source).iter_batches():
        pass


def _copy(source: Path) -> None:
    target = source.with_name("copied")
    with target.open("wb") as file:
        for path in _files(source):
            with path.open("rb") as one:
                shutil.copyfileobj(one, file, MIB)
        file.flush()
        os.fsync(file.fileno())
    target.unlink()


def _files(source: Path) -> list[Path]:
    return [source] if source.is_file() else [each for each in source.rglob("*") if each.is_file()]


CASES = {
    "add_jpegs": add_jpegs,
    "add_webdataset": add_webdataset,
    "add_parquet": add_parquet,
    "add_model": add_model,
}

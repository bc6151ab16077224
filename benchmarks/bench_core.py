"""The core against this machine's own limits: commits, pages, memory, start-up.

    python benchmarks/bench_core.py [case ...] [--folder DIR]

One JSON line for each case: medians, and the ratio to a physical limit measured in the same run,
taken in turns so that a noisy neighbour hits both.
"""

from __future__ import annotations

import json
import mmap
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import Case, run

from tensorrepo.formats.dataset.read import column_index, open_dataset, page_bytes
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.gc_marks import Marks, ObjectTable
from tensorrepo.repo.changes.repository import LocalState, create_repository, open_repository
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, encode_object, stored_form
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

MIB = 1 << 20
ROW = 3072
AUTHOR = "Bench <bench@example.org>"


def durable_commit(folder: Path, count: int = 200) -> dict[str, Any]:
    """A commit of one small change, against write + fsync + link + fsync of one file."""
    backend = open_backend(str(folder / "repository"), environment={})
    repository = create_repository(backend, drivers={}, local=LocalState())
    ours, floor = [], []
    for at in range(count):
        floor.append(timed(lambda at=at: durable_file(folder / f"file-{at}")))
        ours.append(timed(lambda at=at: commit_small(repository, f"files/{at % 20}", at)))
    ratio = statistics.median(ours) / statistics.median(floor)
    return {
        "p50_ms": round(statistics.median(ours) * 1e3, 2),
        "floor_p50_ms": round(statistics.median(floor) * 1e3, 2),
        "ratio": round(ratio, 2),
        "goal": "<= 5",
    }


def commit_small(repository: Any, path: str, at: int) -> int:
    transaction = begin(repository, "main")
    link = transaction.objects.put(Kind.BLOB, b"%d " % at * 30)
    transaction.stage(path, Entry(Kind.BLOB, link.digest))
    made = transaction.commit("small", author=AUTHOR)
    assert made is not None
    return made.attempts


def durable_file(path: Path) -> None:
    temporary = path.with_suffix(".tmp")
    fd = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.write(fd, b"x" * 400)
    os.fsync(fd)
    os.close(fd)
    os.link(temporary, path)
    fd = os.open(path.parent, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def eight_writers(folder: Path, writers: int = 8, each: int = 15) -> dict[str, Any]:
    """Processes that commit disjoint paths to one branch, all at once."""
    url = str(folder / "repository")
    create_repository(open_backend(url, environment={}), drivers={}, local=LocalState())
    begun = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(writers) as pool:
        attempts = pool.starmap(write_many, [(url, writer, each) for writer in range(writers)])
    seconds = time.perf_counter() - begun
    total = [one for some in attempts for one in some]
    repository = open_repository(open_backend(url, environment={}), drivers={})
    records = repository.log.refresh().generation
    assert records == writers * each, f"{records} records for {writers * each} commits"
    return {
        "commits": len(total),
        "seconds": round(seconds, 2),
        "attempts_mean": round(statistics.mean(total), 2),
        "attempts_max": max(total),
        "goal": "attempts_mean <= 3",
    }


def write_many(url: str, writer: int, each: int) -> list[int]:
    repository = open_repository(open_backend(url, environment={}), drivers={})
    return [commit_small(repository, f"files/w{writer}-{at}", at) for at in range(each)]


def page_write(folder: Path, size: int = 2048 * MIB, rounds: int = 5) -> dict[str, Any]:
    """Fixed-width uncompressed pages, against `cp --reflink=never` and fsync of the same bytes."""
    source = folder / "source"
    rows = np.random.default_rng(0).integers(0, 256, (size // ROW, ROW), np.uint8)
    source.write_bytes(rows.tobytes())
    ours, floor = [], []
    for at in range(rounds):
        floor.append(timed(lambda at=at: copy_durably(source, folder / f"copy-{at}")))
        (folder / f"copy-{at}").unlink()
        place = folder / f"store-{at}"
        ours.append(timed(lambda place=place: store_rows(place, rows)))
        shutil.rmtree(place)
    return against(ours, floor, size, ">= 0.6")


def copy_durably(source: Path, target: Path) -> None:
    subprocess.run(["cp", "--reflink=never", source, target], check=True)
    fd = os.open(target, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def store_rows(place: Path, rows: Any) -> Any:
    writer = ObjectWriter(ObjectStore(open_backend(str(place), environment={})), ())
    schema = Schema.of({"image": Tensor("uint8", (ROW,))})
    step = 8 * MIB // ROW
    batches = ({"image": rows[at : at + step]} for at in range(0, len(rows), step))
    link = write_dataset(writer, schema, batches)
    writer.flush()
    return writer.store, link.digest


def page_scan(folder: Path, size: int = 512 * MIB, rounds: int = 5) -> dict[str, Any]:
    """Reading every page with its checksum, against `preadv` of the same bytes; both warm."""
    rows = np.random.default_rng(0).integers(0, 256, (size // ROW, ROW), np.uint8)
    store, digest = store_rows(folder / "store", rows)
    chunks = [path for path in (folder / "store").rglob("*") if path.is_file()]
    large = [path for path in chunks if path.stat().st_size > MIB]
    ours, floor = [], []
    for _ in range(rounds):
        floor.append(timed(lambda: read_files(large)))
        fresh = ObjectStore(open_backend(str(folder / "store"), environment={}))
        ours.append(timed(lambda fresh=fresh: scan(open_dataset(fresh, digest))))
    del store
    return against(ours, floor, size, ">= 0.7")


def scan(dataset: Any) -> int:
    index = column_index(dataset, "image")
    return sum(page_bytes(dataset, index, page).nbytes for page in range(index.pages))


def read_files(paths: list[Path]) -> int:
    total = 0
    buffer = mmap.mmap(-1, MIB)  # recycled, as a careful reader does
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        at = 0
        while (got := os.preadv(fd, [buffer], at)) > 0:
            at += got
        total += at
        os.close(fd)
    return total


def ingest_memory(folder: Path, size: int = 5 * 1024 * MIB) -> dict[str, Any]:
    """Peak resident memory of a process that ingests 5 GB, for rows from 12 bytes to 100 MB."""
    peaks = {}
    for width in (12, 3072, 1 << 20, 100 * MIB):
        command = [
            sys.executable,
            __file__,
            "--ingest",
            str(folder / str(width)),
            str(width),
            str(size),
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks[str(width)] = json.loads(told.stdout)
        shutil.rmtree(folder / str(width))
    return {"peak_mib_by_row_bytes": peaks, "goal": "< 512"}


def ingest(place: Path, width: int, size: int) -> None:
    """One process of `ingest_memory`."""
    writer = ObjectWriter(ObjectStore(open_backend(str(place), environment={})), ())
    schema = Schema.of({"x": Tensor("uint8", (width,))})
    step = max(1, 8 * MIB // width)
    batch = np.random.default_rng(0).integers(0, 256, (step, width), np.uint8)
    batches = ({"x": batch} for _ in range(size // (step * width)))
    write_dataset(writer, schema, batches)
    writer.flush()
    # Not ru_maxrss: that begins with what the process was forked from.
    status = Path("/proc/self/status").read_text()
    print(int(status.partition("VmHWM:")[2].split()[0]) // 1024)


def mark(folder: Path, count: int = 200_000, rounds: int = 3) -> dict[str, Any]:
    """Listing and marking of a collection, of objects of which 10% have links, in turns with a
    bare read and hash of those; seconds of processor time, all warm.
    """
    root = many_objects(folder, count)
    backend = open_backend(str(folder), environment={})
    ours, floor, listed, opened = [], [], [], 0
    for _ in range(rounds):
        begun = time.process_time()
        table = ObjectTable(backend)
        listed.append(time.process_time() - begun)
        marks = Marks(ObjectStore(backend), table, State(), lambda _done, _total: None)
        begun = time.process_time()
        marks.mark([root])
        ours.append(time.process_time() - begun)
        opened = marks.opened
        assert next(marks.unmarked(), None) is None, "all of them are led to"
        keys = [row.key for row in (table[at] for at in range(0, len(table), 10))]
        begun = time.process_time()
        for key in keys:
            object_digest((backend.read(key),))
        floor.append(time.process_time() - begun)
    mine = statistics.median(ours)
    return {
        "objects": len(table),
        "marked_per_s": round(len(table) / mine),
        "with_links_per_s": round(opened / mine),
        "read_and_hash_per_s": round(len(keys) / statistics.median(floor)),
        "listed_per_s": round(len(table) / statistics.median(listed)),
        "goal": "marked_per_s >= 100000, with_links_per_s >= 15000",
    }


def check(folder: Path, count: int = 200_000, rounds: int = 3) -> dict[str, Any]:
    """`fsck` by digest of objects of which 10% have links, and of 1 GiB in large ones, in turns
    with a bare read and hash; seconds of processor time, all warm. Memory is what a check adds to
    the anonymous memory of the process at its peak.
    """
    small, large = folder / "small", folder / "large"
    roots = {small: many_objects(small, count), large: large_objects(large, 64, 16 * MIB)}
    taken: dict[str, list[float]] = {"quick": [], "deep": [], "large": [], "floor": [], "wall": []}
    peak = 0
    for _ in range(rounds):
        for name, place, deep in (
            ("quick", small, False),
            ("deep", small, True),
            ("large", large, True),
        ):
            store = ObjectStore(open_backend(str(place), environment={}))
            begun, wall, before = time.process_time(), time.perf_counter(), anonymous_bytes()
            peaks: list[int] = []
            totals = ObjectTotals()
            state = State(retained={roots[place]: 1})
            found = check_objects(
                store, state, totals, deep=deep,
                progress=lambda _, peaks=peaks: peaks.append(anonymous_bytes()),
            )  # fmt: skip
            assert next(found, None) is None, "all of it is whole"
            taken[name].append(time.process_time() - begun)
            if name == "large":
                taken["wall"].append(time.perf_counter() - wall)
            if name == "deep":
                peak = max(peak, max(peaks) - before)
                objects = totals.objects
        keys = [stored.key for stored in store.backend.list("objects/")]
        begun = time.process_time()
        for key in keys:
            object_digest((store.backend.read(key),))
        taken["floor"].append(time.process_time() - begun)
    median = {name: statistics.median(times) for name, times in taken.items()}
    return {
        "objects": objects,
        "quick_per_s": round(objects / median["quick"]),
        "deep_per_s": round(objects / median["deep"]),
        "large_gb_per_cpu_s": round(64 * 16 * MIB / median["large"] / 1e9, 2),
        "large_gb_per_s": round(64 * 16 * MIB / median["wall"] / 1e9, 2),
        "read_and_hash_gb_per_cpu_s": round(64 * 16 * MIB / median["floor"] / 1e9, 2),
        "bytes_an_object": round(peak / objects),
        "goal": "deep_per_s >= 10000 or large_gb_per_s >= 1, bytes_an_object <= 150",
    }


def anonymous_bytes() -> int:
    """Memory of this process that is of no file."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def large_objects(folder: Path, count: int, size: int) -> Digest:
    """Blobs in folders, not synced; gives what leads to all."""
    for first in range(256):
        (folder / f"objects/{first:02x}").mkdir(parents=True)
    links = []
    for at in range(count + 1):
        payload, kind = np.random.default_rng(at).bytes(size), Kind.BLOB
        encoded = (
            encode_object(kind, payload) if at < count
            else encode_object(Kind.DATASET, b"", links)
        )  # fmt: skip
        (folder / object_key(encoded.link.digest)).write_bytes(b"".join(stored_form(encoded)))
        links.append(encoded.link)
    return links[-1].digest


def many_objects(folder: Path, count: int) -> Digest:
    """Objects in folders, not synced, each tenth with nine leaves; gives what leads to all."""
    for first in range(256):
        (folder / f"objects/{first:02x}").mkdir(parents=True)

    def put(kind: Kind, payload: bytes, links: Sequence[ObjectLink] = ()) -> ObjectLink:
        encoded = encode_object(kind, payload, links)
        (folder / object_key(encoded.link.digest)).write_bytes(b"".join(stored_form(encoded)))
        return encoded.link

    top = [
        put(Kind.LEAF, b"%d" % at * 40, [put(Kind.BLOB, b"%d %d" % (at, n)) for n in range(9)])
        for at in range(count // 10)
    ]
    while len(top) > 1:
        top = [put(Kind.DATASET, b"%d" % at, top[at : at + 500]) for at in range(0, len(top), 500)]
    return top[0].digest


def start_up(folder: Path, rounds: int = 11) -> dict[str, Any]:
    """`import tensorrepo` over a bare interpreter, `tensorrepo --help` over a bare typer app."""
    bare = folder / "bare.py"
    bare.write_text(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef a(): pass\n@app.command()\ndef b(): pass\napp()\n"
    )
    runs: dict[str, list[str]] = {
        "python": ["-c", ""],
        "import": ["-c", "import tensorrepo"],
        "typer_help": [str(bare), "--help"],
        "help": ["-m", "tensorrepo", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, words in runs.items():
            times[name].append(
                timed(
                    lambda words=words: subprocess.run(
                        [sys.executable, *words], capture_output=True, check=True
                    )
                )
            )
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    return {
        "import_ms": round((medians["import"] - medians["python"]) * 1e3, 1),
        "help_ms": round(medians["help"] * 1e3, 1),
        "help_ratio": round(medians["help"] / medians["typer_help"], 2),
        "goal": "import_ms < 100, help_ratio <= 1.3",
    }


def timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def against(ours: list[float], floor: list[float], size: int, goal: str) -> dict[str, Any]:
    """Throughput of both, and ours as a part of the limit's."""
    mine, limit = statistics.median(ours), statistics.median(floor)
    return {
        "gb_per_s": round(size / mine / 1e9, 2),
        "limit_gb_per_s": round(size / limit / 1e9, 2),
        "ratio": round(limit / mine, 2),
        "goal": goal,
    }


def alone(case: Callable[[Path], dict[str, Any]]) -> Case:
    """A case that takes no options."""
    return lambda folder, _: case(folder)


CASES: dict[str, Case] = {
    "durable_commit": alone(durable_commit),
    "eight_writers": alone(eight_writers),
    "page_write": alone(page_write),
    "page_scan": alone(page_scan),
    "ingest_memory": alone(ingest_memory),
    "mark": alone(mark),
    "fsck": alone(check),
    "start_up": alone(start_up),
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--ingest"]:
        ingest(Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        run(CASES, "Measure the core.", rounds=1)

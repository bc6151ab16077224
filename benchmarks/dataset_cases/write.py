"""Writing rows from memory, against Lance with an fsync of its files, and against a copy with one.

Both sides have the rows in memory and take them in batches of 4,096; ours counts from `init` to a
commit that is durable. `cpu_ns_byte_` is what all threads of a side took, which a busy machine
changes less than the clock.

Two bounds are measured in the same turns, by one thread and with nothing of ours. `floor` is what
no writer of named, durable bytes leaves out: BLAKE3 of each byte, a copy, a write with an fsync.
`format` is what the stored format asks for: BLAKE3 twice (a page's tag, the object's name) and
XXH3 twice (a row's sum, a page's). A goal in ns a byte below `format` is out of reach here.

Turns come in another order each round. A virtual machine gives memory that files left back to its
host, and who comes then waits for it: a copy of 2 GB took 0.9 s after one side and 1.7 to 4 after
another, ours 1.0 and 1.2 to 2.1. `ratio_copy_least` compares the quickest rounds of both.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from harness import MIB, SEED, Options, Peer, medians_ms, portions, ratio, take_turns
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

import tensorrepo

ROW, ROWS, STEP = 3072, 200_000, 4096
CHUNK = 64 * MIB
PIECE = MIB // 4  # as long as a page, and as a write
PARTS = ("blake3", "xxh3", "copy", "write")


def bounds(values: NDArray[np.uint8], file: Path, room: NDArray[np.uint8]) -> dict[str, float]:
    """Seconds of this thread's processor time for each of `PARTS`, once for every byte.

    Bytes are copied to `room`, of `CHUNK` bytes, and written from there to files as long.
    """
    spent = dict.fromkeys(PARTS, 0)

    def timed(part: str, work: Callable[[], object]) -> None:
        begun = time.thread_time_ns()
        work()
        spent[part] += time.thread_time_ns() - begun

    flat = values.reshape(-1)
    for start in range(0, len(flat), CHUNK):
        chunk = room[: min(CHUNK, len(flat) - start)]
        pieces = [chunk[at : at + PIECE].data for at in range(0, len(chunk), PIECE)]
        timed("copy", lambda: np.copyto(chunk, flat[start : start + len(chunk)]))  # noqa: B023
        timed("blake3", lambda: [blake3(piece).digest() for piece in pieces])  # noqa: B023
        timed("xxh3", lambda: [xxh3_64_intdigest(piece) for piece in pieces])  # noqa: B023
        timed("write", lambda: _write(file, pieces))  # noqa: B023
        file.unlink()
    return {part: each / 1e9 for part, each in spent.items()}


def _write(file: Path, pieces: list[memoryview]) -> None:
    with file.open("wb", buffering=0) as target:
        os.posix_fallocate(target.fileno(), 0, sum(piece.nbytes for piece in pieces))
        for piece in pieces:
            target.write(piece)
        os.fsync(target.fileno())


def write_rows(folder: Path, options: Options) -> dict[str, Any]:
    """614 MB of rows of 3 KiB with a label."""
    count = max(STEP, int(ROWS * options.scale))
    rng = np.random.default_rng(SEED)
    values = np.frombuffer(rng.bytes(count * ROW), np.uint8).reshape(count, ROW)
    labels = rng.integers(0, 10, count)
    np.save(folder / "x.npy", values)
    np.save(folder / "y.npy", labels)
    lance = Peer(
        replace(options, peers=options.peers or sys.executable),
        "dataset_cases/peer_lance_write.py",
        folder,
    )
    cpu: dict[str, list[float]] = {
        name: [] for name in ("ours", "lance", "copy", "floor", "format")
    }
    versions: list[str] = []
    room = np.zeros(CHUNK, np.uint8)

    def ours() -> float:
        begun, used = time.perf_counter(), time.process_time()
        repository = tensorrepo.init(folder / "ours")
        with repository.transaction("main", message="write") as change:
            draft = change.create_dataset(
                "x", columns={"x": tensorrepo.Tensor("uint8", (ROW,)), "y": "int64"}
            )
            draft.append({"x": values[part], "y": labels[part]} for part in portions(count, STEP))
        repository.close()
        cpu["ours"].append(time.process_time() - used)
        seconds = time.perf_counter() - begun
        shutil.rmtree(folder / "ours")
        return seconds

    def peer() -> float:
        answer = lance.ask("write", kind="rows", workers=0)
        cpu["lance"].append(answer["cpu"])
        versions.append(answer["version"])
        return float(answer["synced"])

    def copy() -> float:
        begun, used = time.perf_counter(), time.process_time()
        with (folder / "x.npy").open("rb") as source, (folder / "copy").open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
            target.flush()
            os.fsync(target.fileno())
        cpu["copy"].append(time.process_time() - used)
        seconds = time.perf_counter() - begun
        (folder / "copy").unlink()
        return seconds

    def least() -> None:
        spent = bounds(values, folder / "pieces", room)
        floor = spent["blake3"] + spent["copy"] + spent["write"]
        cpu["floor"].append(floor)
        cpu["format"].append(floor + spent["blake3"] + 2 * spent["xxh3"])

    sides = {"ours": ours, "lance": peer, "copy": copy, "bounds": least}
    found = take_turns(options.rounds + 1, sides, mixed=True)
    lance.close()
    found = {name: found[name][1:] for name in ("ours", "lance", "copy")}  # the first warms up
    size = count * ROW
    each = {
        f"cpu_ns_byte_{name}": round(statistics.median(used[1:]) / size * 1e9, 3)
        for name, used in cpu.items()
    }
    least_ns = round(min(cpu["ours"][1:]) / size * 1e9, 3)
    return (
        medians_ms(found)
        | each
        | {
            "ratio_lance": ratio(found["lance"], found["ours"]),
            "ratio_copy": ratio(found["copy"], found["ours"]),
            "ratio_cpu_lance": ratio(cpu["lance"][1:], cpu["ours"][1:]),
            "ratio_cpu_floor": ratio(cpu["ours"][1:], cpu["floor"][1:]),
            "ratio_cpu_format": ratio(cpu["ours"][1:], cpu["format"][1:]),
            "ratio_copy_least": round(min(found["copy"]) / min(found["ours"]), 2),
            "cpu_ns_byte_ours_least": least_ns,
            "rows": count,
            "bytes": size,
            "lance": versions[-1],
            "goal": "ratio_lance >= 1, cpu_ns_byte_ours <= 1.2, ratio_copy and its least >= 0.8",
        }
    )


CASES = {"write_rows": write_rows}

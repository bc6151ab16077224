"""Shuffled batches of decoded images, beside decoding alone and the loaders that people use.

Every side decodes the same JPEGs with the same two libraries into the same pixels, 224 x 224, and
hands out shuffled batches of torch tensors from a warm local disk; what comes is counted, its
labels summed, and a batch of ours compared with what the peers make of the same files. The limit is
a loop that does nothing but decode and resize pictures in memory, on as many threads as there are
cores. Peers run in processes of their own, with as many workers as there are cores; each stores the
files in its own format.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from harness import MIB, SEED, Options, Peer, ratio, reopen, store_dataset

from tensorrepo.formats.dataset.schema.schema import Image, Schema
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.options import Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.stream import BatchStream, stream

sys.path.insert(0, str(Path(__file__).parent))
from collections.abc import Iterator

from pictures import SIZE, decoded, jpegs

PEERS = ("torch", "litdata", "mosaic", "webdataset")
ROWS, BATCH, ROWS_AT_ONCE = 5000, 64, 500


class Seconds(NamedTuple):
    """By the clock, and of processors."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def __sub__(self, other: Seconds) -> Seconds:
        return Seconds(self.wall - other.wall, self.cpu - other.cpu)


def images(folder: Path, options: Options) -> dict[str, Any]:
    """JPEGs of 500 x 375 in batches of 64: pictures a second of every side, and ratios."""
    rows = round(ROWS * options.scale)
    data = list(jpegs(rows))
    ours = _ours(folder, data)
    _check(ours, data)
    peers = _prepared(options, folder, data)
    try:
        found = _measured(ours, data, peers, options.rounds)
    finally:
        for peer in peers.values():
            peer.close()
    return {"rows": rows, "mean_bytes": sum(map(len, data)) // rows} | _told(found, rows)


def _ours(folder: Path, data: list[bytes]) -> BatchStream:
    schema = Schema.of({"x": Image("jpeg"), "y": "int64"})
    digest = store_dataset(str(folder / "ours"), {}, schema, _portions(data))
    dataset = reopen(str(folder / "ours"), {}, digest)
    options = StreamOptions(
        batch_size=BATCH,
        columns=["x", "y"],
        seed=SEED,
        sampling=Sampling(window=128 * MIB),
        decode={"x": Decode(size=SIZE)},
        output="torch",
    )
    return stream(dataset, options)


def _portions(data: list[bytes]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(data), ROWS_AT_ONCE):
        part = data[start : start + ROWS_AT_ONCE]
        yield {"x": part, "y": np.arange(start, start + len(part))}


def _check(ours: BatchStream, data: list[bytes]) -> None:
    """Ours gives the very pixels that the peers make."""
    batch = next(iter(ours))
    for pixels, row in zip(batch["x"].numpy(), batch.rows.tolist(), strict=True):
        assert (pixels == decoded(data[row])).all(), "other pixels than the reference's"


def _prepared(options: Options, folder: Path, data: list[bytes]) -> dict[str, Peer]:
    if options.peers is None:
        return {}
    (folder / "jpegs").mkdir()
    for row, each in enumerate(data):
        (folder / "jpegs" / f"{row:06d}.jpg").write_bytes(each)
    peers = {name: Peer(options, f"stream_cases/peer_images_{name}.py", folder) for name in PEERS}
    for peer in peers.values():
        peer.ask("prepare")
    return peers


def _measured(
    ours: BatchStream, data: list[bytes], peers: dict[str, Peer], rounds: int
) -> dict[str, list[Seconds]]:
    """What an epoch takes, in turns; the first round warms everything and does not count."""
    found: dict[str, list[Seconds]] = {}
    rows = len(data)
    for turn in range(rounds + 1):
        sides = {"limit": _limit(data), "ours": _epoch(ours, turn, rows)}
        for name, peer in peers.items():
            workers = os.cpu_count() or 1
            told = peer.ask("epoch", epoch=turn, batch_size=BATCH, workers=workers)
            assert told["shape"] == [SIZE, SIZE, 3], f"{name} gave {told['shape']}"
            assert told["sum"] == rows * (rows - 1) // 2, f"{name}: not every row once"
            sides[name] = Seconds(told["seconds"], told["cpu"])
        for name, seconds in sides.items() if turn else ():
            found.setdefault(name, []).append(seconds)
    return found


def _limit(data: list[bytes]) -> Seconds:
    """Nothing but decoding and resizing, from memory into batches whose memory is there."""
    threads = os.cpu_count() or 1
    places = np.zeros((threads, BATCH, SIZE, SIZE, 3), np.uint8)

    def run(thread: int) -> None:
        for at, each in enumerate(data[thread::threads]):
            decoded(each, places[thread, at % BATCH])

    with ThreadPoolExecutor(threads) as pool:
        begun = Seconds.now()
        list(pool.map(run, range(threads)))
        return Seconds.now() - begun


def _epoch(ours: BatchStream, epoch: int, rows: int) -> Seconds:
    ours.set_epoch(epoch)
    begun = Seconds.now()
    total = sum(int(batch["y"].sum()) for batch in ours)
    seconds = Seconds.now() - begun
    assert total == rows * (rows - 1) // 2, "not every row came once"
    return seconds


def _told(found: dict[str, list[Seconds]], rows: int) -> dict[str, Any]:
    """Rates and processor time of the median rounds; ratios are medians of the rounds' own."""
    walls = {name: [each.wall for each in side] for name, side in found.items()}
    cpus = {name: [each.cpu for each in side] for name, side in found.items()}
    medians = {name: statistics.median(side) for name, side in walls.items()}
    best = min((name for name in PEERS if name in medians), key=medians.__getitem__, default=None)
    return {
        "images_per_s": {name: round(rows / seconds) for name, seconds in medians.items()},
        "cpu_us_per_image": {
            name: round(statistics.median(side) / rows * 1e6) for name, side in cpus.items()
        },
        "of_limit": ratio(walls["limit"], walls["ours"]),
        "of_limit_by_cpu": ratio(cpus["limit"], cpus["ours"]),
        "goal": "of_limit >= 0.95, ratio >= 1.3",
        "best_peer": best,
        "ratio": None if best is None else ratio(walls[best], walls["ours"]),
        "ratio_by_cpu": None if best is None else ratio(cpus[best], cpus["ours"]),
    }


CASES = {"images": images}

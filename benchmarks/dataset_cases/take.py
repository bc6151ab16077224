"""Random rows: of a local disk against Lance, of a slow S3 against bare parallel requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    SEED,
    Options,
    Peer,
    medians_ms,
    portions,
    ratio,
    reopen,
    reset_counts,
    slow_s3,
    store_dataset,
    take_turns,
)

from tensorrepo.formats.dataset.read import StoredDataset, column_index, page_reader, read_rows
from tensorrepo.formats.dataset.reading.range_read import RANGE_THREADS
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.schema import Bytes, ColumnType, Schema, Tensor

TAKEN = 1024
ROW = 3072
LATENCY_MS = 20


# ------------------------------------------------------------------------------ a local disk


def take_3k(folder: Path, options: Options) -> dict[str, Any]:
    """1,024 random rows of 3 KiB, warm: the arrays of both sides, equal to the last byte."""
    values = np.random.default_rng(SEED).integers(0, 256, (100_000, ROW), np.uint8)
    np.save(folder / "x.npy", values)
    batches = ({"x": values[part]} for part in portions(len(values), 4096))
    return _against_lance(folder, options, "fixed", Tensor("uint8", (ROW,)), batches) | {
        "goal": "ratio >= 2"
    }


def take_100k(folder: Path, options: Options) -> dict[str, Any]:
    """1,024 random blobs of 80 to 120 KB of 500 MB, warm."""
    rng = np.random.default_rng(SEED)
    ends = np.cumsum(rng.integers(80_000, 120_000, 5000))
    data = rng.integers(0, 256, int(ends[-1]), np.uint8)
    np.save(folder / "x.npy", data)
    np.save(folder / "x_ends.npy", ends)
    starts = np.concatenate([[0], ends[:-1]])
    blobs = [slice(start, stop) for start, stop in zip(starts, ends, strict=True)]
    batches = (
        {"x": [data[blob].tobytes() for blob in blobs[part]]} for part in portions(len(ends), 200)
    )
    return _against_lance(folder, options, "blobs", Bytes(), batches) | {"goal": "ratio >= 1"}


def _against_lance(
    folder: Path, options: Options, kind: str, column: ColumnType, batches: Iterator[Any]
) -> dict[str, Any]:
    url = str(folder / "ours")
    digest = store_dataset(url, {}, Schema.of({"x": column}), batches)
    dataset = reopen(url, {}, digest)
    rng = np.random.default_rng(SEED)
    rounds = options.rounds + 1
    chosen = np.stack([rng.choice(len(dataset), TAKEN, replace=False) for _ in range(rounds)])
    np.save(folder / "chosen.npy", chosen)
    page_reader(dataset, "x").take(np.arange(len(dataset)))  # every page is proved, and warm
    at = iter(np.repeat(np.arange(rounds), 3).tolist())
    lance = Peer(options, "dataset_cases/peer_lance.py", folder)
    version = lance.ask("write", name="x", kind=kind)["version"]
    found = take_turns(
        rounds,
        {
            "ours": lambda: _arrow_of(dataset, column, chosen[next(at)]),
            "presented": lambda: _drop(dataset[chosen[next(at)]]),
            "lance": lambda: float(lance.ask("take", name="x", round=next(at))["seconds"]),
        },
    )
    lance.close()
    found = {name: seconds[1:] for name, seconds in found.items()}  # the first warms up
    return medians_ms(found) | {
        "ratio": ratio(found["lance"], found["ours"]),
        "ratio_presented": ratio(found["lance"], found["presented"]),
        "lance": version,
    }


def _arrow_of(dataset: StoredDataset, column: ColumnType, rows: Any) -> None:
    """Rows as an Arrow array, which is what Lance gives."""
    assert len(to_arrow_array(column, read_rows(dataset, "x", rows))) == len(rows)


def _drop(_: object) -> None:
    """Done: what was read is thrown away."""


# ------------------------------------------------------------------------------ a slow S3


def s3_fixed(folder: Path, options: Options) -> dict[str, Any]:
    """1,024 random rows of 3 KiB from S3 with 20 ms to the first byte."""
    values = np.random.default_rng(SEED).integers(0, 256, (60_000, ROW), np.uint8)
    batches = ({"x": values[part]} for part in portions(len(values), 4096))
    found = _against_rounds(folder, options, Tensor("uint8", (ROW,)), batches)
    return found | {"goal": "rounds_cold <= 1.2"}


def s3_binary(folder: Path, options: Options) -> dict[str, Any]:
    """1,024 random blobs of 10 to 20 KB."""
    rng = np.random.default_rng(SEED)
    sizes = rng.integers(10_000, 20_000, 20_000)
    batches = (
        {"x": [rng.bytes(size) for size in sizes[part].tolist()]}
        for part in portions(len(sizes), 1000)
    )
    found = _against_rounds(folder, options, Bytes(), batches)
    return found | {"goal": "rounds_cold <= 2.4, rounds_known <= 1.2"}


def s3_ragged(folder: Path, options: Options) -> dict[str, Any]:
    """1,024 random clips of 10 to 20 KB."""
    rng = np.random.default_rng(SEED)
    sizes = rng.integers(2500, 5000, 20_000)
    batches = (
        {"x": [rng.random(size, np.float32) for size in sizes[part].tolist()]}
        for part in portions(len(sizes), 1000)
    )
    found = _against_rounds(folder, options, Tensor("float32", (None,)), batches)
    return found | {"goal": "rounds_cold <= 2.4, rounds_known <= 1.2"}


def _against_rounds(
    folder: Path, options: Options, column: ColumnType, batches: Iterator[Any]
) -> dict[str, Any]:
    """In rounds: one is as many bare requests, as large and as parallel, as rows are wanted."""
    with slow_s3(folder, LATENCY_MS) as (url, environment):
        digest = store_dataset(url, environment, Schema.of({"x": column}), batches)
        rng = np.random.default_rng(SEED)
        counts: dict[str, tuple[int, int]] = {}
        state: dict[str, Any] = {}

        def begin() -> None:
            state["dataset"] = reopen(url, environment, digest)
            count = len(state["dataset"])
            state["rows"] = rng.choice(count, TAKEN, replace=False)
            state["bare"] = _bare_round(state["dataset"], state["rows"])
            read_rows(state["dataset"], "x", slice(0, 1))  # leaves and indexes are read

        def take(name: str) -> None:
            objects = reset_counts(state["dataset"])
            read_rows(state["dataset"], "x", state["rows"])
            counts[name] = objects.requests, objects.bytes

        found: dict[str, list[float]] = {"round": [], "cold": [], "known": []}
        for _ in range(options.rounds):
            begin()
            sides = {
                "round": state["bare"],
                "cold": lambda: take("cold"),
                "known": lambda: take("known"),  # the tables of these rows are kept now
            }
            for name, seconds in take_turns(1, sides).items():
                found[name] += seconds
    assert counts["cold"][0] <= 2 * TAKEN, "never more than two requests a row"
    return medians_ms(found) | {
        "rounds_cold": ratio(found["cold"], found["round"]),
        "rounds_known": ratio(found["known"], found["round"]),
        "rows": TAKEN,
        "requests_cold": counts["cold"][0],
        "requests_known": counts["known"][0],
        "mb_cold": round(counts["cold"][1] / 1e6, 1),
        "latency_ms": LATENCY_MS,
        "in_flight": RANGE_THREADS,
    }


def _bare_round(dataset: StoredDataset, rows: Any) -> Callable[[], None]:
    """One request for each row, from where its page lies, without looking at what comes."""
    index = column_index(dataset, "x")
    pages = index.page_of(rows)
    size = int(index.entries["raw_bytes"].sum() // index.rows)
    starts = index.entries["offset"][pages].astype(np.int64)
    links = [index.chunks[chunk] for chunk in index.chunk[pages].tolist()]

    def run() -> None:
        with ThreadPoolExecutor(RANGE_THREADS) as threads:
            asked = [
                threads.submit(dataset.objects.read_range, link, start, start + size)
                for link, start in zip(links, starts.tolist(), strict=True)
            ]
            for each in asked:
                each.result()

    return run


CASES = {
    "take_3k": take_3k,
    "take_100k": take_100k,
    "s3_fixed": s3_fixed,
    "s3_binary": s3_binary,
    "s3_ragged": s3_ragged,
}

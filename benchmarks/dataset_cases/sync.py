"""What a nightly sync costs: bytes stored against a full write, time beside reading, peak memory.

A Parquet file of 1,000,000 rows of 8 columns, of which 1% differ in one cell, in two, or in six
since it was synced last; with a key of integers, of text, and without. Each sync runs in a process
of its own. Reading is the same file read by the same importer, its rows dropped: that is done by a
child, so the processor's time of this process is that of the sync beside it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import HERE, SEED, Options, process_mib, ratio, written

import tensorrepo as tr

ROWS = 1_000_000
SHARE = 0.01
KEYS = {None: "", "id": "_keyed", "code": "_keyed_by_text"}
CHANGED = {"one": ("c0",), "two": ("c0", "name"), "all": tuple(f"c{at}" for at in range(6))}


def _table(rows: int, key: str | None) -> pa.Table:
    rng = np.random.default_rng(SEED)
    columns: dict[str, Any] = {"id": np.arange(rows)}
    if key == "code":
        columns["code"] = pa.array([f"{at:010d}" for at in rng.permutation(rows)])
    columns |= {f"c{at}": rng.normal(size=rows) for at in range(6)}
    columns["name"] = pa.array([f"name {number:x}" for number in rng.integers(0, 2**40, rows)])
    return pa.table(columns)


def _changed(table: pa.Table, names: tuple[str, ...], night: int) -> pa.Table:
    rng = np.random.default_rng(SEED + 1 + night)
    places = np.sort(rng.choice(len(table), int(len(table) * SHARE), replace=False))
    for name in names:
        at = table.schema.get_field_index(name)
        values = table.column(name).to_numpy(zero_copy_only=False).copy()
        values[places] = f"changed {night}" if name == "name" else rng.normal(size=len(places))
        table = table.set_column(at, name, pa.array(values))
    return table


def _case(change: str, key: str | None) -> Callable[[Path, Options], dict[str, Any]]:
    def measure(folder: Path, options: Options) -> dict[str, Any]:
        table = _table(int(ROWS * options.scale), key)
        source = folder / "source.parquet"
        pq.write_table(table, source)
        place = folder / "store"
        with written(place) as full, tr.init(place, author="B <b@example.org>").transaction() as tx:
            tx.create_dataset("x", tr.read(source))
        _sync(place, source, key)  # the first night says what the source is
        found: dict[str, Any] = {"rows": len(table), "full_mb": round(full.bytes / 1e6, 2)}
        reads, syncs, beside = [], [], []
        for night in range(options.rounds):
            table = _changed(table, CHANGED[change], night)
            pq.write_table(table, source)
            with written(place) as stored:
                told = _in_a_process(place, source, key)
            reads.append(told["read_s"])
            syncs.append(told["sync_s"])
            beside.append(told["processor_s"])
            found["peak_mib"] = max(found.get("peak_mib", 0), told["peak_mib"])
            found["stored_kb"] = round(stored.bytes / 1e3)
            found["share_of_full"] = round(stored.bytes / full.bytes, 4)
        for name, seconds in (("read", reads), ("sync", syncs), ("processor", beside)):
            found[f"{name}_s"] = round(statistics.median(seconds), 2)
        found["sync_to_read"] = ratio(syncs, reads)
        return found | {"goal": "share_of_full to 0.03, peak_mib to 512, sync_to_read to 2"}

    return measure


def _sync(place: Path, source: Path, key: str | None) -> None:
    with tr.open(place, author="B <b@example.org>").transaction(message="Night") as tx:
        tx.dataset("x").sync(tr.read(source), key=key)


def _in_a_process(place: Path, source: Path, key: str | None) -> dict[str, float]:
    """What one sync takes in a process that does nothing else."""
    arguments = [str(place), str(source), key or ""]
    command = [sys.executable, "-m", "dataset_cases.sync", *arguments]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measured(place: Path, source: Path, key: str | None) -> dict[str, float]:
    begun = time.perf_counter()
    for _ in tr.read(source).batches:
        pass
    read = time.perf_counter() - begun
    begun, processor = time.perf_counter(), time.process_time()
    _sync(place, source, key)
    return {
        "read_s": read,
        "sync_s": time.perf_counter() - begun,
        "processor_s": time.process_time() - processor,
        "peak_mib": round(process_mib("VmHWM")),
    }


CASES = {f"sync_{change}{KEYS[key]}": _case(change, key) for change in CHANGED for key in KEYS}

if __name__ == "__main__":
    where, what, column = sys.argv[1:]
    print(json.dumps(_measured(Path(where), Path(what), column or None)))

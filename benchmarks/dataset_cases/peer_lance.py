"""Lance's side of a comparison; runs in the peers' environment, see `harness.Peer`.

Reads lines of JSON and answers each with one: ``{"what": "write", "name": ..., "kind": ...}`` makes
a dataset from the arrays in the folder, ``{"what": "take", ...}`` gives the seconds of one take,
``{"what": "scan", ...}`` those of a scan of all rows.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

STEP = 1024


def main() -> None:
    folder = Path(sys.argv[1])
    opened = {}
    for line in sys.stdin:
        asked = json.loads(line)
        name = asked["name"]
        place = str(folder / f"{name}.lance")
        if asked["what"] == "write":
            batches = fixed(folder, name) if asked["kind"] == "fixed" else blobs(folder, name)
            lance.write_dataset(batches, place)
            opened[name] = lance.dataset(place)
            answer = {"version": lance.__version__}
        elif asked["what"] == "scan":
            begun = time.perf_counter()
            rows = sum(batch.num_rows for batch in opened[name].to_batches(columns=["x"]))
            answer = {"seconds": time.perf_counter() - begun, "rows": rows}
        else:
            rows = np.load(folder / "chosen.npy")[asked["round"]].tolist()
            begun = time.perf_counter()
            table = opened[name].take(rows)
            answer = {"seconds": time.perf_counter() - begun, "rows": table.num_rows}
        print(json.dumps(answer), flush=True)


def fixed(folder: Path, name: str) -> pa.RecordBatchReader:
    """As binary of a fixed size, which Lance takes in half the time of fixed-size lists."""
    values = np.load(folder / f"{name}.npy", mmap_mode="r")
    kind = pa.binary(values[0].nbytes)
    schema = pa.schema([("x", kind)])

    def batches():
        for start in range(0, len(values), STEP):
            part = np.ascontiguousarray(values[start : start + STEP])
            column = pa.Array.from_buffers(kind, len(part), [None, pa.py_buffer(part)])
            yield pa.record_batch([column], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def blobs(folder: Path, name: str) -> pa.RecordBatchReader:
    data = np.load(folder / f"{name}.npy", mmap_mode="r")
    ends = np.load(folder / f"{name}_ends.npy")
    schema = pa.schema([("x", pa.large_binary())])

    def batches():
        for start in range(0, len(ends), STEP):
            bounds = np.concatenate(
                [ends[start - 1 : start] if start else [0], ends[start:][:STEP]]
            )
            part = np.ascontiguousarray(data[bounds[0] : bounds[-1]])
            offsets = pa.py_buffer((bounds - bounds[0]).astype(np.int64))
            parts = [None, offsets, pa.py_buffer(part)]
            column = pa.Array.from_buffers(pa.large_binary(), len(bounds) - 1, parts)
            yield pa.record_batch([column], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


if __name__ == "__main__":
    main()

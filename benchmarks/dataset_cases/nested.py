"""Lists, structs and lists of structs: written, read to Arrow, and 1,000 rows of them at random.

Beside it the same rows as a column of JSON, and as a Parquet file without compression.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tensorrepo

if TYPE_CHECKING:
    from harness import Options

ROWS, PICKED, SEED = 200_000, 1000, 7


def nested_rows(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of each kind of value; lists have 5 texts, or 3 structs."""
    rows = int(ROWS * options.scale)
    found: dict[str, Any] = {}
    with tensorrepo.init(folder / "warm").transaction("main", message="imports") as change:
        change.create_dataset("x", columns={"x": "int8"}).append({"x": [1]})
    for name, array in _arrays(rows).items():
        table = pa.table({"c": array})
        file = folder / f"{name}.parquet"
        found[f"{name}_parquet_read_s"] = _seconds(
            lambda table=table, file=file: pq.write_table(table, file, compression="none"),
            lambda file=file: pq.read_table(file),
        )
        repository = tensorrepo.init(folder / name)
        begun = time.perf_counter()
        with repository.transaction("main", message="rows") as change:
            change.create_dataset("x", columns=tensorrepo.Schema.from_arrow(table.schema)).append(
                table
            )
        found[f"{name}_write_s"] = time.perf_counter() - begun
        with repository.transaction("main", message="as JSON") as change:
            column = tensorrepo.Column("c", tensorrepo.Json(), nullable=True)
            draft = change.create_dataset("j", columns=tensorrepo.Schema((column,)))
            draft.append({"c": array.to_pylist()})
        dataset, as_json = repository.dataset("x"), repository.dataset("j")
        picked = np.sort(np.random.default_rng(SEED).choice(rows, min(PICKED, rows), replace=False))
        found[f"{name}_arrow_s"] = _seconds(dataset.to_arrow)
        found[f"{name}_picked_s"] = _seconds(lambda data=dataset, at=picked: data["c"][at])
        found[f"{name}_json_s"] = _seconds(lambda data=as_json: data["c"][:])
        repository.close()
    return {name: round(seconds, 3) for name, seconds in found.items()}


def _seconds(*steps: Callable[[], object]) -> float:
    """The shortest of three runs of the last step."""
    taken = []
    for _ in range(3):
        for step in steps:
            begun = time.perf_counter()
            step()
        taken.append(time.perf_counter() - begun)
    return min(taken)


def _arrays(rows: int) -> dict[str, pa.Array]:
    rng = np.random.default_rng(SEED)
    words = pa.array([f"word{at}" for at in range(1000)])

    def structs(count: int) -> pa.StructArray:
        parts = [words.take(pa.array(rng.integers(0, 1000, count))), pa.array(rng.random(count))]
        return pa.StructArray.from_arrays(parts, ["name", "score"])

    def lists(values: pa.Array, each: int) -> pa.ListArray:
        ends = pa.array(np.arange(0, (rows + 1) * each, each, dtype=np.int32))
        return pa.ListArray.from_arrays(ends, values)

    texts = words.take(pa.array(rng.integers(0, 1000, 5 * rows)))
    return {"texts": lists(texts, 5), "structs": lists(structs(3 * rows), 3), "box": structs(rows)}


CASES = {"nested": nested_rows}

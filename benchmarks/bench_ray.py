"""Datasets read by Ray, against Ray's own reader of Parquet files with the same columns.

    pip install 'tensorrepo[ray]'
    python benchmarks/bench_ray.py [case ...] [--folder DIR] [--rounds N] [--scale X]

One JSON line for each case: medians of rounds taken in turns in one process, on a cluster of this
machine's cores; a ratio is the median of the rounds' ratios, and above 1 ours took less time. Files
and pages lie in the system's memory. Parquet is written as it is read fastest: uncompressed, eight
files. Both sides make as many blocks and are materialized. The environment that runs this has Ray,
which is why it is no case of `bench_dataset.py`.

`ray_read_all` reads 1,000,000 rows of three numbers, a text and an embedding of 64 floats;
`ray_read_columns` the three numbers; `ray_read_predicate` all columns of 1,000 rows that stand
together; `ray_read_spread` all columns of one row in a thousand, that stand anywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import SEED, Options, Skipped, medians_ms, ratio, run, take_turns

import tensorrepo as tr

ROWS, WIDTH, FILES = 1_000_000, 64, 8
Change = Callable[[Any], Any]


def _table(rows: int, start: int, rng: np.random.Generator) -> pa.Table:
    vectors = pa.array(rng.random(rows * WIDTH, "f4"))
    return pa.table(
        {
            "x": np.arange(start, start + rows),
            "y": rng.random(rows),
            "bucket": rng.integers(0, 1000, rows),
            "text": [f"row number {at}" for at in range(start, start + rows)],
            "v": pa.FixedSizeListArray.from_arrays(vectors, WIDTH),
        }
    )


def _stored(folder: Path, rows: int) -> tr.Dataset:
    """The rows as a dataset, and as Parquet files beside it."""
    rng = np.random.default_rng(SEED)
    (folder / "parquet").mkdir()
    repo = tr.init(folder / "store", author="B <b@example.org>")
    each = rows // FILES
    with repo.transaction() as tx:
        columns = {"v": tr.Tensor("float32", (WIDTH,))}
        draft = None
        for number in range(FILES):
            table = _table(each, number * each, rng)
            pq.write_table(table, folder / "parquet" / f"{number}.parquet", compression="none")
            if draft is None:
                draft = tx.create_dataset("rows", table, columns=columns)
            else:
                draft.append(table)
    return repo.dataset("rows")


def _case(change: Change, goal: float) -> Callable[[Path, Options], dict[str, Any]]:
    def measure(folder: Path, options: Options) -> dict[str, Any]:
        ray, source_of = _connected()
        dataset = _stored(folder, int(ROWS * options.scale))
        found: dict[str, int] = {}

        def ours() -> None:
            read = ray.data.read_datasource(source_of(dataset), override_num_blocks=FILES)
            found["ours"] = change(read).materialize().count()

        def parquet() -> None:
            read = ray.data.read_parquet(str(folder / "parquet"), override_num_blocks=FILES)
            found["parquet"] = change(read).materialize().count()

        sides = {"ours": ours, "parquet": parquet}
        take_turns(2, sides)  # workers begin, and import
        seconds = take_turns(options.rounds, sides)
        assert found["ours"] == found["parquet"], found
        return {
            "rows": found["ours"],
            **medians_ms(seconds),
            "parquet_to_ours": ratio(seconds["parquet"], seconds["ours"]),
            "goal": f"parquet_to_ours >= {goal}",
            "ray": ray.__version__,
        }

    return measure


def _connected() -> tuple[Any, Any]:
    """Ray, connected to this machine's cores, and our source for it."""
    try:
        import ray

        import tensorrepo.ray
    except ImportError as error:
        raise Skipped("needs Ray: pip install 'tensorrepo[ray]'") from error
    if not ray.is_initialized():
        ray.init(include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    return ray, tensorrepo.ray.Source


def _column(name: str) -> Any:
    from ray.data.expressions import col

    return col(name)


def _all(read: Any) -> Any:
    return read


def _columns(read: Any) -> Any:
    return read.select_columns(["x", "y", "bucket"])


def _together(read: Any) -> Any:
    return read.filter(expr=(_column("x") >= 5000) & (_column("x") < 6000))


def _spread(read: Any) -> Any:
    return read.filter(expr=_column("bucket") == 7)


CASES = {
    "ray_read_all": _case(_all, 1.0),
    "ray_read_columns": _case(_columns, 1.0),
    "ray_read_predicate": _case(_together, 5.0),
    "ray_read_spread": _case(_spread, 5.0),
}

if __name__ == "__main__":
    run(CASES, "Measure reading by Ray.", rounds=5)

"""All rows of a column, read once, warm, beside Lance: Arrow batches of both sides.

Ours is opened anew in every round, and so verifies every byte; Lance's handle is kept, and verifies
nothing. Both give batches as large as they do of their own accord, and each is dropped when the
next one comes. `proved` is ours by a handle whose pages were verified before.
"""

from __future__ import annotations

from contextlib import closing
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
    store_dataset,
    take_turns,
)

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor

ROWS, ROW = 100_000, 3072


def scan_3k(folder: Path, options: Options) -> dict[str, Any]:
    """All of 100,000 rows of 3 KiB, in order."""
    count = max(1, round(ROWS * options.scale))
    values = np.random.default_rng(SEED).integers(0, 256, (count, ROW), np.uint8)
    np.save(folder / "x.npy", values)
    url, schema = str(folder / "ours"), Schema.of({"x": Tensor("uint8", (ROW,))})
    batches = ({"x": values[part]} for part in portions(count, 4096))
    digest = store_dataset(url, {}, schema, batches)
    proved = reopen(url, {}, digest)
    _check(proved, values)
    with closing(Peer(options, "dataset_cases/peer_lance.py", folder)) as lance:
        version = lance.ask("write", name="x", kind="fixed")["version"]

        def theirs() -> float:
            told = lance.ask("scan", name="x")
            assert told["rows"] == count, "Lance reads all rows, too"
            return float(told["seconds"])

        found = take_turns(
            options.rounds + 1,
            {
                "ours": lambda: _scan(reopen(url, {}, digest), count),
                "proved": lambda: _scan(proved, count),
                "lance": theirs,
            },
        )
    found = {name: seconds[1:] for name, seconds in found.items()}  # the first warms up
    return medians_ms(found) | {
        "ratio": ratio(found["lance"], found["ours"]),
        "ratio_proved": ratio(found["lance"], found["proved"]),
        "gb_per_second": round(values.nbytes / 1e9 / min(found["ours"]), 2),
        "rows": count,
        "lance": version,
        "goal": "ratio >= 1.5",
    }


def _scan(dataset: StoredDataset, count: int) -> None:
    assert sum(batch.num_rows for batch in dataset.to_batches(["x"])) == count


def _check(dataset: StoredDataset, values: Any) -> None:
    """What is timed gives the rows that were stored; reads every page, so that all is warm."""
    at = 0
    for batch in dataset.to_batches(["x"]):
        rows = np.asarray(batch.column("x").storage.flatten())
        assert np.array_equal(rows, values[at : at + batch.num_rows].reshape(-1))
        at += batch.num_rows
    assert at == len(values)


CASES = {"scan_3k": scan_3k}

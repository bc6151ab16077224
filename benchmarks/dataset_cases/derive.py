"""What a derived dataset costs after 1% of its source changed, against making it as a whole.

60,000 pictures of 64 x 64 pixels, stored raw, are shrunk to 16 x 16, about 0.3 ms a row. Then 1% of
the rows get other pixels, 0.1% are deleted and 0.1% appended. The pictures that change lie anywhere
(``derive_spread``), or in one place, as those of a day do (``derive_near``).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from harness import SEED, Options, ratio, written

import tensorrepo as tr

ROWS = 60_000
SHARE = 0.01
SIDE = 64


def shrink(batch: pa.RecordBatch) -> Any:
    """The mean of 4 x 4 pixels, worked out three times: about what decoding would take."""
    pixels = batch["image"].to_numpy_ndarray()
    array = pixels.reshape(len(batch), SIDE // 4, 4, SIDE // 4, 4)
    for _ in range(3):
        small = array.astype("f4").mean(axis=(2, 4))
    return {"small": small.astype("u1"), "label": batch["label"]}


def _case(places: Callable[[int, int], np.ndarray[Any, Any]]) -> Callable[..., dict[str, Any]]:
    def measure(folder: Path, options: Options) -> dict[str, Any]:
        rows = int(ROWS * options.scale)
        rng = np.random.default_rng(SEED)
        repo = tr.init(folder / "store", author="B <b@example.org>")
        with repo.transaction() as tx:
            draft = tx.create_dataset(
                "photos", columns={"image": tr.Tensor("u1", (SIDE, SIDE)), "label": "int32"}
            )
            draft.append(_pictures(rng, min(5000, rows - at)) for at in range(0, rows, 5000))
        wholes, afters, shares = [], [], []
        for night in range(options.rounds):
            whole = _timed(repo, folder, f"whole{night}")
            if not night:
                _timed(repo, folder, "small")
            with repo.transaction() as tx:
                changed = places(rows, night)
                more = rows // 1000
                draft = tx.dataset("photos")
                draft.update(changed, {"image": _pictures(rng, len(changed))["image"]})
                draft.delete(np.arange(night * more, (night + 1) * more))
                draft.append(_pictures(rng, more))
            after = _timed(repo, folder, "small")
            wholes.append(whole[0])
            afters.append(after[0])
            shares.append(after[1] / whole[1])
        return {
            "rows": rows,
            "whole_s": round(statistics.median(wholes), 3),
            "after_s": round(statistics.median(afters), 3),
            "after_to_whole": ratio(afters, wholes),
            "bytes_to_whole": round(statistics.median(shares), 4),
            "goal": "after_to_whole and bytes_to_whole to 0.03",
        }

    return measure


def _pictures(rng: np.random.Generator, rows: int) -> dict[str, Any]:
    return {
        "image": rng.integers(0, 256, (rows, SIDE, SIDE), "u1"),
        "label": rng.integers(0, 10, rows, "i4"),
    }


def _timed(repo: tr.Repository, folder: Path, name: str) -> tuple[float, int]:
    """Seconds of processor and waiting, and bytes stored."""
    with written(folder / "store") as stored:
        began = time.perf_counter()
        with repo.transaction() as tx:
            tx.derive(name, "photos", shrink)
        seconds = time.perf_counter() - began
    return seconds, stored.bytes


def _spread(rows: int, night: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(SEED + night)
    live = rows - 1000
    return np.sort(rng.choice(np.arange(rows // 10, live), int(rows * SHARE), replace=False))


def _near(rows: int, night: int) -> np.ndarray[Any, Any]:
    begin = rows // 10 + night * int(rows * SHARE)
    return np.arange(begin, begin + int(rows * SHARE))


CASES = {"derive_spread": _case(_spread), "derive_near": _case(_near)}

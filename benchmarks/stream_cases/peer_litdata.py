"""LitData's loader; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import torch
from peer_support import arrays, serve

CHUNK_BYTES = "64MB"  # as its guide says


def prepare(folder: Path) -> None:
    litdata.optimize(
        fn=partial(_row, str(folder)),
        inputs=list(range(len(arrays(folder)[0]))),
        output_dir=str(folder / "litdata"),
        num_workers=os.cpu_count(),
        chunk_bytes=CHUNK_BYTES,
        verbose=False,
    )


_OPENED: dict[str, Any] = {}


def _row(folder: str, number: int) -> dict[str, Any]:
    if folder not in _OPENED:
        _OPENED[folder] = arrays(Path(folder))
    values, labels = _OPENED[folder]
    return {"x": torch.from_numpy(values[number].copy()), "y": int(labels[number])}


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    # Its default decodes 256 neighbours with a row, and a shuffled reader uses one of them: without
    # that it is ten times as fast here.
    data = litdata.StreamingDataset(
        str(folder / "litdata"), shuffle=True, seed=epoch, batch_decode=0
    )
    return litdata.StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)


if __name__ == "__main__":
    serve(litdata.__version__, prepare, loader)

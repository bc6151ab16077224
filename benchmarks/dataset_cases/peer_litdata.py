"""LitData's side of an ingest; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import litdata
from peer_support import arrays, jpegs, serve

CHUNK_BYTES = "64MB"  # as its guide says


def write(folder: Path, kind: str, place: Path, workers: int) -> None:
    if kind == "jpeg":
        function, inputs = image, jpegs(folder)
    else:
        function, inputs = partial(row, str(folder)), list(range(len(arrays(folder)[0])))
    litdata.optimize(
        fn=function,
        inputs=inputs,
        output_dir=str(place),
        num_workers=workers,
        chunk_bytes=CHUNK_BYTES,
        verbose=False,
    )


def image(of: tuple[str, int]) -> dict[str, Any]:
    path, label = of
    return {"image": Path(path).read_bytes(), "label": label}


_OPENED: dict[str, Any] = {}


def row(folder: str, number: int) -> dict[str, Any]:
    if folder not in _OPENED:
        _OPENED[folder] = arrays(Path(folder))
    values, labels = _OPENED[folder]
    return {"x": values[number], "y": int(labels[number])}


if __name__ == "__main__":
    serve(litdata.__version__, write)

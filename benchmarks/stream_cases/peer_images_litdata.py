"""LitData's loader of images; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import litdata
import torch
from peer_support import serve
from pictures import decoded

CHUNK_BYTES = "64MB"  # as its guide says


def prepare(folder: Path) -> None:
    litdata.optimize(
        fn=_row,
        inputs=list(enumerate(sorted(map(str, (folder / "jpegs").iterdir())))),
        output_dir=str(folder / "litdata"),
        num_workers=os.cpu_count(),
        chunk_bytes=CHUNK_BYTES,
        verbose=False,
    )


def _row(given: tuple[int, str]) -> dict[str, Any]:
    row, path = given
    return {"x": Path(path).read_bytes(), "y": row}


class Pictures(litdata.StreamingDataset):
    """Decoded by the worker, as its guide does."""

    def __getitem__(self, index: Any) -> dict[str, Any]:
        row = super().__getitem__(index)
        return {"x": torch.from_numpy(decoded(row["x"])), "y": row["y"]}


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    data = Pictures(str(folder / "litdata"), shuffle=True, seed=epoch)
    return litdata.StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)


if __name__ == "__main__":
    serve(litdata.__version__, prepare, loader)

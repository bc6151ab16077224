"""Mosaic's loader of images; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import library
from torch.utils.data import DataLoader

# Its import needs torchvision, whose operators are missing beside a torch from elsewhere; reading
# needs none of them: declared, they are enough.
_OPERATORS = library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor any) -> Tensor")

import streaming  # noqa: E402 - behind what it needs
from peer_support import serve  # noqa: E402 - the same
from pictures import decoded  # noqa: E402 - the same
from streaming.base.util import clean_stale_shared_memory  # noqa: E402 - the same


def prepare(folder: Path) -> None:
    with streaming.MDSWriter(out=str(folder / "mosaic"), columns={"x": "bytes", "y": "int"}) as out:
        for row, path in enumerate(sorted((folder / "jpegs").iterdir())):
            out.write({"x": path.read_bytes(), "y": row})


class Pictures(streaming.StreamingDataset):
    """Decoded by the worker, as its guide does."""

    def __getitem__(self, index: Any) -> dict[str, Any]:
        row = super().__getitem__(index)
        return {"x": torch.from_numpy(decoded(row["x"])), "y": row["y"]}


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    clean_stale_shared_memory()
    data = Pictures(
        local=str(folder / "mosaic"),
        shuffle=True,
        shuffle_seed=epoch,
        batch_size=batch_size,
        num_canonical_nodes=1,
    )
    return DataLoader(data, batch_size=batch_size, num_workers=workers)


if __name__ == "__main__":
    serve(streaming.__version__, prepare, loader)

"""Mosaic's loader; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import library
from torch.utils.data import DataLoader

# Its import needs torchvision, whose operators are missing beside a torch from elsewhere; reading
# needs none of them: declared, they are enough.
_OPERATORS = library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _OPERATORS.define(f"{_name}(Tensor any) -> Tensor")

import streaming  # noqa: E402 - behind what it needs
from peer_support import arrays, serve  # noqa: E402 - the same
from streaming.base.util import clean_stale_shared_memory  # noqa: E402 - the same


def prepare(folder: Path) -> None:
    values, labels = arrays(folder)
    shape = ",".join(map(str, values.shape[1:]))
    columns = {"x": f"ndarray:{values.dtype}:{shape}", "y": "int"}
    with streaming.MDSWriter(out=str(folder / "mosaic"), columns=columns) as out:
        for row, label in zip(values, labels, strict=True):
            out.write({"x": row, "y": int(label)})


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    clean_stale_shared_memory()
    data = streaming.StreamingDataset(
        local=str(folder / "mosaic"),
        shuffle=True,
        shuffle_seed=epoch,
        batch_size=batch_size,
        num_canonical_nodes=1,
    )
    return DataLoader(data, batch_size=batch_size, num_workers=workers)


if __name__ == "__main__":
    serve(streaming.__version__, prepare, loader)

"""WebDataset's loader of images; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from peer_support import serve
from pictures import decoded

SHARD_BYTES = 64 << 20
BUFFER_ROWS = 1000


def prepare(folder: Path) -> None:
    (folder / "webdataset").mkdir()
    pattern = str(folder / "webdataset" / "%05d.tar")
    with webdataset.ShardWriter(pattern, maxsize=SHARD_BYTES, verbose=0) as out:
        for row, path in enumerate(sorted((folder / "jpegs").iterdir())):
            out.write({"__key__": f"{row:09d}", "jpg": path.read_bytes(), "cls": str(row)})


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    def row(sample: dict[str, Any]) -> tuple[Any, int]:
        return decoded(sample["jpg"]), int(sample["cls"])

    def stacked(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        rows, labels = zip(*samples, strict=True)
        return torch.from_numpy(np.stack(rows)), torch.tensor(labels)

    shards = sorted(map(str, (folder / "webdataset").glob("*.tar")))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=epoch, empty_check=False)
    data = data.shuffle(BUFFER_ROWS).map(row).batched(batch_size, collation_fn=stacked)
    return webdataset.WebLoader(data, batch_size=None, num_workers=workers)


if __name__ == "__main__":
    serve(webdataset.__version__, prepare, loader)

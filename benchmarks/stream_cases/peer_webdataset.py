"""WebDataset's loader; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from peer_support import arrays, serve

SHARD_BYTES = 64 << 20
BUFFER_ROWS = 5000


def prepare(folder: Path) -> None:
    values, labels = arrays(folder)
    (folder / "webdataset").mkdir()
    pattern = str(folder / "webdataset" / "%05d.tar")
    with webdataset.ShardWriter(pattern, maxsize=SHARD_BYTES, verbose=0) as out:
        for at, (row, label) in enumerate(zip(values, labels, strict=True)):
            out.write({"__key__": f"{at:09d}", "x.bin": row.tobytes(), "y.cls": str(label)})


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    values, _ = arrays(folder)
    dtype, shape = values.dtype, values.shape[1:]

    def decoded(sample: dict[str, Any]) -> tuple[Any, int]:
        return np.frombuffer(sample["x.bin"], dtype).reshape(shape), int(sample["y.cls"])

    def stacked(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
        rows, labels = zip(*samples, strict=True)
        return torch.from_numpy(np.stack(rows)), torch.tensor(labels)

    shards = sorted(map(str, (folder / "webdataset").glob("*.tar")))
    data = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=epoch, empty_check=False)
    data = data.shuffle(BUFFER_ROWS).map(decoded).batched(batch_size, collation_fn=stacked)
    return webdataset.WebLoader(data, batch_size=None, num_workers=workers)


if __name__ == "__main__":
    serve(webdataset.__version__, prepare, loader)

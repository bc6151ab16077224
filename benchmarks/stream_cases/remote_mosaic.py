"""Mosaic's side of `remote`; runs in the peers' environment: ``FOLDER LOCAL``, see `peer_support`.

Its data is prepared below FOLDER, which a server gives out as ``s3://bucket``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from peer_mosaic import clean_stale_shared_memory, prepare, streaming
from peer_support import serve
from torch.utils.data import DataLoader


def loader(_folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    clean_stale_shared_memory()
    data = streaming.StreamingDataset(
        remote="s3://bucket/mosaic",
        local=sys.argv[2],
        shuffle=True,
        shuffle_seed=epoch,
        batch_size=batch_size,
        num_canonical_nodes=1,
    )
    return DataLoader(data, batch_size=batch_size, num_workers=workers)


if __name__ == "__main__":
    serve(streaming.__version__, prepare, loader)

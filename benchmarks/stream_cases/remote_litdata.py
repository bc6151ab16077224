"""LitData's side of `remote`; runs in the peers' environment: ``FOLDER LOCAL``, see `peer_support`.

Its data is prepared below FOLDER, which a server gives out as ``s3://bucket``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import litdata
from litdata.streaming import downloader
from peer_litdata import prepare
from peer_support import serve

# Its client obstore refuses servers without TLS; boto3, which it uses without that, does not.
downloader._OBSTORE_AVAILABLE = False  # noqa: SLF001  there is no other way


def loader(_folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    data = litdata.StreamingDataset(
        "s3://bucket/litdata",
        cache_dir=sys.argv[2],
        shuffle=True,
        seed=epoch,
        batch_decode=0,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    return litdata.StreamingDataLoader(data, batch_size=batch_size, num_workers=workers)


if __name__ == "__main__":
    serve(litdata.__version__, prepare, loader)

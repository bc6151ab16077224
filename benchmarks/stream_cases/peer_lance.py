"""Lance's rows through torch's `DataLoader`; runs in the peers' environment, see `peer_support`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import torch
from peer_support import arrays, serve
from torch.utils.data import DataLoader, Dataset

ROWS = 8192  # of a batch that is written


def prepare(folder: Path) -> None:
    values, labels = arrays(folder)
    width = values[0].size
    schema = pa.schema({"x": pa.list_(pa.from_numpy_dtype(values.dtype), width), "y": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(values), ROWS):
            flat = pa.array(values[start : start + ROWS].reshape(-1))
            rows = pa.FixedSizeListArray.from_arrays(flat, width)
            yield pa.record_batch([rows, pa.array(labels[start : start + ROWS])], schema)

    lance.write_dataset(batches(), str(folder / "lance"), schema=schema)


class Rows(Dataset):
    """Takes the rows of a batch with one `take`, as LanceDB's own loader does."""

    def __init__(self, path: str, shape: tuple[int, ...]) -> None:
        self._data = lance.dataset(path)
        self._shape = shape

    def __len__(self) -> int:
        return self._data.count_rows()

    def __getitems__(self, rows: list[int]) -> tuple[Any, Any]:
        table = self._data.take(rows)
        x = table["x"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        y = table["y"].to_numpy()
        return torch.from_numpy(np.require(x.reshape(-1, *self._shape), None, "W")), (
            torch.from_numpy(np.require(y, None, "W"))
        )


def loader(folder: Path, epoch: int, batch_size: int, workers: int) -> Any:
    del epoch
    data = Rows(str(folder / "lance"), arrays(folder)[0].shape[1:])
    context = "spawn" if workers else None
    return DataLoader(
        data,
        batch_size=batch_size,
        num_workers=workers,
        shuffle=True,
        collate_fn=_as_it_is,
        multiprocessing_context=context,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


if __name__ == "__main__":
    serve(lance.__version__, prepare, loader)

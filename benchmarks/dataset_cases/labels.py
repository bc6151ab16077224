"""A scan of a light column beside a heavy one: what is read, all metadata counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options, portions, store_dataset

from tensorrepo.formats.dataset.read import iterate, open_dataset
from tensorrepo.formats.dataset.schema.schema import ColumnType, Scalar, Schema, Tensor
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.store import ObjectStore

ROWS, HEAVY_BYTES, CLASSES = 200_000, 8192, 10
STEP = 2048


def labels(folder: Path, options: Options) -> dict[str, Any]:
    """200,000 labels, beside 8 KiB a row: as int64 and as uint8."""
    rows = max(STEP, int(ROWS * options.scale))
    found: dict[str, Any] = {"rows": rows, "heavy_row_bytes": HEAVY_BYTES}
    for name in ("int64", "uint8"):
        measured = _scan(folder / name, Scalar(name), rows)
        found |= {f"{key}_{name}": value for key, value in measured.items()}
    return found | {"goal": "read_per_label_int64 <= 1.3, read_per_label_uint8 <= 1.3"}


def _scan(place: Path, kind: ColumnType, rows: int) -> dict[str, float]:
    schema = Schema.of({"x": Tensor("uint8", (HEAVY_BYTES,)), "label": kind})
    digest = store_dataset(str(place), {}, schema, _batches(rows))
    backend = CountingBackend(open_backend(str(place), environment={}))
    begun = time.perf_counter()
    dataset = open_dataset(ObjectStore(backend), digest)
    assert sum(part["label"].rows for part in iterate(dataset, ["label"])) == rows
    seconds = time.perf_counter() - begun
    label_bytes = rows * schema.column("label").storage.row_bytes
    return {
        "read_per_label": round(backend.bytes / label_bytes, 3),
        "label_bytes": label_bytes,
        "read_bytes": backend.bytes,
        "requests": backend.requests,
        "scan_ms": round(seconds * 1e3, 1),
    }


def _batches(rows: int) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (STEP, HEAVY_BYTES), np.uint8)
    for part in portions(rows, STEP):
        count = part.stop - part.start
        pixels[:, :8] = rng.integers(0, 256, (STEP, 8), np.uint8)
        yield {"x": pixels[:count], "label": rng.integers(0, CLASSES, count, np.uint8)}


class CountingBackend:
    """A backend that nothing can be mapped from; counts what is read of it, whatever it is."""

    local_root = None

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.requests = 0
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def read(self, key: str) -> bytes:
        found: bytes = self._backend.read(key)
        self._count(len(found))
        return found

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        self._count(stop - start)
        found: Buffer = self._backend.read_range(key, start, stop)
        return found

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        self._count(buffer.nbytes)
        self._backend.read_into(key, start, buffer)

    def _count(self, size: int) -> None:
        self.requests += 1
        self.bytes += size


CASES = {"labels": labels}

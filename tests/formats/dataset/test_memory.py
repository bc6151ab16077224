"""Ingesting needs little memory, however much data and however wide its rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_BYTES = 512 << 20
INGEST = """
import sys
import numpy as np
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

folder, width, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
objects = ObjectWriter(ObjectStore(open_backend(folder, environment={})), ())
rows = max(1, (8 << 20) // width)

def batches():
    rng = np.random.default_rng(0)
    for _ in range(0, total, rows * width):
        yield {"x": rng.integers(0, 256, (rows, width), np.uint8), "y": np.arange(rows)}

write_dataset(objects, Schema.of({"x": Tensor("uint8", (width,)), "y": "int64"}), batches())
objects.flush()
# Not ru_maxrss: that begins with what the process was forked from, a large pytest.
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(int(peak.split()[1]) * 1024)
"""


def _peak_bytes(folder: Path, width: int, total: int) -> int:
    command = [sys.executable, "-c", INGEST, str(folder), str(width), str(total)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize("width", [pytest.param(3 << 10, marks=pytest.mark.soak), 48 << 20])
def test_half_a_gigabyte_is_ingested_in_bounded_memory(tmp_path: Path, width: int) -> None:
    assert _peak_bytes(tmp_path, width, 512 << 20) < LIMIT_BYTES


@pytest.mark.soak
@pytest.mark.parametrize("width", [8, 3 << 10, 1 << 20, 64 << 20])
def test_five_gigabytes_are_ingested_in_bounded_memory(tmp_path: Path, width: int) -> None:
    assert _peak_bytes(tmp_path, width, 5_000_000_000) < LIMIT_BYTES

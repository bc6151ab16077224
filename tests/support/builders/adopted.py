"""Files to adopt in place, and datasets that are read from where they lie."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.exchange.in_place.adopt import Adopted, adopt
from tensorrepo.repo.ids import Digest
from tests.support.builders.objects import MemoryObjects

ROWS = 50
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c63"
    "680000008200814dd043b20000000049454e44ae426082"
)


@dataclass(frozen=True)
class Place:
    """Files that were adopted, and who may read them."""

    objects: MemoryObjects
    adopted: Adopted
    outside: Outside

    def open(self) -> StoredDataset:
        return opened(self.objects, self.adopted.link.digest, self.outside)


def adopted(*paths: Path | str, outside: Outside | None = None, **options: Any) -> Place:
    objects = options.pop("objects", None) or MemoryObjects()
    allowed = outside or AllowedOutside(list(map(str, paths)), environment={})
    made = adopt(objects, list(map(str, paths)), allowed, rng=random.Random(0), **options)
    return Place(objects, made, allowed)


def opened(objects: MemoryObjects, digest: Digest, outside: Outside) -> StoredDataset:
    """A dataset that may read outside the repository."""
    return open_dataset(objects, digest, outside)


def write_npy(path: Path) -> Path:
    np.save(path, np.arange(ROWS * 6, dtype=np.float32).reshape(ROWS, 2, 3))
    return path


def write_safetensors(path: Path) -> Path:
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    tensors = {
        "x": rng.standard_normal((ROWS, 3)).astype(np.float16),
        "label": np.arange(ROWS),
        "mask": np.arange(ROWS) % 3 == 0,
    }
    save_file(tensors, path)
    return path


def table() -> pa.Table:
    numbers = range(ROWS)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "maybe": pa.array([None if at % 5 == 0 else at / 2 for at in numbers], pa.float32()),
            "text": ["ä" * (at % 4) if at % 7 else None for at in numbers],
            "kind": pa.array([f"k{at % 3}" for at in numbers]).dictionary_encode(),
            "vector": pa.array([[at, at + 1] for at in numbers], pa.list_(pa.int16(), 2)),
            "ragged": pa.array(
                [None if at % 11 == 1 else list(range(at % 5)) for at in numbers],
                pa.list_(pa.int32()),
            ),
            "flag": pa.array([at % 2 == 0 for at in numbers]),
        }
    )


def write_parquet(path: Path) -> Path:
    pq.write_table(table(), path, row_group_size=17)
    return path


def samples() -> list[tuple[str, Mapping[str, bytes]]]:
    found = []
    for at in range(ROWS):
        array = io.BytesIO()
        np.save(array, np.full((at % 3, 2), at, np.int16))
        parts = {
            "png": PNG + bytes([at]) * (at * 40),
            "cls": str(at % 10).encode(),
            "json": json.dumps({"at": at, "pad": "p" * (at * 9)}).encode(),
            "npy": array.getvalue(),
        }
        if at % 4:
            parts["txt"] = f"caption {at} ü".encode()
        found.append((f"train/{at:05}", parts))
    return found


def write_tar(path: Path, given: Sequence[tuple[str, Mapping[str, bytes]]] | None = None) -> Path:
    with tarfile.open(path, "w") as file:
        for key, parts in samples() if given is None else given:
            for part, data in parts.items():
                member = tarfile.TarInfo(f"{key}.{part}")
                member.size = len(data)
                file.addfile(member, io.BytesIO(data))
    return path


WRITERS = {
    "npy": (write_npy, "x.npy"),
    "safetensors": (write_safetensors, "x.safetensors"),
    "parquet": (write_parquet, "x.parquet"),
    "tar": (write_tar, "x.tar"),
}

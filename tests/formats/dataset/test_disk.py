"""Datasets in a store on this machine's disk, where pages are mapped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.dtypes import element_dtype
from tensorrepo.formats.dataset.read import column_index, open_dataset
from tensorrepo.formats.dataset.schema.schema import Bytes, Schema, Tensor
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

SCHEMA = Schema.of({"x": Tensor("float32", (300,)), "b": Bytes(), "n": "int64"})
COUNT = 3000
BATCH: dict[str, Any] = {
    "x": np.repeat(np.arange(COUNT, dtype=np.float32), 300).reshape(COUNT, 300),
    "b": [bytes([at % 256]) * (at % 700) for at in range(COUNT)],
    "n": np.arange(COUNT),
}


@pytest.fixture
def stored(tmp_path: Path) -> tuple[ObjectStore, Digest]:
    store = ObjectStore(open_backend(str(tmp_path), environment={}))
    objects = ObjectWriter(store, ())
    link = write_dataset(objects, SCHEMA, [BATCH], page_bytes=1 << 16)
    objects.flush()
    return store, link.digest


def test_rows_come_back_from_a_disk(stored: tuple[ObjectStore, Digest]) -> None:
    dataset = open_dataset(*stored)
    chosen = np.random.default_rng(0).integers(0, COUNT, 500)
    found = dataset[chosen]
    assert np.array_equal(found["x"], BATCH["x"][chosen])
    assert found["b"] == [BATCH["b"][at] for at in chosen]
    assert np.array_equal(np.asarray(dataset["n"][::-1]), BATCH["n"][::-1])
    assert dataset.to_arrow(["n"]).column("n").to_pylist() == list(range(COUNT))


def test_changing_what_was_read_changes_nothing_stored(stored: tuple[ObjectStore, Digest]) -> None:
    dataset = open_dataset(*stored)
    for found in (dataset["x"][:10], dataset["x"][[1, 2]], dataset.to_numpy(["x"])["x"]):
        assert isinstance(found, np.ndarray)
        found[:] = -1
    assert np.array_equal(np.asarray(dataset["x"][:10]), BATCH["x"][:10])
    assert not next(dataset.to_batches(["n"])).column(0).to_numpy().flags.writeable


@pytest.mark.parametrize("key", [[7], list(range(60)), slice(7, 8), 7, slice(None)])
def test_a_byte_that_turned_on_the_disk_is_noticed(
    stored: tuple[ObjectStore, Digest], tmp_path: Path, key: Any
) -> None:
    store, digest = stored
    index = column_index(open_dataset(store, digest), "x")
    chunk = index.chunks[0]
    assert not isinstance(chunk, memoryview)
    path = tmp_path / "objects" / chunk.digest[:2] / chunk.digest[2:]
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(4096 + 64 + 7 * 1200 + 5)
        file.write(b"\xff")
    dataset = open_dataset(ObjectStore(store.backend), digest)
    with pytest.raises(CorruptError, match="column 'x', page 0"):
        dataset["x"][key]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_rows_of_small_floats_are_gathered_from_the_map(tmp_path: Path, dtype: str) -> None:
    store = ObjectStore(open_backend(str(tmp_path), environment={}))
    objects = ObjectWriter(store, ())
    values = (np.arange(6400) % 13).reshape(100, 64).astype(element_dtype(dtype))
    link = write_dataset(objects, Schema.of({"x": Tensor(dtype, (64,))}), [{"x": values}])
    objects.flush()
    found = open_dataset(store, link.digest)["x"][[7, 3, 99]]
    assert found.dtype == values.dtype
    assert np.array_equal(found, values[[7, 3, 99]])

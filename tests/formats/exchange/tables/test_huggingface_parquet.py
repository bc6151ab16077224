from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.formats.dataset.schema.schema import ClassLabel, Image, Scalar, Text
from tensorrepo.formats.exchange.tables.huggingface_parquet import (
    SHARD_BYTES,
    plan_shards,
    write_shard,
)
from tests.support.builders.foreign import dataset_of, png

COLUMNS = {"photo": Image("png"), "kind": ClassLabel(("cat", "dog")), "at": Scalar("int64"),
           "words": Text()}  # fmt: skip


def rows(count: int) -> dict[str, list[object]]:
    picture = png(np.zeros((2, 3), np.uint8))
    return {
        "photo": [picture] * count,
        "kind": [at % 2 for at in range(count)],
        "at": list(range(count)),
        "words": [f"word {at}" for at in range(count)],
    }


@pytest.mark.parametrize(
    ("count", "stored_bytes"), [(0, 0), (1, 1), (10, 10 * SHARD_BYTES), (1000, 3 * SHARD_BYTES)]
)
def test_shards_have_every_row_once(count: int, stored_bytes: int) -> None:
    shards = plan_shards(count, stored_bytes)
    assert [row for shard in shards for row in shard] == list(range(count))
    assert len(shards) >= 1


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    dataset = dataset_of(COLUMNS, rows(100))
    for name in ("one", "two"):
        write_shard(dataset, range(100), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_shard_has_its_rows_and_the_features(tmp_path: Path) -> None:
    write_shard(dataset_of(COLUMNS, rows(10)), range(3, 7), tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table["at"].to_pylist() == [3, 4, 5, 6]
    assert table["photo"][0].as_py()["path"] is None
    assert table.schema.field("kind").type == pa.int64()
    assert b'"ClassLabel"' in table.schema.metadata[b"huggingface"]

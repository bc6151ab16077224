"""Datasets and helpers for tests of what a stream hands out, and how often."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.read import StoredDataset, fragment_records
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Column, Schema, Tensor, Text
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tests.support.builders.changed import edited, patched, without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import MappedObjects, stream

ROWS = 400
SHUFFLES = ["pages", "global", "buffer", False]
WINDOW = 4096
SCHEMA = Schema(
    (
        Column("x", Tensor("float32", (8,))),
        Column("tokens", Tensor("int32", (None,)), nullable=True),
        Column("label", ClassLabel(("cat", "dog", "bird"))),
        Column("split", Text()),
    )
)


def table_of(count: int, seed: int = 0, longest: int = 30) -> dict[str, Any]:
    """Rows of `SCHEMA`: row i has the tokens i*100, i*100 + 1, ...; some are null or empty."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest + 1, count)
    tokens = [
        None if at % 11 == 5 else np.arange(at * 100, at * 100 + length, dtype=np.int32)
        for at, length in enumerate(lengths.tolist())
    ]
    return {
        "x": np.repeat(np.arange(count, dtype=np.float32), 8).reshape(count, 8),
        "tokens": tokens,
        "label": rng.choice(3, count, p=[0.9, 0.08, 0.02]),
        "split": ["train" if at % 3 else "test" for at in range(count)],
    }


def sampled(count: int = 400, *, mapped: bool = True, **options: Any) -> StoredDataset:
    """A dataset of `SCHEMA` with small pages."""
    objects = MappedObjects() if mapped else MemoryObjects()
    return stored(objects, SCHEMA, [table_of(count)], **({"page_bytes": 512} | options))


def changed(count: int = 400, dead: list[int] | None = None) -> StoredDataset:
    """The same with deleted rows, a whole run of them too, and with patched tokens."""
    objects = MappedObjects()
    base = stored(objects, SCHEMA, [table_of(count)], page_bytes=512, budget_bytes=8 << 10)
    assert len(fragment_records(base)) > 1
    tokens = base.schema.column("tokens")
    new = [np.arange(7, dtype=np.int32), None]
    once = edited(
        objects, base, {1: FragmentEdit(patches={tokens.id: patched(tokens, [1, 4], new)})}
    )
    return without(objects, once, dead if dead is not None else [0, 7, *range(100, 180), count - 1])


def lengths_of(dataset: StoredDataset, name: str = "tokens") -> list[int]:
    """The length of every row of a column, from its values."""
    return [0 if row is None else len(row) for row in dataset[name]]


def resumptions() -> st.SearchStrategy[tuple[int, int, int]]:
    """After how many steps to stop, and the batch size and world to go on with."""
    return st.tuples(st.integers(0, 12), st.integers(1, 40), st.integers(1, 4))


def opened(ds: StoredDataset, sampling: Sampling, **options: Any) -> BatchStream:
    settled = {"batch_size": 16, "window": WINDOW, "columns": ["label", "tokens"]}
    return stream(ds, sampling=sampling, **(settled | options))


def rows(found: Any) -> list[int]:
    return [row for batch in found for row in batch.rows.tolist()]


def packed(ds: StoredDataset, size: int, **options: Any) -> BatchStream:
    wishes = options.pop("wishes", {})
    return opened(ds, Sampling(pack=size, **wishes), **({"columns": ["tokens"]} | options))

"""A dataset of a kilobyte that says it has 2^32 rows takes no more memory than others do."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset import evolve
from tensorrepo.formats.dataset.evolve import add_column
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.metadata.manifest import LeafEntry, encode_leaf, encode_root
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    check_absent,
    column_index,
    dataset_leaves,
    open_dataset,
)
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

ROWS = 1 << 31  # of each of two fragments
SCHEMA = Schema(
    (
        Column("x", Tensor("float32", (1000,)), nullable=True),
        Column("flag", Scalar("bool"), default=True),
        Column("t", Text(), nullable=True),
        Column("none", Tensor("uint8", (0,)), nullable=True),
    )
)


@pytest.fixture(scope="module")
def hostile() -> StoredDataset:
    """Two fragments of 2^31 rows each, without a single page."""
    objects = MemoryObjects()
    honest = stored(objects, SCHEMA, [[{"flag": False}]])
    leaf = dataset_leaves(honest)[0][0]
    fragments = np.repeat(leaf.fragments, 2)
    fragments["uid"] += np.arange(2, dtype=np.uint64)
    fragments["rows"] = ROWS
    payload = encode_leaf(replace(leaf, fragments=fragments, indexes=()))
    entry = LeafEntry(b"", payload, 2, 2 * ROWS, 0, 0)
    root = replace(honest.root, rows=2 * ROWS, leaves=(entry,))
    data = encode_root(root)
    assert len(data) < 1500
    return open_dataset(objects, objects.put(Kind.DATASET, data).digest)


@pytest.mark.parametrize(
    "ask",
    [
        lambda ds: ds[:],
        lambda ds: ds[::-1],
        lambda ds: ds[5:],
        lambda ds: ds["flag"][:],
        lambda ds: ds["t"][:],
        lambda ds: ds["x"][: 1 << 20],
        lambda ds: ds["x"][np.arange(1 << 20)],
        lambda ds: ds.to_numpy(["flag"]),
        lambda ds: ds.to_arrow(),
    ],
)
def test_rows_beyond_the_limit_are_refused_before_memory_is_taken(
    hostile: StoredDataset, ask: Callable[[StoredDataset], Any]
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=r"stores no values.*Read fewer rows"):
            ask(hostile)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_some_rows_of_it_can_be_read(hostile: StoredDataset) -> None:
    assert len(hostile) == 2 * ROWS
    assert hostile[2 * ROWS - 1]["t"] is None
    assert hostile["flag"][ROWS - 2 : ROWS + 2].tolist() == [True] * 4
    assert hostile["x"][[0, -1]].mask.all()


def test_batches_of_it_are_as_small_as_asked(hostile: StoredDataset) -> None:
    first = next(hostile.to_batches(max_bytes=1 << 20))
    assert first.nbytes < 2 << 20
    assert next(hostile.to_batches(["none"], max_bytes=1 << 20)).num_rows <= 1 << 20


HUGE = Column("huge", Tensor("float64", (1 << 17, 1 << 17)), nullable=True)  # 128 GiB a row


def test_a_row_that_cannot_be_read_is_not_added(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = MemoryObjects()
    plain = stored(objects, Schema.of({"n": "int64"}), [{"n": np.arange(3)}])
    with pytest.raises(InvalidInputError, match=r"'huge' stores no values.*Give values, or leave"):
        add_column(objects, plain, HUGE)
    monkeypatch.setattr(evolve, "ABSENT_BYTES", 1 << 62)  # somebody else's repository has it
    hostile = open_dataset(objects, add_column(objects, plain, HUGE).digest)
    assert hostile["n"][:].tolist() == [0, 1, 2]
    asks: list[Callable[[], Any]] = [
        lambda: hostile[0],
        lambda: hostile["huge"][:],
        lambda: list(hostile),
    ]
    for ask in asks:
        with pytest.raises(InvalidInputError, match="'huge' stores no values"):
            ask()
    endless = replace(HUGE, type=Tensor("float64", ((1 << 32) - 1,) * 3))
    with pytest.raises(InvalidInputError, match="which no memory holds"):
        add_column(objects, plain, endless)


@pytest.fixture(scope="module")
def columns() -> dict[str, ColumnIndex]:
    """A column with 200 values, and one of which the first 100 rows have none: 9 bytes each."""
    objects = MemoryObjects()
    first = stored(objects, Schema.of({"n": "int64"}), [{"n": np.arange(100)}])
    link = add_column(objects, first, Column("late", Scalar("int64"), nullable=True))
    base = open_dataset(objects, link.digest)
    rows = {"n": np.arange(100), "late": np.arange(100)}
    both = stored(objects, base.schema.without_ids(), [rows], base=base)
    return {name: column_index(both, name) for name in ("n", "late")}


RANGES = [range(150), range(0, 200, 2), np.arange(150), range(149, -1, -1)]


@pytest.mark.parametrize("rows", RANGES)
def test_only_rows_without_a_page_count(columns: dict[str, ColumnIndex], rows: Any) -> None:
    check_absent(columns, rows, limit_bytes=900)


@pytest.mark.parametrize("rows", RANGES)
def test_rows_of_one_byte_too_many_are_refused(columns: dict[str, ColumnIndex], rows: Any) -> None:
    with pytest.raises(InvalidInputError, match="column 'late' stores no values for 100 of these"):
        check_absent(columns, rows, limit_bytes=899)

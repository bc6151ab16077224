"""What SQL asks of a dataset is what is read of it, and it is the rows that Arrow would give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.evolve import add_column
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.query.sql.pushdown import DatasetTable, Scanned, StoppedError
from tests.support.builders.changes import CHANGES, changed
from tests.support.builders.datasets import datasets, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

COUNT = 4096


@pytest.fixture(scope="module")
def heavy() -> StoredDataset:
    """A sorted light column, and a heavy one behind which it comes."""
    schema = Schema.of({"picture": Tensor("uint8", (1024,)), "label": "int64"})
    numbers = np.arange(COUNT)
    picture = np.repeat((numbers % 251).astype("u1"), 1024).reshape(COUNT, 1024)
    rows = {"picture": picture, "label": numbers // 4}
    return stored(MemoryObjects(), schema, [rows], page_bytes=16 << 10)


def _read(
    dataset: StoredDataset, columns: list[str], where: Any = None
) -> tuple[pa.Table, Scanned]:
    scanned = Scanned()
    table = DatasetTable(dataset, scanned)
    return table.reader(columns, where).read_all(), scanned


def test_light_columns_are_read_without_heavy_ones(heavy: StoredDataset) -> None:
    found, scanned = _read(heavy, ["label"])
    assert found["label"].to_pylist() == (np.arange(COUNT) // 4).tolist()
    assert scanned.pages == column_index(heavy, "label").pages


def test_row_numbers_read_no_page(heavy: StoredDataset) -> None:
    found, scanned = _read(heavy, ["row_number"])
    assert found["row_number"].to_pylist() == list(range(COUNT))
    assert scanned.pages == 0


def test_row_ids_are_those_of_the_dataset(heavy: StoredDataset) -> None:
    from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows

    found, _ = _read(heavy, ["row_id"], pc.field("label") == 700)
    assert found["row_id"].to_pylist() == ids_of_rows(heavy, [2800, 2801, 2802, 2803])


def test_a_selective_filter_on_a_sorted_column_reads_few_pages(heavy: StoredDataset) -> None:
    found, scanned = _read(heavy, ["picture", "label"], pc.field("label") == 700)
    assert found["label"].to_pylist() == [700] * 4
    pages = sum(column_index(heavy, name).pages for name in ("picture", "label"))
    assert scanned.pages <= 0.05 * pages


def test_batches_are_bounded_in_bytes(heavy: StoredDataset) -> None:
    reader = DatasetTable(heavy, Scanned()).reader(["picture"], None)
    assert max(batch.nbytes for batch in reader) <= 17 << 20


NOT_STORED = Column("v", Tensor("uint8", (1 << 17,)), nullable=True)


@pytest.mark.parametrize("where", [None, pc.field("label") >= 0])
def test_rows_that_are_not_stored_count_as_they_are_made(where: Any) -> None:
    objects = MemoryObjects()
    light = stored(objects, Schema.of({"label": "int64"}), [{"label": np.arange(400)}])
    added = open_dataset(objects, add_column(objects, light, NOT_STORED).digest)
    batches = list(DatasetTable(added, Scanned()).reader(["v"], where))
    assert max(batch.nbytes for batch in batches) <= 20 << 20
    assert sum(batch.column(0).null_count for batch in batches) == 400


def test_a_few_large_rows_among_small_ones_come_in_pieces() -> None:
    rows = {"n": np.arange(2000), "b": [""] * 1920 + ["x" * (1 << 19)] * 80}
    made = stored(MemoryObjects(), Schema.of({"n": "int64", "b": Text()}), [rows])
    batches = list(DatasetTable(made, Scanned()).reader(["n", "b"], pc.field("n") >= 0))
    assert max(batch.nbytes for batch in batches) <= 20 << 20
    found = pa.Table.from_batches(batches)
    assert found["n"].to_pylist() == [*range(2000)]
    assert pc.sum(pc.binary_length(found["b"])).as_py() == 80 << 19


def test_a_scan_stops_when_it_is_told_to(heavy: StoredDataset) -> None:
    scanned = Scanned()
    scanned.stop.set()
    with pytest.raises(StoppedError):
        DatasetTable(heavy, scanned).reader(["label"], None).read_all()


def test_deleted_rows_are_left_out_and_patches_applied() -> None:
    objects = MemoryObjects()
    before = stored(objects, Schema.of({"a": "int64"}), [{"a": np.arange(100)}])
    patched = open_dataset(objects, update_rows(objects, before, [7], {"a": 1000}).digest)
    dataset = open_dataset(objects, delete_rows(objects, patched, [0, 1, 2]).digest)
    found, _ = _read(dataset, ["row_number", "a"], pc.field("a") >= 98)
    assert found.to_pydict() == {"row_number": [4, 95, 96], "a": [1000, 98, 99]}


def test_columns_called_as_the_hidden_ones_win() -> None:
    objects = MemoryObjects()
    dataset = stored(objects, Schema.of({"row_id": "int64"}), [{"row_id": [5, 6]}])
    table = DatasetTable(dataset, Scanned())
    assert table.schema.names == ["row_number", "row_id"]
    assert table.reader(["row_id"], None).read_all()["row_id"].to_pylist() == [5, 6]


def test_a_dataset_without_rows_gives_none() -> None:
    objects = MemoryObjects()
    link = write_dataset(objects, Schema((Column("a", Scalar("int8")),)), ())
    found, _ = _read(open_dataset(objects, link.digest), ["a", "row_id"], pc.field("a") > 0)
    assert found.num_rows == 0


@given(made=datasets(max_rows=12))
def test_columns_of_every_type_can_be_read(made: Any) -> None:
    schema, rows = made
    dataset = stored(MemoryObjects(), schema, [rows] if rows else [])
    found, _ = _read(dataset, list(DatasetTable(dataset, Scanned()).schema.names))
    found.validate(full=True)
    assert found.num_rows == len(rows)
    nulls = [found[column.name].null_count for column in schema.columns]
    assert nulls == [sum(row[column.name] is None for row in rows) for column in schema.columns]


@settings(max_examples=examples(20))
@given(steps=st.lists(st.sampled_from(CHANGES), max_size=3), seed=st.integers(0, 99),
       low=st.integers(0, 60))  # fmt: skip
def test_after_any_changes_rows_are_those_of_the_dataset(
    steps: list[str], seed: int, low: int
) -> None:
    objects = MemoryObjects()
    schema = Schema((Column("key", Scalar("int64")), Column("x", Scalar("float32"), nullable=True)))
    rows = {"key": np.arange(60), "x": [None if at % 7 == 0 else at / 2 for at in range(60)]}
    dataset = stored(objects, schema, [rows])
    for step in steps:
        dataset = changed(objects, dataset, step, seed)
    names = list(dataset.schema.visible.names)
    where = pc.field(names[0]).is_valid() & (pc.field(names[0]) >= low)
    found, _ = _read(dataset, names, where)
    expected, _ = _read(dataset, names)
    # As text: to Arrow a row with NaN, which random bits may be, is not equal to itself.
    assert str(found.to_pylist()) == str(expected.filter(where).to_pylist())

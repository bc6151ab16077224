"""Reading of one dataset by several readers: together they read each row once, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.dataset.read import StoredDataset, column_index, live_rows, open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor, Text
from tensorrepo.formats.dataset.selecting.row_ranges import plan_pieces, read_piece
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.changed import without
from tests.support.builders.objects import MemoryObjects

ROWS = 3000
SCHEMA = Schema.of({"x": "int64", "name": Text(), "picture": Tensor("float32", (32,))})


def _made(objects: MemoryObjects) -> StoredDataset:
    x = np.arange(ROWS)
    rows: dict[str, Any] = {
        "x": x,
        "name": [f"row {at}" for at in x],
        "picture": np.repeat(x[:, None], 32, axis=1).astype("f4"),
    }
    link = write_dataset(objects, SCHEMA, [rows], page_bytes=4096)
    return open_dataset(objects, link.digest)


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    objects = MemoryObjects()
    return open_dataset(objects, without(objects, _made(objects), range(100, 900)).digest)


def _read(dataset: StoredDataset, columns: list[str], pieces: int, **options: Any) -> pa.Table:
    planned = plan_pieces(dataset, columns, pieces, options.get("where"))
    batches = [each for piece in planned for each in read_piece(dataset, columns, piece, **options)]
    return pa.Table.from_batches(batches, SCHEMA.select(columns).to_arrow())


@given(st.integers(1, 40), st.integers(4000, 50_000))
def test_the_pieces_are_all_rows_in_order(
    dataset: StoredDataset, pieces: int, max_bytes: int
) -> None:
    planned = plan_pieces(dataset, SCHEMA.names, pieces)
    assert len(planned) <= pieces
    assert sum(each.rows for each in planned) == dataset.rows
    found = _read(dataset, list(SCHEMA.names), pieces, max_bytes=max_bytes)
    assert found.equals(dataset.to_arrow())


def test_pieces_end_where_pages_of_the_heaviest_column_end(dataset: StoredDataset) -> None:
    bounds = set(column_index(dataset, "picture").first_row.tolist())
    planned = plan_pieces(dataset, SCHEMA.names, 6)
    assert len(planned) == 6
    assert {edge for piece in planned for each in piece.ranges for edge in each} <= bounds
    sizes = [piece.raw_bytes for piece in planned]
    assert max(sizes) < 1.2 * min(sizes)


@pytest.mark.parametrize(
    "where",
    [
        pc.field("x") >= 2500,
        (pc.field("x") > 50) & (pc.field("x") < 1200) & (pc.field("name") != "row 60"),
        pc.field("x").isin([5, 500, 2999]),
        ~(pc.field("x") < 2990),
        pc.field("x") > 10**6,
        pc.scalar(True),
    ],
)
@pytest.mark.parametrize("columns", [["picture"], ["name", "x"]])
def test_a_predicate_gives_what_arrow_gives(
    dataset: StoredDataset, where: pc.Expression, columns: list[str]
) -> None:
    expected = dataset.to_arrow().filter(where).select(columns)
    assert _read(dataset, columns, 5, where=where, max_bytes=3000).equals(expected)


def test_pages_without_a_row_for_a_predicate_are_left_out(dataset: StoredDataset) -> None:
    planned = plan_pieces(dataset, ["picture"], 100, pc.field("x") == 2000)
    assert 0 < sum(piece.rows for piece in planned) < ROWS / 4
    assert plan_pieces(dataset, ["picture"], 100, pc.field("x") < 0) == []


@given(st.sets(st.integers(0, ROWS - 801)), st.booleans())
def test_some_rows_alone(dataset: StoredDataset, numbers: set[int], filtered: bool) -> None:
    rows = live_rows(dataset).physical(np.array(sorted(numbers), np.int64))
    where = pc.field("x") < 1500 if filtered else None
    table = dataset.to_arrow(["x"]).take(pa.array(sorted(numbers), pa.int64()))
    expected = table if where is None else table.filter(where)
    assert _read(dataset, ["x"], 7, where=where, rows=rows).equals(expected)


def test_a_predicate_that_does_not_fit_is_refused(dataset: StoredDataset) -> None:
    (piece,) = plan_pieces(dataset, ["x"], 1)
    with pytest.raises(InvalidInputError, match="nothing"):
        list(read_piece(dataset, ["x"], piece, pc.field("nothing") == 1))


def test_a_dataset_without_rows_has_no_pieces() -> None:
    objects = MemoryObjects()
    empty = open_dataset(objects, write_dataset(objects, SCHEMA, ()).digest)
    assert plan_pieces(empty, SCHEMA.names, 3) == []

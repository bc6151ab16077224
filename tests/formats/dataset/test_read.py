"""What was written comes back, however it is asked for."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import Rows, datasets, equal, same_rows, stored
from tests.support.builders.objects import MemoryObjects

COUNT = 1000
SCHEMA = Schema(
    (
        Column("x", Tensor("float32", (100,))),
        Column("y", Scalar("int64")),
        Column("t", Text(), nullable=True),
        Column("r", Tensor("int16", (None,))),
    )
)
ROWS: Rows = [
    {
        "x": np.full(100, at, np.float32),
        "y": np.int64(at),
        "t": None if at % 7 == 0 else f"row {at}",
        "r": np.arange(at % 5, dtype=np.int16),
    }
    for at in range(COUNT)
]


@pytest.fixture(scope="module")
def dataset() -> Any:
    return stored(MemoryObjects(), SCHEMA, [ROWS[:300], ROWS[300:]], page_bytes=8192)


@given(datasets(), st.lists(st.integers(0, 40), max_size=3), st.sampled_from(Codec))
def test_rows_of_any_schema_come_back(
    drawn: tuple[Schema, Rows], cuts: list[int], codec: Codec
) -> None:
    schema, rows = drawn
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    batches = [rows[start:stop] for start, stop in pairwise(bounds)]
    found = stored(MemoryObjects(), schema, batches, page_bytes=512, codec=codec)
    assert len(found) == len(rows)
    assert same_rows(list(found), rows)


@given(datasets())
def test_rows_of_any_schema_survive_arrow(drawn: tuple[Schema, Rows]) -> None:
    schema, rows = drawn
    first = stored(MemoryObjects(), schema, [rows])
    table = first.to_arrow()
    second = stored(MemoryObjects(), Schema.from_arrow(table.schema), [table])
    assert second.schema.without_ids() == schema
    assert same_rows(list(second), rows)


@pytest.mark.parametrize("row", [0, 1, 299, 300, 999, -1, -1000])
def test_one_row_is_a_dict(dataset: Any, row: int) -> None:
    assert same_rows([dataset[row]], [ROWS[row]])


@pytest.mark.parametrize(
    "key",
    [
        slice(None),
        slice(10, 20),
        slice(990, 5000),
        slice(20, 10),
        slice(None, None, -1),
        slice(900, 100, -37),
        slice(3, None, 250),
        slice(-5, None),
    ],
)
def test_a_slice_is_what_it_is_of_a_list(dataset: Any, key: slice) -> None:
    expected = ROWS[key]
    found = dataset[key]
    assert equal(found["y"], np.array([row["y"] for row in expected], np.int64))
    assert found["t"] == [row["t"] for row in expected]
    assert all(equal(one, row["r"]) for one, row in zip(found["r"], expected, strict=True))
    assert found["x"].shape == (len(expected), 100)
    assert equal(found["x"][:, 3], np.array([row["y"] for row in expected], np.float32))


@given(st.lists(st.integers(-COUNT, COUNT - 1), max_size=60))
def test_chosen_rows_keep_their_order_and_repeats(dataset: Any, chosen: list[int]) -> None:
    found = dataset[chosen]
    assert found["y"].tolist() == [int(ROWS[at]["y"]) for at in chosen]
    assert found["t"] == [ROWS[at]["t"] for at in chosen]
    assert equal(found["x"][:, 0], np.array([ROWS[at]["y"] for at in chosen], np.float32))


def test_a_mask_chooses_rows(dataset: Any) -> None:
    mask = np.arange(COUNT) % 100 == 5
    assert dataset["y"][mask].tolist() == list(range(5, COUNT, 100))


def test_a_column_is_read_alone(dataset: Any) -> None:
    before = len(dataset.objects.reads)
    assert dataset["y"][7] == 7
    assert len(dataset.objects.reads) - before <= 2


def test_all_columns_of_a_wide_table_share_one_index() -> None:
    wide = Schema(tuple(Column(f"c{at}", Scalar("int32")) for at in range(300)))
    written = stored(MemoryObjects(), wide, [{f"c{at}": [at, -at] for at in range(300)}])
    objects = written.objects
    assert isinstance(objects, MemoryObjects)
    before = len(objects.reads)
    assert list(written[1].values()) == [-at for at in range(300)]
    read = [digest for digest, _, _ in objects.reads[before:]]
    indexes = [digest for digest in read if objects.get(digest).kind is Kind.PAGE_INDEX]
    assert len(indexes) == 1


def test_nullable_numbers_come_masked() -> None:
    schema = Schema((Column("n", Scalar("int32"), nullable=True),))
    found = stored(MemoryObjects(), schema, [{"n": [1, None, 3]}])["n"][:]
    assert isinstance(found, np.ma.MaskedArray)
    assert found.tolist() == [1, None, 3]


def test_no_rows_are_fine() -> None:
    found = stored(MemoryObjects(), SCHEMA, [])
    assert (len(found), found.to_arrow().num_rows) == (0, 0)
    assert found["x"][:].shape == (0, 100)
    assert found["t"][:] == []
    assert list(found) == []


def test_what_is_read_may_be_changed(dataset: Any) -> None:
    first = dataset["x"][0:3]
    first[:] = -1
    assert dataset["x"][2][0] == 2


@pytest.mark.parametrize("row", [COUNT, -COUNT - 1, [0, COUNT]])
def test_rows_beyond_the_end_are_refused(dataset: Any, row: Any) -> None:
    with pytest.raises(NotFoundError, match="1000 rows"):
        dataset[row]


@pytest.mark.parametrize("key", [[1.5], np.zeros((2, 2), np.int64), np.ones(3, np.bool_)])
def test_what_names_no_rows_is_refused(dataset: Any, key: Any) -> None:
    with pytest.raises(InvalidInputError):
        dataset[key]


def test_an_unknown_column_is_named_with_those_there_are(dataset: Any) -> None:
    with pytest.raises(NotFoundError, match="no column 'z'; there are 'x', 'y', 't', 'r'"):
        dataset["z"]


def test_batches_hold_all_rows_in_order_within_the_limit(dataset: Any) -> None:
    batches = list(dataset.to_batches(["x", "y"], max_bytes=4096))
    table = pa.Table.from_batches(batches)
    assert table.column("y").to_pylist() == list(range(COUNT))
    assert max(batch.num_rows for batch in batches) <= 10


def test_a_row_beyond_the_end_is_an_index_error_as_well() -> None:
    dataset = stored(MemoryObjects(), Schema.of({"n": "int64"}), [{"n": [1, 2]}])
    for wrong in (2, -3, [0, 5]):
        with pytest.raises(IndexError, match="no row"):
            dataset[wrong]

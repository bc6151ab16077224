from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.schema.schema import Scalar, Schema, Tensor, Text
from tensorrepo.formats.dataset.schema.types import List, Struct
from tensorrepo.formats.exchange.registry import read_object
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import rows_of, store


@pytest.mark.soak
def test_a_generator_is_walked_in_bounded_memory() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(3000):
            yield {"x": np.full(16_384, number, np.float32)}

    tracemalloc.start()
    try:
        batches = read_object(rows()).batches
        assert sum(len(batch["x"]) for batch in batches) == 3000  # type: ignore[call-overload]
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_large_rows_decide_the_columns_before_a_thousand_of_them() -> None:
    seen: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(500):
            seen.append(number)
            yield {"x": [{"text": "x" * (1 << 20)}]}

    assert read_object(rows()).schema.column("x").type == List(Struct((("text", Text()),)))
    assert len(seen) < 20


def test_a_key_that_some_rows_lack_is_null_there() -> None:
    found = store(read_object([{"a": 1}, {"b": "x"}, {"a": None, "b": None}]))
    assert rows_of(found) == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}]


def test_rows_for_a_schema_keep_what_they_lack_out() -> None:
    schema = Schema.of({"a": "int64", "b": "int64"})
    (batch,) = read_object(iter([{"a": 1}, {"a": 2}]), schema).batches
    assert batch == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("first", [pa.table({"a": [1]}), {"a": [1]}])
def test_batches_one_after_the_other_are_taken_for_a_schema(first: Any) -> None:
    batches = [first, pa.record_batch({"a": [2, 3]})]
    reading = read_object(iter(batches), Schema.of({"a": "int64"}))
    assert rows_of(store(reading)) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_tables_that_differ_are_refused() -> None:
    reading = read_object(iter([pa.table({"a": [1]}), pa.table({"b": [1]})]))
    with pytest.raises(InvalidInputError, match="unexpected column 'b'"):
        store(reading)


def test_lists_of_text_are_what_arrow_says_or_json() -> None:
    found = read_object([{"words": ["a", "b"], "n": [1], "t": "x"}, {"words": [], "n": [2, 3]}])
    types = {column.name: column.type for column in found.schema.columns}
    assert (types["n"], types["t"]) == (Tensor("int64", (None,)), Text())
    assert not isinstance(types["words"], Scalar | Tensor)
    assert [row["words"] for row in rows_of(store(found))] == [["a", "b"], []]

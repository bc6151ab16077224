"""Structs, maps and uneven lists of Parquet and Arrow as columns of JSON."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.schema import Json, Tensor
from tensorrepo.formats.exchange.tables.arrow import read_parquet
from tensorrepo.formats.exchange.tables.files import MAX_DEPTH, json_says, json_texts
from tensorrepo.formats.exchange.tables.writers import write_parquet
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.builders.foreign import rows_of, store

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])


def read(tmp_path: Path, **columns: pa.Array) -> Any:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), path)
    return store(read_parquet(path))


def said(array: pa.Array) -> list[Any]:
    return json_texts(array).to_pylist()  # type: ignore[no-any-return]


def test_a_struct_of_parquet_becomes_a_column_of_json(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": ["x", None]}, None, {"a": None, "b": None}]
    dataset = read(tmp_path, box=pa.array(rows, STRUCT))
    assert [column.type for column in dataset.schema.visible.columns] == [Json()]
    assert [row["box"] for row in rows_of(dataset)] == rows


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([["a", "b"], []], pa.list_(pa.string())),
        ([[[1.5], [2.5, 3.5]], None], pa.list_(pa.list_(pa.float32()))),
        ([[{"a": 1, "b": ["x"]}], []], pa.large_list(STRUCT)),
        ([[{"a": 1, "b": ["x"]}] * 2], pa.list_(STRUCT, 2)),
    ],
)
def test_lists_that_no_tensor_holds_become_json(
    rows: Any, kind: pa.DataType, tmp_path: Path
) -> None:
    dataset = read(tmp_path, lists=pa.array(rows, kind))
    assert [column.type for column in dataset.schema.visible.columns] == [Json()]
    assert [row["lists"] for row in rows_of(dataset)] == rows


def test_lists_of_numbers_stay_tensors(tmp_path: Path) -> None:
    dataset = read(tmp_path, lists=pa.array([[1.5]], pa.list_(pa.float32())))
    assert dataset.schema.visible.columns[0].type == Tensor("float32", (None,))


def test_a_map_with_keys_of_text_is_an_object() -> None:
    rows = pa.array([[("a", 1), ("b", None)], []], pa.map_(pa.string(), pa.int64()))
    assert said(rows) == ['{"a":1,"b":null}', "{}"]


def test_a_map_with_other_keys_is_a_list_of_pairs() -> None:
    inner = pa.map_(pa.int64(), pa.struct([("x", pa.bool_())]))
    assert said(pa.array([[(1, {"x": True})]], inner)) == ['[[1,{"x":true}]]']


def test_maps_deep_inside_are_objects_too() -> None:
    inner = pa.struct([("m", pa.list_(pa.map_(pa.string(), pa.int64()))), ("n", pa.int64())])
    rows = [{"m": [[("a", 1)], []], "n": 2}, {"m": None, "n": None}, None]
    found = said(pa.array(rows, inner))
    assert found == ['{"m":[{"a":1},{}],"n":2}', '{"m":null,"n":null}', None]


def test_a_map_that_has_a_key_twice_names_its_column(tmp_path: Path) -> None:
    twice = pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(InvalidInputError, match=r"t\.parquet, column 'm'.*has a key twice"):
        read(tmp_path, m=twice)


def test_moments_dates_and_decimals_in_a_struct_are_text() -> None:
    kinds = [("t", pa.timestamp("us", "UTC")), ("d", pa.date32()), ("n", pa.decimal128(5, 2))]
    row = {"t": datetime(2026, 1, 2, 3, tzinfo=UTC), "d": date(2026, 1, 2), "n": Decimal("1.50")}
    found = said(pa.array([row], pa.struct(kinds)))
    assert found == ['{"t":"2026-01-02T03:00:00+00:00","d":"2026-01-02","n":"1.50"}']


def test_a_number_that_json_cannot_say_names_its_column(tmp_path: Path) -> None:
    rows = pa.array([{"a": float("nan")}])
    with pytest.raises(InvalidInputError, match=r"column 'box'.*NaN or infinite"):
        read(tmp_path, box=rows)


def test_bytes_in_a_struct_are_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"column 'box'.*leave them out: exclude=box"):
        read(tmp_path, box=pa.array([{"a": b"1"}]))


def test_types_nested_deeper_than_a_reader_goes_are_refused() -> None:
    kind = pa.string()
    for _ in range(MAX_DEPTH + 1):
        kind = pa.list_(kind)
    assert not json_says(kind)


def test_what_came_as_a_struct_goes_out_as_json_text(tmp_path: Path) -> None:
    dataset = read(tmp_path, box=pa.array([{"a": 1, "b": ["é"]}], STRUCT))
    write_parquet(dataset, tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet")["box"].to_pylist() == ['{"a":1,"b":["é"]}']
    assert rows_of(store(read_parquet(tmp_path / "out.parquet"))) == rows_of(dataset)


@given(
    rows=st.lists(
        st.none()
        | st.fixed_dictionaries(
            {"a": st.none() | st.integers(-(2**63), 2**63 - 1), "b": st.lists(st.text(max_size=9))}
        )
    )
)
def test_any_struct_comes_back_from_its_json(rows: list[Any]) -> None:
    found = json_texts(pa.array(rows, STRUCT))
    assert [None if text is None else json.loads(text) for text in found.to_pylist()] == rows

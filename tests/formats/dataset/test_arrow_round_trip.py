"""Every Arrow type that Parquet holds comes back as itself: stored, exported, synced."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.schema.arrow import in_usual_form
from tensorrepo.formats.dataset.schema.arrow_forms import form_from_json, form_to_json, kept_form
from tensorrepo.formats.dataset.schema.arrow_types import infer_type
from tensorrepo.formats.dataset.schema.schema import NULL_ELEMENTS_KEY, Schema
from tensorrepo.formats.dataset.sync import sync_dataset
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.exchange.tables.arrow import read_parquet
from tensorrepo.formats.exchange.tables.writers import write_arrow, write_parquet
from tests.support.builders.arrow_tables import arrow_arrays, arrow_types
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

ROWS = 5


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """A few columns of any types; lists of numbers say that some of these are null."""
    columns = [draw(arrow_arrays(rows=ROWS)) for _ in range(draw(st.integers(1, 3)))]
    fields = [
        pa.field(f"c{at}", each.type, metadata={NULL_ELEMENTS_KEY: b"1"})
        for at, each in enumerate(columns)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Types and values, whatever the chunks and the order of a dictionary."""
    return found.schema.types == expected.schema.types and all(
        plain(mine).equals(plain(theirs))
        for mine, theirs in zip(found.columns, expected.columns, strict=True)
    )


def plain(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    kind = infer_type(array.type, "", null_elements=True)
    (mine,) = Schema.of({"c": kind}).columns
    return in_usual_form(mine, array)


@pytest.mark.soak
@given(table=tables())
def test_any_table_comes_back_as_itself(table: pa.Table) -> None:
    objects = MemoryObjects()
    schema = Schema.from_arrow(table.schema)
    again = Schema.from_json(json.loads(json.dumps(schema.to_json())))
    assert [column.arrow for column in again.columns] == [each.arrow for each in schema.columns]
    dataset = open_dataset(objects, write_dataset(objects, schema, [table]).digest)
    assert same(dataset.to_arrow(), table)


@given(table=tables())
def test_a_sync_of_the_same_rows_stores_nothing(table: pa.Table) -> None:
    objects = MemoryObjects()
    schema = Schema.from_arrow(table.schema)
    dataset = open_dataset(objects, write_dataset(objects, schema, [table]).digest)
    report = sync_dataset(objects, dataset, schema, table.to_batches())
    assert (report.inserted, report.updated, report.deleted) == (0, 0, 0)
    assert report.link.digest == dataset.digest


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples(6))
@given(table=tables())
def test_any_table_comes_back_through_files(table: pa.Table) -> None:
    """As `add` and `checkout` do: what Parquet makes of a table is what comes back as Parquet."""
    objects = MemoryObjects()
    with TemporaryDirectory() as folder:
        given, back, arrow = (Path(folder, name) for name in ("t.parquet", "b.parquet", "t.arrow"))
        pq.write_table(table.replace_schema_metadata(), given)
        try:
            expected = pq.read_table(given)
        except pa.ArrowInvalid:  # some lists of fixed size it writes, and does not read
            reject()
        reading = read_parquet(given)
        root = write_dataset(objects, reading.schema, reading.batches).digest
        dataset = open_dataset(objects, root)
        assert same(dataset.to_arrow(), expected)
        write_parquet(dataset, back)
        assert same(pq.read_table(back), expected)
        write_arrow(dataset, arrow)
        assert same(pa.ipc.open_file(arrow.read_bytes()).read_all(), expected)
        again = read_parquet(back)
        report = sync_dataset(objects, dataset, again.schema, again.batches)
        assert report.link.digest == root


@given(kind=arrow_types())
def test_a_form_survives_as_json(kind: pa.DataType) -> None:
    form = json.loads(json.dumps(form_to_json(kept_form(kind))))
    assert form_from_json(form) == kept_form(kind)


def test_what_must_not_be_null_has_a_value_under_a_null(tmp_path: Path) -> None:
    """Else Parquet takes no such rows: nothing is stored under a null."""
    inner = pa.struct([pa.field("n", pa.int8(), nullable=False), pa.field("t", pa.string())])
    kind = pa.struct([pa.field("s", inner, nullable=False)])
    table = pa.table({"c": pa.array([None, {"s": {"n": 1, "t": None}}], kind)})
    objects = MemoryObjects()
    link = write_dataset(objects, Schema.from_arrow(table.schema), [table])
    write_parquet(open_dataset(objects, link.digest), tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").equals(table)


def test_null_numbers_in_lists_of_parquet_are_found(tmp_path: Path) -> None:
    """Lists of numbers are tensors, unless one of these numbers is null."""
    lists, full = [[1, None], None, []], [[1, 2], None, []]
    table = pa.table({"some": pa.array(lists), "none": pa.array(full)})
    pq.write_table(table, tmp_path / "t.parquet")
    reading = read_parquet(tmp_path / "t.parquet")
    objects = MemoryObjects()
    dataset = open_dataset(objects, write_dataset(objects, reading.schema, reading.batches).digest)
    assert [type(column.type).__name__ for column in reading.schema.columns] == ["List", "Tensor"]
    assert same(dataset.to_arrow(), table)
    write_parquet(dataset, tmp_path / "back.parquet")
    assert pq.read_table(tmp_path / "back.parquet").equals(table)

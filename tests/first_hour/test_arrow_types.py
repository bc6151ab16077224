"""F9: every Arrow type that Parquet holds comes back as itself; others are told all at once."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell

DAY, NOON = dt.date(2026, 1, 31), dt.time(12, 30)
PRICE = decimal.Decimal("1.25")
TABLE = pa.table(
    {
        "id": [1, 2, 3],
        "price": pa.array([PRICE, None, 2 * PRICE], pa.decimal128(9, 2)),
        "day": pa.array([DAY, None, DAY], pa.date32()),
        "at": pa.array([NOON, None, NOON], pa.time64("us")),
        "took": pa.array([dt.timedelta(seconds=5), None, None], pa.duration("ms")),
        "nothing": pa.nulls(3),
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "tags": pa.array([["x", None], [], None], pa.list_(pa.string())),
        "box": pa.array([{"a": 1, "when": [DAY]}, None, {"a": None, "when": []}]),
        "scores": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "key": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "zoned": pa.array([0, None, 1], pa.timestamp("ms", "Europe/Paris")),
    }
)


@pytest.fixture
def committed(shell: Shell) -> Shell:
    """A workspace with a committed dataset of many types, read from Parquet."""
    pq.write_table(TABLE, shell.folder / "all.parquet")
    shell("add", "all.parquet", "--dataset", "all")
    shell("commit", "-m", "Every type")
    return shell


def opened(shell: Shell) -> tr.Dataset:
    return shell.repository().dataset("all")


def test_a_table_comes_back_from_parquet_and_to_it(committed: Shell) -> None:
    assert opened(committed).to_arrow().cast(TABLE.schema).equals(TABLE)
    assert opened(committed).to_arrow().schema.types == TABLE.schema.types
    tr.export(opened(committed), committed.folder / "back.parquet")
    assert pq.read_table(committed.folder / "back.parquet").equals(TABLE)


def test_the_same_file_again_is_no_change(committed: Shell) -> None:
    assert "unchanged" in committed("add", "all.parquet", "--dataset", "all", "--sync")
    tr.export(opened(committed), committed.folder / "back.parquet")
    assert "unchanged" in committed("add", "back.parquet", "--dataset", "all", "--sync")


def test_equal_values_in_other_units_are_no_change(committed: Shell) -> None:
    wider = {
        "price": pa.decimal256(40, 4),
        "day": pa.date64(),
        "at": pa.time64("ns"),
        "took": pa.duration("ns"),
        "word": pa.large_string(),
        "tags": pa.large_list(pa.large_string()),
        "zoned": pa.timestamp("us", "Europe/Paris"),
    }
    fields = [field.with_type(wider.get(field.name, field.type)) for field in TABLE.schema]
    plain = TABLE.set_column(6, "word", TABLE["word"].cast(pa.string()))
    pq.write_table(plain.cast(pa.schema(fields)), committed.folder / "wider.parquet")
    assert "unchanged" in committed("add", "wider.parquet", "--dataset", "all", "--sync")


def test_a_column_of_nulls_takes_the_first_values_that_come(committed: Shell) -> None:
    values = pa.array([["x"], None, []], pa.list_(pa.string()))
    filled = TABLE.set_column(TABLE.column_names.index("nothing"), "nothing", values)
    pq.write_table(filled, committed.folder / "filled.parquet")
    committed("add", "filled.parquet", "--dataset", "all", "--sync")
    committed("commit", "-m", "Filled")
    assert opened(committed).to_arrow()["nothing"].to_pylist() == [["x"], None, []]


def test_rows_are_pythons_own_values(committed: Shell) -> None:
    row = opened(committed)[0]
    assert (row["price"], row["day"], row["at"]) == (PRICE, DAY, NOON)
    assert (row["tags"], row["box"]) == (["x", None], {"a": 1, "when": [DAY]})
    assert (row["scores"], row["key"], row["nothing"]) == ([("k", 1)], b"ab", None)
    assert opened(committed)["day"][:].dtype == "datetime64[D]"
    assert opened(committed)["took"][:].dtype == "timedelta64[ms]"


@pytest.mark.together
@pytest.mark.parametrize(
    "condition",
    [
        "price > 1.20 and price < 2",
        "day = '2026-01-31' and id = 1",
        "at <= '12:30:00' and id < 3",
        "box.a = 1",
        "tags[1] = 'x'",
        "scores['k'] = 1",
        "took = interval '5 seconds'",
        "word like 'a%' and key = 'ab'",
    ],
)
def test_conditions_find_rows_by_them(committed: Shell, condition: str) -> None:
    assert opened(committed).find(condition).tolist() == [0]


def test_predicates_find_rows_by_them(committed: Shell) -> None:
    dataset = opened(committed)
    assert dataset.find(tr.col("price") == PRICE).tolist() == [0]
    assert dataset.find(tr.col("day").isin([DAY])).tolist() == [0, 2]
    assert dataset.find(tr.col("took") > dt.timedelta(0)).tolist() == [0]
    assert dataset.find(tr.col("price") > 1).tolist() == [0, 2]
    assert dataset.find(tr.col("price") > 1.5).tolist() == [2]


def test_sql_sees_its_own_types(committed: Shell) -> None:
    query = """select price + 1 p, box['when'][1] w, len(tags) n from "all" where id = 1"""
    (row,) = committed.repository().sql(query).arrow().to_pylist()
    assert row == {"p": PRICE + 1, "w": DAY, "n": 2}


def test_cat_says_them_in_json(committed: Shell) -> None:
    first = json.loads(committed("cat", "all", "--json").splitlines()[0])
    assert (first["price"], first["day"], first["at"]) == ("1.25", "2026-01-31", "12:30:00")
    assert (first["took"], first["box"]) == ("PT5S", {"a": 1, "when": ["2026-01-31"]})


def test_csv_and_json_lines_say_them(committed: Shell) -> None:
    names = [name for name in TABLE.column_names if name != "key"]
    tr.export(opened(committed), committed.folder / "t.csv", columns=names)
    tr.export(opened(committed), committed.folder / "t.jsonl", columns=names)
    first = json.loads((committed.folder / "t.jsonl").read_text().splitlines()[0])
    assert (first["price"], first["took"], first["scores"]) == ("1.25", "PT5S", {"k": 1})
    line = (committed.folder / "t.csv").read_text().splitlines()[1]
    assert line.startswith('1,"1.25","2026-01-31","12:30:00.000000","PT5S",')


def test_a_cell_is_updated_from_the_shell_and_blamed(committed: Shell) -> None:
    edits = ("price=9.99", "day=2027-02-03", 'tags=["new"]')
    committed("update", "all", *chain(*(("--set", each) for each in edits)), "--where", "id = 1")
    committed("commit", "-m", "Edited")
    row = opened(committed)[0]
    assert row["price"] == decimal.Decimal("9.99")
    assert (row["day"], row["tags"]) == (dt.date(2027, 2, 3), ["new"])
    assert "Edited" in committed("blame", "all", "--row", "0")


def test_what_no_column_holds_is_told_at_once() -> None:
    encoded = pa.run_end_encoded(pa.int32(), pa.int8())
    schema = pa.schema([("a", pa.month_day_nano_interval()), ("b", pa.list_(encoded))])
    with pytest.raises(tr.UnsupportedError, match=r"column 'a'.*column 'b'"):
        tr.Schema.from_arrow(schema)

"""F10: a data frame, a table, a dict, a list or a generator is a dataset in one call."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import tensorrepo as tr
from tensorrepo.formats.common.provenance import edges_of
from tensorrepo.formats.exchange.tables.samples import FIRST_SAMPLES
from tests.support.processes.shell import Shell

PRICE = Decimal("1.5")
DAWN = datetime.fromisoformat("1970-01-01")
INDIAN = time(1, 2, 3, tzinfo=timezone(timedelta(hours=5, minutes=30)))
ROWS = [{"a": 1, "text": "x"}, {"a": 2, "text": "é"}, {"a": 3, "text": ""}]
COLUMNS = {"a": [1, 2, 3], "text": ["x", "é", ""]}


class Samples(torch.utils.data.Dataset[Any]):
    """A dataset as torch's users write them."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return ROWS[number]


def hugging_face() -> Any:
    import datasets

    return datasets.Dataset.from_dict(COLUMNS)


SOURCES: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame(COLUMNS, index=[7, 8, 9]),
    "polars": lambda: pl.DataFrame(COLUMNS),
    "Arrow table": lambda: pa.table(COLUMNS),
    "Arrow batch": lambda: pa.record_batch(COLUMNS),
    "Arrow reader": lambda: pa.table(COLUMNS).to_reader(),
    "DuckDB": lambda: duckdb.from_arrow(pa.table(COLUMNS)),
    "dict of lists": lambda: COLUMNS,
    "dict of arrays": lambda: {"a": np.arange(1, 4), "text": np.array(["x", "é", ""])},
    "dict of series": lambda: {"a": pd.Series([1, 2, 3]), "text": pl.Series(["x", "é", ""])},
    "dict of tensors": lambda: {"a": torch.arange(1, 4), "text": ("x", "é", "")},
    "list of dicts": lambda: ROWS,
    "generator": lambda: (row for row in ROWS),
    "iterator of frames": lambda: iter([pd.DataFrame(ROWS[:2]), pd.DataFrame(ROWS[2:])]),
    "torch": Samples,
    "Hugging Face": hugging_face,
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    return tr.init(tmp_path_factory.mktemp("repo") / "store", author="Ada <ada@example.org>")


@pytest.fixture
def tx(repo: tr.Repository) -> Iterator[Any]:
    with repo.transaction() as transaction:
        yield transaction
        transaction.abort()


def rows_of(draft: Any) -> list[dict[str, Any]]:
    batches = draft.stored.to_batches()
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("source", SOURCES)
def test_whatever_holds_rows_is_a_dataset_in_one_call(tx: Any, source: str) -> None:
    draft = tx.create_dataset("d", SOURCES[source]())
    assert draft.schema.column("a").type == tr.Column("a", "int64").type
    assert rows_of(draft) == ROWS


@pytest.mark.parametrize("source", SOURCES)
def test_it_is_appended_to_a_dataset_of_these_columns(tx: Any, source: str) -> None:
    draft = tx.create_dataset("d", columns={"a": "int16", "text": tr.Text()})
    draft.append(SOURCES[source]())
    assert rows_of(draft) == ROWS


@pytest.mark.parametrize("source", SOURCES)
def test_it_is_read_as_files_are(tx: Any, source: str) -> None:
    reading = tr.read(SOURCES[source](), exclude=["a"])
    assert rows_of(tx.create_dataset("d", reading)) == [{"text": row["text"]} for row in ROWS]


def test_one_column_is_excluded_by_its_name_alone(tx: Any) -> None:
    assert rows_of(tx.create_dataset("d", COLUMNS, exclude="text")) == [
        {"a": row["a"]} for row in ROWS
    ]


def test_a_path_is_data_too_and_tells_where_it_was(tx: Any, tmp_path: Path) -> None:
    pyarrow.csv.write_csv(pa.table(COLUMNS), tmp_path / "t.csv")
    draft = tx.create_dataset("d", tmp_path / "t.csv", columns={"a": "int8"}, exclude=["text"])
    assert rows_of(draft) == [{"a": row["a"]} for row in ROWS]
    told = {edge.relation: edge.path for edge in edges_of(draft.stored.root.lineage)}
    assert told == {"imported-from": "t.csv", "synced-with": "t.csv"}


def test_a_dataset_of_the_repository_is_data_too(repo: tr.Repository, tx: Any) -> None:
    with repo.transaction() as first:
        first.create_dataset("first", ROWS)
    draft = tx.create_dataset("second", repo.dataset("first"))
    assert rows_of(draft) == ROWS
    (edge,) = edges_of(draft.stored.root.lineage)
    assert (edge.relation, edge.path) == ("derived-from", "datasets/first")


def test_types_can_be_said_in_place_of_those_inferred(tx: Any) -> None:
    frame = pd.DataFrame({"a": [1, 2], "label": ["dog", "cat"], "note": ["x", "y"]})
    types = {"a": "float32", "label": tr.ClassLabel(("cat", "dog"))}
    draft = tx.create_dataset("d", frame, columns=types, exclude=["note"])
    assert rows_of(draft) == [{"a": 1.0, "label": 1}, {"a": 2.0, "label": 0}]
    assert [column.type for column in draft.schema.columns] == [
        tr.Column("a", "float32").type,
        types["label"],
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 2], [3, 4]], tr.Tensor("int64", (2,))),
        ([[1], [2, 3], []], tr.Tensor("int64", (None,))),
        ([[[1, 2]], [[3, 4]]], tr.Tensor("int64", (1, 2))),
        ([np.zeros((2, 3), "f4"), np.zeros((4, 3), "f4")], tr.Tensor("float32", (None, 3))),
        (np.zeros((3, 2, 2), "u1"), tr.Tensor("uint8", (2, 2))),
        ([{"a": 1}, {"b": [2]}], tr.Json()),
        ([{"a": 1}, {"a": None}, None], tr.Struct({"a": "int64"})),
        ([[1, None], [2, 3]], tr.List("int64")),
        ([["x"], None, []], tr.List(tr.Text())),
        ([[{"a": "x"}], []], tr.List(tr.Struct({"a": tr.Text()}))),
        ([b"\0", b""], tr.Bytes()),
        (np.array(["a", "b"], np.dtypes.StringDType()), tr.Text()),
        (torch.tensor([1 + 2j]).conj(), tr.Column("v", "complex64").type),
    ],
)
def test_what_values_are_is_seen(tx: Any, values: Sequence[Any], expected: Any) -> None:
    assert tx.create_dataset("d", {"v": values}).schema.column("v").type == expected
    rows = ({"v": value} for value in values)
    assert tx.create_dataset("e", rows).schema.column("v").type == expected


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ("M8[Y]", date(1972, 1, 1)),
        ("M8[2D]", date(1970, 1, 5)),
        ("M8[h]", DAWN + timedelta(hours=2)),
        (">M8[s]", DAWN + timedelta(seconds=2)),
        ("M8[10s]", DAWN + timedelta(seconds=20)),
        ("m8[D]", timedelta(2)),
        ("m8[25us]", timedelta(microseconds=50)),
    ],
)
def test_moments_of_numpy_are_kept_in_any_unit(tx: Any, counts: str, expected: Any) -> None:
    given = np.array([2, "NaT"], counts)
    for values in (given, list(given)):
        assert [row["v"] for row in rows_of(tx.create_dataset("d", {"v": values}))] == [
            expected,
            None,
        ]
        tx.remove("datasets/d")
    assert rows_of(tx.create_dataset("rows", [{"v": given[0]}])) == [{"v": expected}]
    lists = np.array([[2, "NaT"]], counts)
    assert rows_of(tx.create_dataset("lists", {"v": lists})) == [{"v": [expected, None]}]


FITTING: dict[type, list[Any]] = {
    tr.Timestamp: [DAWN],
    tr.Duration: [timedelta(1)],
    tr.Time: [time(1)],
    tr.List: [[]],
    tr.Struct: [{"a": None}],
}
MIXED = np.ma.MaskedArray([[1.0, 2.0], [3.0, 4.0]], [[False, True], [False, False]])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([date(2020, 1, 1), DAWN], "a moment without a zone and date"),
        ([DAWN, DAWN.replace(tzinfo=UTC)], "a moment with a zone"),
        (np.array([1], "m8[M]"), "which no column type holds"),
        (torch.empty(2, device="meta"), "no data"),
        (pl.Series([object()], dtype=pl.Object), "holds object, which no column type holds"),
        (MIXED, "row 0, column 'v'.*1 of 2 elements masked"),
        (list(MIXED), "row 0, column 'v'.*1 of 2 elements masked"),
        ([1.5, 2**53 + 1], "row 1, column 'v': expected float64, found 9007199254740993"),
    ],
)
def test_values_of_which_a_part_would_be_lost_are_refused(
    tx: Any, values: Any, message: str
) -> None:
    with pytest.raises(tr.Error, match=message):
        tx.create_dataset("d", {"v": values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["x", b"y"], "text and bytes"),
        ([["x", b"y"]], "found bytes b'y', which JSON cannot say"),
        ([{"a": b"x"}, {"a": "y"}], "found bytes b'x', which JSON cannot say"),
        ([[date(2020, 1, 1), DAWN]], "found date datetime.*which JSON cannot say"),
        ([{"a": DAWN}, {"a": DAWN.replace(tzinfo=UTC)}], "which JSON cannot say"),
        ([INDIAN], "expected a time of day without a zone"),
        ([{"a": INDIAN}], "which JSON cannot say"),
        ([pd.Timestamp(1, unit="ns")], "whole us.*found 1970-01-01T00:00:00.000000001"),
        ([pd.Timestamp(1, unit="ns", tz="UTC")], "whole us.*found 1970-01-01T00:00:00.000000001"),
        ([[pd.Timestamp(1, unit="ns")]], "Timestamp"),
        ([pd.Timedelta(1, unit="ns")], "whole us, found Timedelta"),
        ([{1: "a", "1": "b"}], "two keys that are '1' in JSON"),
        ([{"a": [{2: "a", "2": "b"}]}, {}], "two keys that are '2' in JSON"),
    ],
)
@pytest.mark.parametrize("of_rows", [False, True])
def test_what_arrow_would_take_a_part_of_is_refused(
    tx: Any, values: list[Any], message: str, of_rows: bool
) -> None:
    with pytest.raises(tr.Error, match=message):
        tx.create_dataset("d", [{"v": value} for value in values] if of_rows else {"v": values})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (tr.Timestamp("us"), pd.Timestamp(1, unit="ns")),
        (tr.Duration("s"), timedelta(microseconds=1)),
        (tr.Duration("us"), pd.Timedelta(1, unit="ns")),
        (tr.Duration("s"), 1.5),
        (tr.Time("us"), INDIAN),
        (tr.Time("us"), "12:30:00+05:30"),
        (tr.Time("s"), time(0, 0, 0, 5)),
        (tr.List("int8"), [1.5]),
        (tr.List("float32"), [1.0, 1e300]),
        (tr.List(tr.Text()), ["x", b"y"]),
        (tr.List(tr.Date()), [DAWN + timedelta(hours=5)]),
        (tr.List(tr.Timestamp("s")), [DAWN + timedelta(microseconds=5)]),
        (tr.Struct({"a": "int64"}), {"a": 1.5}),
        (tr.Struct({"a": tr.List(tr.Time("us"))}), {"a": [INDIAN]}),
        (tr.Map(tr.Text(), "int8"), {"a": 2.5}),
        (tr.Json(), {True: 1, "true": 2}),
    ],
)
def test_a_declared_column_refuses_what_it_would_hold_a_part_of(
    tx: Any, kind: Any, value: Any
) -> None:
    draft = tx.create_dataset("d", columns={"v": kind, "n": "int64"})
    with pytest.raises(tr.InvalidInputError, match="row 1, column 'v'"):
        draft.append({"v": [*FITTING.get(type(kind), [{}]), value], "n": [1, 2]})


def test_moments_of_several_units_are_those_that_were_given(tx: Any) -> None:
    far = datetime.fromisoformat("9999-01-01")
    draft = tx.create_dataset("d", columns={"v": tr.Timestamp("us")})
    draft.append({"v": [far, np.datetime64(1000, "ns")]})
    assert [row["v"] for row in rows_of(draft)] == [far, DAWN + timedelta(microseconds=1)]
    fine = tx.create_dataset("e", columns={"v": tr.Timestamp("ns")})
    with pytest.raises(tr.InvalidInputError, match=r"row 1, column 'v'.*found 9999-01-01"):
        fine.append({"v": [np.datetime64(1, "ns"), far]})


def test_moments_of_pandas_keep_their_nanoseconds_where_a_column_has_them(tx: Any) -> None:
    draft = tx.create_dataset("d", columns={"v": tr.Timestamp("ns", "UTC")})
    draft.append([{"v": pd.Timestamp(1, unit="ns", tz="Asia/Kolkata")}])
    assert rows_of(draft) == [{"v": pd.Timestamp(1, unit="ns", tz="UTC")}]
    lists = tx.create_dataset("lists", [{"v": [np.datetime64(1, "ns")]}])
    assert lists.schema.column("v").type == tr.List(tr.Timestamp("ns"))


@pytest.mark.parametrize("given", [pd.Timestamp(0), pd.Timedelta(0)])
def test_what_pandas_has_for_a_moment_that_is_missing_is_null(tx: Any, given: Any) -> None:
    for number, data in enumerate([{"v": [given, pd.NaT]}, [{"v": given}, {"v": pd.NaT}]]):
        draft = tx.create_dataset(f"d{number}", data)
        draft.append({"v": [pd.NaT]}).append([{"v": pd.NaT}])
        assert [row["v"] is None for row in rows_of(draft)] == [False, True, True, True]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (tr.List(tr.Text()), [["x", "y"], [], [None]]),
        (tr.List(tr.List("int64")), [[[1], [2]], [[]]]),
        (tr.List(tr.Struct({"a": "int64"})), [[{"a": 1}, {"a": 2}], []]),
        (tr.Map(tr.Text(), "int64"), [[("a", 1), ("b", 2)]]),
        (tr.Tensor("int64", (None,)), [[], [1, 2]]),
        (tr.Json(), [[]]),
    ],
)
@pytest.mark.parametrize("alone", [False, True])
def test_rows_of_lists_are_rows_whatever_lists_hold(
    tx: Any, kind: Any, values: list[Any], alone: bool
) -> None:
    columns = {"v": kind} if alone else {"v": kind, "n": "int64"}
    draft = tx.create_dataset("d", columns=columns)
    draft.append({"v": value} if alone else {"v": value, "n": 1} for value in values)
    found = [row["v"] for row in rows_of(draft)]
    assert found == (["[]"] if isinstance(kind, tr.Json) else values)


@pytest.mark.parametrize("first", [DAWN, DAWN.replace(tzinfo=UTC)])
def test_a_later_moment_with_or_without_a_zone_is_refused_as_a_first_one_is(
    tx: Any, first: datetime
) -> None:
    other = first.replace(tzinfo=None if first.tzinfo else UTC)
    rows = ({"v": first if at < FIRST_SAMPLES else other} for at in range(FIRST_SAMPLES + 1))
    with pytest.raises(tr.Error, match=f"row {FIRST_SAMPLES}: column 'v' is a moment with"):
        tx.create_dataset("d", rows)
    declared = {"v": tr.Timestamp("us")}
    assert rows_of(tx.create_dataset("e", [{"v": DAWN.replace(tzinfo=UTC)}], columns=declared))


def test_whole_numbers_in_lists_keep_their_digits_or_are_refused(tx: Any) -> None:
    exact = 2**53 + 1
    assert rows_of(tx.create_dataset("d", [{"v": [exact, 1.5]}])) == [{"v": f"[{exact},1.5]"}]
    for column in (tr.Tensor("float64", (2,)), tr.Tensor("float64", (None,))):
        draft = tx.create_dataset(f"d{column.shape[0]}", columns={"v": column})
        with pytest.raises(
            tr.Error, match=r"row 0, column 'v': expected float64.*9007199254740993"
        ):
            draft.append([{"v": [exact, 1.5]}])
    assert rows_of(tx.create_dataset("e", {"v": [2**53, 1e300]})) == [{"v": 2.0**53}, {"v": 1e300}]


@pytest.mark.parametrize("zone", ["Mars/X", "Europe", "../x", "+25:00"])
def test_zones_that_nobody_knows_are_refused_where_a_column_is_made(tx: Any, zone: str) -> None:
    kind = tr.Timestamp("us", zone)
    message = re.escape(f"column 'v': no time zone {zone!r} is known")
    for made in (kind, tr.List(kind), tr.Struct({"a": kind})):
        with pytest.raises(tr.Error, match=message):
            tx.create_dataset("d", columns={"v": made})
    draft = tx.create_dataset("e", {"a": [1]}, columns={"a": "int64"})
    with pytest.raises(tr.Error, match=message):
        draft.add_column("v", kind, nullable=True)
    for known in ("Europe/Berlin", "UTC", "+05:30"):
        draft.add_column(known[:3].strip("+"), tr.Timestamp("us", known), nullable=True)


def filled_again(value: Any, times: int = 3) -> Iterator[dict[str, Any]]:
    """Rows by one dict, whose value changes in place."""
    row: dict[str, Any] = {"v": value}
    for number in range(times):
        if isinstance(value, dict):
            value["a"] = number
        elif value is None:
            row["v"] = number
        else:
            value[0] = number
        yield row


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int64", None),
        (tr.Tensor("float64", (2,)), np.zeros(2)),
        (tr.Tensor("float64", (2,)), np.zeros((2, 3))[:, 0]),
        (tr.Tensor("float64", (2,)), torch.zeros(2, dtype=torch.float64)),
        (tr.Tensor("int64", (2,)), [0, 0]),
        (tr.Bytes(), bytearray(2)),
        (tr.Struct({"a": "int64"}), {"a": 0}),
    ],
)
def test_what_a_generator_fills_again_is_what_it_gave(
    tx: Any, kind: Any, value: Any, declared: bool
) -> None:
    if declared:
        draft = tx.create_dataset("d", columns={"v": kind}).append(filled_again(value))
    else:
        draft = tx.create_dataset("d", filled_again(value))
    assert len({repr(row) for row in rows_of(draft)}) == 3


MANY = 200_000  # rows: more than one batch of each kind


def test_an_array_that_a_function_fills_again_is_what_it_gave(tx: Any) -> None:
    memory = np.zeros(MANY, np.int64)

    def doubled(batch: pa.RecordBatch) -> Any:
        np.multiply(batch.column("x"), 2, out=memory[: batch.num_rows])
        return memory[: batch.num_rows]

    def parts() -> Iterator[Any]:
        for at in range(0, MANY, 1000):
            memory[:1000] = np.arange(at, at + 1000)
            yield memory[:1000]

    def derived(batch: pa.RecordBatch) -> Any:
        return {"y": doubled(batch)}

    draft = tx.create_dataset("d", {"x": np.arange(MANY)})
    draft.add_column("made", "int64", values=doubled).add_column("given", "int64", values=parts())
    draft.update("x >= 0", {"x": doubled})
    tx.derive("e", "d", derived, version="1", batch=10_000, workers=1)
    rows = np.arange(MANY)
    found = pa.Table.from_batches(list(draft.stored.to_batches(["x", "made", "given"])))
    for name, expected in {"x": rows * 2, "made": rows * 2, "given": rows}.items():
        assert (found[name].to_numpy() == expected).all()
    y = pa.Table.from_batches(list(tx.dataset("e").stored.to_batches(["y"])))["y"]
    assert (y.to_numpy() == rows * 4).all()


def test_rows_that_are_masked_as_a_whole_are_null(tx: Any) -> None:
    whole = np.ma.MaskedArray([[1.0, 2.0], [3.0, 4.0]], [[True, True], [False, False]])
    expected = [{"v": None}, {"v": [3.0, 4.0]}]
    assert rows_of(tx.create_dataset("d", {"v": whole}).append({"v": whole[:0]})) == expected
    assert rows_of(tx.create_dataset("e", {"v": list(whole)})) == expected
    assert rows_of(tx.create_dataset("f", {"v": [np.ma.masked, 1.0]}))[0] == {"v": None}


def test_categories_of_polars_are_texts_that_are_exported_too(
    repo: tr.Repository, tmp_path: Path
) -> None:
    texts = ["a", "b", None]
    frame = pl.DataFrame(
        {
            "one": pl.Series(texts, dtype=pl.Categorical),
            "few": pl.Series(texts, dtype=pl.Enum(["a", "b"])),
            "many": pl.Series([["a"], [], None], dtype=pl.List(pl.Categorical)),
        }
    )
    with repo.transaction() as tx:
        tx.create_dataset("categories", frame).append(frame)
    found = repo.dataset("categories")
    assert found["one"][:] == found["few"][:] == texts * 2
    for ending in ("parquet", "arrow"):
        path = tr.export(found, tmp_path / f"categories.{ending}")
        with repo.transaction() as tx:
            read = rows_of(tx.create_dataset("read", path))
            tx.abort()
        assert [row["many"] for row in read] == [["a"], [], None] * 2


@pytest.mark.parametrize("frame", [pl.DataFrame, pd.DataFrame])
def test_objects_of_a_frame_are_no_numbers(tx: Any, frame: Any) -> None:
    given = frame({"odd": [object(), object()], "n": [1, 2]})
    with pytest.raises(tr.InvalidInputError, match="'odd': holds object"):
        tx.create_dataset("d", given)
    assert rows_of(tx.create_dataset("d", given, exclude="odd")) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("series", [pl.Series, pd.Series])
def test_a_series_has_a_value_for_each_row_that_changes(tx: Any, series: Any) -> None:
    draft = tx.create_dataset("d", {"n": [0, 1, 2]})
    draft.add_column("text", tr.Text(), series(["a", "b", "c"]))
    draft.update([0, 2], {"text": series(["x", "y"])})
    assert [row["text"] for row in rows_of(draft)] == ["x", "b", "y"]


@pytest.mark.parametrize("frame", [pa.table, pl.DataFrame, pd.DataFrame])
def test_lists_with_nulls_inside_are_taken_from_every_frame(tx: Any, frame: Any) -> None:
    draft = tx.create_dataset("d", frame({"v": [[1, None], [2, 3]]}))
    assert draft.schema.column("v").type == tr.List("int64")
    assert rows_of(draft) == [{"v": [1, None]}, {"v": [2, 3]}]


def picture(value: int) -> Image.Image:
    return Image.fromarray(np.full((4, 6, 3), value, np.uint8))


@pytest.mark.parametrize("given", ["pictures", "arrays", "paths", "texts", "frame", "rows"])
def test_an_image_column_takes_pictures_arrays_and_paths(
    tx: Any, tmp_path: Path, given: str
) -> None:
    for value in (1, 2):
        picture(value).save(tmp_path / f"{value}.png")
    paths = [tmp_path / "1.png", tmp_path / "2.png"]
    forms: dict[str, Any] = {
        "pictures": {"image": [picture(1), picture(2)]},
        "arrays": {"image": np.stack([np.asarray(picture(1)), np.asarray(picture(2))])},
        "paths": {"image": paths},
        "texts": {"image": [str(path) for path in paths]},
        "frame": pd.DataFrame({"image": [picture(1), paths[1]]}),
        "rows": ({"image": value} for value in (picture(1), np.asarray(picture(2)))),
    }
    draft = tx.create_dataset("d", forms[given], columns={"image": tr.Image("png")})
    stored = [np.asarray(Image.open(io.BytesIO(row["image"]))) for row in rows_of(draft)]
    assert [int(pixels[0, 0, 0]) for pixels in stored] == [1, 2]
    assert stored[0].shape == (4, 6, 3)


def test_a_column_of_pictures_is_seen_to_be_one(tx: Any) -> None:
    draft = tx.create_dataset("d", {"image": [picture(1), None], "n": [1, 2]})
    assert draft.schema.column("image").type == tr.Image("png")
    draft.append({"image": picture(3), "n": 3}).append([{"image": picture(4), "n": 4}])
    assert [row["image"] is None for row in rows_of(draft)] == [False, True, False, False]


@pytest.mark.parametrize("of_rows", [False, True])
def test_rows_that_do_not_fit_are_passed_over_if_asked(tx: Any, of_rows: bool) -> None:
    images = [picture(1), "/nowhere.png", picture(2)]
    data: Any = [{"image": image} for image in images] if of_rows else {"image": images}
    with pytest.raises(tr.InvalidInputError, match=r"row 1.*column 'image'.*/nowhere\.png"):
        tx.create_dataset("d", data, columns={"image": tr.Image()})
    draft = tx.create_dataset("d", data, columns={"image": tr.Image()}, on_error="skip")
    assert (draft.rows, draft.misfits.skipped) == (2, 1)


def test_a_file_that_somebody_else_wrote_has_no_file_of_mine_read(tx: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": ["/etc/hostname"]}), tmp_path / "t.parquet")
    with pytest.raises(tr.InvalidInputError, match="expected an image"):
        tx.create_dataset("d", tmp_path / "t.parquet", columns={"image": tr.Image()})


def test_all_problems_are_said_at_once(tx: Any) -> None:
    frame = pd.DataFrame({"mixed": [1, "x"], "odd": [object(), 2], "n": [1, 2]})
    with pytest.raises(tr.InvalidInputError) as told:
        tx.create_dataset("d", frame)
    assert "2 columns cannot be stored" in str(told.value)
    assert "exclude=mixed,odd" in str(told.value)
    assert rows_of(tx.create_dataset("d", frame, exclude=["mixed", "odd"])) == [{"n": 1}, {"n": 2}]


def test_paths_of_images_are_taken_where_images_change(tx: Any, tmp_path: Path) -> None:
    paths = [tmp_path / f"{value}.png" for value in range(3)]
    for value, path in enumerate(paths):
        picture(value).save(path)
    draft = tx.create_dataset("d", {"n": [0, 1, 2]})
    given: dict[str, Any] = {
        "listed": paths,
        "walked": ([str(path)] for path in paths),
        "made": lambda batch: [paths[n] for n in batch["n"].to_pylist()],
    }
    for name, values in given.items():
        draft.add_column(name, tr.Image("png"), values)
    draft.update("n = 1", {"listed": paths[2]})
    draft.update("n >= 1", {"walked": [str(paths[0]), paths[1]]})
    draft.update("n = 2", {"made": lambda batch: paths[: batch.num_rows]})
    data = [path.read_bytes() for path in paths]
    shown = [tuple(data.index(row[name]) for name in given) for row in rows_of(draft)]
    assert shown == [(0, 0, 0), (2, 0, 1), (2, 1, 0)]
    with pytest.raises(tr.InvalidInputError, match=r"found the path none\.png"):
        draft.update("n = 1", {"listed": "none.png"})
    with pytest.raises(tr.InvalidInputError, match="1 value for 3 rows"):
        draft.update("n >= 0", {"listed": paths[:1]})


def test_long_decimals_come_to_polars_where_it_holds_them(repo: tr.Repository) -> None:
    kind = pa.decimal256(60, 1)
    with repo.transaction() as tx:
        tx.create_dataset("short", pa.table({"d": pa.array([PRICE, None], kind)}))
        tx.create_dataset("long", pa.table({"d": pa.array([PRICE * 10**40], kind)}))
    assert repo.dataset("short").to_polars()["d"].to_list() == [PRICE, None]
    with pytest.raises(tr.UnsupportedError, match="at most 38 digits"):
        repo.dataset("long").to_polars()
    assert repo.dataset("long").to_pandas()["d"].tolist() == [PRICE * 10**40]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            ({"a": at if at < 1500 else "x"} for at in range(2000)),
            "generator, row 1500: column 'a'",
        ),
        (
            ({"a": at} if at < 1500 else {"b": at} for at in range(2000)),
            "generator, row 1500: has 'b', which is no column",
        ),
        (({"a": 1 / (5 - at)} for at in range(9)), "row 5: ZeroDivisionError"),
        ([{"a": 1}, {"a": 2, "b": 3}, {"a": 1}], None),
        ([1, 2], "row 0: expected a mapping of columns, found int"),
        ([], "holds no rows, so its columns are not known"),
        ({"a": [1], "b": [1, 2]}, "equally many rows, found 'a': 1, 'b': 2"),
        ({"a": "int64"}, "data has types where rows are expected"),
        (np.zeros(3), "Give an array a name"),
        (pd.Series([1]), "give a column a name"),
    ],
)
def test_what_is_wrong_with_rows_is_said(tx: Any, rows: Any, message: str | None) -> None:
    if message is None:
        assert rows_of(tx.create_dataset("d", rows))[1] == {"a": 2, "b": 3}
        return
    with pytest.raises(tr.InvalidInputError, match=message):
        tx.create_dataset("d", rows)


def test_the_unnamed_index_of_pandas_is_no_column_and_a_named_one_is(
    tx: Any, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"a": [1, 2]}, index=["p", "q"])
    frame.to_parquet(tmp_path / "t.parquet")
    assert pq.read_schema(tmp_path / "t.parquet").names == ["a", "__index_level_0__"]
    for data in (frame, pa.Table.from_pandas(frame), tmp_path / "t.parquet"):
        draft = tx.create_dataset(f"d{type(data).__name__}", data)
        assert draft.schema.names == ("a",)
        draft.append(data)
        assert draft.rows == 4
    assert any("unnamed index" in note for note in tr.read(tmp_path / "t.parquet").notes)
    frame.index.name = "key"
    assert tx.create_dataset("named", frame).schema.names == ("key", "a")


def test_columns_are_excluded_on_the_command_line(shell: Shell) -> None:
    pq.write_table(pa.table({**COLUMNS, "bad": [1, 2, 3]}), shell.folder / "t.parquet")
    shell("add", "t.parquet", "--dataset", "t", "-o", "exclude=bad")
    shell("commit", "-m", "T")
    assert shell.repository().dataset("t").schema.names == ("a", "text")

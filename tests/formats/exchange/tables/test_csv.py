"""Delimited text: types inferred from the first block, then enforced."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.schema import Date, Scalar, Schema, Text
from tensorrepo.formats.exchange.registry import export
from tensorrepo.formats.exchange.tables import csv
from tensorrepo.formats.exchange.tables.csv import read_csv
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.foreign import dataset_of, rows_of, store


def written(tmp_path: Path, text: str | bytes, name: str = "t.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def values(path: Path, **options: object) -> list[list[object]]:
    return [list(row.values()) for row in rows_of(store(read_csv(path, **options)))]  # type: ignore[arg-type]


def test_types_follow_from_the_values(tmp_path: Path) -> None:
    path = written(tmp_path, "i,f,b,t,d,time\n1,1.5,true,x,2024-01-01,10:20\n")
    kinds = [column.type for column in read_csv(path).schema.columns]
    number, real, flag = Scalar("int64"), Scalar("float64"), Scalar("bool")
    assert kinds == [number, real, flag, Text(), Date(), Text()]


def test_an_empty_cell_is_null_and_a_quoted_one_is_empty_text(tmp_path: Path) -> None:
    path = written(tmp_path, 'n,t\n1,""\n,\nnan,NA\n')
    assert values(path)[:2] == [[1, ""], [None, None]]
    assert values(path)[2][1] == "NA"


def test_words_for_missing_values_can_be_told(tmp_path: Path) -> None:
    path = written(tmp_path, "n\n1\nNA\n-\n")
    assert values(path, null_values=("NA", "-")) == [[1], [None], [None]]


def test_a_column_without_values_is_text(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,\n2,\n")
    assert read_csv(path).schema.column("b").type == Text()


def test_columns_can_be_kept_as_text(tmp_path: Path) -> None:
    path = written(tmp_path, "zip,n\n1,0\n01234,5\n")
    assert values(path) == [[1, 0], [1234, 5]]
    (note,) = read_csv(path).notes
    assert note == (
        "column 'zip' is numbers, without the zeros before them: 01234 in line 3 of "
        f"{path}. To keep them: text_columns=zip"
    )
    assert values(path, text_columns=("zip",)) == [["1", 0], ["01234", 5]]
    assert read_csv(path, text_columns=("zip",)).notes == ()


@pytest.mark.parametrize(
    ("cells", "kept", "notes"),
    [
        (("18446744073709551615", "", "1"), [(1 << 64) - 1, None, 1], 0),
        (("8", "89014103211118510720"), ["8", "89014103211118510720"], 1),
        (("-9223372036854775809", "1"), ["-9223372036854775809", "1"], 1),
        (("9223372036854775808", "1.5"), [2.0**63, 1.5], 0),
        (("9" * 2000, "1"), [float("inf"), 1.0], 0),
    ],
)
def test_whole_numbers_that_64_bits_do_not_hold_keep_their_digits(
    tmp_path: Path, cells: Sequence[str], kept: list[object], notes: int
) -> None:
    path = written(tmp_path, "".join(f"{cell},x\n" for cell in ("id", *cells)))
    assert [row[0] for row in values(path)] == kept
    assert len(read_csv(path).notes) == notes


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_the_one_that_the_first_line_has_most(mark: str, tmp_path: Path) -> None:
    path = written(tmp_path, f'a{mark}"b;,|;,|"{mark}c\n1{mark}2{mark}3\n')
    assert values(path) == [[1, 2, 3]]


def test_a_file_without_header_numbers_its_columns(tmp_path: Path) -> None:
    reading = read_csv(written(tmp_path, "1,x\n2,y\n"), header=False)
    assert reading.schema.names == ("f0", "f1")
    assert len(store(reading)) == 2


def test_a_column_without_a_name_is_called_by_its_number(tmp_path: Path) -> None:
    reading = read_csv(written(tmp_path, ",a\n0,x\n1,y\n"))
    assert reading.schema.names == ("f0", "a")
    assert rows_of(store(reading))[1] == {"f0": 1, "a": "y"}


def test_another_encoding_is_read_when_told_and_proposed_when_not(tmp_path: Path) -> None:
    path = written(tmp_path, "t\ncaf\xe9\n".encode("latin-1"))
    with pytest.raises(InvalidInputError, match=r"column 't' is not utf-8 text.*encoding=latin-1"):
        read_csv(path)
    assert values(path, encoding="latin-1") == [["café"]]
    with pytest.raises(InvalidInputError, match="'klingon' is unknown"):
        read_csv(path, encoding="klingon")


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    assert values(written(tmp_path, gzip.compress(b"a\n7\n"))) == [[7]]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b,c\n1,2,3\n")
    assert values(path, columns=("c", "a")) == [[3, 1]]
    with pytest.raises(NotFoundError, match="no column 'd'; there are 'a', 'b', 'c'"):
        read_csv(path, columns=("d",))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types are inferred from 64 bytes, so that "later" comes soon."""
    monkeypatch.setattr(csv, "BLOCK_BYTES", 64)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("bad", "column", "value"),
    [
        ("x,2", "first", "x"),
        ("1,2.5", "second", "2.5"),
        ("1,99999999999999999999", "second", "9999"),
    ],
)
def test_a_later_value_that_does_not_fit_names_line_and_column(
    bad: str, column: str, value: str, tmp_path: Path
) -> None:
    path = written(tmp_path, "first,second\n" + "1,2\n" * 40 + f"\n{bad}\n")
    with pytest.raises(InvalidInputError, match=rf"t\.csv, line 43, column '{column}'.*'{value}"):
        store(read_csv(path))


@pytest.mark.usefixtures("small_blocks")
def test_the_line_is_right_after_quoted_line_ends(tmp_path: Path) -> None:
    path = written(tmp_path, "n,t\n" + '1,"two\nlines"\n' * 20 + "x,y\n")
    with pytest.raises(InvalidInputError, match="line 42, column 'n'"):
        store(read_csv(path))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("bad", ["1,2,3", "1"])
def test_a_row_with_more_or_fewer_cells_names_its_line(bad: str, tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n" + "1,2\n" * 40 + f"{bad}\n")
    with pytest.raises(InvalidInputError, match="line 42: Expected 2 columns, got"):
        store(read_csv(path))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("header", ["a,b", "a,a"])
def test_rows_of_other_widths_are_counted_and_the_first_named(header: str, tmp_path: Path) -> None:
    rows = ['"1\n",2', *["1,2"] * 40, "1,2,3", *["1,2"] * 9, *["7"] * 14, "1,2"]
    path = written(tmp_path, "\n".join([header, *rows, ""]))
    with pytest.raises(InvalidInputError) as refused:
        store(read_csv(path))
    text = str(refused.value)
    assert "15 rows have too many cells or too few. line 44: Expected 2 columns, got 3" in text
    assert "line 62: Expected 2 columns, got 1: '7'; and 5 more. damaged=skip" in text
    assert "line 63" not in text


@pytest.mark.usefixtures("small_blocks")
def test_a_quote_that_never_closes_is_explained(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n" + "1,2\n" * 40 + '1,"' + "x" * 500)
    with pytest.raises(InvalidInputError, match="Is a closing quote missing"):
        store(read_csv(path))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Empty CSV"),
        (b"a,\xff\n1,2\n", "t.csv"),
        (f"a,{'x' * 300}\n1,2\n", "column name has 1 to 255 bytes"),
    ],
)
def test_files_without_usable_columns_are_refused(
    text: str | bytes, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        read_csv(written(tmp_path, text))


def test_the_first_file_of_a_folder_decides_the_types_of_all(tmp_path: Path) -> None:
    written(tmp_path, "a,b\n1,\n", "1.csv")
    written(tmp_path, "a,b\n2,5\n", "2.csv")
    assert values(tmp_path) == [[1, None], [2, "5"]]
    written(tmp_path, "a,b\nx,5\n", "3.csv")
    with pytest.raises(InvalidInputError, match=r"3\.csv, line 2, column 'a'"):
        store(read_csv(tmp_path))


def test_a_folder_of_files_with_other_columns_names_the_difference(tmp_path: Path) -> None:
    written(tmp_path, "a,b\n1,2\n", "1.csv")
    written(tmp_path, "a,c\n1,2\n", "2.csv")
    with pytest.raises(InvalidInputError, match=r"2\.csv: differs from .*1\.csv: it lacks"):
        read_csv(tmp_path)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
                "f": st.none() | st.floats(allow_nan=False),
                "t": st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0")),
                "b": st.none() | st.booleans(),
            }
        ),
        min_size=1,
        max_size=8,
    )
)
def test_any_rows_survive_csv(
    rows: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    kinds = {"n": pa.int64(), "f": pa.float64(), "t": pa.string(), "b": pa.bool_()}
    schema = Schema.from_arrow(pa.schema(list(kinds.items())))
    # A first row that says the types, as text alone does not.
    first = {"n": -7, "f": 0.5, "t": "text, by its look", "b": True}
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    export(dataset_of(schema, [first, *rows]), path)
    assert rows_of(store(read_csv(path))) == [first, *rows]


@pytest.mark.soak
def test_memory_stays_at_a_few_blocks(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.write(b"n,t\n")
        for _ in range(40):
            file.write(b"123456,some text that is longer\n" * 32_000)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    peak, rows = 0, 0
    for batch in read_csv(path).batches:
        rows += len(batch["n"])  # type: ignore[index]
        peak = max(peak, pa.total_allocated_bytes() - before)
    python_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rows == 40 * 32_000
    assert peak < 64 << 20
    assert python_peak < 64 << 20


def test_columns_that_are_required_are_not_nullable(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,city\n1,Ulm\n2,\n")
    schema = read_csv(path, required=("id",)).schema
    assert [column.nullable for column in schema.columns] == [False, True]
    found = store(read_csv(path, required=("id",)))["id"][:]
    assert not isinstance(found, np.ma.MaskedArray)


def test_all_columns_can_be_required(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,score\n1,2.5\n")
    schema = read_csv(path, required=("*",)).schema
    assert not any(column.nullable for column in schema.columns)


def test_an_empty_cell_of_a_required_column_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,city\n1,Ulm\n2,\n")
    with pytest.raises(InvalidInputError, match="row 1, column 'city'"):
        store(read_csv(path, required=("city",)))


def test_a_required_column_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id\n1\n")
    with pytest.raises(NotFoundError, match=r"t\.csv: .*'town'"):
        read_csv(path, required=("town",))

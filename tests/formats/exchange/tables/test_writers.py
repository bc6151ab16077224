"""Datasets as Arrow tables and text, read back by readers that are not ours."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Image,
    Json,
    Link,
    LinkValue,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
    TypeLike,
)
from tensorrepo.formats.exchange.registry import export, read
from tensorrepo.formats.exchange.tables.writers import (
    write_arrow,
    write_csv,
    write_jsonl,
    write_parquet,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import dataset_of, rows_of, store

MIXED: dict[str, TypeLike] = {
    "n": "int64",
    "label": ClassLabel(("cat", "dog")),
    "text": Text(),
    "form": Json(),
    "box": Tensor("float32", (2, 2)),
    "audio": Tensor("int16", (None,)),
    "when": Timestamp("s", "UTC"),
}
ROWS = {
    "n": [1, 2],
    "label": [1, 0],
    "text": ['say "hi"\n', ""],
    "form": [{"a": [1]}, None],
    "box": np.arange(8, dtype=np.float32).reshape(2, 2, 2),
    "audio": [[1, 2, 3], []],
    "when": [0, 1],
}
NULLABLE = Schema(
    tuple(Column(c.name, c.type, nullable=c.name == "form") for c in Schema.of(MIXED).columns)
)


def test_python_reads_our_csv(tmp_path: Path) -> None:
    names = ["n", "label", "text"]
    dataset = dataset_of(
        {name: MIXED[name] for name in names}, {name: ROWS[name] for name in names}
    )
    write_csv(dataset, tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {"n": "1", "label": "dog", "text": 'say "hi"\n'},
        {"n": "2", "label": "cat", "text": ""},
    ]


def test_tabs_stand_between_cells_of_a_tsv(tmp_path: Path) -> None:
    dataset = dataset_of({"a": "int8", "b": "int8"}, {"a": [1], "b": [2]})
    write_csv(dataset, tmp_path / "t.tsv")
    assert (tmp_path / "t.tsv").read_text() == '"a"\t"b"\n1\t2\n'
    write_csv(dataset, tmp_path / "t.csv", delimiter=";")
    assert (tmp_path / "t.csv").read_text() == '"a";"b"\n1;2\n'


@pytest.mark.parametrize("name", ["t.csv.gz", "t.tsv.gz", "t.jsonl.gz"])
def test_a_name_in_gz_is_gzip(name: str, tmp_path: Path) -> None:
    dataset = dataset_of({"n": "int64", "t": Text()}, {"n": [1, 2], "t": ["a", "b"]})
    path = export(dataset, tmp_path / name)
    assert path.read_bytes()[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # no name, no time
    assert rows_of(store(read(path))) == rows_of(dataset)


def test_python_reads_our_json_lines(tmp_path: Path) -> None:
    write_jsonl(dataset_of(NULLABLE, ROWS), tmp_path / "t.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert rows[0] == {
        "n": 1,
        "label": "dog",
        "text": 'say "hi"\n',
        "form": {"a": [1]},
        "box": [[0.0, 1.0], [2.0, 3.0]],
        "audio": [1, 2, 3],
        "when": "1970-01-01 00:00:00Z",
    }
    assert (rows[1]["form"], rows[1]["audio"]) == (None, [])


@pytest.mark.parametrize("write", [write_csv, write_jsonl])
@pytest.mark.parametrize("kind", [Bytes(), Image(), "complex64"])
def test_columns_that_text_cannot_hold_are_named(
    write: object, kind: TypeLike, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="column 'x'"):
        write(dataset_of({"x": kind}), tmp_path / "t")  # type: ignore[operator]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_name_column_and_row(bad: float, tmp_path: Path) -> None:
    dataset = dataset_of({"x": "float64"}, {"x": [0.0, bad]})
    with pytest.raises(InvalidInputError, match=r"column 'x'.*row 1: JSON has no NaN"):
        write_jsonl(dataset, tmp_path / "t.jsonl")


def test_pyarrow_reads_our_parquet_and_finds_plain_columns(tmp_path: Path) -> None:
    write_parquet(dataset_of(NULLABLE, ROWS), tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet", page_checksum_verification=True)
    assert table["n"].to_pylist() == [1, 2]
    assert table["audio"].to_pylist() == [[1, 2, 3], []]
    assert table["box"].combine_chunks().to_numpy_ndarray().tolist() == ROWS["box"].tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_ids_of_columns_stay_at_home(write: object, tmp_path: Path) -> None:
    write(dataset_of(NULLABLE, ROWS), tmp_path / "t")  # type: ignore[operator]
    assert b"tensorrepo.id" not in (tmp_path / "t").read_bytes()


@pytest.mark.soak
def test_row_groups_are_bounded_in_bytes(tmp_path: Path) -> None:
    rows = 300
    dataset = dataset_of(
        {"x": Bytes()}, {"x": [bytes([row % 256]) * 500_000 for row in range(rows)]}
    )
    write_parquet(dataset, tmp_path / "t.parquet", compression="none")
    metadata = pq.ParquetFile(tmp_path / "t.parquet").metadata
    sizes = [metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups)]
    assert sum(sizes) >= rows * 500_000
    assert max(sizes) <= 96 << 20


def test_an_unknown_compression_is_refused(tmp_path: Path) -> None:
    dataset = dataset_of({"n": Scalar("int8")}, {"n": [1]})
    with pytest.raises(InvalidInputError, match="cannot be written as Parquet"):
        write_parquet(dataset, tmp_path / "t.parquet", compression="middle-out")


def test_an_arrow_file_opens_with_arrow_alone(tmp_path: Path) -> None:
    write_arrow(dataset_of(NULLABLE, ROWS), tmp_path / "t.arrow")
    with pa.memory_map(str(tmp_path / "t.arrow")) as file:
        assert pa.ipc.open_file(file).read_all()["n"].to_pylist() == [1, 2]


def test_links_and_small_floats_are_json_and_numbers_in_text(tmp_path: Path) -> None:
    kinds: dict[str, TypeLike] = {"a": Link(), "b": "bfloat16", "c": Tensor("float8_e5m2", (None,))}
    dataset = dataset_of(kinds, {"a": ["s3://b"], "b": [0.5], "c": [[1.5, -2]]})
    write_jsonl(dataset, tmp_path / "t.jsonl")
    found = json.loads((tmp_path / "t.jsonl").read_text())
    assert found == {"a": {"url": "s3://b"}, "b": 0.5, "c": [1.5, -2]}
    write_csv(
        dataset_of({"a": kinds["a"], "b": kinds["b"]}, {"a": ["s3://b"], "b": [0.5]}),
        tmp_path / "t.csv",
    )
    with (tmp_path / "t.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["a", "b"], ['{"url":"s3://b"}', "0.5"]]


@pytest.mark.parametrize("write", [write_parquet, write_arrow])
def test_types_that_arrow_lacks_come_back_from_files(write: Any, tmp_path: Path) -> None:
    kinds: dict[str, TypeLike] = {
        "a": Link(),
        "b": "bfloat16",
        "c": Tensor("float8_e5m2", (None, None)),
        "d": Tensor("bool", (2,)),
    }
    dataset = dataset_of(
        kinds, {"a": ["s3://b"], "b": [0.5], "c": [np.ones((1, 2))], "d": [[True, False]]}
    )
    write(dataset, tmp_path / f"t.{write.__name__.removeprefix('write_')}")
    (path,) = tmp_path.iterdir()
    reading = read(str(path))
    assert reading.schema.without_ids() == dataset.schema.without_ids()
    (row,) = store(reading)
    assert (row["a"], row["b"]) == (LinkValue("s3://b"), 0.5)
    assert row["c"].tolist() == [[1, 1]]
    assert row["d"].tolist() == [True, False]

"""F6: folders called name=value are columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tensorrepo.formats.exchange.registry import read


def write(folder: Path, name: str, **columns: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def rows(folder: Path, **options: object) -> list[dict[str, Any]]:
    source = read(folder, **options)
    tables = [pa.table(dict(batch)) for batch in source.batches]  # type: ignore[call-overload]
    return list(pa.concat_tables(tables).to_pylist())


def test_numbers_and_texts_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, "year=2023/kind=a%20b/x.parquet", v=[1, 2])
    write(tmp_path, "year=2024/kind=007/x.parquet", v=[3])
    write(tmp_path, "year=__HIVE_DEFAULT_PARTITION__/kind=1/x.parquet", v=[4])
    assert sorted(rows(tmp_path), key=lambda row: row["v"]) == [
        {"v": 1, "year": 2023, "kind": "a b"},
        {"v": 2, "year": 2023, "kind": "a b"},
        {"v": 3, "year": 2024, "kind": "007"},
        {"v": 4, "year": None, "kind": "1"},
    ]
    assert rows(tmp_path, columns="kind")[0] == {"kind": "a b"}


def test_a_column_of_the_file_itself_is_the_files(tmp_path: Path) -> None:
    write(tmp_path, "year=2023/x.parquet", v=[1], year=["then"])
    assert rows(tmp_path) == [{"v": 1, "year": "then"}]


def test_a_file_that_lies_in_no_such_folder_has_null(tmp_path: Path) -> None:
    write(tmp_path, "year=2023/x.parquet", v=[1])
    write(tmp_path, "x.parquet", v=[2])
    assert rows(tmp_path) == [{"v": 2, "year": None}, {"v": 1, "year": 2023}]


def test_csv_has_them_too(tmp_path: Path) -> None:
    (tmp_path / "split=train").mkdir()
    (tmp_path / "split=train/a.csv").write_text("v\n1\n2\n")
    assert rows(tmp_path, format="csv") == [{"v": 1, "split": "train"}, {"v": 2, "split": "train"}]

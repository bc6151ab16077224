"""Parquet files as others write them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Date,
    Image,
    Scalar,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.exchange.tables.arrow import read_arrow, read_parquet
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import png, rows_of, store

PNG = png(np.zeros((2, 2), np.uint8))


def written(path: Path, columns: dict[str, object], **options: object) -> Path:
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    pq.write_table(table, path, **options)
    return path


def test_foreign_types_become_columns(tmp_path: Path) -> None:
    columns = {
        "n": pa.array([1, None], pa.int8()),
        "h": pa.array(np.array([1, 2], np.float16)),
        "t": pa.array(["a", None]).dictionary_encode(),
        "raw": pa.array([b"a", b"b"]),
        "list": pa.array([[1.5], []], pa.list_(pa.float32())),
        "box": pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        "day": pa.array([0, 1], pa.date32()),
        "when": pa.array([0, 1], pa.timestamp("us", "UTC")),
    }
    dataset = store(read_parquet(written(tmp_path / "t.parquet", columns)))
    assert [column.type for column in dataset.schema.visible.columns] == [
        Scalar("int8"),
        Scalar("float16"),
        Text(),
        Bytes(),
        Tensor("float32", (None,)),
        Tensor("int16", (2,)),
        Date(),
        Timestamp("us", "UTC"),
    ]
    row = rows_of(dataset)[1]
    assert (row["n"], row["t"], row["list"], row["box"]) == (None, None, [], [3, 4])


def test_a_folder_is_one_dataset_in_the_order_of_names(tmp_path: Path) -> None:
    (tmp_path / "part=b").mkdir()
    written(tmp_path / "part=b" / "0.parquet", {"n": [3]})
    written(tmp_path / "a.parquet", {"n": [1, 2]})
    written(tmp_path / "_metadata.parquet", {"other": [1]})
    (tmp_path / "README.md").write_text("not data")
    reading = read_parquet(tmp_path)
    assert (reading.rows, reading.origin.files) == (3, 2)
    assert store(reading)["n"][:].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"m": [1]}, "lacks column 'n'"),
        ({"n": ["x"]}, "column 'n' is string, not int64"),
        ({"n": [1], "m": [2]}, "adds column 'm'"),
    ],
)
def test_files_of_a_folder_that_differ_say_in_what(
    other: dict[str, object], says: str, tmp_path: Path
) -> None:
    written(tmp_path / "a.parquet", {"n": [1]})
    written(tmp_path / "b.parquet", other)
    with pytest.raises(InvalidInputError, match=rf"b\.parquet: differs from .*{says}"):
        read_parquet(tmp_path)


def test_columns_that_no_type_holds_are_named_together_and_can_be_left_out(tmp_path: Path) -> None:
    struct = pa.struct([("a", pa.list_(pa.string(), 0))])
    none = pa.array([None], pa.list_(pa.string(), 0))
    columns = {"n": [1], "one": none, "two": pa.array([None], struct)}
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(path, pa.table(columns).schema) as file:
        file.write_table(pa.table(columns))
    expected = r"t\.arrow: 2 columns .*column 'one'.*column 'two'.*exclude=one,two"
    with pytest.raises(UnsupportedError, match=expected):
        read_arrow(path)
    assert read_arrow(path, exclude=("one", "two")).schema.names == ("n",)
    assert read_arrow(path, columns=("n",)).schema.names == ("n",)
    with pytest.raises(NotFoundError, match="no column 'x'; there are 'n', 'one', 'two'"):
        read_arrow(path, columns=("x",))


def test_what_hugging_face_says_of_images_and_labels_is_understood(tmp_path: Path) -> None:
    features = {
        "image": {"_type": "Image"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table(
        {
            "image": [{"bytes": PNG, "path": "a.png"}, {"bytes": None, "path": "b.png"}],
            "label": [1, -1],
        }
    ).replace_schema_metadata(metadata)
    dataset = store(read_parquet(written(tmp_path / "t.parquet", table)))  # type: ignore[arg-type]
    assert [column.type for column in dataset.schema.visible.columns] == [
        Image(),
        ClassLabel(("cat", "dog")),
    ]
    assert rows_of(dataset) == [{"image": PNG, "label": 1}, {"image": None, "label": None}]


@pytest.mark.parametrize("metadata", ["not json", "[]", '{"info": 3}', '{"info": {"features": 1}}'])
def test_other_metadata_under_that_name_is_ignored(metadata: str, tmp_path: Path) -> None:
    table = pa.table({"n": [1]}).replace_schema_metadata({"huggingface": metadata})
    assert read_parquet(written(tmp_path / "t.parquet", table)).rows == 1  # type: ignore[arg-type]


def test_text_that_is_not_utf_8_names_column_and_file(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    path = written(tmp_path / "t.parquet", {"t": broken})
    with pytest.raises(InvalidInputError, match=r"t\.parquet, column 't', at or after row 0"):
        store(read_parquet(path))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.table([[1], [2]], names=["n", "n"])
    path = written(tmp_path / "t.parquet", table)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="two columns called 'n'"):
        read_parquet(path)


def test_no_columns_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"t\.parquet: a schema has 1 to"):
        read_parquet(written(tmp_path / "t.parquet", {}))


def test_a_folder_without_such_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no files that end in \.parquet"):
        read_parquet(tmp_path)


@pytest.mark.soak
def test_a_row_group_of_any_size_comes_in_small_batches(tmp_path: Path) -> None:
    wide = pa.array([bytes(100_000)] * 2_000)
    path = written(
        tmp_path / "t.parquet",
        {"x": wide},
        use_dictionary=False,
        compression="none",
        write_batch_size=16,
    )
    assert pq.ParquetFile(path).num_row_groups == 1
    before = pa.total_allocated_bytes()
    sizes, peak = [], 0
    for batch in read_parquet(path).batches:
        sizes.append(batch["x"].nbytes)  # type: ignore[index, union-attr]
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert sum(sizes) > 200_000_000
    assert max(sizes) <= 9 << 20
    assert peak < 64 << 20

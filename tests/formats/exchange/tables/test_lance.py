from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.schema.schema import Bytes, Image, Json, Struct, Tensor, Text
from tensorrepo.formats.exchange.registry import export, read, recognise
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tests.support.builders.foreign import dataset_of, rows_of, store
from tests.support.effort import sampled

lance: Any = pytest.importorskip("lance")

COLUMNS = {
    "image": Image("png"),
    "fixed": Tensor("float32", (2, 3)),
    "vector": Tensor("float32", (4,)),
    "ragged": Tensor("int16", (None,)),
    "boxes": Tensor("float64", (None, 4)),
    "uneven": Tensor("uint8", (None, None)),
    "flags": Tensor("bool", (3,)),
    "complex": "complex64",
    "facts": Json(),
    "text": Text(),
}


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "image": bytes([row]) * row,
            "fixed": np.full((2, 3), row, np.float32),
            "vector": np.arange(4, dtype=np.float32),
            "ragged": np.arange(row, dtype=np.int16),
            "boxes": np.ones((row, 4)),
            "uneven": np.full((row, 2), 7, np.uint8),
            "flags": np.array([True, False, row > 2]),
            "complex": np.complex64(row + 1j),
            "facts": {"row": [row]},
            "text": f"é{row}",
        }
        for row in range(count)
    ]


def test_every_column_comes_back_as_it_was(tmp_path: Path) -> None:
    dataset = dataset_of(COLUMNS, rows(5))
    back = store(read(export(dataset, tmp_path / "x.lance")))
    assert back.schema.without_ids() == dataset.schema.without_ids()
    assert rows_of(back) == rows_of(dataset)


def test_a_dataset_is_recognised_by_what_it_holds(tmp_path: Path) -> None:
    export(dataset_of(COLUMNS, rows(1)), tmp_path / "x", "lance")
    assert recognise(tmp_path / "x").name == "lance"


def test_foreign_columns_find_their_types(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype="f4")), 4)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2, 3), "f4"))
    blobs = pa.array([b"1", b"22"], pa.large_binary())
    fields = [
        pa.field("vector", vectors.type),
        pa.field("tensor", tensors.type),
        pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
        pa.field("nested", pa.struct([("a", pa.int64())])),
        pa.field("word", pa.dictionary(pa.int32(), pa.string())),
    ]
    words = pa.array(["x", "y"]).dictionary_encode()
    arrays = [vectors, tensors, blobs, pa.array([{"a": 1}, {"a": 2}]), words]
    lance.write_dataset(
        pa.Table.from_arrays(arrays, schema=pa.schema(fields)), tmp_path / "x.lance"
    )
    reading = read(tmp_path / "x.lance")
    assert [column.type for column in reading.schema.columns] == [
        Tensor("float32", (4,)),
        Tensor("float32", (2, 3)),
        Bytes(),
        Struct({"a": "int64"}),
        Text(),
    ]
    row = store(reading)[1]
    assert (row["blob"], row["nested"], row["word"]) == (b"22", {"a": 2}, "y")


@pytest.mark.soak
def test_older_versions_are_read(tmp_path: Path) -> None:
    path = str(tmp_path / "x.lance")
    lance.write_dataset(pa.table({"a": [1]}), path)
    lance.write_dataset(pa.table({"a": [2]}), path, mode="append").tags.create("two", 2)
    counts = [len(store(read(path, version=version))) for version in (None, "1", 1, "two")]
    assert counts == [2, 1, 1, 2]
    with pytest.raises(NotFoundError, match="no version '9'"):
        read(path, version="9")


@pytest.mark.soak
def test_columns_are_chosen(tmp_path: Path) -> None:
    path = export(dataset_of(COLUMNS, rows(2)), tmp_path / "x.lance")
    assert read(path, columns="text,fixed").schema.names == ("text", "fixed")
    with pytest.raises(NotFoundError, match="no column 'colour'"):
        read(path, columns="colour")


def test_a_blob_in_another_file_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    blobs = lance.blob_array([b"inside", (tmp_path / "secret").as_uri()])
    table = pa.table([blobs], schema=pa.schema([lance.blob_field("b")]))
    lance.write_dataset(
        table,
        str(tmp_path / "x.lance"),
        data_storage_version="2.2",
        allow_external_blob_outside_bases=True,
    )
    with pytest.raises(InvalidInputError, match="column 'b' refers to data outside"):
        read(tmp_path / "x.lance")


def test_blobs_inside_are_read(tmp_path: Path) -> None:
    table = pa.table(
        [lance.blob_array([b"one", b"two"])], schema=pa.schema([lance.blob_field("b")])
    )
    lance.write_dataset(table, str(tmp_path / "x.lance"), data_storage_version="2.2")
    assert [row["b"] for row in store(read(tmp_path / "x.lance"))] == [b"one", b"two"]


def test_a_folder_without_versions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.lance").mkdir()
    (tmp_path / "x.lance" / "file").write_bytes(b"x")
    with pytest.raises(InvalidInputError, match="no Lance dataset"):
        read(tmp_path / "x.lance", "lance")


@pytest.mark.parametrize("folder", ["data", "_versions"])
@pytest.mark.parametrize("seed", sampled(range(10), 2))
def test_damaged_files_are_refused_or_harmless(folder: str, seed: int, tmp_path: Path) -> None:
    path = export(dataset_of(COLUMNS, rows(20)), tmp_path / "x.lance")
    (file,) = [each for each in (path / folder).iterdir() if each.suffix != ".json"]
    rng = random.Random(seed)
    damaged = bytearray(file.read_bytes())
    for _ in range(4):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    file.write_bytes(damaged[: rng.choice([len(damaged), len(damaged) // 2])])
    assert _outcome(path) in ("read", "refused")


def _outcome(path: Path) -> str:
    try:
        store(read(path, "lance"))
    except (InvalidInputError, UnsupportedError, NotFoundError):
        return "refused"
    return "read"


def test_an_error_of_our_rows_is_not_blamed_on_lance(tmp_path: Path) -> None:
    dataset = dataset_of({"a": "int64"}, {"a": [1]})

    class Failing:
        schema = dataset.schema
        properties = dataset.properties

        def __len__(self) -> int:
            return 1

        def to_batches(self, *_: object, **__: object) -> Any:
            yield from dataset.to_batches()
            raise CorruptError("page 1 is damaged")

    with pytest.raises(CorruptError, match="page 1"):
        export(Failing(), tmp_path / "x.lance")
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_the_way_to_get_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(UnsupportedError, match=r"pip install tensorrepo\[lance\]"):
        export(dataset_of({"a": "int64"}), tmp_path / "x.lance")

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    Embedding,
    Image,
    List,
    Scalar,
    Schema,
    Struct,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.exchange.registry import export, read, read_object, recognise
from tensorrepo.formats.exchange.tables import huggingface
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import dataset_of, png, rows_of, store
from tests.support.effort import sampled

PICTURE = png(np.zeros((2, 3), np.uint8))
_STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
# name: what features say, Arrow's type, two values, the type here, values here where they differ
FEATURES: dict[str, Any] = {
    "image": ({"_type": "Image"}, _STRUCT, [{"bytes": PICTURE}, None], Image(), [PICTURE, None]),
    "sound": ({"_type": "Audio"}, _STRUCT, [{"bytes": b"RIFF"}, None], Bytes(), [b"RIFF", None]),
    "label": (
        {"names": ["a", "b"], "_type": "ClassLabel"}, pa.int64(), [1, -1], ClassLabel(("a", "b")),
        [1, None],
    ),
    "text": ({"dtype": "string", "_type": "Value"}, pa.string(), ["é", None], Text(), None),
    "half": ({"dtype": "float16", "_type": "Value"}, pa.float16(), [1.5, None], Scalar("float16"),
             None),
    "ragged": ({"feature": {}, "_type": "Sequence"}, pa.list_(pa.int32()), [[1, 2], []],
               Tensor("int32", (None,)), None),
    "fixed": ({"feature": {}, "length": 2, "_type": "List"}, pa.list_(pa.float32(), 2),
              [[1, 2], None], Tensor("float32", (2,)), None),
    "boxes": ({"feature": {}, "_type": "List"}, pa.list_(pa.list_(pa.float32(), 4)),
              [[[1, 2, 3, 4]], []], Tensor("float32", (None, 4)), None),
    "array": ({"shape": [2, 1], "dtype": "int8", "_type": "Array2D"}, pa.list_(pa.list_(pa.int8())),
              [[[1], [2]], None], Tensor("int8", (2, 1)), None),
    "grows": ({"shape": [None, 2], "dtype": "int8", "_type": "Array2D"},
              pa.list_(pa.list_(pa.int8())), [[[1, 2]], []], Tensor("int8", (None, 2)), None),
    "nested": ({"a": {"dtype": "int32", "_type": "Value"}}, pa.struct([("a", pa.int32())]),
               [{"a": 1}, None], Struct({"a": "int32"}), None),
    "words": ({"feature": {}, "_type": "List"}, pa.list_(pa.string()), [["x", "y"], []],
              List(Text()), None),
    "uneven": ({"feature": {}, "_type": "List"}, pa.list_(pa.list_(pa.int32())), [[[1], [2, 3]],
               []], List(List("int32")), None),
}  # fmt: skip


def saved(folder: Path, names: tuple[str, ...] = tuple(FEATURES), **changed: Any) -> Path:
    """A folder as `save_to_disk` leaves it, written by hand."""
    folder.mkdir(exist_ok=True)
    forms = {name: FEATURES[name][0] for name in names}
    fields = [pa.field(name, FEATURES[name][1]) for name in names]
    schema = pa.schema(fields, {"huggingface": json.dumps({"info": {"features": forms}})})
    files = [{"filename": f"data-0000{at}-of-00002.arrow"} for at in range(2)]
    for row, file in enumerate(files):
        arrays = [pa.array(changed.get(n, FEATURES[n][2])[row : row + 1], FEATURES[n][1])
                  for n in names]  # fmt: skip
        out = str(folder / file["filename"])
        with pa.OSFile(out, "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_fingerprint": "f"}))
    (folder / "dataset_info.json").write_text(json.dumps({"features": forms}))
    return folder


def in_two_splits(folder: Path) -> Path:
    for split in ("train", "test"):
        saved(folder / split)
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return folder


@pytest.mark.parametrize("name", FEATURES)
def test_every_feature_has_its_column(name: str, tmp_path: Path) -> None:
    _, _, given, expected, here = FEATURES[name]
    reading = read(saved(tmp_path, (name,)))
    assert reading.schema.columns == (Column(name, expected, nullable=True),)
    assert [row[name] for row in rows_of(store(reading))] == (here or given)


def test_a_folder_is_recognised_and_its_files_read_in_order(tmp_path: Path) -> None:
    assert recognise(saved(tmp_path)).name == "huggingface"
    assert [row["text"] for row in store(read(tmp_path))] == ["é", None]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    assert read(saved(tmp_path), columns="label,text").schema.names == ("label", "text")
    with pytest.raises(NotFoundError, match="no column 'colour'"):
        read(tmp_path, columns="colour")


def test_splits_are_told_apart_by_a_column_or_taken_alone(tmp_path: Path) -> None:
    rows = rows_of(store(read(in_two_splits(tmp_path))))
    assert [row["split"] for row in rows] == [0, 0, 1, 1]
    assert "split" not in read(tmp_path, split="test").schema
    with pytest.raises(NotFoundError, match="no split 'dev'; there are train, test"):
        read(tmp_path, split="dev")


def test_a_picture_that_is_only_named_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, ("image",), image=[{"path": "/etc/hostname"}, None])
    with pytest.raises(InvalidInputError, match="only named, '/etc/hostname'"):
        store(read(tmp_path))


def test_lists_of_another_length_than_the_feature_says_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, ("array",), array=[[[1], [2], [3]], None])
    with pytest.raises(InvalidInputError, match=r"column 'array'.*3 values, the feature says 2"):
        store(read(tmp_path))


@pytest.mark.parametrize("name", ["../secret.arrow", "/etc/passwd", "a/b.arrow", "..", ""])
@pytest.mark.parametrize("file", ["state.json", "dataset_dict.json"])
def test_no_name_leads_out_of_the_folder(name: str, file: str, tmp_path: Path) -> None:
    saved(tmp_path)
    form: Any = {"_data_files": [{"filename": name}]}
    form = form if file == "state.json" else {"splits": [name]}
    (tmp_path / file).write_text(json.dumps(form))
    with pytest.raises(InvalidInputError, match="no file or folder beside it"):
        read(tmp_path)


@pytest.mark.parametrize("file", ["state.json", "dataset_info.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"_data_files": 3, "features": 3}', "\0" * 20])
def test_damaged_descriptions_are_named(file: str, text: str, tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(InvalidInputError, match=file):
        read(tmp_path)


def test_a_choice_of_rows_is_refused_and_not_ignored(tmp_path: Path) -> None:
    saved(tmp_path)
    form = json.loads((tmp_path / "state.json").read_text())
    form["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (tmp_path / "state.json").write_text(json.dumps(form))
    with pytest.raises(UnsupportedError, match="choice of rows"):
        read(tmp_path)


@pytest.mark.parametrize("seed", sampled(range(20), 8))
def test_damaged_data_is_refused_or_harmless(seed: int, tmp_path: Path) -> None:
    file = saved(tmp_path) / "data-00000-of-00002.arrow"
    rng = random.Random(seed)
    damaged = bytearray(file.read_bytes())
    for _ in range(3):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    file.write_bytes(damaged)
    assert _outcome(tmp_path) in ("read", "refused")


def _outcome(path: Path) -> str:
    try:
        store(read(path))
    except (InvalidInputError, UnsupportedError, NotFoundError):
        return "refused"
    return "read"


# ------------------------------------------------------------------------------ out

COLUMNS = {
    "image": Image("png"),
    "label": ClassLabel(("a", "b")),
    "array": Tensor("float32", (2, 3)),
    "deep": Tensor("uint8", (2, 1, 2, 1, 2)),
    "ragged": Tensor("int16", (None,)),
    "boxes": Tensor("float64", (None, 4)),
    "vector": Embedding("float32", 4),
    "flags": Tensor("bool", (2, 2)),
    "text": Text(),
    "data": Bytes(),
    "at": Timestamp("us", "UTC"),
    "half": "float16",
}


def made(rows: int = 5, *, nullable: bool = False) -> StoredDataset:
    rng = np.random.default_rng(0)
    values = {
        "image": [PICTURE] * rows,
        "label": np.arange(rows) % 2,
        "array": rng.normal(size=(rows, 2, 3)).astype("f4"),
        "deep": rng.integers(0, 255, (rows, 2, 1, 2, 1, 2), np.uint8),
        "ragged": [np.arange(row, dtype=np.int16) for row in range(rows)],
        "boxes": [np.ones((row, 4)) for row in range(rows)],
        "vector": rng.normal(size=(rows, 4)).astype("f4"),
        "flags": rng.integers(0, 2, (rows, 2, 2)).astype(bool),
        "text": [f"é{row}" for row in range(rows)],
        "data": [bytes(row) for row in range(rows)],
        "at": np.arange(rows),
        "half": np.arange(rows, dtype=np.float16),
    }
    schema = Schema.of(COLUMNS)
    if not nullable:
        return dataset_of(schema, values)
    columns = tuple(Column(c.name, c.type, nullable=True) for c in schema.columns)
    first = {name: value[0] for name, value in values.items()}
    return dataset_of(Schema(columns), [first, dict.fromkeys(first)])


@pytest.mark.parametrize("rows", [5, 0])
def test_what_is_written_reads_back(rows: int, tmp_path: Path) -> None:
    path = export(made(rows), tmp_path / "out", "huggingface")
    assert rows_of(store(read(path))) == rows_of(made(rows))


def test_nulls_are_kept(tmp_path: Path) -> None:
    path = export(made(nullable=True), tmp_path / "out", "huggingface")
    assert rows_of(store(read(path))) == rows_of(made(nullable=True))


def test_large_data_go_to_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "SHARD_BYTES", 3 << 20)
    dataset = dataset_of(
        {"x": Tensor("uint8", (1 << 20,))}, {"x": np.ones((20, 1 << 20), np.uint8)}
    )
    path = export(dataset, tmp_path / "out", "huggingface")
    files = sorted(file.name for file in path.glob("*.arrow"))
    assert len(files) > 1
    assert files[0] == f"data-00000-of-{len(files):05d}.arrow"
    assert len(store(read(path))) == 20


@pytest.mark.parametrize(
    "kind",
    [
        Tensor("int8", (None, None)),
        Tensor("int8", (1,) * 6),
        Tensor("complex64", (2,)),
        "complex64",
    ],
)
def test_what_datasets_cannot_hold_is_refused_by_column(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="column 'x'"):
        export(dataset_of({"x": kind}), tmp_path / "out", "huggingface")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------ with the library


def test_the_library_opens_what_is_written(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = export(made(), tmp_path / "out", "huggingface")
    opened = datasets.load_from_disk(str(path))
    assert opened.features["label"].names == ["a", "b"]
    assert opened[0]["image"].size == (3, 2)
    plain = opened.with_format("numpy")
    assert np.array_equal(plain[:]["deep"], made()["deep"][:])
    assert np.array_equal(plain[3]["boxes"], np.ones((3, 4)))
    opened.save_to_disk(str(tmp_path / "again"))
    assert rows_of(store(read(tmp_path / "again"))) == rows_of(made())


@pytest.mark.parametrize("rows", [0, 5])
def test_the_library_counts_the_same_rows(rows: int, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = export(made(rows), tmp_path / "out", "huggingface")
    assert len(datasets.load_from_disk(str(path))) == rows


@pytest.mark.parametrize("choose", ["all", "some", "stream"])
def test_an_object_of_the_library_is_read(choose: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    path = export(made(), tmp_path / "out", "huggingface")
    opened = datasets.load_from_disk(str(path))
    given = {"all": opened, "some": opened.select([2, 0]), "stream": opened.to_iterable_dataset()}
    rows = rows_of(made())
    expected = [rows[2], rows[0]] if choose == "some" else rows
    assert rows_of(store(read_object(given[choose]))) == expected


def test_pictures_that_an_object_names_are_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    (tmp_path / "a.png").write_bytes(PICTURE)
    table = {"image": [str(tmp_path / "a.png")]}
    given = datasets.Dataset.from_dict(table).cast_column("image", datasets.Image())
    assert store(read_object(given))[0]["image"] == PICTURE


def test_a_dict_of_datasets_asks_for_one() -> None:
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InvalidInputError, match="choose one: train"):
        read_object(datasets.DatasetDict(train=datasets.Dataset.from_dict({"a": [1]})))


def test_structs_and_lists_of_the_library_come_and_go_as_they_are(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    number, text = datasets.Value("int32"), datasets.Value("string")
    features = datasets.Features(
        {
            "box": {"x": number, "tag": text},
            "objects": datasets.List(
                {"at": datasets.List(datasets.Value("float64")), "kind": number}
            ),
            "words": datasets.List(text),
            "turns": datasets.Sequence({"role": text, "n": number}),
            "deep": {"in": {"k": datasets.List(number)}, "raw": datasets.Value("binary")},
            "pair": datasets.List({"x": number}, length=2),
        }
    )
    rows = [
        {"box": {"x": 1, "tag": "a"}, "objects": [{"at": [1.5, 2.0], "kind": 3}, None],
         "words": ["a", None], "turns": {"role": ["u"], "n": [1]},
         "deep": {"in": {"k": [1, 2]}, "raw": b"\0"}, "pair": [{"x": 1}, {"x": None}]},
        {"box": None, "objects": [], "words": None, "turns": {"role": [], "n": []},
         "deep": {"in": None, "raw": None}, "pair": [{"x": 3}, {"x": 4}]},
    ]  # fmt: skip
    given = datasets.Dataset.from_list(rows, features=features)
    stored = store(read_object(given))
    item = Struct({"at": List("float64"), "kind": "int32"})
    assert stored.schema.column("objects").type == List(item)
    assert stored.schema.column("deep").type == Struct(
        {"in": Struct({"k": List("int32")}), "raw": Bytes()}
    )
    back = datasets.load_from_disk(str(export(stored, tmp_path / "out", "huggingface")))
    assert back.features == given.features
    assert back.to_list() == given.to_list()
    assert rows_of(store(read(tmp_path / "out"))) == rows_of(stored)


def test_arrays_inside_of_structs_are_lists_of_lists() -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"a": {"m": datasets.Array2D((2, 1), "int8")}})
    given = datasets.Dataset.from_list([{"a": {"m": [[1], [2]]}}], features=features)
    assert store(read_object(given))[0]["a"] == {"m": [[1], [2]]}

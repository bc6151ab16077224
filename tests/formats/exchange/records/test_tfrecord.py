"""TFRecord: files of tf.train.Example."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.protobuf import read_varints, write_varints
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.records.tfrecord import (
    masked_crc,
    parse_shapes,
    parse_types,
    read_tfrecord,
)
from tensorrepo.formats.exchange.registry import export, read, recognise
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.foreign import dataset_of, png, rows_of, store
from tests.support.builders.foreign_records import crc32c, example, field, tfrecord_bytes, varint
from tests.support.faults.damage import flipped, unrefused

GOLDEN = Path(__file__).parents[3] / "golden/foreign/tfrecord"
PNG = png(np.zeros((2, 3), np.uint8))


def texts(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def floats(*values: float) -> bytes:
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)))


def integers(*values: int) -> bytes:
    return field(3, field(1, b"".join(map(varint, values))))


def write(path: Path, *examples: dict[str, bytes]) -> Path:
    path.write_bytes(tfrecord_bytes(example(features) for features in examples))
    return path


@pytest.mark.parametrize("name", ["four.tfrecord", "four.tfrecord.gz", "four.tfrecord.zlib"])
def test_files_that_tensorflow_wrote_are_read(name: str) -> None:
    reading = read(GOLDEN / name)
    assert {column.name: column.type for column in reading.schema.columns} == {
        "label": Scalar("int64"),
        "score": Scalar("float32"),
        "box": Tensor("float32", (4,)),
        "tokens": Tensor("int64", (None,)),
        "caption": Text(),
        "raw": Bytes(),
        "tags": Json(),
        "image": Image("png"),
        "note": Text(),
    }
    rows = rows_of(store(reading))
    assert [row["label"] for row in rows] == [-1, 0, 1, 2]
    assert rows[2]["tokens"] == [10**power for power in range(6)]
    assert [row["tags"] for row in rows] == [[], ["t0"], ["t0", "t1"], ["t0", "t1", "t2"]]
    assert [row["note"] for row in rows] == [None, "only here", None, None]
    assert rows[3]["caption"] == "картка 3"
    assert rows[3]["box"] == [0.0, 0.5, 1.0, 3.0]


def test_a_folder_of_shards_is_read_in_order(tmp_path: Path) -> None:
    for at in range(3):
        write(tmp_path / f"train.tfrecord-0000{at}-of-00003", {"n": integers(at)})
    assert recognise(tmp_path).name == "tfrecord"
    assert store(read(tmp_path))["n"][:].tolist() == [0, 1, 2]


def test_a_file_is_told_by_its_first_record_whatever_its_name(tmp_path: Path) -> None:
    assert recognise(write(tmp_path / "data", {"n": integers(1)})).name == "tfrecord"


@given(st.binary(max_size=40))
def test_the_checksum_is_crc_32c_rotated_and_moved(data: bytes) -> None:
    crc = crc32c(data)
    assert masked_crc()(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    packed = write_varints(np.array(numbers, np.int64))
    assert packed == b"".join(map(varint, numbers))
    assert read_varints(memoryview(packed), "here").tolist() == numbers


def test_lists_that_are_not_packed_are_read(tmp_path: Path) -> None:
    loose_floats = field(2, b"".join(b"\x0d" + struct.pack("<f", value) for value in (1, 2.5)))
    loose_integers = field(3, b"".join(b"\x08" + varint(value) for value in (-1, 300)))
    path = write(tmp_path / "t.tfrecord", {"f": loose_floats, "i": loose_integers})
    (row,) = rows_of(store(read(path)))
    assert row == {"f": [1.0, 2.5], "i": [-1, 300]}


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ({}, {"a": Text(), "b": Image("png"), "c": Scalar("int64")}),
        ({"a": "bytes", "b": "bytes"}, {"a": Bytes(), "b": Bytes(), "c": Scalar("int64")}),
        (
            {"a": "json", "c": "ragged"},
            {"a": Json(), "b": Image("png"), "c": Tensor("int64", (None,))},
        ),
    ],
)
def test_options_say_what_features_are(
    types: dict[str, str], expected: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "t", {"a": texts(b"x"), "b": texts(PNG), "c": integers(1)})
    reading = read_tfrecord(path, types=types)
    assert {column.name: column.type for column in reading.schema.columns} == expected
    assert len(store(reading)) == 1


def test_a_shape_can_be_given_to_a_flat_list(tmp_path: Path) -> None:
    path = write(tmp_path / "t", {"m": integers(*range(6))})
    assert store(read(path, shapes="m:2x3"))["m"][0].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("words", ["a", "a:number", ":text"])
def test_options_that_make_no_sense_are_refused(words: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_types(words)


@pytest.mark.parametrize("words", ["a", "a:2x", "a:-1"])
def test_shapes_that_make_no_sense_are_refused(words: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_shapes(words)


@pytest.mark.parametrize(
    ("first", "later", "message"),
    [
        ({"a": integers(1)}, {"a": floats(1)}, "list of float.*one of int64"),
        ({"a": integers(1)}, {"a": integers(1, 2)}, "2 values.*types=a:ragged"),
        ({"a": integers(1, 2)}, {"a": integers(1)}, "1 values.*types=a:ragged"),
        ({"a": integers(1)}, {}, "missing.*samples=N"),
        ({"a": integers(1)}, {"a": integers(1), "b": integers(1)}, "new feature 'b'"),
        ({"a": texts(b"x")}, {"a": texts(b"\xff")}, "not UTF-8.*types=a:bytes"),
        ({"a": texts(b"x")}, {"a": texts(b"x", b"y")}, "2 values.*types=a:json"),
        ({"a": texts(PNG)}, {"a": texts(PNG[:-9])}, "cut short.*types=a:bytes"),
    ],
)
def test_a_later_misfit_names_file_record_and_feature(
    first: dict[str, bytes], later: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.tfrecord", first, first, later)
    with pytest.raises(InvalidInputError, match=message) as refused:
        store(read_tfrecord(path, samples=1))
    assert str(refused.value).startswith(f"{path}, record 2")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "t", {"a": integers(1), "b": texts(b"\xff", b"x")})
    with pytest.raises(InvalidInputError, match=r"feature 'b'.*exclude=b"):
        read(path)
    assert rows_of(store(read(path, columns="a"))) == [{"a": 1}]
    with pytest.raises(NotFoundError, match="no column 'c'; there are 'a', 'b'"):
        read(path, columns="c")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"not a message", "protobuf|Example"),
        (field(2, b""), "SequenceExample"),
        (field(1, field(1, field(1, b"a") + field(2, field(9, b"")))), "fields that none has"),
        (field(1, b"\x0a\xff\xff\xff\xff\x0f"), "damaged"),
        (field(1, b"\xff" * 11), "damaged"),
        (field(1, field(1, field(1, b"a") + field(2, field(3, field(1, b"\x80"))))), "damaged"),
        (field(1, field(1, field(1, b"a") + field(2, field(2, field(1, b"abc"))))), "damaged"),
        (example({}), "no examples with features"),
        (example({"a": b""}), "is empty in the first examples"),
    ],
)
def test_records_that_are_no_examples_are_refused(
    record: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "t.tfrecord").write_bytes(tfrecord_bytes([record]))
    with pytest.raises(InvalidInputError, match=message):
        store(read(tmp_path / "t.tfrecord"))


GOLDEN_BYTES = (GOLDEN / "four.tfrecord").read_bytes()


def test_no_flipped_byte_goes_unnoticed(tmp_path: Path) -> None:
    def read_damaged(at: int) -> object:
        (tmp_path / "t.tfrecord").write_bytes(flipped(GOLDEN_BYTES, at, 0x40))
        return store(read(tmp_path / "t.tfrecord", "tfrecord"))

    places = range(0, len(GOLDEN_BYTES), 7)
    assert unrefused(places, read_damaged, (InvalidInputError,), match="checksum") == {}


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
@pytest.mark.parametrize("cut", [1, 5, 13, 200])
def test_a_file_cut_short_is_refused(pack: Any, cut: int, tmp_path: Path) -> None:
    (tmp_path / "t.tfrecord").write_bytes(pack(GOLDEN_BYTES)[:-cut])
    with pytest.raises(InvalidInputError):
        store(read(tmp_path / "t.tfrecord"))


@pytest.mark.parametrize("length", [1 << 40, (1 << 64) - 1])
def test_a_lying_length_costs_no_memory(length: int, tmp_path: Path) -> None:
    head = struct.pack("<Q", length)
    (tmp_path / "t.tfrecord").write_bytes(head + struct.pack("<I", masked_crc()(head)) + b"x" * 99)
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="too early"):
        read(tmp_path / "t.tfrecord", "tfrecord")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.tfrecord").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="no examples"):
        read(tmp_path / "t.tfrecord", "tfrecord")


# ------------------------------------------------------------------------------ writing


def test_labels_bools_small_numbers_and_shapes_become_flat_lists(tmp_path: Path) -> None:
    columns = {
        "label": ClassLabel(("cat", "dog")),
        "flag": "bool",
        "small": Tensor("uint8", (2, 2)),
        "half": "float16",
        "double": "float64",
    }
    rows = {
        "label": [1],
        "flag": [True],
        "small": np.arange(4, dtype="u1").reshape(1, 2, 2),
        "half": np.array([0.5], "f2"),
        "double": [0.25],
    }
    path = export(dataset_of(columns, rows), tmp_path / "t.tfrecord")
    assert rows_of(store(read(path))) == [
        {"label": 1, "flag": 1, "small": [0, 1, 2, 3], "half": 0.5, "double": 0.25}
    ]


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        ("float64", 0.1, "row 0 holds 0.1"),
        ("uint64", 1 << 63, "row 0 holds 9223372036854775808"),
        ("complex64", 1j, "complex"),
        (Tensor("int8", (None, None)), np.ones((1, 2), "i1"), "shapes would be lost"),
    ],
)
def test_what_would_not_come_back_is_refused(
    kind: Any, value: Any, message: str, tmp_path: Path
) -> None:
    dataset = dataset_of({"x": kind}, {"x": [value]})
    with pytest.raises(InvalidInputError, match=f"column 'x'.*{message}"):
        export(dataset, tmp_path / "t.tfrecord")
    assert list(tmp_path.iterdir()) == []

"""MDS: the shards of MosaicML's streaming."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Bytes, Image, Json, Scalar, Tensor, Text
from tensorrepo.formats.exchange.records.mds import read_mds
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import rows_of, store
from tests.support.builders.foreign_records import mds_folder
from tests.support.faults.damage import flipped, unrefused

GOLDEN = Path(__file__).parents[3] / "golden/foreign/mds"


def copy_of(name: str, folder: Path) -> Path:
    return Path(shutil.copytree(GOLDEN / name, folder / name))


def rewrite(folder: Path, **changes: Any) -> Path:
    """Say something else of every shard in a folder's index."""
    index = json.loads((folder / "index.json").read_text())
    index["shards"] = [shard | changes for shard in index["shards"]]
    (folder / "index.json").write_text(json.dumps(index))
    return folder


@pytest.mark.parametrize("name", ["plain", "zstd", "gz"])
def test_folders_that_streaming_wrote_are_read(name: str) -> None:
    assert recognise(GOLDEN / name).name == "mds"
    reading = read(GOLDEN / name)
    assert {column.name: column.type for column in reading.schema.columns} == {
        "any": Tensor("int32", (3,)),
        "any_shape": Tensor("int16", (None, 1)),
        "count": Scalar("uint32"),
        "digits": Scalar("int64"),
        "fixed": Tensor("float32", (2, 2)),
        "half": Scalar("float16"),
        "id": Scalar("int64"),
        "meta": Json(),
        "name": Text(),
        "photo": Image("jpeg"),
        "pic": Image("png"),
        "raw": Bytes(),
        "real": Scalar("float64"),
        "small": Scalar("int8"),
    }
    assert reading.rows == 4
    row = rows_of(store(reading))[2]
    pictures = row.pop("photo"), row.pop("pic")
    assert [picture[:4] for picture in pictures] == [b"\xff\xd8\xff\xe0", b"\x89PNG"]
    assert row == {
        "any": [0, 2, 4],
        "any_shape": [[0], [1], [2]],
        "count": 2**32 - 3,
        "digits": 100,
        "fixed": [[2.0, 3.0], [4.0, 5.0]],
        "half": 1.0,
        "id": 1,
        "meta": {"a": [2, None]},
        "name": "ім'я 2",
        "raw": b"\x00\xff\x02",
        "real": 2 / 3,
        "small": -2,
    }


def test_the_index_itself_can_be_named() -> None:
    assert recognise(GOLDEN / "plain/index.json").name == "mds"
    assert read(GOLDEN / "plain/index.json").rows == 4


def test_columns_can_be_chosen() -> None:
    reading = read(GOLDEN / "zstd", columns="id,name")
    assert [row["id"] for row in rows_of(store(reading))] == [-1, 0, 1, 2]
    with pytest.raises(NotFoundError, match="no column 'x'; there are 'any'"):
        read(GOLDEN / "zstd", columns="x")


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [
        ("pkl", "pickles, which can run any code"),
        ("pil", "raw pixels"),
        ("list[jpeg]", "several images"),
    ],
)
def test_encodings_that_are_not_read_are_refused_with_the_reason(
    encoding: str, reason: str, tmp_path: Path
) -> None:
    columns: dict[str, Any] = {"bad": (encoding, None), "good": ("int", 8)}
    mds_folder(tmp_path / "d", columns, [[b"\x80\x04.", struct.pack("<q", 5)]])
    with pytest.raises(UnsupportedError, match=rf"column 'bad'.*{reason}.*exclude=bad"):
        read(tmp_path / "d")
    assert rows_of(store(read(tmp_path / "d", columns="good"))) == [{"good": 5}]


@pytest.mark.parametrize(
    ("encoding", "value", "message"),
    [
        ("str", b"\xff", "not UTF-8"),
        ("json", b"{", "not JSON"),
        ("png", b"no png", "no PNG"),
        ("str_int", b"x", "whole number"),
        ("str_int", b"9" * 30, "64 bits"),
        ("str_float", b"x", "number"),
        ("ndarray:int32", b"\x04\x05" + bytes(4), r"shape \(5,\)"),
        ("ndarray:int32", b"\x05\xff", "inside its 1 dimensions"),
        ("ndarray:int32", b"", "before its shape"),
        ("ndarray", b"\x63\x04\x01a", "no array"),
        ("ndarray:int99", b"", "does not have"),
        ("ndarray:int8:2,x", b"", "does not have"),
    ],
)
def test_a_value_of_another_kind_names_its_sample_and_column(
    encoding: str, value: bytes, message: str, tmp_path: Path
) -> None:
    mds_folder(tmp_path / "d", {"x": (encoding, None)}, [[value]])
    with pytest.raises(InvalidInputError, match=rf"column 'x'.*{message}"):
        store(read(tmp_path / "d"))


def test_arrays_whose_type_changes_are_refused(tmp_path: Path) -> None:
    values = [[b"\x21\x04\x01" + bytes(4)], [b"\x22\x04\x01" + bytes(4)]]
    mds_folder(tmp_path / "d", {"x": ("ndarray", None)}, values)
    with pytest.raises(InvalidInputError, match=r"one sample has int32.*another float32"):
        read(tmp_path / "d")
    with pytest.raises(InvalidInputError, match=r"sample 1.*float32.*samples=N"):
        store(read(tmp_path / "d", samples=1))


@pytest.mark.parametrize("name", ["plain", "zstd", "gz"])
@pytest.mark.parametrize("cut", [1, 50, 300])
def test_a_shard_cut_short_is_refused(name: str, cut: int, tmp_path: Path) -> None:
    folder = copy_of(name, tmp_path)
    shard = min(folder.glob("shard*"))
    shard.write_bytes(shard.read_bytes()[:-cut])
    with pytest.raises(InvalidInputError, match=r"index\.json says \d+. Is it cut short"):
        read(folder)


@pytest.mark.parametrize("name", ["plain", "zstd"])
def test_no_flipped_byte_goes_unnoticed_where_the_index_has_hashes(
    name: str, tmp_path: Path
) -> None:
    folder = copy_of(name, tmp_path)
    shard = min(folder.glob("shard*"))
    whole = shard.read_bytes()

    def read_damaged(at: int) -> object:
        shard.write_bytes(flipped(whole, at, 0x10))
        return store(read(folder))

    assert unrefused(range(0, 800, 37), read_damaged, (InvalidInputError,)) == {}


def test_any_byte_of_an_index_may_be_damaged(tmp_path: Path) -> None:
    folder = copy_of("plain", tmp_path)
    index = (folder / "index.json").read_bytes()

    def read_damaged(at: int) -> str:
        (folder / "index.json").write_bytes(index[:at] + b"9" + index[at + 1 :])
        return _outcome(folder)

    places = [at % len(index) for at in range(0, 1900, 13)]
    assert set(map(read_damaged, places)) <= {"read", "refused"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 3}, "mds 3; only mds 2"),
        ({"format": "xsv"}, "xsv 2; only mds 2"),
        ({"samples": 1 << 40}, "promises 1099511627776 samples"),
        ({"samples": 7}, r"has \d samples, index.json says 7"),
        ({"column_names": ["a"]}, "1 columns, 14 encodings"),
        ({"raw_data": {"basename": "../x", "bytes": 2000}}, "outside of the folder"),
        ({"raw_data": {"basename": "/etc/passwd", "bytes": 2000}}, "outside of the folder"),
        ({"raw_data": {"basename": "x", "bytes": 2000}}, "is not there"),
    ],
)
def test_an_index_that_lies_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        store(read_mds(rewrite(copy_of("plain", tmp_path), **changes)))


def test_a_compressed_shard_that_promises_too_much_costs_no_memory(tmp_path: Path) -> None:
    folder = copy_of("zstd", tmp_path)
    raw = {"basename": "x.mds", "bytes": 1 << 50, "hashes": {}}
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="cannot hold"):
        read(rewrite(folder, raw_data=raw, samples=1 << 40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


@pytest.mark.parametrize("kind", ["br", "snappy"])
def test_another_compression_is_named(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"compressed with '{kind}'"):
        store(read(rewrite(copy_of("zstd", tmp_path), compression=kind)))


def test_samples_that_overlap_are_refused(tmp_path: Path) -> None:
    mds_folder(tmp_path / "d", {"x": ("bytes", None)}, [[b"a"], [b"b"]])
    shard = tmp_path / "d/shard.00000.mds"
    content = bytearray(shard.read_bytes())
    content[8:12] = struct.pack("<I", 5)
    shard.write_bytes(content)
    with pytest.raises(InvalidInputError, match="begin before others end"):
        store(read(tmp_path / "d"))


def test_no_shards_and_no_samples_are_refused_or_empty(tmp_path: Path) -> None:
    mds_folder(tmp_path / "d", {"x": ("bytes", None)}, [])
    assert len(store(read(tmp_path / "d"))) == 0
    (tmp_path / "d/index.json").write_text('{"version": 2, "shards": []}')
    with pytest.raises(InvalidInputError, match="lists no shards"):
        read(tmp_path / "d", "mds")


def test_another_folder_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"index\.json: no such file"):
        read_mds(tmp_path)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "u4", "i8", "f8"])
def test_every_element_type_is_read(dtype: str, tmp_path: Path) -> None:
    array = np.array([1, 2], f"<{dtype}")
    encoding = f"ndarray:{array.dtype.name}:2"
    mds_folder(tmp_path / "d", {"x": (encoding, array.nbytes)}, [[array.tobytes()]])
    assert store(read(tmp_path / "d"))["x"][0].tolist() == [1, 2]


def _outcome(folder: Path) -> str:
    try:
        store(read(folder, "mds"))
    except Error:
        return "refused"
    return "read"

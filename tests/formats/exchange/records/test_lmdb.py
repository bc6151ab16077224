"""LMDB: keys and values, and Caffe's datums."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import lmdb
import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Bytes, Image, Scalar, Tensor, Text
from tensorrepo.formats.exchange.records.lmdb import parse_datum, read_lmdb
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import png, rows_of, store
from tests.support.builders.foreign_records import field, varint
from tests.support.effort import sampled

GOLDEN = Path(__file__).parents[3] / "golden/foreign/lmdb"
PAGE_BYTES = 4096


def datum(*, data: bytes = b"", floats: bytes = b"", **numbers: int) -> bytes:
    fields = {"channels": 1, "height": 2, "width": 3, "label": 5, "encoded": 7}
    parts = [varint(fields[name] << 3) + varint(value) for name, value in numbers.items()]
    return (
        b"".join(parts) + (field(4, data) if data else b"") + (field(6, floats) if floats else b"")
    )


def changed(folder: Path, at: int, data: bytes, name: str = "plain") -> Path:
    content = bytearray((GOLDEN / f"{name}.mdb").read_bytes())
    content[at : at + len(data)] = data
    path = folder / "data.mdb"
    path.write_bytes(content)
    return path


def test_a_file_that_lmdb_wrote_is_read_in_the_order_of_its_keys() -> None:
    assert recognise(GOLDEN / "plain.mdb").name == "lmdb"
    reading = read(GOLDEN / "plain.mdb")
    assert reading.rows == 8
    assert [column.type for column in reading.schema.columns] == [Text(), Bytes()]
    assert rows_of(store(reading)) == [
        {"key": f"{at:03}", "value": bytes([at]) * (at * 700)} for at in range(8)
    ]


def test_a_folder_is_read_through_its_data_file(tmp_path: Path) -> None:
    changed(tmp_path, 0, b"")
    (tmp_path / "lock.mdb").write_bytes(b"")
    assert recognise(tmp_path).name == "lmdb"
    assert len(store(read(tmp_path))) == 8


def test_arrays_of_caffe_become_images_and_labels() -> None:
    dataset = store(read(GOLDEN / "datums.mdb"))
    assert dataset.schema.column("image").type == Tensor("uint8", (3, 2, 2))
    assert dataset.schema.column("label").type == Scalar("int64")
    assert dataset["label"][:].tolist() == [-1, 0, 1, 2]
    assert dataset["image"][2].tolist() == np.full((3, 2, 2), 2).tolist()


def test_encoded_images_of_caffe_stay_encoded() -> None:
    reading = read(GOLDEN / "encoded.mdb")
    assert reading.schema.column("image").type == Image("png")
    assert rows_of(store(reading))[3]["image"] == png(np.full((2, 2), 3, np.uint8))


def test_options_say_what_keys_and_values_are() -> None:
    reading = read(GOLDEN / "datums.mdb", key="bytes", value="bytes")
    assert [column.type for column in reading.schema.columns] == [Bytes(), Bytes()]
    with pytest.raises(InvalidInputError, match="value bytes or text"):
        read(GOLDEN / "datums.mdb", value="caffe")
    with pytest.raises(InvalidInputError, match="no Datum of Caffe"):
        read(GOLDEN / "plain.mdb", value="datum")


def test_floats_of_caffe_are_read() -> None:
    found = parse_datum(
        datum(channels=1, height=1, width=2, floats=struct.pack("<2f", 1, 2.5)), "here"
    )
    assert isinstance(found.image, np.ndarray)
    assert (found.image.tolist(), found.label) == ([[[1.0, 2.5]]], 0)


@pytest.mark.parametrize(
    "data",
    [
        datum(channels=1, height=2, width=3, data=b"12345"),
        datum(channels=-1, height=-1, width=1, data=b"1"),
        datum(channels=1 << 40, height=1 << 40, width=1, data=b"1"),
        field(9, b"x"),
        b"\x22\xff\x01",
        b"",
    ],
)
def test_what_is_no_datum_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        parse_datum(data, "here")


def test_a_database_that_is_not_there_is_named() -> None:
    with pytest.raises(NotFoundError, match="no database 'x'; there are only the one without"):
        read(GOLDEN / "plain.mdb", database="x")


@pytest.mark.parametrize("cut", [1, PAGE_BYTES, 5 * PAGE_BYTES, 8 * PAGE_BYTES + 9])
def test_a_file_cut_short_is_refused(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes((GOLDEN / "plain.mdb").read_bytes()[:-cut])
    with pytest.raises(InvalidInputError):
        store(read_lmdb(path))


@pytest.mark.parametrize("seed", sampled(range(60), 8))
def test_damaged_pages_are_refused_or_harmless_and_nothing_else(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    pages = (GOLDEN / "plain.mdb").stat().st_size // PAGE_BYTES
    content = bytearray((GOLDEN / "plain.mdb").read_bytes())
    for _ in range(3):
        near = rng.choice([rng.randrange(150), rng.randrange(PAGE_BYTES)])
        content[rng.randrange(pages) * PAGE_BYTES + near] = rng.randrange(256)
    (tmp_path / "data.mdb").write_bytes(content)
    assert _outcome(tmp_path) in ("read", "refused")


def test_a_tree_with_a_loop_ends(tmp_path: Path) -> None:
    content = bytearray((GOLDEN / "plain.mdb").read_bytes())
    metas = [at * PAGE_BYTES + 16 for at in (0, 1)]
    newest = max(metas, key=lambda at: struct.unpack_from("<Q", content, at + 128)[0])
    (root,) = struct.unpack_from("<Q", content, newest + 24 + 48 + 40)
    for at in metas:  # deeper than it is, and its root a branch that leads to itself
        struct.pack_into("<H", content, at + 24 + 48 + 6, 30)
        struct.pack_into("<Q", content, at + 24 + 48 + 40, root)
    node = struct.pack("<HHHH", root & 0xFFFF, root >> 16, 0, 0)
    struct.pack_into("<QHHHH", content, root * PAGE_BYTES, root, 0, 1, 18, 4088)
    struct.pack_into("<H", content, root * PAGE_BYTES + 16, 4088)
    content[root * PAGE_BYTES + 4088 : root * PAGE_BYTES + 4096] = node
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(InvalidInputError, match="loop"):
        store(read_lmdb(tmp_path))


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (20, struct.pack("<I", 2), "data format v2"),
        (40, struct.pack("<I", 12345), "not an LMDB file"),
    ],
)
def test_what_is_not_read_is_said(at: int, data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_lmdb(changed(tmp_path, at, data))


def written(path: Path, databases: dict[bytes | None, dict[bytes, bytes]], **flags: bool) -> Path:
    with lmdb.open(str(path), subdir=False, lock=False, max_dbs=4) as environment:
        for name, entries in databases.items():
            database = environment.open_db(name, **flags)
            with environment.begin(write=True) as transaction:
                for key, value in entries.items():
                    transaction.put(key, value, db=database)
    return path


def test_one_of_several_databases_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = written(tmp_path / "t.mdb", {b"a": {b"k": b"1"}, b"b": {b"k": b"2", b"l": b"3"}})
    with pytest.raises(InvalidInputError, match=r"several databases: 'a', 'b'. Choose one"):
        read_lmdb(path)
    assert [row["value"] for row in rows_of(store(read_lmdb(path, database="b")))] == [b"2", b"3"]


def test_databases_beside_plain_entries_are_no_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t.mdb", {b"m": {b"k": b"1"}, None: {b"a": b"x" * 48, b"z": b"y"}})
    assert [row["key"] for row in rows_of(store(read_lmdb(path)))] == ["a", "z"]


def test_keys_of_several_values_are_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "t.mdb", {b"d": {b"k": b"1"}}, dupsort=True)
    with pytest.raises(UnsupportedError, match="several values"):
        read_lmdb(path, database="d")


@pytest.mark.parametrize("content", [b"", b"no database" * 999])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(content)
    with pytest.raises(InvalidInputError, match="no LMDB file"):
        read(tmp_path)


def _outcome(folder: Path) -> str:
    try:
        store(read(folder, "lmdb"))
    except Error:
        return "refused"
    return "read"

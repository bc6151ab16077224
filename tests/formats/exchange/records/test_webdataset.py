"""WebDataset: tar archives of samples."""

from __future__ import annotations

import gc
import gzip
import importlib.util
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.exchange.records import webdataset
from tensorrepo.formats.exchange.records.webdataset import column_names, read_webdataset, split_name
from tensorrepo.formats.exchange.registry import export, read, recognise
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.foreign import dataset_of, gif, png, rows_of, store
from tests.support.builders.foreign_records import npy_bytes, tar_bytes

PNG = png(np.zeros((2, 3), np.uint8))


def write(path: Path, *members: tuple[str, bytes], form: int = tarfile.USTAR_FORMAT) -> Path:
    content = tar_bytes(members, form)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def sample(key: str, number: int) -> list[tuple[str, bytes]]:
    return [
        (f"{key}.png", PNG),
        (f"{key}.cls", f"{number}\n".encode()),
        (f"{key}.caption.txt", f"número {number}".encode()),
        (f"{key}.json", b'{"a": [%d, null]}' % number),
        (f"{key}.box.npy", npy_bytes(np.arange(4, dtype=">f4") + number)),
        (f"{key}.pth", b"\x80\x04never unpickled"),
    ]


@pytest.mark.parametrize("name", ["t.tar", "t.tar.gz"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_parts_become_columns_by_their_suffix(name: str, form: int, tmp_path: Path) -> None:
    long = "фото/" + "x" * 120  # a name for which each format has a form of its own
    members = [part for at, key in enumerate(("a/0", "a/1", "b/1")) for part in sample(key, at)]
    members += sample(long, 3) if form != tarfile.USTAR_FORMAT else sample("c", 3)
    reading = read(write(tmp_path / name, *members, form=form))
    assert {column.name: column.type for column in reading.schema.columns} == {
        "__key__": Text(),
        "png": Image("png"),
        "cls": Scalar("int64"),
        "caption": Text(),
        "json": Json(),
        "box": Tensor("float32", (4,)),
        "pth": Bytes(),
    }
    rows = rows_of(store(reading))
    assert [row["cls"] for row in rows] == [0, 1, 2, 3]
    assert rows[1]["__key__"] == "a/1"
    assert rows[2]["box"] == [2.0, 3.0, 4.0, 5.0]
    assert rows[3]["json"] == {"a": [3, None]}
    assert rows[3]["__key__"] == (long if form != tarfile.USTAR_FORMAT else "c")


def test_a_folder_of_shards_is_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    write(tmp_path / "b-000001.tar", *sample("x", 1))
    write(tmp_path / "b-000000.tar.gz", *sample("x", 0))
    write(tmp_path / "b-000002.tar", *sample("x", 2))
    assert recognise(tmp_path).name == "webdataset"
    assert store(read(tmp_path))["cls"][:].tolist() == [0, 1, 2]


def test_a_shard_that_was_written_anew_since_the_look_is_walked_again(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", *sample("x", 1))
    reading = read(tmp_path / "a.tar")
    write(tmp_path / "a.tar", *sample("y", 2), *sample("z", 3))
    assert [row["__key__"] for row in rows_of(store(reading))] == ["y", "z"]


def test_parts_for_which_there_is_no_room_are_met_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "0.tar", *sample("x", 0))
    write(tmp_path / "1.tar", *sample("x", 1), *sample("y", 2))
    monkeypatch.setattr(webdataset, "WALKED_BYTES", 3000)
    assert store(read(tmp_path))["cls"][:].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jpg", ("a", "jpg")),
        ("a/b.c/d.seg.png", ("a/b.c/d", "seg.png")),
        ("a", None),
        (".hidden", None),
        ("._0.jpg", None),
        ("a.", None),
    ],
)
def test_names_are_cut_at_the_first_dot(name: str, expected: object) -> None:
    assert split_name(name) == expected


@pytest.mark.parametrize(
    ("parts", "clashes", "expected"),
    [
        (["jpg", "cls"], set(), ["jpg", "cls"]),
        (["left.jpg", "left.png"], set(), ["left", "left"]),
        (["left.jpg", "left.png"], {"left"}, ["left.jpg", "left.png"]),
        (["left.jpg", "left.json"], set(), ["left.jpg", "left.json"]),
        (["a.bin", "model.pth"], set(), ["a", "model.pth"]),
        (["__key__.txt"], set(), ["__key__.txt"]),
    ],
)
def test_a_part_is_called_by_its_own_name_where_that_is_one_column(
    parts: list[str], clashes: set[str], expected: list[str]
) -> None:
    assert [column_names(parts, clashes)[part] for part in parts] == expected


def test_a_part_that_some_samples_lack_is_null_there(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tar", ("0.txt", b"a"), ("1.cls", b"1"), ("1.txt", b"b"))
    reading = read_webdataset(path)
    assert [column.nullable for column in reading.schema.columns] == [False, False, True]
    assert [row["cls"] for row in rows_of(store(reading))] == [None, 1]


def test_of_gzipped_shards_only_the_first_samples_tell_what_may_be_missing(tmp_path: Path) -> None:
    members = [("0.txt", b"a"), ("0.cls", b"1"), ("1.txt", b"b")]
    path = write(tmp_path / "t.tar.gz", *members)
    with pytest.raises(InvalidInputError, match=r"sample '1'.*'cls'.*nullable=cls"):
        store(read_webdataset(path, samples=1))
    rows = rows_of(store(read_webdataset(path, samples=1, nullable=("cls",))))
    assert [row["cls"] for row in rows] == [1, None]


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tar", *sample("0", 5))
    assert read(path, columns="cls,__key__").schema.names == ("cls", "__key__")
    with pytest.raises(NotFoundError, match="no column 'jpg'; there are '__key__', 'png'"):
        read(path, columns="jpg")


@pytest.mark.parametrize(
    ("part", "first", "later", "message"),
    [
        ("cls", b"1", b"one", "expected a whole number"),
        ("cls", b"1", b"9" * 20, "64 bits"),
        ("png", PNG, PNG[:-4], "cut short"),
        ("png", PNG, b"GIF89a no", "gif"),
        ("txt", b"a", b"\xff", "not UTF-8"),
        ("json", b"{}", b"{", "not JSON"),
        ("json", b"{}", b"NaN", "NaN"),
        ("npy", npy_bytes(np.zeros(2)), npy_bytes(np.zeros(3)), r"shape \(3,\)"),
        ("npy", npy_bytes(np.zeros(2)), npy_bytes(np.zeros(2, "i4")), "int32"),
        ("npy", npy_bytes(np.zeros(2)), npy_bytes(np.zeros(2))[:-1], "promises"),
    ],
)
def test_a_later_misfit_names_shard_sample_and_part(
    part: str, first: bytes, later: bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.tar", (f"0.{part}", first), (f"k/1.{part}", later))
    with pytest.raises(InvalidInputError, match=message) as refused:
        store(read_webdataset(path, samples=1))
    assert str(refused.value).startswith(f"{path}, sample 'k/1', part {part!r}")


def test_words_where_numbers_are_usual_are_text(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tar", ("0.id", b"n01440764"))
    assert read_webdataset(path).schema.column("id").type == Text()


def test_arrays_of_many_lengths_are_ragged(tmp_path: Path) -> None:
    arrays = [np.ones((size, 2), ">i2") for size in (0, 3, 1)]
    members = [(f"{at}.npy", npy_bytes(array)) for at, array in enumerate(arrays)]
    reading = read_webdataset(write(tmp_path / "t.tar", *members))
    assert reading.schema.column("npy").type == Tensor("int16", (None, 2))
    assert [row["npy"] for row in rows_of(store(reading))] == [a.tolist() for a in arrays]


def test_arrays_of_python_objects_are_refused(tmp_path: Path) -> None:
    array = np.array([{}], dtype=object)
    with pytest.raises(InvalidInputError, match="Python objects"):
        read_webdataset(write(tmp_path / "t.tar", ("0.npy", npy_bytes(array))))


def test_a_part_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tar", ("0.txt", b"a"), ("0.txt", b"b"))
    with pytest.raises(InvalidInputError, match=r"sample '0'.*part 'txt' twice"):
        read_webdataset(path)


def test_files_that_are_no_samples_are_passed_over_and_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tar", ("README", b"hello"), ("0.txt", b"a"))
    reading = read_webdataset(path)
    assert (reading.rows, reading.notes) == (1, ("passed over t.tar: README",))


@pytest.mark.parametrize("members", [[], [("README", b"hello")]])
def test_an_archive_without_samples_is_refused(
    members: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="holds no samples"):
        read_webdataset(write(tmp_path / "t.tar", *members))


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (124, b"77777777777\0", "too early|cut short"),
        (124, b"\x80" + b"\xff" * 11, "cut short|tar"),
        (124, b"zzzzzzzzzzz\0", "tar header has a number"),
        (156, b"S", "sparse"),
        (0, b"\xff", "not UTF-8"),
    ],
)
def test_a_lying_header_costs_no_memory(at: int, data: bytes, message: str, tmp_path: Path) -> None:
    content = bytearray(tar_bytes([("0.txt", b"a"), ("1.txt", b"b")]))
    content[at : at + len(data)] = data
    total = sum(content[:148]) + sum(content[156:512]) + 8 * 32
    content[148:156] = f"{total:06o}\0 ".encode()
    path = tmp_path / "t.tar"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=message):
        store(read_webdataset(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_another_file_with_the_suffix_is_explained(tmp_path: Path) -> None:
    (tmp_path / "t.tar").write_bytes(b"no archive " * 100)
    with pytest.raises(InvalidInputError, match="no header of a tar archive"):
        read(tmp_path / "t.tar")


def test_a_flipped_byte_in_a_gzipped_shard_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "t.tar.gz", ("0.bin", bytes(range(256)) * 40))
    damaged = bytearray(path.read_bytes())
    damaged[-6] ^= 1  # of gzip's own checksum
    path.write_bytes(damaged)
    with pytest.raises(InvalidInputError, match="CRC"):
        store(read_webdataset(path))


# ------------------------------------------------------------------------------ writing


COLUMNS: dict[str, Any] = {
    "image": Image(),
    "label": ClassLabel(("cat", "dög")),
    "jpg": Bytes(),
    "flag": "bool",
    "rows": Tensor("int16", (None, 2)),
}
ROWS: dict[str, Any] = {
    "image": [PNG, gif()],
    "label": [1, 0],
    "jpg": [b"not a picture", b""],
    "flag": [True, False],
    "rows": [np.ones((2, 2), "i2"), np.ones((0, 2), "i2")],
}


def test_python_s_tarfile_reads_what_is_written(tmp_path: Path) -> None:
    path = export(dataset_of(COLUMNS, ROWS), tmp_path / "t.tar")
    with tarfile.open(path) as archive:
        names = archive.getnames()
        image = archive.extractfile("000000001.image.gif")
        assert image is not None
        assert image.read() == ROWS["image"][1]
    assert names[:4] == [
        "__classes__",
        "000000000.image.png",
        "000000000.label.cls",
        "000000000.jpg.bin",
    ]


def test_mixed_images_class_names_and_bools_come_back(tmp_path: Path) -> None:
    path = export(dataset_of(COLUMNS, ROWS), tmp_path / "t.tar")
    back = store(read(path, columns=",".join(COLUMNS)))
    assert rows_of(back) == rows_of(dataset_of(COLUMNS, ROWS))
    assert back.schema.column("label").type == ClassLabel(("cat", "dög"))


def test_shards_are_cut_at_their_bytes_and_never_inside_a_sample(tmp_path: Path) -> None:
    dataset = dataset_of({"a": Bytes(), "b": "int64"}, {"a": [bytes(2000)] * 10, "b": range(10)})
    path = export(dataset, tmp_path / "s", "webdataset", shard_bytes="8000")
    shards = sorted(path.iterdir())
    assert [shard.name for shard in shards] == [f"s-{at:06}.tar" for at in range(5)]
    assert max(shard.stat().st_size for shard in shards) < 16_000
    assert store(read(path))["b"][:].tolist() == list(range(10))


@pytest.mark.parametrize("key", ["a.b", "", "same"])
def test_a_key_that_cannot_name_a_sample_is_refused(key: str, tmp_path: Path) -> None:
    dataset = dataset_of({"__key__": Text(), "n": "int64"}, {"__key__": ["same", key], "n": [1, 2]})
    with pytest.raises(InvalidInputError, match=r"row 1, column '__key__'.*numbers"):
        export(dataset, tmp_path / "t.tar")


@pytest.mark.parametrize(
    ("column", "kind", "value"), [("x", "complex64", 1j), ("a.txt", "bool", 1), ("cls", "int8", 3)]
)
def test_every_column_comes_back_under_its_name(
    column: str, kind: str, value: Any, tmp_path: Path
) -> None:
    dataset = dataset_of({column: kind}, {column: [value]})
    path = export(dataset, tmp_path / "t.tar")
    assert rows_of(store(read(path, columns=column))) == rows_of(dataset)


@pytest.mark.parametrize("kind", ["int64", "float32", "datetime64[s]"])
def test_a_column_that_would_not_come_back_is_refused(kind: str, tmp_path: Path) -> None:
    columns = {"a/b": Timestamp("s") if kind.startswith("date") else kind}
    with pytest.raises(InvalidInputError, match="column 'a/b'"):
        export(dataset_of(columns, {"a/b": [1]}), tmp_path / "t.tar")


@pytest.mark.skipif(
    importlib.util.find_spec("webdataset") is None, reason="webdataset is not installed"
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the package leaves the file to be closed
def test_the_webdataset_package_reads_what_is_written(tmp_path: Path) -> None:
    import webdataset  # type: ignore[import-not-found]  # the reference, where it is there

    path = export(dataset_of(COLUMNS, ROWS), tmp_path / "t.tar")
    samples = list(webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False))
    gc.collect()
    assert [each["label.cls"] for each in samples] == [b"1", b"0"]

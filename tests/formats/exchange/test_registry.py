"""Which format is a path in, and what is said when it is none."""

from __future__ import annotations

import gzip
import pickle
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.formats.dataset.schema.lenient import batch_rows
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Image, Text
from tensorrepo.formats.exchange.checkpoints.recognition import model_format
from tensorrepo.formats.exchange.registry import (
    FORMATS,
    default_format,
    export,
    file_name,
    find_format,
    parse_options,
    read,
    recognise,
)
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnsupportedError,
)
from tests.support.builders.foreign import dataset_of, png, rows_of, store
from tests.support.faults.permissions import permissions_obeyed

PNG = png(np.zeros((2, 2), np.uint8))
IDX = struct.pack(">HBBI", 0, 8, 1, 3) + b"abc"


def parquet(path: Path) -> Path:
    pq.write_table(pa.table({"n": [1, 2]}), path)
    return path


def test_content_decides_against_a_wrong_suffix(tmp_path: Path) -> None:
    assert recognise(parquet(tmp_path / "t.csv")).name == "parquet"
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "x.npy").rename(tmp_path / "x.parquet")
    assert recognise(tmp_path / "x.parquet").name == "npy"


@pytest.mark.parametrize("content", [IDX, gzip.compress(IDX)], ids=["plain", "gzip"])
def test_idx_is_told_by_content_whatever_its_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "labels").write_bytes(content)
    assert recognise(tmp_path / "labels").name == "idx"


@pytest.mark.parametrize(
    "name",
    ["x.npz", "x.npy", "x.parquet", "x.arrow", "x.csv", "x.jsonl", "train-labels-idx1-ubyte"],
)
def test_a_damaged_file_is_explained_by_the_format_that_its_name_says(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"\1\2\3\0 no format begins like this")
    with pytest.raises(InvalidInputError, match=name):
        store(read(tmp_path / name))


def test_text_in_a_folder_of_images_describes_them(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(PNG)
    (tmp_path / "labels.csv").write_text("file,label\n1.png,3\n")
    assert recognise(tmp_path).name == "images"


def test_ignored_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "1.png").write_bytes(PNG)
    parquet(tmp_path / "t.parquet")
    (tmp_path / "labels-idx1-ubyte").write_bytes(IDX)
    (tmp_path / ".tensorrepoignore").write_text("raw/\n*-ubyte\n")
    assert recognise(tmp_path).name == "parquet"
    with pytest.raises(InvalidInputError, match="no IDX files"):
        read(tmp_path, "idx")


def test_two_formats_in_a_folder_ask_for_one(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(PNG)
    parquet(tmp_path / "t.parquet")
    with pytest.raises(InvalidInputError, match=r"holds images and parquet.*format="):
        read(tmp_path)
    assert read(tmp_path, "parquet").rows == 2


@pytest.mark.parametrize("name", ["nowhere", "nowhere.csv", "no/folder/x"])
@pytest.mark.parametrize("format_name", [None, "csv"])
def test_a_path_that_is_not_there_is_not_found(
    name: str, format_name: str | None, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match=name):
        read(tmp_path / name, format_name)


@pytest.mark.parametrize("format_name", [None, *(known.name for known in FORMATS)])
def test_an_empty_folder_is_refused(format_name: str | None, tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    with pytest.raises(InvalidInputError, match="a folder without files"):
        read(tmp_path, format_name)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(InvalidInputError, match="is empty"):
        read(tmp_path / "x")


def test_what_is_not_recognised_says_what_would_be(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"\x7fELF something")
    with pytest.raises(InvalidInputError, match=r"no format that is known.*--format"):
        read(tmp_path / "x.bin")


def test_one_image_points_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "1.png").write_bytes(PNG)
    with pytest.raises(InvalidInputError, match="read the folder that it is in"):
        read(tmp_path / "1.png")


def test_a_device_is_never_read() -> None:
    with pytest.raises(InvalidInputError, match="neither a file nor a folder"):
        read("/dev/zero")


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(InvalidInputError, match="pickle"):
        read(tmp_path / "x.bin")


def test_a_url_is_unsupported() -> None:
    with pytest.raises(UnsupportedError, match="only local files"):
        read("https://example.org/x.csv")


def safetensors(path: Path) -> None:
    header = b'{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0")


def torch(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")


@pytest.mark.parametrize(
    ("write", "name"),
    [(safetensors, "safetensors"), (torch, "torch")],
    ids=["safetensors", "torch"],
)
def test_a_model_says_how_it_is_added(write: object, name: str, tmp_path: Path) -> None:
    write(tmp_path / "weights")  # type: ignore[operator]
    assert model_format(tmp_path / "weights") == name
    with pytest.raises(InvalidInputError, match=rf"is a model \({name}\). Add it with --model"):
        read(tmp_path / "weights")


def test_an_unknown_format_names_near_ones() -> None:
    with pytest.raises(InvalidInputError, match="Did you mean parquet"):
        find_format("parket")


def test_an_option_that_does_not_parse_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(InvalidInputError, match="option 'header': expected true or false"):
        read(tmp_path / "t.csv", header="perhaps")
    with pytest.raises(InvalidInputError, match="option 'columns': expected a list"):
        read(tmp_path / "t.csv", columns=3)


def test_options_may_be_texts_or_values(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2\n")
    for header in ("false", False, "no", 0):
        reading = read(tmp_path / "t.csv", header=header, columns="f1,f0")
        assert reading.schema.names == ("f1", "f0")


def test_an_option_of_none_is_the_default(tmp_path: Path) -> None:
    assert read(parquet(tmp_path / "t.parquet"), columns=None).rows == 2


def test_options_of_a_command_line_are_keys_and_values() -> None:
    given = ["delimiter=;", "null-values=NA,-", "x=a=b"]
    assert parse_options(given) == {"delimiter": ";", "null_values": "NA,-", "x": "a=b"}
    with pytest.raises(InvalidInputError, match="KEY=VALUE, got 'header'"):
        parse_options(["header"])


def test_the_suffix_says_the_format_of_an_export(tmp_path: Path) -> None:
    dataset = dataset_of({"n": "int64"}, {"n": [1, 2]})
    assert recognise(export(dataset, tmp_path / "t.npz")).name == "npz"
    with pytest.raises(InvalidInputError, match=r"the name says no format.*or parquet") as told:
        export(dataset, tmp_path / "t")
    assert "json or" not in str(told.value)  # which is only read


def test_columns_of_an_export_can_be_chosen(tmp_path: Path) -> None:
    dataset = dataset_of({"a": "int64", "b": "int64"}, {"a": [1], "b": [2]})
    path = export(dataset, tmp_path / "t.parquet", columns=["b"])
    assert rows_of(store(read(path))) == [{"b": 2}]
    path = export(dataset, tmp_path / "typed.parquet", columns="b,a")
    assert rows_of(store(read(path))) == [{"b": 2, "a": 1}]
    with pytest.raises(NotFoundError, match="no column 'c'"):
        export(dataset, tmp_path / "u.parquet", columns=["c"])


def test_an_export_tells_its_progress_in_rows(tmp_path: Path) -> None:
    dataset = dataset_of({"n": "int64"}, {"n": np.arange(1000)})
    told: list[tuple[int, int]] = []
    export(dataset, tmp_path / "t.parquet", progress=lambda *done: told.append(done))
    assert told[-1] == (1000, 1000)


def pictures(files: list[str], labels: list[int]) -> object:
    columns = {"image": Image("png"), "label": ClassLabel(("cat", "dog")), "file": Text()}
    return dataset_of(columns, {"image": [PNG] * len(files), "label": labels, "file": files})


def test_checkout_writes_images_when_they_read_back_exactly() -> None:
    assert default_format(pictures(["cat/1.png", "dog/1.png"], [0, 1])) == "images"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (["dog/1.png", "cat/1.png"], [1, 0]),
        (["cat/1.png", "cat/1.png"], [0, 0]),
        (["cat/1.png", "dog/1.png"], [0, 0]),
        (["cat/.1.png"], [0]),
        (["cat/../1.png"], [0]),
        (["1.png"], [0]),
        ([], []),
    ],
    ids=["order", "twins", "label", "hidden", "outside", "no folder", "no rows"],
)
def test_checkout_writes_parquet_when_a_folder_would_change_rows(
    files: list[str], labels: list[int]
) -> None:
    assert default_format(pictures(files, labels)) == "parquet"  # type: ignore[arg-type]


def test_checkout_writes_parquet_for_other_columns() -> None:
    assert default_format(dataset_of({"n": "int64"}, {"n": [1]})) == "parquet"


def test_the_columns_alone_suggest_a_format_too() -> None:
    assert default_format(pictures(["dog/1.png"], [0]).schema) == "images"  # type: ignore[attr-defined]


def test_files_are_called_after_their_format() -> None:
    assert file_name("users", "parquet") == "users.parquet"
    assert file_name("photos", "images") == "photos"


_UNREADABLE = {
    "images": (".png", lambda at: png(np.full((2, 2), at, np.uint8))),
    "text": (".txt", lambda _: b"words"),
    "csv": (".csv", lambda at: b"x\n%d\n" % at),
    "jsonl": (".jsonl", lambda at: b'{"x": %d}\n' % at),
    "json": (".json", lambda at: b'[{"x": %d}]' % at),
}


@pytest.fixture(params=_UNREADABLE)
def partly_unreadable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder of five files of a format; the first may not be read, nor those at 2 and 3."""
    suffix, content = _UNREADABLE[request.param]
    folder = tmp_path / request.param
    folder.mkdir()
    for at in range(5):
        (folder / f"{at}{suffix}").write_bytes(content(at))
    for at in (0, 2, 3):
        (folder / f"{at}{suffix}").chmod(0)
    with permissions_obeyed():
        yield folder


def _rows_read(path: Path, **options: object) -> tuple[int, list[str]]:
    reading = read(path, **options)
    rows = sum(map(batch_rows, reading.batches))
    return rows, sorted(Path(each.source).stem for each in reading.damage.skipped)


def test_a_file_that_may_not_be_read_ends_the_reading_and_says_how_it_is_passed_over(
    partly_unreadable: Path,
) -> None:
    with pytest.raises(Error, match=r"0\.\w+: permission denied.* damaged=skip passes"):
        _rows_read(partly_unreadable)


def test_files_that_may_not_be_read_are_passed_over_and_told(partly_unreadable: Path) -> None:
    assert _rows_read(partly_unreadable, damaged="skip") == (2, ["0", "2", "3"])


@pytest.mark.parametrize("options", [{}, {"damaged": "skip"}])
def test_a_folder_that_may_not_be_read_is_never_left_out_in_silence(
    partly_unreadable: Path, options: dict[str, str]
) -> None:
    inner = partly_unreadable / "inner"
    inner.mkdir()
    inner.chmod(0)
    with pytest.raises(PermissionDenied, match="inner: permission denied"):
        _rows_read(partly_unreadable, **options)
    (partly_unreadable / ".tensorrepoignore").write_text("inner/\n0.*\n2.*\n3.*\n")
    assert _rows_read(partly_unreadable, **options) == (2, [])

"""IDX files: MNIST's format."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import ClassLabel, Scalar, Tensor
from tensorrepo.formats.exchange.arrays.idx import IdxName, parse_name, read_idx
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import store

FASHION = Path("/usr/share/datasets/fashion-mnist")
CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx_bytes(array: np.ndarray) -> bytes:
    """An IDX file, written as its description says and by nothing of ours."""
    code = CODES[array.dtype.str[1:]]
    head = struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_mnist(folder: Path, split: str, rows: int, suffix: str = "") -> None:
    pack = gzip.compress if suffix else bytes
    images = np.arange(rows * 6, dtype=np.uint8).reshape(rows, 2, 3)
    name = f"{split}-" if split else ""
    (folder / f"{name}images-idx3-ubyte{suffix}").write_bytes(pack(idx_bytes(images)))
    labels = np.arange(rows, dtype=np.uint8) % 10
    (folder / f"{name}labels-idx1-ubyte{suffix}").write_bytes(pack(idx_bytes(labels)))


@pytest.mark.parametrize(
    ("name", "split", "column"),
    [
        ("train-images-idx3-ubyte.gz", "train", "image"),
        ("t10k-labels-idx1-ubyte", "t10k", "label"),
        ("train-images.idx3-ubyte", "train", "image"),
        ("emnist-balanced-test-labels-idx1-ubyte.gz", "emnist-balanced-test", "label"),
        ("depth-idx2-float32", "", "depth"),
    ],
)
def test_file_names_say_split_and_column(name: str, split: str, column: str) -> None:
    assert parse_name(name) == IdxName(split, column)


@pytest.mark.parametrize("name", ["README", "images.png", "idx3-ubyte", "images-idxx-ubyte"])
def test_other_names_say_nothing(name: str) -> None:
    assert parse_name(name) is None


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("packed", [False, True])
def test_every_element_type_is_read(dtype: str, packed: bool, tmp_path: Path) -> None:
    array = np.array([[0, 1], [100, -1 if dtype[0] != "u" else 7]], dtype)
    path = tmp_path / "x-idx2-any"
    path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    reading = read_idx(path)
    assert reading.schema.column("x").type == Tensor(np.dtype(dtype), (2,))
    assert store(reading)["x"][:].tolist() == array.tolist()


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_pair_of_files_is_one_dataset(suffix: str, tmp_path: Path) -> None:
    write_mnist(tmp_path, "train", 12, suffix)
    reading = read_idx(tmp_path)
    assert reading.schema.names == ("image", "label")
    assert reading.rows == 12
    dataset = store(reading)
    assert dataset["image"][11].tolist() == [[66, 67, 68], [69, 70, 71]]
    assert dataset["label"][:].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_a_file_of_images_takes_its_labels_along(tmp_path: Path) -> None:
    write_mnist(tmp_path, "train", 3)
    write_mnist(tmp_path, "t10k", 2)
    assert read_idx(tmp_path / "t10k-images-idx3-ubyte").schema.names == ("image", "label")
    assert read_idx(tmp_path / "t10k-images-idx3-ubyte").rows == 2
    assert read_idx(tmp_path / "t10k-labels-idx1-ubyte").schema.names == ("label",)


def test_several_splits_are_one_dataset_that_tells_them_apart(tmp_path: Path) -> None:
    write_mnist(tmp_path, "t10k", 2)
    write_mnist(tmp_path, "train", 3)
    reading = read_idx(tmp_path)
    assert reading.schema.column("split").type == ClassLabel(("train", "t10k"))
    assert "train (3 rows), t10k (2 rows)" in reading.notes[0]
    assert store(reading)["split"][:].tolist() == [0, 0, 0, 1, 1]


def test_one_split_can_be_asked_for(tmp_path: Path) -> None:
    write_mnist(tmp_path, "t10k", 2)
    write_mnist(tmp_path, "train", 3)
    reading = read_idx(tmp_path, split="t10k")
    assert (reading.rows, reading.schema.names) == (2, ("image", "label"))
    with pytest.raises(InvalidInputError, match="no split 'test'; there are 'train', 't10k'"):
        read_idx(tmp_path, split="test")


def test_labels_can_be_given_names(tmp_path: Path) -> None:
    write_mnist(tmp_path, "", 3)
    assert read_idx(tmp_path).schema.column("label").type == Scalar("uint8")
    reading = read_idx(tmp_path, class_names=("shirt", "shoe", "bag"))
    assert store(reading).schema.column("label").type == ClassLabel(("shirt", "shoe", "bag"))


def test_columns_of_different_length_are_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, "", 3)
    (tmp_path / "labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(4, np.uint8)))
    with pytest.raises(InvalidInputError, match="'image': 3, 'label': 4"):
        read_idx(tmp_path)


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path, "", 3)
    write_mnist(tmp_path, "", 3, ".gz")
    with pytest.raises(InvalidInputError, match="column 'image' twice"):
        read_idx(tmp_path)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack(">HBB3I", 0, 8, 3, 1 << 31, 1 << 15, 1 << 15),
        struct.pack(">HBB3I", 0, 8, 3, 1, 1 << 31, 2),
        struct.pack(">HBB1I", 0, 14, 1, (1 << 32) - 1),
        struct.pack(">HBB2I", 0, 8, 2, 5, 0),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_lying_header_is_refused_and_costs_no_memory(
    head: bytes, packed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "images-idx3-ubyte"
    path.write_bytes(gzip.compress(head + bytes(100)) if packed else head + bytes(100))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=r"promises|elements"):
        store(read_idx(path))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_gzip_bomb_is_left_at_the_size_that_its_header_promises(tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte.gz"
    array = np.zeros((10, 2, 2), np.uint8)
    path.write_bytes(gzip.compress(idx_bytes(array) + bytes(40 << 20)))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="goes on after the 40 bytes"):
        store(read_idx(path))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_gzip_file_that_ends_before_its_promise_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((10, 2, 2), np.uint8))[:-1]))
    with pytest.raises(InvalidInputError, match="ends 1 bytes before the 40"):
        store(read_idx(path))


def test_a_folder_without_idx_files_says_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(InvalidInputError, match=r"train-images-idx3-ubyte\.gz"):
        read_idx(tmp_path)


@pytest.mark.soak
@pytest.mark.skipif(not FASHION.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_as_debian_ships_it_is_read_whole() -> None:
    reading = read_idx(FASHION)
    assert (reading.rows, reading.schema.names) == (70_000, ("image", "label", "split"))
    dataset = store(reading)
    assert np.bincount(dataset["label"][:]).tolist() == [7000] * 10
    assert dataset[0]["label"] == 9

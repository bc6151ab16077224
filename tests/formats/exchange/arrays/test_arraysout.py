"""Columns as numeric arrays, read back by readers that are not ours."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
    TypeLike,
)
from tensorrepo.formats.exchange.arrays.npy import write_idx, write_npy, write_npz
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import dataset_of

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (50, 4, 6), dtype=np.uint8)
LABELS = RNG.integers(0, 3, 50)


def test_numpy_reads_our_npy_mapped(tmp_path: Path) -> None:
    write_npy(dataset_of({"x": Tensor("uint8", (4, 6))}, {"x": IMAGES}), tmp_path / "x.npy")
    array = np.load(tmp_path / "x.npy", mmap_mode="r", allow_pickle=False)
    assert (array == IMAGES).all()


@pytest.mark.parametrize("compress", [False, True])
def test_numpy_reads_our_npz(compress: bool, tmp_path: Path) -> None:
    columns: dict[str, TypeLike] = {
        "image": Tensor("uint8", (4, 6)),
        "label": ClassLabel(("a", "bb", "ccc")),
        "when": Timestamp("ms"),
        "text": Text(),
        "flag": "bool",
    }
    texts = [f"row {row} é" for row in range(50)]
    rows = {
        "image": IMAGES,
        "label": LABELS,
        "when": np.arange(50),
        "text": texts,
        "flag": LABELS > 1,
    }
    write_npz(dataset_of(columns, rows), tmp_path / "x.npz", compress=compress)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        assert (arrays["image"] == IMAGES).all()
        assert (arrays["label"] == LABELS).all()
        assert arrays["label.names"].tolist() == ["a", "bb", "ccc"]
        assert arrays["when"].dtype == np.dtype("M8[ms]")
        assert arrays["text"].tolist() == texts
        assert (arrays["flag"] == (LABELS > 1)).all()


def test_our_idx_is_mnist_s_layout(tmp_path: Path) -> None:
    columns: dict[str, TypeLike] = {
        "image": Tensor("uint8", (4, 6)),
        "label": ClassLabel(("a", "b", "c")),
    }
    dataset = dataset_of(columns, {"image": IMAGES, "label": LABELS})
    write_idx(dataset, tmp_path / "out", compress=True, split="train")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == [
        "label-names.txt",
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
    ]
    # As every reader of MNIST does it.
    images = gzip.decompress((tmp_path / "out" / names[1]).read_bytes())
    labels = gzip.decompress((tmp_path / "out" / names[2]).read_bytes())
    assert images[:4] == b"\0\0\x08\x03"
    assert (np.frombuffer(images, np.uint8, offset=16).reshape(50, 4, 6) == IMAGES).all()
    assert (np.frombuffer(labels, np.uint8, offset=8) == LABELS).all()


@pytest.mark.parametrize("write", [write_npz, write_idx])
def test_a_null_names_column_and_row(write: object, tmp_path: Path) -> None:
    schema = Schema((Column("n", Scalar("int32"), nullable=True),))
    dataset = dataset_of(schema, [{"n": 1}, {"n": None}])
    with pytest.raises(InvalidInputError, match=r"column 'n'.*row 1 is null"):
        write(dataset, tmp_path / "x.idx")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Tensor("int8", (None,)), "not of one shape"),
        (Tensor("int8", (3, 0)), "no elements"),
        (Json(), "not of one shape"),
        (Timestamp("us", "UTC"), "no time zones: UTC"),
    ],
)
def test_columns_that_numpy_cannot_hold_are_named(
    kind: TypeLike, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=f"column 'x'.*{says}"):
        write_npz(dataset_of({"x": kind}), tmp_path / "x.npz")


def test_an_npy_file_holds_one_column(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="holds one column, there are a, b"):
        write_npy(dataset_of({"a": "int8", "b": "int8"}), tmp_path / "x.npy")


def test_text_that_numpy_would_change_or_blow_up_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="row 1 ends in NUL"):
        write_npz(dataset_of({"t": Text()}, {"t": ["a", "b\0"]}), tmp_path / "x.npz")
    long = ["x"] * 999 + ["y" * 100_000]
    with pytest.raises(InvalidInputError, match="padded to its longest row"):
        write_npz(dataset_of({"t": Text()}, {"t": long}), tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("classes", "code"), [(256, 0x08), (257, 0x0B), (32_769, 0x0C)], ids=["u1", "i2", "i4"]
)
def test_class_numbers_take_the_smallest_type_that_holds_them(
    classes: int, code: int, tmp_path: Path
) -> None:
    label = ClassLabel(tuple(map(str, range(classes))))
    write_idx(dataset_of({"label": label}, {"label": [classes - 1]}), tmp_path / "out")
    (file,) = (tmp_path / "out").glob("labels-*")
    assert file.read_bytes()[2] == code


@pytest.mark.parametrize("name", ["a-b", "images", "../x"])
def test_columns_whose_file_would_read_as_another_are_refused(name: str, tmp_path: Path) -> None:
    columns: dict[str, TypeLike] = {name: "uint8", "label": "uint8"}
    with pytest.raises(InvalidInputError, match=f"column '{name}'.*reads as another"):
        write_idx(dataset_of(columns), tmp_path / "out")


@pytest.mark.parametrize("dtype", ["int64", "bool", "float16", "complex64"])
def test_element_types_that_idx_lacks_are_named(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=f"column 'x'.*not {dtype}"):
        write_idx(dataset_of({"x": dtype}), tmp_path / "x.idx")

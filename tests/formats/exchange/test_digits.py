"""scikit-learn's digits through every format that can hold them: real pictures of real people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Tensor
from tensorrepo.formats.exchange.registry import export, read
from tests.support.builders.foreign import dataset_of, store

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    datasets = pytest.importorskip("sklearn.datasets", reason="its digits are the data here")
    found = datasets.load_digits()
    return found.images.astype(np.uint8) * 15, found.target


@pytest.fixture(scope="module")
def dataset(digits: tuple[np.ndarray, np.ndarray]) -> StoredDataset:
    columns = {"image": Tensor("uint8", (8, 8)), "label": ClassLabel(NAMES)}
    return dataset_of(columns, {"image": digits[0], "label": digits[1]})


@pytest.mark.parametrize("name", ["digits.npz", "digits.parquet", "digits.arrow", "digits"])
def test_digits_survive(name: str, dataset: StoredDataset, tmp_path: Path) -> None:
    back = store(read(export(dataset, tmp_path / name, "idx" if name == "digits" else None)))
    assert back.schema.without_ids() == dataset.schema.without_ids()
    assert (back["image"][:] == dataset["image"][:]).all()
    assert (back["label"][:] == dataset["label"][:]).all()


def test_digits_as_csv_are_65_columns(
    digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    table = np.column_stack([digits[0].reshape(len(digits[0]), 64), digits[1]])
    head = ",".join([*(f"pixel_{number}" for number in range(64)), "label"])
    np.savetxt(tmp_path / "digits.csv", table, "%d", ",", header=head, comments="")
    back = store(read(tmp_path / "digits.csv"))
    assert len(back.schema.columns) == 65
    assert (np.asarray(back["label"][:]) == digits[1]).all()
    assert (np.asarray(back["pixel_20"][:]) == table[:, 20]).all()


@pytest.mark.soak
@pytest.mark.parametrize("suffix", ["png", "bmp", "tiff"])
def test_digits_as_pictures_of_pillow_keep_pixels_and_labels(
    suffix: str, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow writes the pictures here")
    images, labels = digits[0][:200], digits[1][:200]
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / NAMES[label]
        folder.mkdir(exist_ok=True)
        image.fromarray(pixels).save(folder / f"{number:04}.{suffix}")
    back = store(read(tmp_path))
    assert back.schema.column("label").type == ClassLabel(tuple(sorted(NAMES)))
    assert back.schema.column("image").type.codec == suffix  # type: ignore[union-attr]
    for row in back:
        number = int(row["file"].split("/")[1].split(".")[0])
        assert sorted(NAMES)[row["label"]] == NAMES[labels[number]]

"""A dataset as a folder of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Image, Text, TypeLike
from tensorrepo.formats.exchange.images.folder import read_images, reads_back, write_images
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import dataset_of, gif, png, rows_of, store

PNG = png(np.zeros((2, 2), np.uint8))
LABEL = ClassLabel(("T-shirt/top", "boot"))


def files_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_rows_without_a_file_name_are_called_by_their_number(tmp_path: Path) -> None:
    dataset = dataset_of(
        {"x": Image(None), "label": LABEL}, {"x": [PNG, gif(), PNG], "label": [1, 0, 1]}
    )
    write_images(dataset, tmp_path / "out")
    assert files_in(tmp_path / "out") == [
        "T-shirt%2Ftop/00000001.gif",
        "boot/00000000.png",
        "boot/00000002.png",
        "classes.txt",
    ]
    back = rows_of(store(read_images(tmp_path / "out")))
    assert sorted(row["label"] for row in back) == [0, 1, 1]


def test_a_class_without_images_keeps_its_number(tmp_path: Path) -> None:
    dataset = dataset_of({"image": Image("png"), "label": LABEL}, {"image": [PNG], "label": [1]})
    write_images(dataset, tmp_path / "out")
    assert read_images(tmp_path / "out").schema.column("label").type == LABEL


def test_a_file_moves_to_the_folder_of_its_class(tmp_path: Path) -> None:
    columns = {"image": Image("png"), "label": LABEL, "file": Text()}
    rows = {"image": [PNG, PNG], "label": [1, 1], "file": ["boot/a.png", "shoe/a.png"]}
    write_images(dataset_of(columns, rows), tmp_path / "out")
    assert files_in(tmp_path / "out") == ["boot/a.png", "boot/shoe/a.png", "classes.txt"]


@pytest.mark.parametrize("file", ["../x.png", "/etc/x.png", "a//b.png", "a\\b.png", "", "a\0.png"])
def test_a_path_that_leads_outside_is_refused(file: str, tmp_path: Path) -> None:
    dataset = dataset_of({"image": Image("png"), "file": Text()}, {"image": [PNG], "file": [file]})
    with pytest.raises(InvalidInputError, match=r"row 0, column 'file'.*no path inside"):
        write_images(dataset, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_two_rows_with_one_file_name_are_refused(tmp_path: Path) -> None:
    columns = {"image": Image("png"), "file": Text()}
    dataset = dataset_of(columns, {"image": [PNG, PNG], "file": ["a.png", "a.png"]})
    with pytest.raises(InvalidInputError, match=r"row 1 is not the only one .* 'a\.png'"):
        write_images(dataset, tmp_path / "out")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"file": Text()}, "needs a column of images; there are file"),
        ({"image": Image(), "n": "int64"}, "column 'n' .* no place"),
        ({"image": Image(), "more": Image()}, "column 'more' .* no place"),
        ({"image": Image(), "caption": Text()}, "column 'caption' .* no place"),
        ({"image": Image(), "split": ClassLabel(("train", "t10k"))}, "column 'split'"),
        ({"image": Image(), "label": ClassLabel(("a\nb",))}, "column 'label'.*one line"),
    ],
)
def test_columns_without_a_place_are_named(
    columns: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        write_images(dataset_of(columns), tmp_path / "out")  # type: ignore[arg-type]


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"),
    min_size=1,
    max_size=5,
)


ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6)


def numbered(
    names: list[str], splits: tuple[str, ...], places: list[tuple[int, int]]
) -> StoredDataset:
    """A dataset of pictures without file names."""
    columns: dict[str, TypeLike] = {"image": Image("png"), "label": ClassLabel(tuple(names))}
    columns |= {"split": ClassLabel(splits)} if splits else {}
    rows = {
        "image": [PNG] * len(places),
        "label": [label % len(names) for label, _ in places],
        "split": [split % max(1, len(splits)) for _, split in places],
    }
    return dataset_of(columns, {name: rows[name] for name in columns})


@given(
    names=st.lists(NAMES, min_size=1, max_size=3, unique=True),
    splits=st.sampled_from([(), ("train", "test"), ("train", "test", "val")]),
    places=ROWS,
)
def test_what_is_said_to_read_back_does(
    names: list[str],
    splits: tuple[str, ...],
    places: list[tuple[int, int]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("images")
    write_images(numbered(names, splits, places), folder / "first")
    first = store(read_images(folder / "first"))
    assume(reads_back(first))
    write_images(first, folder / "second")
    second = store(read_images(folder / "second"))
    assert rows_of(second) == rows_of(first)
    assert second.schema.without_ids() == first.schema.without_ids()


@given(names=st.lists(NAMES, min_size=1, max_size=3, unique=True), places=ROWS)
def test_a_folder_with_classes_is_said_to_read_back(
    names: list[str], places: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("images") / "out"
    write_images(numbered(names, (), places), path)
    assert reads_back(store(read_images(path)))


def test_a_folder_with_splits_is_said_to_read_back(tmp_path: Path) -> None:
    write_images(numbered(["cat"], ("train", "test"), [(0, 0), (0, 1)]), tmp_path / "out")
    assert reads_back(store(read_images(tmp_path / "out")))


def test_a_single_split_is_said_not_to_read_back(tmp_path: Path) -> None:
    write_images(numbered(["cat"], ("train", "test"), [(0, 0)]), tmp_path / "out")
    assert not reads_back(store(read_images(tmp_path / "out")))

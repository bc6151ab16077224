from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.exchange.images import yolo
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import png, rows_of, store

PICTURE = png(np.zeros((2, 3), np.uint8))
BOXES = "1 0.5 0.5 0.25 0.5\n0 0.25 0.25 0.5 0.5\n"
OUTLINE = "0 0 0 1 0 1 0.5\n"
LAYOUTS = {
    "kind first": ("images/{split}/{name}.png", "labels/{split}/{name}.txt"),
    "split first": ("{split}/images/{name}.png", "{split}/labels/{name}.txt"),
    "side by side": ("{split}/{name}.png", "{split}/{name}.txt"),
}


def put(folder: Path, layout: str, split: str, name: str, labels: str | None) -> None:
    image, text = (folder / part.format(split=split, name=name) for part in LAYOUTS[layout])
    for file in (image, text):
        file.parent.mkdir(parents=True, exist_ok=True)
    image.write_bytes(PICTURE)
    if labels is not None:
        text.write_text(labels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data.yaml").write_text("path: .\ntrain: images/train\nnc: 2\nnames: [cat, dog]\n")
    put(tmp_path, "kind first", "train", "a", BOXES)
    put(tmp_path, "kind first", "train", "b", None)
    put(tmp_path, "kind first", "val", "a", "")
    return tmp_path


def test_a_row_holds_an_image_and_its_boxes(folder: Path) -> None:
    rows = rows_of(store(read(folder)))
    assert rows[0] == {
        "image": PICTURE,
        "file": "images/train/a.png",
        "width": 3,
        "height": 2,
        "boxes": [[0.5, 0.5, 0.25, 0.5], [0.25, 0.25, 0.5, 0.5]],
        "categories": [1, 0],
        "names": ["dog", "cat"],
        "split": 0,
    }
    assert [row["categories"] for row in rows[1:]] == [[], []]
    assert [row["split"] for row in rows] == [0, 0, 1]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_usual_layout_is_recognised(layout: str, tmp_path: Path) -> None:
    put(tmp_path, layout, "train", "a", BOXES)
    assert recognise(tmp_path).name == "yolo"
    assert rows_of(store(read(tmp_path)))[0]["categories"] == [1, 0]


def test_outlines_are_kept_and_boxed(tmp_path: Path) -> None:
    put(tmp_path, "kind first", "train", "a", OUTLINE + BOXES)
    row = rows_of(store(read(tmp_path)))[0]
    assert row["segmentation"] == [[0, 0, 1, 0, 1, 0.5], None, None]
    assert row["boxes"][0] == [0.5, 0.25, 1, 0.5]


def test_outlines_can_be_read_as_boxes_alone(tmp_path: Path) -> None:
    put(tmp_path, "kind first", "train", "a", OUTLINE)
    reading = read(tmp_path, task="detect")
    assert "segmentation" not in reading.schema
    assert rows_of(store(reading))[0]["boxes"] == [[0.5, 0.25, 1, 0.5]]


def test_one_split_is_read_alone(folder: Path) -> None:
    rows = rows_of(store(read(folder, split="val")))
    assert [row["file"] for row in rows] == ["images/val/a.png"]
    assert "split" not in rows[0]


def test_names_come_from_a_list_of_classes(tmp_path: Path) -> None:
    put(tmp_path, "side by side", ".", "a", BOXES)
    (tmp_path / "classes.txt").write_text("cat\ntraffic light\n")
    assert rows_of(store(read(tmp_path)))[0]["names"] == ["traffic light", "cat"]


def test_images_with_captions_in_text_files_are_no_yolo(tmp_path: Path) -> None:
    put(tmp_path, "side by side", "x", "a", "a photo of a cat\n")
    assert recognise(tmp_path).name == "images"


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ("1 0.5 0.5 0.1\n", "expected a class and 4 numbers"),
        ("1 0.5 0.5 0.1 0.1 0.9\n", "expected a class and 4 numbers"),
        ("cat 0.5 0.5 0.1 0.1\n", r"a\.txt, line 1"),
        ("0 0.5 0.5 0.1 0.1\n-1 0.5 0.5 0.1 0.1", r"a\.txt, line 2"),
        ("0 nan 0.5 0.1 0.1\n", "no number"),
        ("2 0.5 0.5 0.1 0.1\n", "class 2 has no name; there are 2"),
    ],
)
def test_what_is_no_object_is_refused_with_its_line(
    labels: str, message: str, folder: Path
) -> None:
    put(folder, "kind first", "train", "a", labels)
    with pytest.raises(InvalidInputError, match=message):
        store(read(folder, "yolo"))


def test_a_text_file_that_cannot_be_read_can_be_passed_over(folder: Path) -> None:
    put(folder, "kind first", "train", "a", "x\n")
    reading = read(folder, "yolo", damaged="skip", task="detect")
    assert [row["file"] for row in store(reading)] == ["images/train/b.png", "images/val/a.png"]
    assert "a.txt, line 1" in reading.damage.skipped[0].reason


def test_labels_without_an_image_are_named(folder: Path) -> None:
    (folder / "labels" / "train" / "z.txt").write_text(BOXES)
    with pytest.raises(InvalidInputError, match=r"no image for 'labels/train/z\.txt'"):
        read(folder)
    assert read(folder, missing="skip").rows == 3


def test_names_that_are_not_numbered_through_are_refused(folder: Path) -> None:
    (folder / "data.yaml").write_text("names:\n  0: cat\n  2: dog\n")
    with pytest.raises(InvalidInputError, match=r"data\.yaml.*\[0, 2\]"):
        read(folder)


def test_key_points_are_refused(folder: Path) -> None:
    (folder / "data.yaml").write_text("kpt_shape: [17, 3]\nnames: [cat]\n")
    with pytest.raises(InvalidInputError, match="key points"):
        read(folder)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: [cat, 'a, b', \"d#g\"]  # three", ("cat", "a, b", "d#g")),
        ("names: [no, 1.0, null]", ("no", "1.0", "null")),
        ("names:\n  1: traffic light\n  0: cat", ("cat", "traffic light")),
        ("train: &a x\nval: *a", ()),
        ("", ()),
    ],
)
def test_names_of_classes_are_the_text_that_stands_in_the_yaml(
    text: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "data.yaml").write_text(text)
    assert yolo._yaml_names(tmp_path / "data.yaml") == names


@pytest.mark.parametrize(
    "text",
    [
        "names: [[a], [b]]",
        "names: cat",
        "names: {a: cat}",
        "names: &a [*a]",
        "names: [cat",
        "a: 1\na: 2",
        "just words",
        "[" * 2000,
        "a: b: c",
    ],
)
def test_other_yaml_is_refused_and_not_half_understood(text: str, tmp_path: Path) -> None:
    (tmp_path / "data.yaml").write_text(text)
    with pytest.raises(InvalidInputError, match=r"data\.yaml"):
        yolo._yaml_names(tmp_path / "data.yaml")

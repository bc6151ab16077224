from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Column, Image, Json, Tensor
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import png, store

PIXELS = np.arange(6, dtype=np.uint8).reshape(2, 3)
IMAGES = [
    {"id": 9, "file_name": "b.png", "width": 3, "height": 2, "license": 1},
    {"id": 4, "file_name": "a.png", "width": 3, "height": 2},
    {"id": 5, "file_name": "c.png"},
]
RLE = {"counts": "PP\\n`0", "size": [2, 3]}
ANNOTATIONS = [
    {"id": 1, "image_id": 4, "category_id": 18, "bbox": [0, 0.5, 2, 1], "area": 2,
     "segmentation": [[0, 0, 2, 0, 2, 1]], "iscrowd": 0},
    {"id": 2, "image_id": 9, "category_id": 1, "bbox": [1, 0, 1, 1], "area": 1.5,
     "segmentation": RLE, "iscrowd": 1},
    {"id": 3, "image_id": 4, "category_id": 1, "bbox": [1, 1, 1, 1], "area": 1,
     "segmentation": [], "iscrowd": 0},
]  # fmt: skip
CATEGORIES = [{"id": 1, "name": "person", "supercategory": "p"}, {"id": 18, "name": "dog"}]
CAPTIONS = [{"id": 7, "image_id": 9, "caption": "one é"}, {"id": 8, "image_id": 9, "caption": "b"}]


def coco(folder: Path, **changed: Any) -> Path:
    """A small data set in the layout of COCO 2017."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "val2017").mkdir()
    for image in IMAGES:
        (folder / "val2017" / str(image["file_name"])).write_bytes(png(PIXELS))
    form = {"info": {"year": 2017}, "images": IMAGES, "annotations": ANNOTATIONS}
    form |= {"categories": CATEGORIES} | changed
    write(folder, "instances_val2017", form)
    return folder


def write(folder: Path, name: str, form: dict[str, Any]) -> None:
    (folder / "annotations" / f"{name}.json").write_text(json.dumps(form))


def test_a_row_holds_an_image_and_its_objects(tmp_path: Path) -> None:
    reading = read(coco(tmp_path))
    rows = list(store(reading))
    assert [row["file"] for row in rows] == ["b.png", "a.png", "c.png"]
    row = rows[1]
    assert row["image"] == png(PIXELS)
    assert row["boxes"].tolist() == [[0, 0.5, 2, 1], [1, 1, 1, 1]]
    assert row["categories"].tolist() == [18, 1]
    assert row["names"] == ["dog", "person"]
    assert row["segmentation"] == [[[0, 0, 2, 0, 2, 1]], []]
    assert (row["image_id"], row["width"], row["height"]) == (4, 3, 2)
    assert rows[0]["segmentation"] == [RLE]
    assert rows[0]["iscrowd"].tolist() == [True]
    assert rows[2]["boxes"].shape == (0, 4)
    assert rows[2]["width"] is None


def test_columns_are_those_that_annotations_have(tmp_path: Path) -> None:
    schema = read(coco(tmp_path)).schema
    assert schema.column("image") == Column("image", Image("png"))
    assert schema.column("boxes").type == Tensor("float32", (None, 4))
    assert schema.column("segmentation").type == Json()
    assert "keypoints" not in schema
    assert "captions" not in schema


def test_classes_are_told_with_their_numbers(tmp_path: Path) -> None:
    assert read(coco(tmp_path)).properties["categories"] == CATEGORIES


def test_captions_of_another_file_join_by_image(tmp_path: Path) -> None:
    coco(tmp_path)
    write(tmp_path, "captions_val2017", {"images": IMAGES, "annotations": CAPTIONS})
    rows = list(store(read(tmp_path)))
    assert [row["captions"] for row in rows] == [["one é", "b"], [], []]
    assert rows[0]["categories"].tolist() == [1]


def test_key_points_have_a_column_of_their_own(tmp_path: Path) -> None:
    points = [{**ANNOTATIONS[0], "keypoints": [1, 2, 2, 0, 0, 0], "num_keypoints": 1}]
    rows = list(store(read(coco(tmp_path, annotations=points))))
    assert rows[1]["keypoints"].tolist() == [[[1, 2, 2], [0, 0, 0]]]
    assert rows[0]["keypoints"].shape == (0, 2, 3)


def test_the_folder_is_recognised_although_it_holds_images(tmp_path: Path) -> None:
    assert recognise(coco(tmp_path)).name == "coco"


def test_one_annotation_file_is_enough(tmp_path: Path) -> None:
    path = coco(tmp_path) / "annotations" / "instances_val2017.json"
    assert len(store(read(path))) == 3


def test_several_sets_ask_for_one(tmp_path: Path) -> None:
    coco(tmp_path)
    write(tmp_path, "instances_train2017", {"images": IMAGES, "annotations": []})
    with pytest.raises(InvalidInputError, match=r"several sets.*split="):
        read(tmp_path)
    assert read(tmp_path, split="val2017").rows == 3


def test_an_image_without_a_file_is_named(tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "val2017" / "a.png").unlink()
    with pytest.raises(InvalidInputError, match=r"lacks 'a\.png'.*missing=skip"):
        read(tmp_path)


def test_images_without_a_file_can_be_left_out(tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "val2017" / "a.png").unlink()
    reading = read(tmp_path, missing="skip")
    assert [row["file"] for row in store(reading)] == ["b.png", "c.png"]
    assert "a.png" in reading.notes[0]


def test_a_damaged_image_can_be_left_out(tmp_path: Path) -> None:
    coco(tmp_path)
    (tmp_path / "val2017" / "a.png").write_bytes(png(PIXELS)[:-9])
    with pytest.raises(InvalidInputError, match="cut short"):
        store(read(tmp_path))
    reading = read(tmp_path, damaged="skip")
    assert [row["file"] for row in store(reading)] == ["b.png", "c.png"]
    assert reading.damage.count == 1
    assert "a.png" in reading.damage.skipped[0].source


@pytest.mark.parametrize("name", ["../secret.png", "/etc/passwd", "x/../../y.png", ""])
def test_no_name_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    coco(tmp_path, images=[{"id": 4, "file_name": name}], annotations=[])
    with pytest.raises(InvalidInputError, match="inside this folder"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"annotations": [{"image_id": 77, "category_id": 1, "bbox": [0, 0, 1, 1]}]}, "image 77"),
        ({"annotations": [{"image_id": 4, "category_id": 1}]}, "no bbox"),
        ({"annotations": [{"image_id": 4, "bbox": [1, 2], "category_id": 1}]}, "bbox"),
        ({"annotations": [{"category_id": 1}]}, "annotations at byte"),
        ({"images": [*IMAGES, IMAGES[0]]}, "twice"),
        ({"images": []}, "no images"),
        ({"annotations": [{"image_id": 4, "segments_info": [{}]}]}, "panoptic"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        store(read(coco(tmp_path, **changed)))

"""What is written for COCO and YOLO is what their readers give, and each becomes the other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.evolve import set_properties
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Image, Json, Tensor, Text
from tensorrepo.formats.exchange.base import OpenedSource
from tensorrepo.formats.exchange.registry import export, read
from tensorrepo.repo.errors import InvalidInputError
from tests.formats.exchange.images.test_coco import ANNOTATIONS, CATEGORIES, IMAGES, coco
from tests.support.builders.foreign import dataset_of, png, rows_of, store

SIZE = (20, 10)  # width and height
BOX = [4.0, 2.0, 8.0, 4.0]  # x, y, width, height in pixels
PART = [0.4, 0.4, 0.4, 0.4]  # the same as centre and sizes in parts
PICTURE = png(np.zeros((SIZE[1], SIZE[0]), np.uint8))


def stored(reading: OpenedSource) -> StoredDataset:
    """With its properties, as `add` keeps them."""
    dataset = store(reading)
    link = set_properties(dataset.objects, dataset, dict(reading.properties))
    return open_dataset(dataset.objects, link.digest)


def measured(dataset: StoredDataset) -> list[dict[str, Any]]:
    """Its rows, with the sizes that pictures have where annotations do not say them."""
    return [row | {"width": 3, "height": 2} for row in rows_of(dataset)]


def of_objects(boxes: list[list[float]], **columns: tuple[Any, Any]) -> StoredDataset:
    types = {"image": Image("png"), "boxes": Tensor("float32", (None, 4))}
    rows = {"image": [PICTURE], "boxes": [np.array(boxes, np.float32).reshape(-1, 4)]}
    types |= {name: kind for name, (kind, _) in columns.items()}
    return dataset_of(types, rows | {name: [value] for name, (_, value) in columns.items()})


def test_coco_comes_back(tmp_path: Path) -> None:
    dataset = stored(read(coco(tmp_path / "from")))
    export(dataset, tmp_path / "to", "coco")
    again = read(tmp_path / "to")
    assert again.origin.format == "coco"
    assert rows_of(store(again)) == measured(dataset)
    assert again.properties == dataset.properties
    written = json.loads((tmp_path / "to/annotations/instances.json").read_text())
    assert [image["file_name"] for image in written["images"]] == [i["file_name"] for i in IMAGES]
    assert len(written["annotations"]) == len(ANNOTATIONS)
    assert written["categories"] == CATEGORIES


def test_captions_and_key_points_come_back(tmp_path: Path) -> None:
    people = [{"id": 1, "name": "person", "keypoints": ["nose"], "skeleton": []}]
    notes = [{**ANNOTATIONS[0], "category_id": 1, "keypoints": [1, 2, 2], "num_keypoints": 1}]
    notes += [{"id": 9, "image_id": 9, "caption": "one é"}]
    dataset = stored(read(coco(tmp_path / "from", categories=people, annotations=notes)))
    export(dataset, tmp_path / "to", "coco")
    assert rows_of(store(read(tmp_path / "to"))) == measured(dataset)


@pytest.mark.parametrize("outline", [[0.1, 0.1, 0.5, 0.1, 0.5, 0.5], None])
def test_yolo_comes_back(tmp_path: Path, outline: list[float] | None) -> None:
    dataset = of_objects(
        [PART, PART],
        categories=(Tensor("int64", (None,)), np.array([1, 0])),
        names=(Json(), ["dog", "cat"]),
        segmentation=(Json(), [outline, outline]),
        split=(ClassLabel(("train", "val")), "train"),
        file=(Text(), "train/images/a.png"),
    )
    export(dataset, tmp_path / "to", "yolo")
    assert (tmp_path / "to/images/train/a.png").read_bytes() == PICTURE
    again = read(tmp_path / "to")
    (row,) = rows_of(store(again))
    assert again.origin.format == "yolo"
    assert row["names"] == ["dog", "cat"]
    assert row.get("segmentation", [None, None]) == [outline, outline]
    boxes = np.array(row["boxes"])
    assert np.allclose(boxes, PART if outline is None else [0.3, 0.3, 0.4, 0.4])


def test_boxes_in_pixels_are_parts_for_yolo_and_back(tmp_path: Path) -> None:
    names = (Json(), ["dog"])
    pixels = of_objects([BOX], names=names)
    export(pixels, tmp_path / "yolo", "yolo", boxes="pixels")
    (row,) = rows_of(store(read(tmp_path / "yolo")))
    assert (row["boxes"], row["names"]) == ([pytest.approx(PART)], ["dog"])
    export(of_objects([PART], names=names), tmp_path / "coco", "coco")
    (row,) = rows_of(store(read(tmp_path / "coco")))
    assert (row["boxes"], row["names"]) == ([pytest.approx(BOX)], ["dog"])
    assert row["area"] == [pytest.approx(32)]


def test_splits_are_files_of_their_own(tmp_path: Path) -> None:
    kind = ClassLabel(("train", "val"))
    export(of_objects([PART], split=(kind, "val")), tmp_path / "to", "coco")
    assert [each.name for each in (tmp_path / "to/annotations").iterdir()] == ["instances_val.json"]
    assert rows_of(store(read(tmp_path / "to", split="val")))[0]["names"] == ["object"]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (of_objects([BOX]), {}, "is no part of a picture.*boxes=pixels"),
        (of_objects([BOX]), {"boxes": "feet"}, "boxes is pixels or parts"),
        (of_objects([PART], x=("int64", 3)), {}, "column 'x'.*no place"),
        (of_objects([PART], file=(Text(), "../a.png")), {}, "is no path in a folder"),
        (dataset_of({"image": Image()}, {"image": [b"nothing"]}), {}, "there are no objects"),
        (dataset_of({"a": "int64"}, {"a": [1]}), {}, "one column of images"),
    ],
)
@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_what_has_no_place_is_refused(
    tmp_path: Path,
    dataset: StoredDataset,
    options: dict[str, str],
    message: str,
    format: str,  # noqa: A002
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        export(dataset, tmp_path / "to", format, **options)
    assert not (tmp_path / "to").exists()

"""Hidden columns follow their image through every change."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tensorrepo.formats.dataset.evolve import add_column, drop_column, rename_column, widen_column
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Image, Schema
from tensorrepo.formats.dataset.selecting.select_rows import find_rows
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

Pillow = pytest.importorskip("PIL.Image")
COUNT = 60


def _picture(height: int, width: int = 7) -> bytes:
    target = io.BytesIO()
    Pillow.new("L", (width, height)).save(target, "png")
    return target.getvalue()


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def dataset(objects: MemoryObjects) -> StoredDataset:
    """Pictures as high as their number, from 1 on."""
    schema = Schema.of({"n": "int64", "image": Image("png")})
    rows = {"n": range(COUNT), "image": [_picture(at + 1) for at in range(COUNT)]}
    return stored(objects, schema, [rows], page_bytes=1000)


def _heights(objects: MemoryObjects, link: ObjectLink, name: str = "image") -> list[Any]:
    found: list[Any] = open_dataset(objects, link.digest)[f"{name}.height"][:].tolist()
    return found


def test_sizes_follow_new_pictures(objects: MemoryObjects, dataset: StoredDataset) -> None:
    link = update_rows(objects, dataset, [0, 9], {"image": [_picture(100), b"no picture"]})
    assert _heights(objects, link) == [100, *range(2, 10), None, *range(11, COUNT + 1)]


def test_sizes_follow_an_upsert(objects: MemoryObjects, dataset: StoredDataset) -> None:
    rows = {"n": [5, COUNT], "image": [_picture(200), _picture(300)]}
    found = _heights(objects, upsert(objects, dataset, "n", [rows]))
    assert (found[5], found[-1]) == (200, 300)


def test_a_column_of_pictures_brings_its_sizes(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    pictures = [_picture(2 * at + 1) for at in range(COUNT)]
    link = add_column(objects, dataset, Column("mask", Image()), pictures)
    assert _heights(objects, link, "mask") == list(range(1, 2 * COUNT, 2))
    assert open_dataset(objects, link.digest).schema.visible.names == ("n", "image", "mask")


def test_a_default_picture_has_its_size(objects: MemoryObjects, dataset: StoredDataset) -> None:
    link = add_column(objects, dataset, Column("mask", Image(), default=_picture(33)))
    assert _heights(objects, link, "mask") == [33] * COUNT


def test_sizes_are_called_like_their_image(objects: MemoryObjects, dataset: StoredDataset) -> None:
    link = rename_column(objects, dataset, "image", "photo")
    assert _heights(objects, link, "photo")[:3] == [1, 2, 3]
    assert "image.height" not in open_dataset(objects, link.digest).schema


def test_sizes_go_with_their_image(objects: MemoryObjects, dataset: StoredDataset) -> None:
    left = open_dataset(objects, drop_column(objects, dataset, "image").digest)
    assert left.schema.names == ("n",)
    with pytest.raises(InvalidInputError, match="last one"):
        drop_column(objects, left, "n")


def test_rows_are_found_by_the_size_of_a_picture(dataset: StoredDataset) -> None:
    assert find_rows(dataset, "`image.height` > 58").tolist() == [58, 59]
    assert find_rows(dataset, "image.height > 58").tolist() == [58, 59]


@pytest.mark.parametrize(
    "change",
    [
        lambda o, d: update_rows(o, d, [0], {"image.height": 3}),
        lambda o, d: drop_column(o, d, "image.height"),
        lambda o, d: rename_column(o, d, "image.height", "height"),
        lambda o, d: widen_column(o, d, "image.height", "uint64"),
    ],
)
def test_nobody_changes_them_alone(
    objects: MemoryObjects, dataset: StoredDataset, change: Any
) -> None:
    with pytest.raises(InvalidInputError, match="follows another"):
        change(objects, dataset)

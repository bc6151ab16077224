"""Images that come with their headers are stored as images without them are."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.coerce import EncodedImages, coerce_batch
from tensorrepo.formats.dataset.schema.schema import Column, Image, Schema, Text
from tensorrepo.formats.dataset.schema.values import BinaryValues, offsets_of
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.images.headers import ImageHeader, header_of
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import png
from tests.support.builders.objects import MemoryObjects

GIVEN = [png(np.zeros(shape, np.uint8)) for shape in ((2, 3), (5, 1), (4, 4))]
SCHEMA = Schema((Column("image", Image("png")),))
SCHEMA_WITH_IDS = Schema((Column("image", Image("png"), id="0011223344556677"),))


def encoded() -> EncodedImages:
    data = np.frombuffer(b"".join(GIVEN), np.uint8)
    offsets = offsets_of(np.array(list(map(len, GIVEN)), np.int64))
    headers = [header for image in GIVEN if (header := header_of(image)) is not None]
    return EncodedImages(BinaryValues(offsets, data), headers)


def test_they_are_a_sequence_of_bytes() -> None:
    images = encoded()
    assert list(images) == GIVEN
    assert (images[0], images[-1]) == (GIVEN[0], GIVEN[-1])
    with pytest.raises(IndexError):
        images[3]


@pytest.mark.parametrize("part", [slice(1, 3), slice(2), slice(2, 1), slice(-1, None), slice(9)])
def test_a_part_keeps_images_and_headers_together(part: slice) -> None:
    images = encoded()[part]
    assert list(images) == GIVEN[part]
    assert list(images.headers) == [header_of(image) for image in GIVEN[part]]


def test_each_image_has_a_header() -> None:
    images = encoded()
    with pytest.raises(ValueError, match="3 images have 1 headers"):
        EncodedImages(images.values, images.headers[:1])


def test_the_same_dataset_comes_of_them_as_of_a_list() -> None:
    links = [
        write_dataset(MemoryObjects(), SCHEMA, [{"image": images}], rng=random.Random(0))
        for images in (encoded(), GIVEN)
    ]
    assert links[0] == links[1]


def test_their_headers_are_not_read_again() -> None:
    images = encoded()
    said = EncodedImages(images.values, [ImageHeader("png", 7, 8, "L")] * 3)
    schema = SCHEMA_WITH_IDS.with_derived()
    values = dict(zip(schema.names, coerce_batch(schema, {"image": said}), strict=True))
    sizes = [found.values.tolist() for name, found in values.items() if "height" in name]
    assert sizes == [[7, 7, 7]]


def test_a_column_of_text_does_not_take_them() -> None:
    with pytest.raises(InvalidInputError, match="expected text"):
        coerce_batch(Schema((Column("image", Text()),)), {"image": encoded()})

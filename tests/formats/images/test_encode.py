from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tensorrepo.formats.images.encode import encode_image
from tensorrepo.formats.images.headers import codec_of
from tensorrepo.repo.errors import InvalidInputError

SHAPES = [(5, 7), (5, 7, 1), (5, 7, 2), (5, 7, 3), (5, 7, 4)]


@pytest.mark.parametrize("shape", SHAPES)
def test_pixels_come_back_as_they_were(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    found = np.asarray(Image.open(io.BytesIO(encode_image(pixels, None))))
    assert np.array_equal(found, pixels.reshape(found.shape))


def test_pixels_of_16_bits_are_grey() -> None:
    pixels = np.arange(35, dtype=np.uint16).reshape(5, 7) * 1000
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(encode_image(pixels, "png")))), pixels)


@pytest.mark.parametrize("codec", ["png", "webp", "tiff", "bmp", "jpeg"])
def test_a_column_says_the_format(codec: str) -> None:
    encoded = encode_image(Image.new("RGB", (8, 8), (200, 10, 10)), codec)
    assert codec_of(encoded) == codec
    assert np.abs(np.asarray(Image.open(io.BytesIO(encoded))).astype(int)[0, 0, 0] - 200) < 5


@pytest.mark.parametrize("given", [b"x", bytearray(b"x"), memoryview(b"x")])
def test_bytes_are_taken_as_they_are(given: Any) -> None:
    assert encode_image(given, "png") == b"x"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((3, 5, 7), np.uint8), r"channels come last, as array.transpose\(1, 2, 0\)"),
        (np.zeros((5, 7)), "pixels are uint8"),
        (np.zeros(5, np.uint8), "pixels are uint8"),
        (Image.new("F", (2, 2)), "png would not keep a picture of mode 'F'.*image_format=tiff"),
        (Path("/nowhere/a.png"), "the path /nowhere/a.png, of which no bytes were read"),
    ],
)
def test_what_is_no_image_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        encode_image(given, "png")


def test_what_is_nothing_like_an_image_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="int 3"):
        encode_image(3, None)

"""Images are told by content and refused when they are cut short."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest

from tensorrepo.formats.images.headers import HEAD_BYTES, codec_of, examine
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import gif, png
from tests.support.faults.damage import places

SHAPE = (37, 53)
PIXELS = np.random.default_rng(0).integers(0, 256, (*SHAPE, 3), dtype=np.uint8)
WAYS = {
    "png": ("png", {}),
    "jpeg": ("jpeg", {}),
    "progressive jpeg": ("jpeg", {"progressive": True}),
    "gif": ("gif", {}),
    "bmp": ("bmp", {}),
    "tiff": ("tiff", {}),
    "lzw tiff": ("tiff", {"compression": "tiff_lzw"}),
    "big tiff": ("tiff", {"big_tiff": True}),
    "webp": ("webp", {}),
    "lossless webp": ("webp", {"lossless": True}),
    "extended webp": ("webp", {"exif": b"Exif\0\0 something"}),
}
every_way = pytest.mark.parametrize("way", WAYS)


def encoded(way: str) -> bytes:
    """What pillow, an encoder that is not ours, writes."""
    image = pytest.importorskip("PIL.Image", reason="pillow encodes what is examined here")
    codec, options = WAYS[way]
    file = io.BytesIO()
    image.fromarray(PIXELS).save(file, codec, **options)
    return file.getvalue()


@every_way
def test_codec_and_size_are_read_from_the_content(way: str) -> None:
    facts = examine(encoded(way))
    assert (facts.codec, facts.height, facts.width) == (WAYS[way][0], *SHAPE)


@every_way
def test_the_first_bytes_tell_the_codec(way: str) -> None:
    assert codec_of(encoded(way)[:HEAD_BYTES]) == WAYS[way][0]


@every_way
def test_no_cut_goes_unnoticed(way: str) -> None:
    data = encoded(way)
    assert {length for length in places(len(data)) if _passes(data[:length])} == set()


@every_way
def test_damaged_structure_is_refused_or_passes_but_never_crashes(way: str) -> None:
    rng = random.Random(way)
    data = encoded(way)
    outcomes = {_passes(_damaged(data, rng)) for _ in range(300)}
    assert outcomes <= {True, False}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"B",
        b"BM",
        b"BMW is a car maker",
        b"RIFF____AVI ",
        b"%PDF-1.7",
        b"GIF88a",
    ],
)
def test_what_is_no_image_is_not_taken_for_one(data: bytes) -> None:
    assert codec_of(data) is None
    with pytest.raises(InvalidInputError, match="is no PNG"):
        examine(data)


def test_an_image_without_pixels_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="0 x 5 pixels"):
        examine(png(np.zeros((0, 5), np.uint8)))


def test_bytes_after_the_end_mark_are_no_cut() -> None:
    assert examine(png(PIXELS[..., 0]) + b"trailing").height == SHAPE[0]
    assert examine(gif() + b"\0").width == 1


def test_a_jpeg_whose_thumbnail_has_an_end_mark_is_still_seen_as_cut() -> None:
    data = encoded("jpeg")
    thumbnail = b"\xff\xe1" + (2 + 4).to_bytes(2, "big") + b"\xff\xd9\xff\xd9"
    with pytest.raises(InvalidInputError, match="cut short"):
        examine(data[:2] + thumbnail + data[2:-2])


def _passes(data: bytes) -> bool:
    try:
        examine(data)
    except InvalidInputError:
        return False
    return True


def _damaged(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(3):
        damaged[rng.randrange(min(len(damaged), 300))] = rng.randrange(256)
    return bytes(damaged)

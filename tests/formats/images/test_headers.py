"""An image's header says its format, its size and its mode, as pillow says them."""

from __future__ import annotations

import io
import random

import pytest
from PIL import Image as Pillow

from tensorrepo.formats.images.headers import ImageHeader, header_of

SIZE = (53, 37)
WAYS = [
    ("png", "1"),
    ("png", "L"),
    ("png", "I;16"),
    ("png", "LA"),
    ("png", "P"),
    ("png", "RGB"),
    ("png", "RGBA"),
    ("jpeg", "L"),
    ("jpeg", "RGB"),
    ("jpeg", "CMYK"),
    ("gif", "P"),
    ("bmp", "1"),
    ("bmp", "P"),
    ("bmp", "RGB"),
    ("tiff", "1"),
    ("tiff", "L"),
    ("tiff", "I;16"),
    ("tiff", "P"),
    ("tiff", "RGB"),
    ("tiff", "RGBA"),
    ("tiff", "CMYK"),
    ("webp", "RGB"),
    ("webp", "RGBA"),
]
every_way = pytest.mark.parametrize(("codec", "mode"), WAYS)


def _encoded(codec: str, mode: str, **options: object) -> bytes:
    """What pillow, an encoder that is not ours, writes."""
    file = io.BytesIO()
    image = Pillow.new(mode, SIZE, 7 if mode in ("1", "L", "I;16", "P") else None)
    image.save(file, codec, **options)
    return file.getvalue()


@every_way
def test_a_header_says_what_pillow_says(codec: str, mode: str) -> None:
    encoded = _encoded(codec, mode)
    with Pillow.open(io.BytesIO(encoded)) as image:
        assert image.size == SIZE
        assert mode in (image.mode, "P")  # of a palette pillow looks at the colours, too
    assert header_of(encoded) == ImageHeader(codec, 37, 53, mode)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_lossless_webp_says_its_mode(mode: str) -> None:
    assert header_of(_encoded("webp", mode, lossless=True)) == ImageHeader("webp", 37, 53, mode)


@every_way
def test_a_header_is_read_from_a_view_too(codec: str, mode: str) -> None:
    encoded = _encoded(codec, mode)
    assert header_of(memoryview(encoded)) == header_of(encoded)


@every_way
def test_headers_that_are_cut_short_are_none(codec: str, mode: str) -> None:
    encoded = _encoded(codec, mode)
    found = [header_of(encoded[:length]) for length in range(10)]
    assert found == [None] * 10


@every_way
def test_damaged_headers_never_crash(codec: str, mode: str) -> None:
    encoded = bytearray(_encoded(codec, mode))
    rng = random.Random(0)
    for _ in range(300):
        damaged = bytearray(encoded)
        for _ in range(4):
            damaged[rng.randrange(min(len(damaged), 200))] = rng.randrange(256)
        found = header_of(bytes(damaged))
        assert found is None or (found.height > 0 and found.width > 0)


@pytest.mark.parametrize("data", [b"", b"text", b"RIFF1234WEBPVP9 ", b"\xff\xd8\xff\xd9"])
def test_what_has_no_header_has_none(data: bytes) -> None:
    assert header_of(data) is None

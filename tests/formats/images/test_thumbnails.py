"""Thumbnails are small, and hostile images cost little."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import numpy as np
import pytest

from tensorrepo.formats.images.thumbnails import array_thumbnail, thumbnail

Image = pytest.importorskip("PIL.Image")


def _encoded(codec: str, mode: str = "RGB", size: tuple[int, int] = (200, 100)) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, codec)
    return buffer.getvalue()


def _png_of(width: int, height: int) -> bytes:
    """A PNG of a few bytes that says it has so many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")
    parts = (
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def _size(uri: str | None) -> tuple[int, int]:
    assert uri is not None
    data = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    with Image.open(io.BytesIO(data)) as image:
        found: tuple[int, int] = image.size
        return found


@pytest.mark.parametrize(
    ("codec", "mode"),
    [("PNG", "RGB"), ("PNG", "LA"), ("PNG", "P"), ("PNG", "I;16"), ("JPEG", "RGB"),
     ("JPEG", "CMYK"), ("JPEG", "L"), ("GIF", "P"), ("WEBP", "RGB"), ("BMP", "1")],
)  # fmt: skip
def test_every_usual_image_has_one_in_its_proportions(codec: str, mode: str) -> None:
    assert _size(thumbnail(_encoded(codec, mode))) == (64, 32)


@pytest.mark.parametrize(
    "data",
    [b"", b"no image", _png_of(100_000, 100_000), _png_of(300, 300), _encoded("PNG")[:60],
     _encoded("JPEG")[:200], _encoded("TIFF")],
    ids=["nothing", "text", "bomb", "pixels missing", "cut PNG", "cut JPEG", "TIFF"],
)  # fmt: skip
def test_what_cannot_or_must_not_be_decoded_has_none(data: bytes) -> None:
    assert thumbnail(data) is None


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [("u1", (28, 28), (28, 28)), ("u1", (8, 8, 1), (8, 8)), ("u1", (100, 200, 3), (64, 32))],
)
def test_pixels_have_one(dtype: str, shape: tuple[int, ...], size: tuple[int, int]) -> None:
    assert _size(array_thumbnail(np.zeros(shape, dtype))) == size


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("u1", (28,)), ("u1", (2, 2)), ("u1", (9, 9, 5)), ("f4", (28, 28)), ("u1", (5000, 10))],
)
def test_other_arrays_are_no_pictures(dtype: str, shape: tuple[int, ...]) -> None:
    assert array_thumbnail(np.zeros(shape, dtype)) is None

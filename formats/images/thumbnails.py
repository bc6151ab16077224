"""Thumbnails of images: small PNGs for notebooks and pages, of bounded time, memory and size.

The header is read first, by our own reader: what says that it is large is not decoded at all, so
that a file of a few kilobytes cannot ask for gigabytes of pixels. JPEGs are decoded at a fraction
of their size. Whatever cannot be decoded, and everything where pillow is missing, has none.
"""

from __future__ import annotations

import base64
import io
import warnings
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.images.headers import header_of

SIDE_PIXELS: Final = 64
MOST_BYTES: Final = 16 << 20  # of an encoded image
MOST_PIXELS: Final = 1 << 24  # of one that is decoded whole
MOST_JPEG_PIXELS: Final = 1 << 27  # libjpeg decodes an eighth of each side
_FORMATS: Final = {"jpeg": "JPEG", "png": "PNG", "gif": "GIF", "bmp": "BMP", "webp": "WEBP"}
_LEAST_SIDE: Final = 4
_MOST_ARRAY_SIDE: Final = 4096


def thumbnail(encoded: bytes | memoryview, side_pixels: int = SIDE_PIXELS) -> str | None:
    """A ``data:`` URI of an encoded image, no side above `side_pixels`; None: it has none."""
    return _data_uri(small_png(encoded, side_pixels))


def small_png(encoded: bytes | memoryview, side_pixels: int = SIDE_PIXELS) -> bytes | None:
    """An encoded image as a PNG, no side above `side_pixels`, and none larger than it was.

    None where it cannot be decoded within bounds.
    """
    if len(encoded) > MOST_BYTES or (header := header_of(encoded)) is None:
        return None
    most = MOST_JPEG_PIXELS if header.codec == "jpeg" else MOST_PIXELS
    if header.codec not in _FORMATS or header.height * header.width > most:
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(io.BytesIO(encoded), formats=[_FORMATS[header.codec]]) as image,
        ):
            image.draft("RGB" if image.mode == "RGB" else "L", (side_pixels, side_pixels))
            if image.width * image.height > MOST_PIXELS:
                return None
            plain = image.convert("RGBA" if "A" in image.mode or image.mode == "P" else "RGB")
            return _png(plain, side_pixels)
    except (OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError):
        return None


def array_thumbnail(pixels: NDArray[Any], side_pixels: int = SIDE_PIXELS) -> str | None:
    """The same of pixels: uint8 ``(height, width)``, or with 1, 3 or 4 channels behind."""
    return _data_uri(small_array_png(pixels, side_pixels))


def small_array_png(pixels: NDArray[Any], side_pixels: int = SIDE_PIXELS) -> bytes | None:
    """Pixels, as `array_thumbnail` takes them, as a PNG; None for what are none."""
    if not looks_like_pixels(pixels.dtype, pixels.shape):
        return None
    try:
        from PIL import Image
    except ImportError:
        return None
    flat = pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels
    return _png(Image.fromarray(np.ascontiguousarray(flat)), side_pixels)


def looks_like_pixels(dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> bool:
    """Whether arrays of this type and shape are taken for pictures; None is a size that varies."""
    if (
        dtype != np.uint8
        or len(shape) not in {2, 3}
        or (len(shape) == 3 and shape[2] not in {1, 3, 4})
    ):
        return False
    return all(side is None or _LEAST_SIDE <= side <= _MOST_ARRAY_SIDE for side in shape[:2])


def _png(image: Any, side_pixels: int) -> bytes:
    image.thumbnail((side_pixels, side_pixels))
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=False)
    return buffer.getvalue()


def _data_uri(png: bytes | None) -> str | None:
    return None if png is None else f"data:image/png;base64,{base64.b64encode(png).decode()}"

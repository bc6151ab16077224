"""Pictures for tests, and what they are encoded as. Needs the extra `images`."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]


def smooth(height: int, width: int, channels: int = 3, seed: int = 0) -> Pixels:
    """Pixels that change slowly, as in photographs, differently in every channel."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (5, 5, channels), np.uint8)
    planes = [
        np.asarray(
            Image.fromarray(coarse[..., at]).resize((width, height), Image.Resampling.BICUBIC)
        )
        for at in range(channels)
    ]
    return np.stack(planes, axis=-1)


def jpeg(pixels: Pixels, quality: int = 90) -> bytes:
    space = "GRAY" if pixels.shape[-1] == 1 else "RGB"
    encoded: bytes = simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), quality, space)
    return encoded


def encoded(pixels: Pixels, form: str, mode: str | None = None, **options: Any) -> bytes:
    """`pixels` as pillow writes them, first turned into `mode`."""
    image = Image.fromarray(
        pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    )
    out = io.BytesIO()
    deep = image if mode is None else image.convert(mode)
    deep.save(out, form, **options)
    return out.getvalue()


def with_orientation(data: bytes, orientation: int) -> bytes:
    """A JPEG with EXIF that says how it is to be turned."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    block = exif.tobytes()
    block = block if block.startswith(b"Exif\0\0") else b"Exif\0\0" + block
    return data[:2] + b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big") + block + data[2:]


def by_pillow(data: bytes, mode: str = "RGB") -> Pixels:
    """``(height, width, channels)``, decoded by pillow alone."""
    with Image.open(io.BytesIO(data)) as image:
        found = np.asarray(image.convert(mode))
    return found.reshape(*found.shape[:2], -1)


def resized_by_pillow(
    pixels: Pixels, size: tuple[int, int], box: tuple[int, int, int, int] | None = None
) -> Pixels:
    """To (height, width), from a box (left, top, right, bottom)."""
    image = Image.fromarray(
        pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels
    )
    found = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box))
    return found.reshape(*size, -1)


def shades_apart(one: Any, other: Any) -> int:
    """The largest difference of two pictures, in shades of 255."""
    return int(np.abs(np.asarray(one, np.int64) - np.asarray(other, np.int64)).max())

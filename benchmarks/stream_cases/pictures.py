"""JPEGs like those of ImageNet: 500 x 375, about 50 KB, smooth content under noise.

And what every side makes of one: the middle, 224 x 224, decoded by simplejpeg and resized by OpenCV
as `Decode(size=224)` does, to the bit. Needs none of ours, so that the peers use it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import cv2
import numpy as np
import simplejpeg

HEIGHT, WIDTH, QUALITY = 375, 500, 90
SIZE = 224
_COARSE = 12  # points a side that the smooth content goes through
_NOISES = 16


def jpegs(count: int, seed: int = 7) -> Iterator[bytes]:
    """`count` different pictures; the same seed gives the same ones."""
    rng = np.random.default_rng(seed)
    noises = rng.normal(0, 6, (_NOISES, HEIGHT, WIDTH, 3)).astype(np.float32)
    down = _weights(HEIGHT)
    across = _weights(WIDTH)
    for number in range(count):
        coarse = rng.uniform(0, 255, (_COARSE, _COARSE, 3)).astype(np.float32)
        smooth = np.einsum("hi,ijc,wj->hwc", down, coarse, across, optimize=True)
        noise = np.roll(noises[number % _NOISES], int(rng.integers(WIDTH)), axis=1)
        pixels = np.clip(smooth + noise, 0, 255).astype(np.uint8)
        yield simplejpeg.encode_jpeg(pixels, quality=QUALITY, colorsubsampling="420")


def decoded(data: bytes, out: np.ndarray | None = None) -> np.ndarray:
    """The middle of a picture, uint8 ``(224, 224, 3)``."""
    middle = simplejpeg.decode_jpeg(data)[:, (WIDTH - HEIGHT) // 2 :][:, :HEIGHT]
    weight = ((HEIGHT / SIZE) ** 2 - 1) / 12
    sigma = math.sqrt(0.5 / math.log((1 - 2 * weight) / weight))
    smooth = cv2.GaussianBlur(middle, (3, 3), sigma, sigmaY=sigma)
    return cv2.resize(smooth, (SIZE, SIZE), dst=out, interpolation=cv2.INTER_LINEAR)


def _weights(size: int) -> np.ndarray:
    """How much each coarse point adds to each pixel: linear, ``(size, _COARSE)``."""
    place = np.linspace(0, _COARSE - 1, size, dtype=np.float32)[:, None]
    return np.maximum(0, 1 - np.abs(place - np.arange(_COARSE, dtype=np.float32)))

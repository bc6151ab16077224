"""Heat maps: numbers of a tensor as a small PNG of 256 colors, dark for little, bright for much.

Written here: an indexed PNG is a table of colors and one deflated stream, and nothing is decoded.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MOST_SIDE: Final = 256
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
# Matplotlib's viridis at equal distances: its brightness grows evenly, in gray as well.
_ANCHORS: Final = (
    0x440154, 0x482475, 0x414487, 0x355F8D, 0x2A788E, 0x21918C, 0x22A884, 0x44BF70, 0x7AD151,
    0xBDDF26, 0xFDE725,
)  # fmt: skip
_NOT_FINITE: Final = 0  # index of the color of NaN and infinities: gray


def heat_map_png(values: NDArray[Any]) -> bytes:
    """A PNG of the numbers of a tensor, a pixel each; larger ones are sampled.

    One axis is a row, of more than two the first ones are stacked from top to bottom. Complex
    numbers are told by their size.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = np.abs(values) if values.dtype.kind == "c" else values
        plane = _plane(numbers.astype(np.float64))
        finite = np.isfinite(plane)
        low = float(plane[finite].min()) if finite.any() else 0.0
        high = float(plane[finite].max()) if finite.any() else 0.0
        span = high / 2 - low / 2  # halves: the difference of two floats may be infinite
        share = (plane / 2 - low / 2) / span if span > 0 else np.full(plane.shape, 0.5)
        colors = np.where(finite, 1 + np.clip(share, 0, 1) * 254, _NOT_FINITE)
    return indexed_png(np.nan_to_num(colors).astype(np.uint8), palette())


def heat_map_uri(values: NDArray[Any]) -> str:
    """The same as a ``data:`` URI."""
    return f"data:image/png;base64,{base64.b64encode(heat_map_png(values)).decode()}"


def palette() -> NDArray[np.uint8]:
    """uint8 ``(256, 3)``: gray, then 255 colors from little to much."""
    anchors = np.array([[one >> 16, one >> 8 & 255, one & 255] for one in _ANCHORS])
    at = np.linspace(0, len(anchors) - 1, 255)
    ramp = np.stack([np.interp(at, range(len(anchors)), anchors[:, c]) for c in range(3)], axis=1)
    return np.concatenate([[[128, 128, 128]], ramp.round()]).astype(np.uint8)


def indexed_png(pixels: NDArray[np.uint8], colors: NDArray[np.uint8]) -> bytes:
    """A PNG of indices, uint8 ``(height, width)``, into colors, uint8 ``(256, 3)``.

    Source:
        Portable Network Graphics, W3C Recommendation, 2003, sections 5 and 11.
    """
    height, width = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels], axis=1)  # filter 0: none
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = (
        (b"IHDR", header),
        (b"PLTE", colors.tobytes()),
        (b"IDAT", zlib.compress(lines.tobytes())),
    )
    return b"".join([_SIGNATURE, *(_chunk(*part) for part in parts), _chunk(b"IEND", b"")])


def _chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def _plane(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """``(height, width)``, no side above `MOST_SIDE`, neither empty."""
    if values.size == 0:
        return np.zeros((1, 1))
    flat = values.reshape(1, -1) if values.ndim < 2 else values.reshape(-1, values.shape[-1])
    rows, columns = (
        np.linspace(0, side - 1, min(side, MOST_SIDE)).astype(np.int64) for side in flat.shape
    )
    return flat[np.ix_(rows, columns)]

"""Bit unpacking: numbers that are stored as distances of a few bits from the smallest one.

Bit `b` of distance `i` is bit ``i * width + b`` of the packed bytes, so eight distances of any
width begin and end at whole bytes.

`NATIVE` does it in C (packed_numbers.c beside this) where it was built, `NUMPY` everywhere, with
identical results; `BEST` is the first that there is.

Source:
    docs/spec/dataset.md, section "Codecs".
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import kernels

MAX_WIDTH: Final = 56  # a distance and the bits before it fit 8 bytes
GROUP: Final = 8
_BLOCK: Final = 8192  # groups at a time: what is computed stays in cache


class Unpacker:
    """Unpacks a block at a time, by passes of numpy."""

    name = "numpy"

    def unpack(
        self, packed: NDArray[np.uint8], width: int, minimum: int, out: NDArray[Any]
    ) -> None:
        """Fill `out`, unsigned numbers of 1, 2, 4 or 8 bytes, with `minimum` plus each distance.

        Sums are taken modulo the range of a number.

        Raises:
            ValueError: a width that is not 1 to `MAX_WIDTH` and at most that of a number, or bytes
                that are not those of as many distances as `out` has numbers.
        """
        if not 1 <= width <= min(MAX_WIDTH, 8 * out.itemsize):
            raise ValueError(f"numbers of {out.itemsize} bytes have no distances of {width} bits")
        if len(packed) != -(-len(out) * width // 8):
            raise ValueError(f"{len(packed)} bytes are not {len(out)} distances of {width} bits")
        step = GROUP * _BLOCK
        for start in range(0, len(out), step):
            stop = min(len(out), start + step)
            part = packed[start * width // 8 : -(-stop * width // 8)]
            _unpack_block(part, width, out[start:stop])
        out += out.dtype.type(minimum)


class NativeUnpacker(Unpacker):
    """In C, without the interpreter lock."""

    name = "native"

    def unpack(
        self, packed: NDArray[np.uint8], width: int, minimum: int, out: NDArray[Any]
    ) -> None:
        kernels.unpack_numbers(packed, width, minimum, out.itemsize, out)


def _unpack_block(packed: NDArray[np.uint8], width: int, out: NDArray[Any]) -> None:
    if width == 1:
        out[...] = np.unpackbits(packed, count=len(out), bitorder="little")
        return
    if width in (2, 4):
        lanes = np.empty((len(packed), 8 // width), out.dtype)
        for place in range(8 // width):
            lanes[:, place] = (packed >> place * width) & ((1 << width) - 1)
        out[...] = lanes.reshape(-1)[: len(out)]
        return
    groups = -(-len(out) // GROUP)
    # As wide as needed, as narrow as possible: a number begins up to 7 bits into its window.
    window = np.dtype("<u4" if width + 7 <= 32 else "<u8")
    padded = np.zeros(groups * width + window.itemsize, np.uint8)
    padded[: len(packed)] = packed
    found = np.empty((groups, GROUP), out.dtype)
    mask = window.type((1 << width) - 1)
    for place in range(GROUP):
        at, shift = divmod(place * width, 8)
        windows = np.ndarray((groups,), window, padded.data, at, (width,))
        found[:, place] = (windows >> window.type(shift)) & mask
    out[...] = found.reshape(-1)[: len(out)]


NUMPY = Unpacker()
NATIVE: Unpacker | None = None if kernels is None else NativeUnpacker()
BEST: Unpacker = NATIVE or NUMPY

"""Digests of rows, mixed cell by cell: rows told apart within one process.

`NATIVE` does it in C (row_digests.c beside this) where it was built, `NUMPY` everywhere, with
identical results; `BEST` is the first that there is. Nothing stores these digests.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import kernels

_FIRST: Final = np.uint64(0x9E3779B185EBCA87)
_SECOND: Final = np.uint64(0xC2B2AE3D27D4EB4F)
_THIRD: Final = np.uint64(0x165667B19E3779F9)
_FOURTH: Final = np.uint64(0x85EBCA77C2B2AE63)
_ROUNDS: Final = ((_FIRST, _SECOND), (_THIRD, _FOURTH))


def new_lanes(rows: int) -> NDArray[np.uint64]:
    """Digests of rows without cells: ``(rows, 2)``."""
    return np.tile(np.array([_FIRST, _THIRD]), (rows, 1))


class CellMixer:
    """Mixes a cell of each row into the digest of its row; in numpy, a word of all rows at once."""

    name = "numpy"

    def mix(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        valid: NDArray[np.bool_] | None,
        lanes: NDArray[np.uint64],
    ) -> None:
        """Mix the bytes ``data[offsets[i]:offsets[i + 1]]`` into ``lanes[i]``, in place.

        Of a row that is not `valid` its being null is mixed; None: all are.

        Raises:
            ValueError: offsets that do not ascend within `data`, or are not one more than lanes.
        """
        lengths = np.diff(offsets)
        fits = len(lengths) == len(lanes) and offsets[0] >= 0 and offsets[-1] <= len(data)
        if not fits or (lengths < 0).any():
            raise ValueError(f"{len(offsets)} offsets for {len(lanes)} rows of {len(data)} bytes")
        known = lengths if valid is None else np.where(valid, lengths, -1)
        lengths = np.maximum(known, 0)
        _mix_words(lanes, slice(None), known.view(np.uint64))
        padded = np.append(data, np.zeros(8, np.uint8))
        for at in range(0, int(lengths.max(initial=0)), 8):
            rows = np.flatnonzero(lengths > at)
            cut = padded[offsets[rows, None] + at + np.arange(8)]
            cut[np.arange(8) >= lengths[rows, None] - at] = 0
            _mix_words(lanes, rows, cut.view("<u8")[:, 0])
        for lane in range(2):
            lanes[:, lane] = _finished(lanes[:, lane])


def _mix_words(
    lanes: NDArray[np.uint64], rows: NDArray[np.int64] | slice, words: NDArray[np.uint64]
) -> None:
    for lane, (one, two) in enumerate(_ROUNDS):
        mixed = lanes[rows, lane] ^ words * two
        lanes[rows, lane] = (mixed << np.uint64(31) | mixed >> np.uint64(33)) * one


def _finished(lane: NDArray[np.uint64]) -> NDArray[np.uint64]:
    lane = (lane ^ lane >> np.uint64(33)) * _SECOND
    lane = (lane ^ lane >> np.uint64(29)) * _THIRD
    return lane ^ lane >> np.uint64(32)


class NativeCells(CellMixer):
    """In C, without the interpreter lock."""

    name = "native"

    def mix(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int64],
        valid: NDArray[np.bool_] | None,
        lanes: NDArray[np.uint64],
    ) -> None:
        # Rows that all have a default repeat one value without memory for each.
        mask = None if valid is None else np.ascontiguousarray(valid)
        kernels.mix_cells(data, np.ascontiguousarray(offsets), mask, lanes)


NUMPY = CellMixer()
NATIVE: CellMixer | None = None if kernels is None else NativeCells()
BEST: CellMixer = NATIVE or NUMPY

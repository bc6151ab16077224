"""Row sums: the low halves of the XXH3 of rows that lie one behind the other, copied on the way;
and pages made of such rows and their sums.

`NATIVE` does it in C (row_sums.c beside this) where it was built, `PYTHON` everywhere, with
identical results; `BEST` is the first that there is.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.native.extensions import kernels

# It takes arrays too, which type checkers know as buffers from Python 3.12 on only.
_XXH3: Any = xxh3_64_intdigest
_PAD = 64


class RowSummer:
    """Sums rows, by one call of a library for each."""

    name = "python"

    def sum(
        self,
        data: NDArray[np.uint8],
        bounds: NDArray[np.int64],
        out: NDArray[np.uint32],
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        """Fill ``out[i]`` with the sum of the bytes ``data[bounds[i]:bounds[i + 1]]``.

        The bytes of all rows go to `copy`, if there is one, and are summed as they arrive there.

        Raises:
            ValueError: bounds that do not ascend within `data`, or are not one more than sums; or a
                copy of another size.
        """
        fits = len(bounds) == len(out) + 1 and bounds[0] >= 0 and bounds[-1] <= len(data)
        if not fits or (np.diff(bounds) < 0).any():
            raise ValueError(f"{len(bounds)} bounds for {len(out)} rows of {len(data)} bytes")
        if copy is not None:
            copy[...] = data[bounds[0] : bounds[-1]]
            data, bounds = copy, bounds - bounds[0]
        rows = (data[start:stop] for start, stop in pairwise(bounds.tolist()))
        out[...] = np.fromiter(map(_XXH3, rows), np.uint64, len(out)).astype(np.uint32)

    def fill(
        self,
        rows: list[NDArray[np.uint8]],
        heads: list[bytes],
        rooms: list[NDArray[np.uint8]],
        row_bytes: int,
    ) -> NDArray[np.uint64]:
        """Fill pages with a head of 64 bytes, rows of `row_bytes` each, and a sum for each row.

        Rows and sums are padded with zeros to multiples of 64 bytes; there are three lists of
        parts, one part a page.

        Returns:
            The XXH3 of each page.

        Raises:
            ValueError: a room that is not as large as what goes there, or no whole rows.
        """
        found = np.empty(len(rooms), np.uint64)
        for at, (data, head, room) in enumerate(zip(rows, heads, rooms, strict=True)):
            bounds = np.arange(0, len(data) + 1, row_bytes)
            sums = np.empty(len(bounds) - 1, "<u4")
            sums_at = _PAD + -(-len(data) // _PAD) * _PAD
            size = sums_at + -(-sums.nbytes // _PAD) * _PAD
            if bounds[-1] != len(data) or len(head) != _PAD or len(room) != size:
                raise ValueError(f"{len(data)} bytes of rows for a page of {len(room)}")
            room[:] = 0
            room[:_PAD] = np.frombuffer(head, np.uint8)
            PYTHON.sum(data, bounds, sums, room[_PAD : _PAD + len(data)])
            room[sums_at : sums_at + sums.nbytes] = sums.view(np.uint8)
            found[at] = _XXH3(room)
        return found


class NativeSums(RowSummer):
    """In C, without the interpreter lock."""

    name = "native"

    def sum(
        self,
        data: NDArray[np.uint8],
        bounds: NDArray[np.int64],
        out: NDArray[np.uint32],
        copy: NDArray[np.uint8] | None = None,
    ) -> None:
        kernels.sum_rows(data, bounds, out, copy)

    def fill(
        self,
        rows: list[NDArray[np.uint8]],
        heads: list[bytes],
        rooms: list[NDArray[np.uint8]],
        row_bytes: int,
    ) -> NDArray[np.uint64]:
        found = np.empty(len(rooms), np.uint64)
        kernels.fill_pages(rows, heads, rooms, row_bytes, found)
        return found


PYTHON = RowSummer()
NATIVE: RowSummer | None = None if kernels is None else NativeSums()
BEST: RowSummer = NATIVE or PYTHON

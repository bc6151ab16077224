"""Row sums: the low halves of the XXH3 of rows that lie one behind the other, copied on the way.

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


PYTHON = RowSummer()
NATIVE: RowSummer | None = None if kernels is None else NativeSums()
BEST: RowSummer = NATIVE or PYTHON

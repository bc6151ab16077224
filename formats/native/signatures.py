"""Nearest signatures: of each of some rows of bits the others that differ in fewest of them.

Every row is compared with all, so the cost is quadratic in rows. `NATIVE` does it in C
(signatures.c beside this) where it was built, `NUMPY` everywhere, with identical results; `BEST` is
the first that there is.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs


class NearestSignatures:
    """Finds them in numpy."""

    name = "numpy"

    def nearest(
        self,
        words: NDArray[np.uint64],
        known: NDArray[np.bool_],
        few: int,
        first: int,
        out: NDArray[np.int64],
    ) -> None:
        """For rows ``[first, first + len(out))`` the `few` nearest others, the nearest first.

        Of those that differ in as many bits the ones next to it come first, of two the one before.

        Args:
            words: bits of every row, ``(rows, width)``.
            known: whether a row has bits, ``(rows,)``; one without is taken for equal to all.
            few: number of others, 1 to 16, and less than there are rows.
            first: number of the first row that is asked for.
            out: room for numbers of rows, ``(n, few)``.
        """
        places = np.arange(len(words))
        for at, room in enumerate(out, first):
            keys = np.abs(places - at) << 1 | (places > at)
            if known[at]:
                bits = np.bitwise_count(words ^ words[at]).sum(1, dtype=np.int64)
                keys |= np.where(known, bits, 0) << 41
            keys[at] = np.iinfo(keys.dtype).max
            nearest = np.argpartition(keys, few)[:few]
            room[:] = nearest[np.argsort(keys[nearest])]


class NativeNearest(NearestSignatures):
    """In C, without the interpreter lock."""

    name = "native"

    def nearest(
        self,
        words: NDArray[np.uint64],
        known: NDArray[np.bool_],
        few: int,
        first: int,
        out: NDArray[np.int64],
    ) -> None:
        codecs.nearest_signatures(words, known, few, first, out)


NUMPY: Final = NearestSignatures()
NATIVE: NearestSignatures | None = None if codecs is None else NativeNearest()
BEST: NearestSignatures = NATIVE or NUMPY

"""Bounds of numbers: the smallest and the largest, without and with a sign.

`NATIVE` finds them in one pass in C (number_spans.c beside this) where it was built, `NUMPY`
everywhere, with identical results; `BEST` is the first that there is.
"""

from __future__ import annotations

import numpy as np

from tensorrepo.formats.native.extensions import kernels
from tensorrepo.repo.ids import Buffer

Spans = tuple[int, int, int, int]


class SpanFinder:
    """Finds bounds, by a pass of numpy for each."""

    name = "numpy"

    def spans(self, data: Buffer, size: int) -> Spans:
        """Smallest and largest of unsigned numbers of `size` bytes: 1, 2, 4 or 8; then those of the
        same bytes read as signed ones, as they stand in an unsigned item.

        Raises:
            ValueError: no such size, no numbers at all, or bytes that are not whole numbers.
        """
        nbytes = memoryview(data).nbytes
        if size not in (1, 2, 4, 8) or not nbytes or nbytes % size:
            raise ValueError(f"{nbytes} bytes are no numbers of {size}")
        numbers = np.frombuffer(data, f"<u{size}")
        signed = numbers.view(f"<i{size}")
        most = 1 << 8 * size
        low, high = (int(each) % most for each in (signed.min(), signed.max()))
        return int(numbers.min()), int(numbers.max()), low, high


class NativeSpans(SpanFinder):
    """In C."""

    name = "native"

    def spans(self, data: Buffer, size: int) -> Spans:
        return kernels.number_spans(data, size)


NUMPY = SpanFinder()
NATIVE: SpanFinder | None = None if kernels is None else NativeSpans()
BEST: SpanFinder = NATIVE or NUMPY

"""Memory of large results, found by the next one of its size once nobody looks at it any more.

Pages that are new must be cleared, one fault for each: of a load of a fine-tune that is a seventh.
malloc keeps some, but never of the largest, nor of what lies below something that is still in use.
Rooms (result_memory.c beside this) wait for results of the process, at most 128 MiB of them, and
the system takes their pages where it needs some, but for the newest 32 MiB.

Unlike `FrameMemory`, nobody gives anything back: what refers to a result's bytes keeps them, and
those of no other result.
"""

from __future__ import annotations

from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import kernels

LEAST_BYTES: Final = 256 << 10  # malloc has smaller ones at hand


def new_result(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An array of any value, writable and aligned, as `numpy.empty` makes one.

    Raises:
        MemoryError: there is no memory of that size.
    """
    size = prod(shape) * dtype.itemsize
    if kernels is None or size < LEAST_BYTES:
        return np.empty(shape, dtype)
    return np.frombuffer(kernels.result_room(size), dtype).reshape(shape)

"""Range joining for readers that hold ranges as arrays; `tensorrepo.repo.ranges` does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.repo.ranges import GAP_BYTES, REQUEST_BYTES, join_ranges

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GAP_BYTES", "merge_ranges"]


def merge_ranges(
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    gap_bytes: int = GAP_BYTES,
    most_bytes: int = REQUEST_BYTES,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Starts and stops of joined ranges, and for each range the number of the one that holds it."""
    bounds = list(zip(starts.tolist(), stops.tolist(), strict=True))
    joined = join_ranges(bounds, gap_bytes=gap_bytes, most_bytes=most_bytes)
    of = np.zeros(len(starts), np.int64)
    for number, one in enumerate(joined):
        of[one.members] = number
    edges = np.array([(one.start, one.stop) for one in joined], np.int64).reshape(-1, 2)
    return edges[:, 0], edges[:, 1], of

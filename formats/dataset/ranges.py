"""Which few reads cover these many byte ranges?

Ranges that lie close together are read in one request, because a request costs more than the bytes
between them; a request is not made larger than what one may usefully be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAP_BYTES = 64 << 10
MOST_BYTES = 16 << 20


def merge_ranges(
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    *,
    gap_bytes: int = GAP_BYTES,
    most_bytes: int = MOST_BYTES,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cover ranges by fewer, larger ones.

    Args:
        starts: int64 ``(n,)``, in any order.
        stops: int64 ``(n,)``, none before its start.
        gap_bytes: ranges with fewer bytes between them are joined.
        most_bytes: a joined range is no larger; a given one that is stays whole.

    Returns:
        Starts and stops of the merged ranges, ascending, and for each given range the number of
        the merged one that holds it.
    """
    order = np.argsort(starts, kind="stable")
    of = np.zeros(len(starts), np.int64)
    merged: list[list[int]] = []
    pairs: Any = zip(order.tolist(), starts[order].tolist(), stops[order].tolist(), strict=True)
    for place, start, stop in pairs:
        near = merged and start - merged[-1][1] < gap_bytes
        if near and max(stop, merged[-1][1]) - merged[-1][0] <= most_bytes:
            merged[-1][1] = max(stop, merged[-1][1])
        else:
            merged.append([start, stop])
        of[place] = len(merged) - 1
    bounds = np.array(merged, np.int64).reshape(-1, 2)
    return bounds[:, 0], bounds[:, 1], of

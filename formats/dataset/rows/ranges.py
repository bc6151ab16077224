"""Which few reads cover these many byte ranges, and do they pay?

Ranges that lie close together are read in one request, because a request costs more than the bytes
between them; a request is not made larger than what one may usefully be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

GAP_BYTES = 64 << 10  # what a request to a store costs, in bytes that might be read instead
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


def split_range(start: int, stop: int, most_bytes: int = MOST_BYTES) -> list[tuple[int, int]]:
    """``[start, stop)`` in parts of at most `most_bytes`, which are read side by side."""
    return [(at, min(stop, at + most_bytes)) for at in range(start, stop, most_bytes)]


def cost_of_rows(
    rows: NDArray[np.int64], firsts: NDArray[np.int64], row_bytes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What reading rows by themselves costs, page by page, in bytes; a request as GAP_BYTES.

    Args:
        rows: int64 ``(n,)``, ascending, each once.
        firsts: int64 ``(pages,)``, ascending: which of `rows` is the first of each page.
        row_bytes: float64 ``(pages,)``, of an average row of each page.
    """
    each = np.repeat(row_bytes, np.diff(firsts, append=len(rows)))
    steps = np.minimum(np.diff(rows, prepend=rows[:1]) * each, GAP_BYTES + each)
    steps[firsts] = GAP_BYTES + row_bytes
    found: NDArray[np.float64] = np.add.reduceat(steps, firsts)
    return found

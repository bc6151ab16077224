"""Which runs are open, and where does a piece of the steps use them first and last?

A piece is what a rank reads at a time: flat arrays, sorted by step. `schedule` and `mixed` ask,
so that a run is read once for all the rows that are needed of it soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.streaming.ordering.kernel import BEST, OrderKernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_NO_RUNS = np.zeros(0, dtype=np.int64)


class OpenRuns:
    """Opens and closes runs, numbered from 0, as pieces come by."""

    def __init__(self, runs: int, kernel: OrderKernel = BEST) -> None:
        self._kernel = kernel
        self._open = np.zeros(runs, dtype=np.bool_)
        self._marks = np.zeros(runs, dtype=np.uint8)

    def opened(self, run: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in `run` where a run that is not open comes first. They are open from now on."""
        return self._kernel.opened(run, self._open)

    def closed(
        self, run: NDArray[np.int64], busy: NDArray[np.bool_], following: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Places in `run` where a run comes last that is not needed soon. It is closed now.

        Args:
            run: the run of each row of a piece.
            busy: whether that run comes again, however long that takes: it stays open.
            following: the runs of the next piece, which stay open too.
        """
        return self._kernel.closed(run, busy, following, self._open, self._marks)

    def stale(
        self, kept: Sequence[NDArray[np.int64]], *used: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Those of `kept` that are open though none of `used` needs them: closed now.

        They were kept for rows that then went to another rank.
        """
        if not kept:
            return _NO_RUNS
        runs = np.unique(np.concatenate(kept))
        runs = runs[self._open[runs] & ~np.isin(runs, np.concatenate(used))]
        self._open[runs] = False
        return runs

"""Which rows of a dataset are not deleted?

Pages keep deleted rows until compaction. Readers count rows without them; this maps one count to
the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class LiveRows:
    """A dataset of `total` rows of which `dead`, int64 ascending, are deleted.

    A *physical* row counts deleted ones, a *live* row does not.
    """

    total: int
    dead: NDArray[np.int64]

    @property
    def rows(self) -> int:
        """Live ones."""
        return self.total - len(self.dead)

    def physical(self, live: NDArray[np.int64]) -> NDArray[np.int64]:
        """Physical numbers of live rows, in the same order."""
        before = self.dead - np.arange(len(self.dead))  # live rows before each deleted one
        return live + np.searchsorted(before, live, side="right")

    def live(self, physical: NDArray[np.int64]) -> NDArray[np.int64]:
        """Live numbers of physical rows; -1 where deleted."""
        before = np.searchsorted(self.dead, physical)
        inside = np.minimum(before, max(0, len(self.dead) - 1))
        is_dead = (
            (self.dead[inside] == physical) if len(self.dead) else np.zeros(len(physical), bool)
        )
        return np.where(is_dead, -1, physical - before)

    def live_bounds(self, physical_bounds: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many live rows lie before each physical bound: live rows of ranges by difference."""
        return physical_bounds - np.searchsorted(self.dead, physical_bounds)

    def dead_between(self, start: int, stop: int) -> NDArray[np.int64]:
        """Deleted physical rows in ``[start, stop)``, ascending."""
        low, high = np.searchsorted(self.dead, [start, stop])
        return self.dead[low:high]

    def alive(self, start: int, stop: int) -> NDArray[np.int64] | None:
        """Live physical rows in ``[start, stop)``, counted from `start`; None: all of them."""
        dead = self.dead_between(start, stop)
        if not len(dead):
            return None
        keep = np.ones(stop - start, np.bool_)
        keep[dead - start] = False
        return np.flatnonzero(keep)

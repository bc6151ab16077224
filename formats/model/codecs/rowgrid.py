"""Which numbers of a frame are of which row of its tensor?

A frame is cut at a number of elements, wherever rows end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.native.distances import Numbers


class RowGrid(NamedTuple):
    """A frame as rows: of the first one `skipped` numbers lie before it, the last may be cut."""

    rows: int
    columns: int
    skipped: int
    numbers: int

    @property
    def whole(self) -> range:
        """Rows that lie in the frame from their first number to their last."""
        return range(
            -(-self.skipped // self.columns), (self.skipped + self.numbers) // self.columns
        )

    def whole_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Their numbers, ``(rows, columns)``; a view."""
        start = self.whole.start * self.columns - self.skipped
        count = max(0, len(self.whole)) * self.columns
        return numbers[start : start + count].reshape(-1, self.columns)

    @property
    def stops(self) -> NDArray[np.intp]:
        """Where in the frame each row ends."""
        stops = np.arange(1, self.rows + 1) * self.columns - self.skipped
        return np.minimum(stops, self.numbers)

    def numbers_in(self, moved: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of each number, whether its row is among those."""
        return np.repeat(moved, np.diff(self.stops, prepend=0))

    def moved(self, alike: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Rows of which at most half of the numbers are alike."""
        stops = self.stops
        found = np.add.reduceat(alike, np.concatenate([[0], stops[:-1]]), dtype=np.intp)
        few: NDArray[np.bool_] = 2 * found <= np.diff(stops, prepend=0)
        return few


def row_grid(about: FrameShape, of: Numbers, codec: str) -> RowGrid:
    """The rows of a frame. Raises CorruptError, which names `codec`, where there are none."""
    if about.row_bytes <= 0 or about.row_bytes % of.size or about.first_byte % of.size:
        raise CorruptError(
            f"codec {codec}: {about.row_bytes} bytes are no row of {about.element.name}"
        )
    columns, count = about.row_bytes // of.size, about.size_bytes // of.size
    skipped = about.first_byte // of.size % columns
    return RowGrid(-(-(skipped + count) // columns), columns, skipped, count)

"""How is a tensor read that lies in several pieces?

Each piece is a tensor of its own, with frames and a fingerprint: a box of the whole one. What is
wanted of the whole is cut at the borders of the boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.model.framefill import item_of
from tensorrepo.formats.model.selection import index_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.frameread import StoredFrames
    from tensorrepo.formats.model.memberread import PlacedFrame
    from tensorrepo.formats.model.selection import Index
    from tensorrepo.formats.tensors import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class PiecedTensor:
    """A tensor that lies in several pieces, as ranks of a training saved it: a `TensorReader`.

    `parts` are (offset, piece): boxes that lie side by side and cover it.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    parts: tuple[tuple[tuple[int, ...], StoredFrames], ...]

    @property
    def size_bytes(self) -> int:
        return self.type.bytes_of(self.shape)

    @property
    def stored_bytes(self) -> int:
        return sum(part.stored_bytes for _, part in self.parts)

    @property
    def frames(self) -> tuple[PlacedFrame, ...]:
        """None of its own: those of its pieces are not those of the whole."""
        return ()

    def mapped(self) -> memoryview | None:
        """None: its bytes lie nowhere in one piece."""
        return None

    def fills(
        self, index: Index | None, out: memoryview, planes: int | None
    ) -> Iterator[Callable[[], None]]:
        """What fills `out` with ``tensor[index]``, all of it for None; a piece at a time."""
        ranges = index_ranges(self.shape, () if index is None else index)
        lengths = [len(picked) for picked in ranges]
        if not all(lengths):
            return
        items = np.frombuffer(out, item_of(self.type)).reshape(self._in_blocks(lengths))
        for offset, part in self.parts:
            inner, outer = [], []
            for picked, start, size in zip(ranges, offset, part.shape, strict=True):
                low = max(0, -(-(start - picked.start) // picked.step))
                high = min(len(picked), -(-(start + size - picked.start) // picked.step))
                inner.append((low, high, picked, start))
                outer.append(slice(low, high))
            if all(low < high for low, high, _, _ in inner):
                local = tuple(
                    slice(picked[low] - start, picked[high - 1] - start + 1, picked.step)
                    for low, high, picked, start in inner
                )
                yield self._fill(part, local, items, tuple(outer), planes)

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes from `start_byte`: the rows that hold them are read."""
        if not buffer.nbytes:
            return
        row_bytes = self.size_bytes // self.shape[0]
        first, stop = start_byte // row_bytes, -(-(start_byte + buffer.nbytes) // row_bytes)
        rows = np.empty((stop - first) * row_bytes, np.uint8).data
        for fill in self.fills(slice(first, stop), rows, None):
            fill()
        skip = start_byte - first * row_bytes
        buffer[:] = rows[skip : skip + buffer.nbytes]

    def chunks(self, chunk_bytes: int) -> Iterator[memoryview]:
        """Its bytes in order, some rows at a time."""
        row_bytes = self.size_bytes // self.shape[0]
        step = max(1, chunk_bytes // row_bytes) * row_bytes
        for start in range(0, self.size_bytes, step):
            data = np.empty(min(step, self.size_bytes - start), np.uint8).data
            self.read_into(start, data)
            yield data

    def _fill(
        self,
        part: StoredFrames,
        local: tuple[slice, ...],
        items: NDArray[Any],
        outer: tuple[slice, ...],
        planes: int | None,
    ) -> Callable[[], None]:
        def fill() -> None:
            lengths = [place.stop - place.start for place in outer]
            shape = self._in_blocks(lengths)
            found = np.empty(shape, items.dtype)
            for one in part.fills(local, found.reshape(-1).view(np.uint8).data, planes):
                one()
            *before, last = outer
            block = self.type.block_elements
            places = (*before, slice(last.start // block, -(-last.stop // block)))
            items[places] = found

        return fill

    def _in_blocks(self, lengths: Sequence[int]) -> tuple[int, ...]:
        *before, last = lengths
        return (*before, last // self.type.block_elements)

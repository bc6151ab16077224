"""Selections of elements: basic indexing as runs, and the frames that they touch.

Basic indexing alone: integers, slices with a positive step, an ellipsis. What it selects is a
number of equally long runs of elements, in ascending order; a slice of a tensor reads and
verifies the frames that runs touch, and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from types import EllipsisType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.errors import InvalidInputError

ElementIndex = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
_GATHER_BELOW: Final = 256  # items of a run; longer ones are copied one by one


@dataclass(frozen=True, slots=True)
class ElementSelection:
    """Runs ``[start, start + run)`` of a flat tensor; the result has `shape`."""

    shape: tuple[int, ...]
    starts: NDArray[np.int64]
    run: int

    @property
    def items(self) -> int:
        return len(self.starts) * self.run

    def in_blocks(self, block: int) -> ElementSelection:
        """The same in blocks. Raises InvalidInputError: a run begins or ends inside of one."""
        if self.run % block or (self.starts % block).any():
            raise InvalidInputError(
                f"a slice of this type begins and ends between {block} elements"
            )
        return ElementSelection(self.shape, self.starts // block, self.run // block)

    def frames(self, frame_items: int) -> list[int]:
        """Numbers of the frames of `frame_items` items that hold something of it, ascending."""
        if not self.items:
            return []
        first, last = self.starts // frame_items, (self.starts + (self.run - 1)) // frame_items
        if self.run <= frame_items:
            touched = np.unique(np.concatenate((first, last)))
        else:
            spans = [np.arange(a, b + 1) for a, b in zip(first, last, strict=True)]
            touched = np.unique(np.concatenate(spans))
        return [int(frame) for frame in touched]

    def copy(self, frame: NDArray[Any], frame_start: int, out: NDArray[Any]) -> None:
        """Copy what one frame holds of it.

        Args:
            frame: the frame's items.
            frame_start: number of its first item in the tensor.
            out: all selected items, flat.
        """
        stop = frame_start + len(frame)
        low = int(np.searchsorted(self.starts, frame_start - self.run, side="right"))
        high = int(np.searchsorted(self.starts, stop, side="left"))
        whole_low = low + bool(low < high and self.starts[low] < frame_start)
        whole_high = high - bool(low < high and self.starts[high - 1] + self.run > stop)
        for at in {low, high - 1} - set(range(whole_low, whole_high)) if low < high else ():
            begin = int(self.starts[at])
            first, last = max(begin, frame_start), min(begin + self.run, stop)
            to = at * self.run + first - begin
            out[to : to + last - first] = frame[first - frame_start : last - frame_start]
        if whole_low < whole_high:
            self._copy_whole(frame, frame_start, out, whole_low, whole_high)

    def _copy_whole(
        self, frame: NDArray[Any], frame_start: int, out: NDArray[Any], low: int, high: int
    ) -> None:
        starts, run = self.starts[low:high] - frame_start, self.run
        target = out[low * run : high * run].reshape(-1, run)
        if run < _GATHER_BELOW:
            target[:] = frame[starts[:, None] + np.arange(run)]
            return
        for row, start in zip(target, starts, strict=True):
            row[:] = frame[start : start + run]


def select(shape: tuple[int, ...], index: ElementIndex) -> ElementSelection:
    """What `index` selects of a tensor of that shape.

    Raises:
        InvalidInputError: no basic index, too many dimensions, or out of range.
    """
    ranges = [
        _range(part, dim, at)
        for at, (part, dim) in enumerate(zip(_expand(shape, index), shape, strict=True))
    ]
    result = tuple(len(picked) for picked, kept in ranges if kept)
    strides = [prod(shape[at + 1 :]) for at in range(len(shape))]
    # The longest suffix of whole dimensions, and the one before it, are contiguous.
    whole = len(shape)
    while whole and ranges[whole - 1][0] == range(shape[whole - 1]):
        whole -= 1
    run, outer = prod(shape[whole:]), whole
    if whole and ranges[whole - 1][0].step == 1:
        outer, run = whole - 1, run * len(ranges[whole - 1][0])
    starts = np.zeros(1, np.int64)
    for at in range(whole):
        picked = ranges[at][0]
        taken = picked if at < outer else picked[:1]
        offsets = np.arange(taken.start, taken.stop, taken.step, dtype=np.int64) * strides[at]
        starts = (starts[:, None] + offsets).reshape(-1)
    if not prod(result):
        return ElementSelection(result, starts[:0], 0)
    return ElementSelection(result, starts, run)


def index_ranges(shape: tuple[int, ...], index: ElementIndex) -> list[range]:
    """The indices that `index` picks of each dimension; one where it drops it. Errors: `select`."""
    parts = zip(_expand(shape, index), shape, strict=True)
    return [_range(part, dim, at)[0] for at, (part, dim) in enumerate(parts)]


def _expand(shape: tuple[int, ...], index: ElementIndex) -> list[int | slice]:
    """One part for each dimension."""
    parts = index if isinstance(index, tuple) else (index,)
    if sum(part is Ellipsis for part in parts) > 1:
        raise InvalidInputError("an index has at most one ellipsis")
    given = len([part for part in parts if part is not Ellipsis])
    if given > len(shape):
        raise InvalidInputError(f"{given} indices for a tensor of {len(shape)} dimensions")
    # By identity: an array among the parts cannot be compared.
    at = next((at for at, part in enumerate(parts) if part is Ellipsis), len(parts))
    fill = [slice(None)] * (len(shape) - given)
    expanded = [*parts[:at], *fill, *parts[at + 1 :]]
    return [part for part in expanded if not isinstance(part, EllipsisType)]


def _range(part: object, dim: int, at: int) -> tuple[range, bool]:
    """The indices that `part` picks, and whether the dimension stays."""
    if isinstance(part, slice):
        try:
            picked = range(*part.indices(dim))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"dimension {at}: {part}: {error}") from error
        if picked.step < 0:
            raise InvalidInputError(f"dimension {at}: {part}: the step must be positive")
        return picked, True
    if isinstance(part, (int, np.integer)) and not isinstance(part, bool):
        if not -dim <= part < dim:
            raise InvalidInputError(f"dimension {at}: index {part} of {dim}")
        position = int(part) % dim
        return range(position, position + 1), False
    raise InvalidInputError(
        f"dimension {at}: {type(part).__name__} is no index here; use integers and slices"
    )

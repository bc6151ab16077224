"""Selections of elements: basic indexing and rows by number as runs, and the frames they touch.

Basic indexing: integers, slices with a positive step, an ellipsis; beside it rows by their numbers,
in any order. What either selects is a number of equally long runs of elements, in ascending order;
a read of some of a tensor reads and verifies the frames that runs touch, and no others.
"""

from __future__ import annotations

from math import prod
from types import EllipsisType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

BasicIndex = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
_GATHER_BELOW: Final = 256  # items of a run; longer ones are copied one by one
_GATHER_BYTES: Final = 1 << 20  # of rows that are gathered at a time


@dataclass(frozen=True, slots=True, eq=False)
class RowNumbers:
    """Rows of a tensor by number, ascending, and where each of them belongs in the result.

    `shape` is that of the numbers as they were given: the result has it before a row's own.
    """

    shape: tuple[int, ...]
    numbers: NDArray[np.int64]
    places: NDArray[np.int64]


ElementIndex = BasicIndex | RowNumbers


@dataclass(frozen=True, slots=True)
class ElementSelection:
    """Runs ``[start, start + run)`` of a flat tensor; the result has `shape`.

    Starts ascend, and are multiples of `run` where there are `places`: the number that each run has
    in the result; several may begin at one start then. Without, runs come in their order.
    """

    shape: tuple[int, ...]
    starts: NDArray[np.int64]
    run: int
    places: NDArray[np.int64] | None = None

    @property
    def items(self) -> int:
        return len(self.starts) * self.run

    def in_blocks(self, block: int) -> ElementSelection:
        """The same in blocks. Raises InvalidInputError: a run begins or ends inside of one."""
        if self.run % block or (self.starts % block).any():
            raise InvalidInputError(
                f"a slice of this type begins and ends between {block} elements"
            )
        return ElementSelection(self.shape, self.starts // block, self.run // block, self.places)

    def frames(self, frame_items: int) -> list[int]:
        """Numbers of the frames of `frame_items` items that hold something of it, ascending."""
        if not self.items:
            return []
        first, last = self.starts // frame_items, (self.starts + (self.run - 1)) // frame_items
        if self.run <= frame_items:
            touched = np.unique(np.concatenate((first, last)))
        else:
            pairs = dict.fromkeys(zip(first.tolist(), last.tolist(), strict=True))
            spans = [np.arange(a, b + 1) for a, b in pairs]
            touched = np.unique(np.concatenate(spans))
        return [int(frame) for frame in touched]

    def has_all(self, start: int, stop: int) -> bool:
        """Whether one run has all items ``[start, stop)``."""
        at = int(np.searchsorted(self.starts, start, side="right")) - 1
        return at >= 0 and int(self.starts[at]) + self.run >= stop

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
        # Those that lie in it whole; others before and behind reach beyond it.
        whole_low = min(high, int(np.searchsorted(self.starts, frame_start, side="left")))
        last = int(np.searchsorted(self.starts, stop - self.run, side="right"))
        whole_high = max(whole_low, last)
        for at in (*range(low, whole_low), *range(whole_high, high)):
            begin = int(self.starts[at])
            first, last = max(begin, frame_start), min(begin + self.run, stop)
            to = (at if self.places is None else int(self.places[at])) * self.run + first - begin
            out[to : to + last - first] = frame[first - frame_start : last - frame_start]
        if whole_low == whole_high:
            return
        if self.places is None:
            self._copy_whole(frame, frame_start, out, whole_low, whole_high)
        else:
            self._copy_rows(frame, frame_start, out, self.places, range(whole_low, whole_high))

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

    def _copy_rows(
        self,
        frame: NDArray[Any],
        frame_start: int,
        out: NDArray[Any],
        places: NDArray[np.int64],
        runs: range,
    ) -> None:
        run, skipped = self.run, -frame_start % self.run
        rows = frame[skipped : skipped + (len(frame) - skipped) // run * run].reshape(-1, run)
        target, first = out.reshape(-1, run), (frame_start + skipped) // run
        step = max(1, _GATHER_BYTES // (run * frame.itemsize))
        for low in range(runs.start, runs.stop, step):
            some = slice(low, min(low + step, runs.stop))
            target[places[some]] = rows[self.starts[some] // run - first]


def row_numbers(shape: tuple[int, ...], numbers: Any) -> RowNumbers:
    """Rows of a tensor of that shape by their numbers; negative ones count from its end.

    Raises:
        InvalidInputError: no whole numbers, out of range, or a tensor that is one number.
    """
    if not shape:
        raise InvalidInputError("it is one number: it has no rows")
    given = _whole_numbers(numbers)
    flat = given.reshape(-1)
    outside = np.flatnonzero((flat < -shape[0]) | (flat >= shape[0]))
    if len(outside):
        at = int(outside[0])
        raise InvalidInputError(
            f"row {flat[at]} (number {at} of those asked for): it has {shape[0]} rows"
        )
    flat = flat.astype(np.int64)
    flat[flat < 0] += shape[0]
    places = np.argsort(flat, kind="stable")
    return RowNumbers(given.shape, flat[places], places)


def _whole_numbers(numbers: Any) -> NDArray[Any]:
    try:
        given = np.asarray(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"ids: {str(error).splitlines()[0]:.200}") from error
    if given.dtype.kind not in "iu" and given.size:
        raise InvalidInputError(
            f"ids: expected whole numbers of rows, found {given.dtype.name} in "
            f"{type(numbers).__name__}"
        )
    return given


def select(shape: tuple[int, ...], index: ElementIndex) -> ElementSelection:
    """What `index` selects of a tensor of that shape.

    Raises:
        InvalidInputError: no basic index, too many dimensions, or out of range.
    """
    if isinstance(index, RowNumbers):
        return _select_rows(shape, index)
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


def _select_rows(shape: tuple[int, ...], rows: RowNumbers) -> ElementSelection:
    result, run = (*rows.shape, *shape[1:]), prod(shape[1:])
    if not run or not len(rows.numbers):
        return ElementSelection(result, np.zeros(0, np.int64), 0)
    return ElementSelection(result, rows.numbers * run, run, rows.places)


def index_ranges(shape: tuple[int, ...], index: BasicIndex) -> list[range]:
    """The indices that `index` picks of each dimension; one where it drops it. Errors: `select`."""
    parts = zip(_expand(shape, index), shape, strict=True)
    return [_range(part, dim, at)[0] for at, (part, dim) in enumerate(parts)]


def _expand(shape: tuple[int, ...], index: BasicIndex) -> list[int | slice]:
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
        f"dimension {at}: {type(part).__name__} is no index here; use integers and slices, and "
        "model.rows(name, ids) for rows by their numbers"
    )

"""Kernels that find thousands of rows of an order at once, in C and in numpy.

`NATIVE` is formats/native/order.c where it was built, without the interpreter lock; `NUMPY` is
everywhere, with identical results. `BEST` is the first that there is.

Source:
    docs/spec/stream-order.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints, distinct
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    low_bits,
    low_bits_of,
    numbers,
    permutations,
    scattered,
)
from tensorrepo.formats.native.extensions import kernels

_PERMUTED_AT_ONCE = 1 << 16


class Rings(NamedTuple):
    """Where lanes go: see `orders.PairedLanes`, whose fields these are.

    `stride` is the step from band to band inside a block, `key` that of the epoch for lanes.
    """

    lanes: int
    bands: int
    stride: int
    key: int
    start: Ints
    cut: Ints
    first: Ints


class Walked(NamedTuple):
    """Rows that lanes were on: int64 ``(rows,)`` each, positions ascending.

    `piece` says between which two of `Rings.start` a row is, `place` where after the first.
    """

    position: Ints
    band: Ints
    piece: Ints
    place: Ints


class OrderKernel:
    """Works out orders, by arrays of everything at once. All arrays given are one-dimensional."""

    name = "numpy"

    def shuffle(
        self, keys: NDArray[np.uint64], counts: Ints, at: Ints, out: NDArray[np.uint32]
    ) -> None:
        """Write ``perm(keys[i], counts[i])`` to `out`, beginning at ``at[i]``.

        Raises:
            ValueError: a permutation does not fit there.
        """
        fit = keys.size == counts.size == at.size
        if not fit or ((counts < 0) | (at < 0) | (counts > out.size - at)).any():
            raise ValueError("permutations that do not fit where they should go")
        for alike in _alike(counts):
            count = counts[alike]
            shuffled = permutations(keys[alike], count)
            place = np.arange(shuffled.shape[1])
            real = place < count[:, None]
            out[(at[alike][:, None] + place)[real]] = shuffled[real]

    def scatter(self, key: int, count: int, positions: Ints) -> Ints:
        """Which of `count` rows stands at each of `positions` of the global order.

        Raises:
            ValueError: a position that is not in ``[0, count)``.
        """
        if not ((positions >= 0) & (positions < count)).all():
            raise ValueError("a position is not one of the order")
        return scattered(key, count, positions)

    def find(self, start: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """In which piece of a line each row is, and at which place there.

        Args:
            start: first row of each piece, ascending; one more: end of the last one.
            rows: rows of the line.

        Raises:
            ValueError: a row that is not one of the line.
        """
        if not ((rows >= start[0]) & (rows < start[-1])).all():
            raise ValueError("a row is not one of the line")
        piece = np.searchsorted(start, rows, side="right") - 1
        return piece, rows - start[piece]

    def look_up(self, shuffled: NDArray[np.uint32], slot: Ints, run: Ints, place: Ints) -> Ints:
        """``shuffled[slot[run] + place]``.

        Raises:
            ValueError: there is no such run or place.
        """
        if not ((run >= 0) & (run < slot.size)).all():
            raise ValueError("a place is not one of a run")
        at = slot[run] + place
        if not ((at >= 0) & (at < shuffled.size)).all():
            raise ValueError("a place is not one of a run")
        found: Ints = shuffled[at].astype(np.int64)
        return found

    def walk(self, rings: Rings, blocks: range, bands: range) -> Walked:
        """The rows that the lanes of these bands are on in these blocks.

        Raises:
            ValueError: rings that are none.
        """
        full = int(rings.cut[-1] - rings.cut[0]) // rings.lanes
        pieces = []
        if blocks.start < full:
            pieces.append(_whole_blocks(rings, range(blocks.start, min(blocks.stop, full)), bands))
        if blocks.stop > full:
            pieces.append(_partial_block(rings, full, bands))
        return Walked(*map(np.concatenate, zip(*pieces, strict=True)))

    def opened(self, run: Ints, is_open: Bools) -> Ints:
        """Places in `run` where a run that is not open comes first; now all of them are.

        Raises:
            ValueError: a run that `is_open` says nothing of.
        """
        _check_runs(run, is_open)
        every, newest = np.arange(run.size), np.empty(is_open.size, np.int64)
        newest[run[::-1]] = every[::-1]  # of equal runs the last assignment stays
        new = np.flatnonzero((newest[run] == every) & ~is_open[run])
        is_open[run] = True
        return new

    def closed(
        self, run: Ints, busy: Bools, following: Ints, is_open: Bools, marks: NDArray[np.uint8]
    ) -> Ints:
        """Places in `run` where a run comes last that is not `busy` there; now they are not open.

        Args:
            run: run of each row.
            busy: whether the run of each row comes again.
            following: runs that stay open.
            is_open: whether each run is open.
            marks: room for the search, per run: zeros, before and after.

        Raises:
            ValueError: a run that `is_open` says nothing of.
        """
        _check_runs(run, is_open)
        _check_runs(following, is_open)
        every, newest = np.arange(run.size), np.empty(is_open.size, np.int64)
        newest[run] = every
        marks[following] = 1
        done = np.flatnonzero((newest[run] == every) & (marks[run] == 0) & ~busy)
        marks[following] = 0
        is_open[run[done]] = False
        return done


class NativeOrder(OrderKernel):
    """In C."""

    name = "native"

    def shuffle(
        self, keys: NDArray[np.uint64], counts: Ints, at: Ints, out: NDArray[np.uint32]
    ) -> None:
        kernels.shuffle(keys, counts, at, out)

    def scatter(self, key: int, count: int, positions: Ints) -> Ints:
        out = np.empty_like(positions)
        kernels.scatter(key, count, positions, out)
        return out

    def find(self, start: Ints, rows: Ints) -> tuple[Ints, Ints]:
        piece, place = np.empty_like(rows), np.empty_like(rows)
        kernels.find(start, rows, piece, place)
        return piece, place

    def look_up(self, shuffled: NDArray[np.uint32], slot: Ints, run: Ints, place: Ints) -> Ints:
        out = np.empty_like(place)
        kernels.look_up(shuffled, slot, run, place, out)
        return out

    def walk(self, rings: Rings, blocks: range, bands: range) -> Walked:
        lanes, bands_of_all, stride, key, start, cut, first = rings
        most = len(blocks) * len(bands) * (lanes // bands_of_all)
        out = np.empty((4, most), dtype=np.int64)
        at, own = (blocks.start, blocks.stop), (bands.start, bands.stop)
        rows = kernels.walk_lanes(start, cut, first, lanes, bands_of_all, stride, key, at, own, out)
        return Walked(*out[:, :rows])

    def opened(self, run: Ints, is_open: Bools) -> Ints:
        out = np.empty_like(run)
        return out[: kernels.opened(run, is_open, out)]

    def closed(
        self, run: Ints, busy: Bools, following: Ints, is_open: Bools, marks: NDArray[np.uint8]
    ) -> Ints:
        out = np.empty_like(run)
        return out[: kernels.closed(run, busy, following, is_open, marks, out)]


def _check_runs(run: Ints, is_open: Bools) -> None:
    if not ((run >= 0) & (run < is_open.size)).all():
        raise ValueError("a run is none of those that are known")


def _alike(counts: Ints) -> Iterator[Ints]:
    """Places of counts of one magnitude, not too many at a time; none of zeros."""
    bits = np.where(counts > 0, low_bits_of(np.maximum(counts, 1)), 0)
    for magnitude in distinct(bits[bits > 0]).tolist():
        alike = np.flatnonzero(bits == magnitude)
        at_once = max(1, _PERMUTED_AT_ONCE >> magnitude)
        for start in range(0, alike.size, at_once):
            yield alike[start : start + at_once]


def _whole_blocks(rings: Rings, blocks: range, bands: range) -> Walked:
    each = rings.lanes // rings.bands
    block = np.arange(blocks.start, blocks.stop)
    slots, lane = _lanes_of(rings, block, bands)
    own = np.arange(bands.start * each, bands.stop * each)
    piece, place = _line_rows(rings, own[:, None], block)
    # The answers are lane after lane; take them in the order of the slots.
    at = (lane - bands.start * each) * block.size + np.arange(block.size)[:, None]
    flat = at.ravel()
    position = (block * rings.lanes)[:, None] + slots
    band = (lane // each).ravel()
    return Walked(position.ravel(), band, piece.ravel()[flat], place.ravel()[flat])


def _partial_block(rings: Rings, block: int, bands: range) -> Walked:
    """The last block, which only the longer lanes reach."""
    blocks = np.array([block])
    _, (lanes,) = _lanes_of(rings, blocks, range(rings.bands))
    size = np.diff(rings.cut)[lanes // 2]
    lane = lanes[(size + 1 - lanes % 2) // 2 > block]
    position = block * rings.lanes + np.arange(lane.size)
    band = lane // (rings.lanes // rings.bands)
    mine = (band >= bands.start) & (band < bands.stop)
    return Walked(position[mine], band[mine], *_line_rows(rings, lane[mine], blocks))


def _lanes_of(rings: Rings, blocks: Ints, bands: range) -> tuple[Ints, Ints]:
    """Slots of a block that these bands have, ascending, and the lane in each, per block."""
    each = rings.lanes // rings.bands
    band_at = (np.arange(rings.bands) * rings.stride) % rings.bands
    mine = np.flatnonzero((band_at >= bands.start) & (band_at < bands.stop))
    turn = _turns(rings, blocks, bands)[:, band_at[mine] - bands.start, :]
    lane = (turn + (band_at[mine] * each)[None, :, None]).transpose(0, 2, 1)
    slots = (np.arange(each)[:, None] * rings.bands + mine[None, :]).ravel()
    return slots, lane.reshape(blocks.size, -1)


def _turns(rings: Rings, blocks: Ints, bands: range) -> Ints:
    """In each block, the order of the lanes inside each band: (blocks, bands, lanes)."""
    each = rings.lanes // rings.bands
    shape = (blocks.size, len(bands), each)
    if each == 1:
        return np.zeros(shape, dtype=np.int64)
    lane = np.arange(bands.start * each, bands.stop * each)
    drawn = numbers(rings.key, ((blocks * rings.lanes)[:, None] + lane).view(np.uint64))
    drawn = drawn.reshape(shape)
    mask = np.uint64((1 << low_bits(each)) - 1)
    drawn = drawn & ~mask | np.arange(each, dtype=np.uint64)
    drawn.sort(axis=2)
    return (drawn & mask).view(np.int64)


def _line_rows(rings: Rings, lane: Ints, block: Ints) -> tuple[Ints, Ints]:
    """Piece and place of each lane in each block; the two arrays broadcast."""
    ring = lane // 2
    size = rings.cut[ring + 1] - rings.cut[ring]
    odd = lane % 2
    # A lane goes round at most half of its ring, so it wraps at most once.
    at = rings.first[ring] - odd + (1 - 2 * odd) * block
    np.add(at, size, out=at, where=at < 0)
    np.subtract(at, size, out=at, where=at >= size)
    at += rings.cut[ring]
    piece = np.searchsorted(rings.start, at, side="right") - 1
    return piece, at - rings.start[piece]


NUMPY = OrderKernel()
NATIVE = None if kernels is None else NativeOrder()
BEST: OrderKernel = NATIVE or NUMPY

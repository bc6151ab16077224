"""Orders of an epoch: paired lanes, full shuffle, windows, storage order.

Object storage wants few large reads, training wants an order that looks random. **Paired lanes**
give both: the runs (pages) in random order form a line, the line is cut into rings, and in every
ring two lanes walk away from a common start until they meet. A batch takes its rows from many
lanes, each run is read once, and about as many runs are resident as there are lanes.

An order is a value: a function of (live rows of each run, seed, epoch, lanes, bands). Any place of
it is reached directly, and no two machines disagree.

Source:
    docs/spec/stream-order.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints, distinct
from tensorrepo.formats.dataset.streaming.order.kernel import BEST, Rings
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    GOLDEN,
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.repo.deferred_dataclass import dataclass

_GOLDEN_32 = 2654435769  # 2^32 divided by the golden ratio


class Located(NamedTuple):
    """Where the rows of some positions lie: four arrays of one length, positions ascending.

    `run` is the run of a row and `place` its place there: a place of the run's own permutation
    when the order is `permuted`, else the live row itself.
    """

    position: Ints
    band: Ints
    run: Ints
    place: Ints

    def select(self, chosen: Bools | Ints | slice) -> Located:
        return Located(*(each[chosen] for each in self))


_NO_ROWS = np.zeros(0, dtype=np.int64)
_NOTHING = Located(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)


class Order(Protocol):
    """The order of one epoch."""

    @property
    def rows(self) -> int: ...

    @property
    def bands(self) -> int:
        """Ranks share a step by bands: neighbouring positions of a band are of the same runs."""

    @property
    def whole_rows(self) -> int:
        """Up to which position every band comes equally often."""

    @property
    def permuted(self) -> bool:
        """Whether `Located.place` still has to go through the run's own permutation."""

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The rows at positions ``[start, stop)``, of these bands only."""

    def returning(self, bands: range) -> tuple[Ints, Ints]:
        """Runs that may be left and come back to, and from where on they are not any more."""


def choose_lanes(window_bytes: int, run_bytes: int, batch_size: int) -> tuple[int, int]:
    """How many lanes (K) and bands (C), for runs of `run_bytes` on average.

    About one run a lane is resident, so the window decides K; C lanes in a row are of C different
    bands, and whole bands go to a rank.
    """
    fitting = max(2, window_bytes // max(1, run_bytes) // 2 * 2)
    lanes_a_band = fitting // batch_size
    if batch_size % 2 and lanes_a_band % 2:
        lanes_a_band -= 1
    if lanes_a_band:
        return batch_size * lanes_a_band, batch_size
    divisors = (fitting - less for less in range(0, (fitting + 1) // 2, 2))
    lanes = next((lanes for lanes in divisors if batch_size % lanes == 0), fitting)
    return lanes, lanes


@dataclass(frozen=True, slots=True)
class PairedLanes:
    """The order "pages" of one epoch, with all that depends on the runs worked out."""

    seed: int
    epoch: int
    lanes: int
    bands: int
    live: Ints
    pi: Ints  # run at each place of the line
    start: Ints  # row of the line where it begins; one more: all rows
    cut: Ints  # row of the line where each ring begins; one more: all rows
    first: Ints  # where both lanes of a ring start, counted from its cut
    permuted = True

    @property
    def rows(self) -> int:
        return int(self.start[-1])

    @property
    def whole_rows(self) -> int:
        return self.rows // self.lanes * self.lanes

    def row_names(self, runs: Ints) -> NDArray[np.uint64]:
        """The numbers by which the rows of these runs are shuffled."""
        return runs.view(np.uint64)

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The rows at positions ``[start, stop)``, of these bands only."""
        stop = min(stop, self.rows)
        if start >= stop:
            return _NOTHING
        blocks = range(start // self.lanes, -(-stop // self.lanes))
        stride, key = stride_of(self.bands), epoch_key(self.seed, self.epoch, Purpose.LANES)
        rings = Rings(self.lanes, self.bands, stride, key, self.start, self.cut, self.first)
        walked = BEST.walk(rings, blocks, range(self.bands) if bands is None else bands)
        mine = slice(*np.searchsorted(walked.position, (start, stop)).tolist())
        position, band, piece, place = (each[mine] for each in walked)
        return Located(position, band, *self._runs_at(piece, place))

    def _runs_at(self, piece: Ints, place: Ints) -> tuple[Ints, Ints]:
        """Run and place of rows that are at these places of these pieces of the line."""
        return self.pi[piece], place

    def returning(self, bands: range) -> tuple[Ints, Ints]:
        """Runs that lanes of these bands may leave and come back to, and where that ends.

        A run that a cut divides is walked by two rings, from either end, in the last half run
        length of the epoch: the first ring may be done with it before the second comes.

        Returns:
            The runs, each once, and the position where the last block begins that needs it.
        """
        each = self.lanes // self.bands
        rings = distinct(np.arange(bands.start * each, bands.stop * each) // 2)
        inner = self.cut[rings[0] : rings[-1] + 2]
        divided = distinct(np.searchsorted(self.start, inner[1:-1], side="right") - 1)
        divided = divided[self.start[divided] < self.rows]
        # The pieces that cuts make of these runs, and the last block in which a lane is in each.
        edges = distinct(np.concatenate((self.start[divided], self.start[divided + 1], inner)))
        edges = edges[(edges >= inner[0]) & (edges <= inner[-1])]
        low, high = edges[:-1], edges[1:]
        index = np.searchsorted(self.start, low, side="right") - 1
        last = np.full(self.live.size, -1, dtype=np.int64)
        np.maximum.at(last, index, self._last_blocks(low, high))
        needed = divided[last[divided] >= 0]
        return self.pi[needed], last[needed] * self.lanes

    def _last_blocks(self, low: Ints, high: Ints) -> Ints:
        """The last block in which a lane is in the line rows ``[low, high)`` of one ring; or -1."""
        ring = np.searchsorted(self.cut, low, side="right") - 1
        size, first = self.cut[ring + 1] - self.cut[ring], self.first[ring]
        low, high = low - self.cut[ring], high - self.cut[ring]
        forward = _last_step((low - first) % size, (high - 1 - first) % size, (size + 1) // 2)
        backward = _last_step((first - high) % size, (first - 1 - low) % size, size // 2)
        return np.maximum(forward, backward)


def lay_out(
    live: Ints, *, seed: int, epoch: int, lanes: int, bands: int
) -> tuple[PairedLanes, Ints]:
    """The line of shuffled runs, or groups, and its rings, whose lanes start nowhere yet.

    Beside it one of 2^32 fractions in [0, 1/2) per ring: the golden ratio spreads them evenly.
    Raises as `paired_lanes` does.
    """
    if lanes < 2 or lanes % 2 or bands < 1 or lanes % bands:
        raise ValueError(
            f"an order needs even lanes and bands that divide them, got {lanes, bands}"
        )
    if live.size == 0 or int(live.min()) < 1:
        raise ValueError("an order is made of runs that have rows")
    pi = permutation(epoch_key(seed, epoch, Purpose.RUNS), live.size)
    start = np.concatenate(([0], np.cumsum(live[pi])))
    rings = lanes // 2
    cut = np.array([ring * int(start[-1]) // rings for ring in range(rings + 1)])
    fraction = np.arange(rings, dtype=np.uint64) * np.uint64(GOLDEN) >> np.uint64(33)
    laid = PairedLanes(seed, epoch, lanes, bands, live, pi, start, cut, _NO_ROWS)
    return laid, fraction.view(np.int64)


def paired_lanes(live: Ints, *, seed: int, epoch: int, lanes: int, bands: int) -> PairedLanes:
    """Lay out one epoch: O(P log P) time and a few numbers per run.

    Args:
        live: live rows of each run, all above 0.
        seed: seed of the whole training.
        epoch: number of the pass over the data.
        lanes: K, even.
        bands: C, a divisor of K.

    Raises:
        ValueError: lanes are odd, bands do not divide them, or a run has no rows.
    """
    laid, fraction = lay_out(live, seed=seed, epoch=epoch, lanes=lanes, bands=bands)
    start, cut = laid.start, laid.cut
    size = np.diff(cut)
    # The start lies in the run of the middle row, at a fraction in [0, 1/2) of what the ring has
    # of it: so run changes are spread evenly in time.
    middle = np.searchsorted(start, cut[:-1] + size // 2, side="right") - 1
    middle = np.minimum(middle, live.size - 1)  # rings without rows, when rows are few
    low = np.maximum(start[middle], cut[:-1])
    high = np.maximum(np.minimum(start[middle + 1], cut[1:]), low)
    return replace(laid, first=low + ((high - low) * fraction >> 32) - cut[:-1])


def _last_step(enter: Ints, leave: Ints, length: Ints) -> Ints:
    """Last step of a lane of `length` in a stretch that it enters and leaves at these steps.

    Where `leave` comes before `enter` the lane begins inside and would come back at the end.
    """
    back = np.where(enter < length, length - 1, -1)
    through = np.where(enter < length, np.minimum(leave, length - 1), -1)
    inside = np.maximum(np.minimum(leave, length - 1), back)
    return np.where(enter <= leave, through, inside)


@dataclass(frozen=True, slots=True)
class RowOrder:
    """An order without lanes: row t at position t, unless a subclass shuffles."""

    start: Ints  # first live row of each run; one more: all rows
    bands = 1
    permuted = False

    @property
    def rows(self) -> int:
        return int(self.start[-1])

    @property
    def whole_rows(self) -> int:
        return self.rows

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:  # noqa: ARG002 there is one band
        """The rows at positions ``[start, stop)``."""
        position = np.arange(start, min(stop, self.rows))
        if not position.size:
            return _NOTHING
        found = BEST.find(self.start, self._rows_at(position))
        return Located(position, np.zeros_like(position), *found)

    def returning(self, bands: range) -> tuple[Ints, Ints]:  # noqa: ARG002 there is one band
        """Nothing is known of the rows that follow."""
        return _NO_ROWS, _NO_ROWS

    def _rows_at(self, position: Ints) -> Ints:
        return position


@dataclass(frozen=True, slots=True)
class Scattered(RowOrder):
    """The order "global": any row anywhere, for pages that stay loaded or are cheap to reach."""

    seed: int
    epoch: int

    def _rows_at(self, position: Ints) -> Ints:
        key = epoch_key(self.seed, self.epoch, Purpose.GLOBAL)
        return BEST.scatter(key, self.rows, position)


@dataclass(frozen=True, slots=True)
class Buffered(RowOrder):
    """The order "buffer": storage order cut into windows of rows, each shuffled by itself."""

    seed: int
    epoch: int
    window_rows: int

    def _rows_at(self, position: Ints) -> Ints:
        window = position // self.window_rows
        row = np.empty_like(position)
        for index in range(int(window[0]), int(window[-1]) + 1):
            begin = index * self.window_rows
            count = min(self.window_rows, self.rows - begin)
            shuffled = _shuffled_window(self.seed, self.epoch, index, count)
            mine = window == index
            row[mine] = begin + shuffled[position[mine] - begin]
        return row


def stride_of(bands: int) -> int:
    """Step from band to band inside a block: about the golden ratio of them, and coprime."""
    stride = max(1, bands * _GOLDEN_32 >> 32)
    while gcd(stride, bands) != 1:
        stride += 1
    return stride


def joined(pieces: list[Located]) -> Located:
    """Located rows, one piece after the other."""
    return Located(*map(np.concatenate, zip(*pieces, strict=True)))


@lru_cache(maxsize=2)
def _shuffled_window(seed: int, epoch: int, index: int, count: int) -> Ints:
    key = number(epoch_key(seed, epoch, Purpose.ROWS), index)
    return permutation(key, count)

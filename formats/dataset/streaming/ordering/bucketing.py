"""How do rows of like length come to the same step?

A shuffled order is cut into blocks of so many steps. The rows of a block are sorted by length and
cut into steps again, and the steps follow in random order. So a step has little padding, and the
order stays a function of data, seed and epoch: any place of it is reached by working out one block.

Source:
    docs/spec/stream-order.md, section "Buckets".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.streaming.ordering.keyed import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.formats.dataset.streaming.ordering.order import Located, joined
from tensorrepo.formats.dataset.streaming.ordering.schedule import run_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.streaming.ordering.items import Items
    from tensorrepo.formats.dataset.streaming.ordering.order import Order


@dataclass(frozen=True, slots=True)
class Buckets:
    """Blocks of `steps` steps of `batch` items, sorted by length."""

    batch: int
    steps: int

    @property
    def rows(self) -> int:
        """Items of a block."""
        return self.batch * self.steps

    def order(
        self, seed: int, epoch: int, block: int, lengths: NDArray[np.uint32]
    ) -> NDArray[np.int64]:
        """Which item of a block, given their lengths in the order below, stands at each place."""
        rows = len(lengths)
        steps, short = divmod(rows, self.batch)
        key = number(epoch_key(seed, epoch, Purpose.BUCKETS), block)
        turn = permutation(key, max(1, steps + (short > 0)))
        sizes = np.full(len(turn), self.batch)
        if short:
            # The short step comes last; chance says how long the rows are that it holds.
            sizes[turn[-1]] = short
        start = np.cumsum(sizes) - sizes
        by_length = np.argsort(lengths, kind="stable")
        return np.concatenate(
            [by_length[start[at] : start[at] + sizes[at]] for at in turn.tolist()]
        )


class Bucketed:
    """An order whose items are sorted by length within blocks.

    Walked by one thread: it keeps the newest block, and the permutations of the runs near it.
    """

    permuted = False
    whole_rows = 0  # a step may hold more of one band than of another

    def __init__(
        self,
        base: Order,
        items: Items,
        lengths: NDArray[np.uint32],
        first_row: NDArray[np.int64],
        buckets: Buckets,
        *,
        seed: int,
        epoch: int,
        lanes: int,
    ) -> None:
        """Sort `base`.

        Args:
            base: the order below.
            items: what its items are.
            lengths: of every live row of the dataset.
            first_row: the live row that each run of the order begins with.
            buckets: how large blocks are.
            seed: of the order.
            epoch: of the order.
            lanes: so many runs are open at the same time.
        """
        self._base, self._items = base, items
        self._lengths, self._first_row = lengths, first_row
        self._buckets = buckets
        self._seed, self._epoch = seed, epoch
        self.rows, self.bands = base.rows, base.bands
        key = epoch_key(seed, epoch, Purpose.ROWS)
        self._shuffled = run_rows(base, key, items.counts)
        self._kept_blocks = 1 + -(-2 * lanes // buckets.rows)
        self._used = np.full(len(items.counts), -1, np.int64)  # the block that used a run last
        self._newest: tuple[int, Located] | None = None

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The items at positions ``[start, stop)``, of these bands only."""
        size = self._buckets.rows
        stop = min(stop, self.rows)
        blocks = range(start // size, -(-stop // size)) if start < stop else range(0)
        found = joined([self._base.locate(0, 0), *(self._block(block) for block in blocks)])
        low, high = np.searchsorted(found.position, (start, stop))
        some = found.select(slice(low, high))
        if bands is None:
            return some
        return some.select((some.band >= bands.start) & (some.band < bands.stop))

    def returning(self, bands: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """As the order below, with all of a block's items at its end."""
        runs, until = self._base.returning(bands)
        size = self._buckets.rows
        return runs, (until // size + 1) * size

    def _block(self, block: int) -> Located:
        if self._newest is None or self._newest[0] != block:
            self._newest = block, self._sorted(block)
        return self._newest[1]

    def _sorted(self, block: int) -> Located:
        size = self._buckets.rows
        found = self._base.locate(block * size, min((block + 1) * size, self.rows))
        item = self._unshuffled(found, block)
        row = self._first_row[found.run] + self._items.rows(found.run, item)
        turn = self._buckets.order(self._seed, self._epoch, block, self._lengths[row])
        moved = replace(found, place=item).select(turn)
        return replace(moved, position=found.position)

    def _unshuffled(self, found: Located, block: int) -> NDArray[np.int64]:
        """The items that stand at the places of the base order's runs."""
        shuffled = self._shuffled
        if shuffled is None:
            return found.place
        runs = np.unique(found.run)
        shuffled.open(runs[self._used[runs] < 0])
        self._used[runs] = block
        old = (self._used >= 0) & (abs(self._used - block) >= self._kept_blocks)
        shuffled.close(np.flatnonzero(old))
        self._used[old] = -1
        return shuffled.rows(found.run, found.place)

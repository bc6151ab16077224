"""Length buckets: rows of like length in the same step.

A shuffled order is cut into blocks of so many steps. The rows of a block are sorted by length and
cut into steps again, and the steps follow in random order. So a step has little padding, and the
order stays a function of data, seed and epoch: any place of it is reached by working out one block.

Source:
    docs/spec/stream-order.md, section "Buckets".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints, distinct
from tensorrepo.formats.dataset.streaming.order.items import Items
from tensorrepo.formats.dataset.streaming.order.orders import Located, Order, joined
from tensorrepo.formats.dataset.streaming.order.random_numbers import (
    Purpose,
    epoch_key,
    number,
    permutation,
)
from tensorrepo.formats.dataset.streaming.order.schedule import run_rows
from tensorrepo.repo.deferred_dataclass import dataclass

_MOST_GROUPS = 64
_LEAST_SORTED_ROWS = 1024  # by themselves; fewer would be padded more


@dataclass(frozen=True, slots=True)
class Buckets:
    """Blocks of `steps` steps of `batch` items, sorted by length.

    Neighbouring bands make `groups`, each sorted by itself where that gives every step as much of
    each: then ranks that take whole groups read no pages in common.
    """

    batch: int
    steps: int
    bands: int = 1
    groups: int = 1

    @property
    def rows(self) -> int:
        """Items of a block."""
        return self.batch * self.steps

    def order(self, key: int, lengths: NDArray[np.uint32], band: Ints) -> Ints:
        """Which item of a block stands at each place.

        `lengths` and `band` are those of its items, in the order below.
        """
        group = band // (self.bands // self.groups)
        if (np.bincount(group, minlength=self.groups) * self.groups == self.rows).all():
            each = self.batch // self.groups
            chosen = np.lexsort((lengths, group)).reshape(self.groups, self.steps, each)
            return chosen.transpose(1, 2, 0)[permutation(key, self.steps)].reshape(-1)
        return self._of_one_group(key, lengths)

    def _of_one_group(self, key: int, lengths: NDArray[np.uint32]) -> Ints:
        steps, short = divmod(len(lengths), self.batch)
        turn = permutation(key, steps + (short > 0))
        sizes = np.full(len(turn), self.batch)
        if short:
            # The short step comes last; chance says how long the rows are that it holds.
            sizes[turn[-1]] = short
        start = np.cumsum(sizes) - sizes
        by_length = np.argsort(lengths, kind="stable")
        return np.concatenate([by_length[start[at] : start[at] + sizes[at]] for at in turn])


def buckets_of(batch: int, steps: int, bands: int) -> Buckets:
    """Buckets for an order of `bands`, with as many groups of them as leave enough to sort."""
    groups = 1
    fitting = min(_MOST_GROUPS, batch * steps // _LEAST_SORTED_ROWS)
    while 2 * groups <= fitting and bands % (2 * groups) == 0 and batch % (2 * groups) == 0:
        groups *= 2
    return Buckets(batch, steps, bands, groups)


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
        first_row: Ints,
        buckets: Buckets,
        *,
        seed: int,
        epoch: int,
        lanes: int,
    ) -> None:
        """Sort `base`, of whose `items` `lengths` are known by live row of the dataset.

        `first_row` is the live row that each run of the order begins with; so many `lanes` are the
        runs that are open at the same time.
        """
        self._base, self._items = base, items
        self._lengths, self._first_row = lengths, first_row
        self._buckets = buckets
        self._seed, self._epoch = seed, epoch
        self.rows, self.bands = base.rows, base.bands
        key = epoch_key(seed, epoch, Purpose.ROWS)
        self._shuffled = run_rows(base, key, items.counts)
        self._kept_blocks = 1 + -(-2 * lanes // buckets.rows)
        self._used = np.zeros(len(items.counts), np.int64)  # 1 + the block that used a run last
        self._runs_of: dict[int, Ints] = {}  # of blocks that are kept
        self._newest: tuple[int, Located] | None = None

    def locate(self, start: int, stop: int, bands: range | None = None) -> Located:
        """The items at positions ``[start, stop)``, of these bands only."""
        size = self._buckets.rows
        stop = min(stop, self.rows)
        blocks = range(start // size, -(-stop // size)) if start < stop else range(0)
        located = joined([self._base.locate(0, 0), *(self._block(block) for block in blocks)])
        low, high = np.searchsorted(located.position, (start, stop))
        some = located.select(slice(low, high))
        if bands is None:
            return some
        return some.select((some.band >= bands.start) & (some.band < bands.stop))

    def returning(self, bands: range) -> tuple[Ints, Ints]:
        """As the order below, with all of a block's items at its end."""
        runs, until = self._base.returning(bands)
        size = self._buckets.rows
        return runs, (until // size + 1) * size

    def _block(self, block: int) -> Located:
        if self._newest is not None and self._newest[0] == block:
            return self._newest[1]
        size = self._buckets.rows
        located = self._base.locate(block * size, min((block + 1) * size, self.rows))
        item = self._unshuffled(located, block)
        row = self._first_row[located.run] + self._items.rows(located.run, item)
        key = number(epoch_key(self._seed, self._epoch, Purpose.BUCKETS), block)
        turn = self._buckets.order(key, self._lengths[row], located.band)
        moved = located._replace(place=item).select(turn)
        self._newest = block, moved._replace(position=located.position)
        return self._newest[1]

    def _unshuffled(self, located: Located, block: int) -> Ints:
        """The items that stand at the places of the base order's runs."""
        shuffled = self._shuffled
        if shuffled is None:
            return located.place
        runs = distinct(located.run)
        shuffled.open(runs[self._used[runs] == 0])
        self._used[runs] = block + 1
        self._runs_of[block] = runs
        for gone in [each for each in self._runs_of if abs(each - block) >= self._kept_blocks]:
            left = self._runs_of.pop(gone)
            self._forget(left[self._used[left] == gone + 1])
        return shuffled.rows(located.run, located.place)

    def _forget(self, runs: Ints) -> None:
        """Close the permutations of runs, which are open."""
        if self._shuffled is not None:
            self._shuffled.close(runs)
            self._used[runs] = 0

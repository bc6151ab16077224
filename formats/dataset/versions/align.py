"""Alignment of two sequences of rows by content, for rows that no key tells apart.

First come rows that both sequences hold in the same order: what begins and ends alike, and between
that rows whose content comes once on each side, the longest ascending choice of them. Then equal
rows that are left pair in order, wherever they lie. Between two aligned rows, as many rows left on
one side as on the other pair in order as changed ones; all others came or went.
"""

from __future__ import annotations

from bisect import bisect_left
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues, RaggedValues
from tensorrepo.formats.native.row_digests import BEST
from tensorrepo.repo.deferred_dataclass import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class ContentTable:
    """Rows numbered by their content, told by digests.

    Attributes:
        digests: uint64 ``(rows, 2)``: digest of each row.
        numbers: int64 ``(rows,)``: number of each row's content, from 0 on.
        first_row: int64 ``(contents,)``: a row that has each content.
        known: uint64 ``(contents,)``: first half of the digest of each content, ascending.
    """

    digests: NDArray[np.uint64]
    numbers: Ints
    first_row: Ints
    known: NDArray[np.uint64]

    @classmethod
    def of(cls, digests: NDArray[np.uint64]) -> ContentTable:
        """The table of rows that have these digests."""
        order = np.argsort(digests[:, 0])
        ordered = digests[order]
        begins = np.ones(len(digests), np.bool_)
        begins[1:] = (ordered[1:, 0] != ordered[:-1, 0]) | (ordered[1:, 1] != ordered[:-1, 1])
        numbers = np.empty(len(digests), np.int64)
        numbers[order] = np.cumsum(begins) - 1
        return cls(digests, numbers, order[begins], ordered[begins, 0])

    @property
    def contents(self) -> int:
        """How many contents there are."""
        return len(self.known)

    def find(self, digests: NDArray[np.uint64], at: int = 0) -> Ints:
        """Numbers of the contents of other rows, -1 where no row of the table has it.

        It is quick where they lie in the table from row `at` on. Of contents that share the first
        half of their digests one alone is found.
        """
        numbers = np.full(len(digests), -1, np.int64)
        ahead = self.digests[at : at + len(digests)]
        stays = np.zeros(len(digests), np.bool_)
        stays[: len(ahead)] = _same(ahead, digests[: len(ahead)])
        numbers[stays] = self.numbers[at + np.flatnonzero(stays)]
        rest = np.flatnonzero(~stays)
        if len(rest) and self.contents:
            place = np.searchsorted(self.known, digests[rest, 0])
            place = np.minimum(place, self.contents - 1)
            hit = _same(self.digests[self.first_row[place]], digests[rest])
            numbers[rest] = np.where(hit, place, -1)
        return numbers


def _same(one: NDArray[np.uint64], two: NDArray[np.uint64]) -> Bools:
    same: Bools = (one[:, 0] == two[:, 0]) & (one[:, 1] == two[:, 1])
    return same


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """Which row of `new` is which row of `old`; row numbers int64 ``(n,)``.

    Attributes:
        partner: for each new row the old row that it is, -1 where it came.
        is_equal: for each new row whether its content is that of its partner.
        deleted: old rows that no new row is, ascending.
        moved: number of equal rows whose order changed.
    """

    partner: Ints
    is_equal: Bools
    deleted: Ints
    moved: int


def align_rows(old: Ints, new: Ints) -> Alignment:
    """Align rows given as numbers of their content, as a `ContentTable` gives them."""
    partner = np.full(len(new), -1, np.int64)
    _align(old, new, partner)
    anchors = np.flatnonzero(partner >= 0)
    anchored = partner[anchors]
    _pair_equal(old, new, partner)
    moved = int((partner >= 0).sum()) - len(anchors)
    is_equal = partner >= 0
    _pair_changed(anchored, anchors, len(old), partner)
    is_free = np.ones(len(old), np.bool_)
    is_free[partner[partner >= 0]] = False
    return Alignment(partner, is_equal, np.flatnonzero(is_free), moved)


def _align(old: Ints, new: Ints, partner: Ints) -> None:
    """Pair rows that both hold in the same order."""
    size = int(old.max(initial=-1)) + 1
    times_old, times_new = (np.bincount(each[each >= 0], minlength=size) for each in (old, new))
    kept_old = np.flatnonzero(times_new[old] > 0)
    kept_new = np.flatnonzero(new >= 0)
    one, two = old[kept_old], new[kept_new]
    anchors = _unique_anchors(one, two, (times_old == 1) & (times_new == 1))
    partner[kept_new[anchors[1]]] = kept_old[anchors[0]]
    starts = np.array([np.append(0, each + 1) for each in anchors])
    stops = np.array([np.append(anchors[0], len(one)), np.append(anchors[1], len(two))])
    for gap in np.flatnonzero((starts < stops).all(axis=0)).tolist():
        (low, first), (high, last) = starts[:, gap].tolist(), stops[:, gap].tolist()
        head = _common(one[low:high], two[first:last])
        tail = _common(one[low + head : high][::-1], two[first + head : last][::-1])
        partner[kept_new[first : first + head]] = kept_old[low : low + head]
        partner[kept_new[last - tail : last]] = kept_old[high - tail : high]


def _common(one: Ints, two: Ints) -> int:
    """How many rows two sequences begin with alike."""
    rows = min(len(one), len(two))
    unlike = np.flatnonzero(one[:rows] != two[:rows])
    return int(unlike[0]) if len(unlike) else rows


def _unique_anchors(one: Ints, two: Ints, comes_once: Bools) -> tuple[Ints, Ints]:
    """Places of rows that come once on each side, as many as ascend on both."""
    places_one, places_two = np.flatnonzero(comes_once[one]), np.flatnonzero(comes_once[two])
    place = np.empty(len(comes_once), np.int64)
    place[one[places_one]] = places_one
    partners = place[two[places_two]]
    chosen = _longest_ascending(partners)
    return partners[chosen], places_two[chosen]


def _longest_ascending(numbers: Ints) -> Ints:
    """Places of a longest ascending choice of different numbers."""
    if (numbers[1:] > numbers[:-1]).all():
        return np.arange(len(numbers))
    ends: list[int] = []  # the least number that a choice of each length ends with
    places: list[int] = []
    before = np.full(len(numbers), -1, np.int64)
    for place, number in enumerate(numbers.tolist()):
        length = bisect_left(ends, number)
        before[place] = places[length - 1] if length else -1
        ends[length : length + 1] = [number]
        places[length : length + 1] = [place]
    chosen = [places[-1]]
    while before[chosen[-1]] >= 0:
        chosen.append(int(before[chosen[-1]]))
    return np.array(chosen[::-1])


def _pair_equal(old: Ints, new: Ints, partner: Ints) -> None:
    """Pair equal rows that are left, in order."""
    is_free = np.ones(len(old), np.bool_)
    is_free[partner[partner >= 0]] = False
    one, two = np.flatnonzero(is_free), np.flatnonzero((partner < 0) & (new >= 0))
    if not len(one) or not len(two):
        return
    keys_one, keys_two = _with_rank(old[one]), _with_rank(new[two])
    _, mine, theirs = np.intersect1d(keys_one, keys_two, assume_unique=True, return_indices=True)
    partner[two[theirs]] = one[mine]


def _with_rank(content: Ints) -> NDArray[np.void]:
    """Each content with how often it came before: different for every row."""
    keys = np.empty(len(content), [("content", np.int64), ("rank", np.int64)])
    keys["content"], keys["rank"] = content, rank_among_equals(content)
    return keys


def rank_among_equals(content: Ints) -> Ints:
    """How many rows of the same content come before each row."""
    order = np.argsort(content, kind="stable")
    ordered = content[order]
    begins = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(content)])
    lengths = np.diff(np.append(begins, len(content)))
    rank = np.empty(len(content), np.int64)
    rank[order] = np.arange(len(content)) - np.repeat(begins, lengths)
    return rank


def _pair_changed(anchored: Ints, anchors: Ints, old_rows: int, partner: Ints) -> None:
    """Pair rows that are left between two aligned rows, where both sides have as many."""
    is_free = np.ones(old_rows, np.bool_)
    is_free[partner[partner >= 0]] = False
    one, two = np.flatnonzero(is_free), np.flatnonzero(partner < 0)
    gap_one, gap_two = np.searchsorted(anchored, one), np.searchsorted(anchors, two)
    gaps = len(anchors) + 1
    count_one, count_two = (np.bincount(gap, minlength=gaps) for gap in (gap_one, gap_two))
    alike = count_one == count_two
    partner[two[alike[gap_two]]] = one[alike[gap_one]]


def mix_values(lanes: NDArray[np.uint64], values: ColumnValues) -> None:
    """Mix one cell of each row into the digests of the rows, which `new_lanes` began."""
    if isinstance(values, FixedValues):
        _mix_fixed(lanes, values.values, values.valid)
        return
    if isinstance(values, RaggedValues):
        items, size = values.elements, values.elements.dtype.itemsize
        if values.dims is not None:
            _mix_fixed(lanes, values.dims, values.valid)
    else:
        items, size = values.data, 1
    start, stop = int(values.offsets[0]), int(values.offsets[-1])
    data = np.ascontiguousarray(items[start:stop]).view(np.uint8).reshape(-1)
    BEST.mix(data, (values.offsets - start) * size, values.valid, lanes)


def _mix_fixed(lanes: NDArray[np.uint64], values: NDArray[Any], valid: Bools | None) -> None:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    row_bytes = values.itemsize * prod(values.shape[1:])
    BEST.mix(data, np.arange(len(values) + 1) * row_bytes, valid, lanes)

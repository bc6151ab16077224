"""The order of docs/spec/stream-order.md in plain integers: slow, and too simple to be wrong."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import gcd

MASK = (1 << 64) - 1


def number(key: int, x: int) -> int:
    z = (key + (x + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key(seed: int, epoch: int, purpose: int) -> int:
    return number(number(seed, epoch), purpose)


def perm(a_key: int, n: int) -> list[int]:
    low = (1 << max(1, (n - 1).bit_length())) - 1
    return [z & low for z in sorted(number(a_key, x) & ~low | x for x in range(n))]


def feistel(a_key: int, n: int, position: int) -> int:
    w = max(2, (n - 1).bit_length())
    b = w // 2
    low_mask, high_mask = (1 << b) - 1, (1 << (w - b)) - 1
    value = position
    while True:
        lo, hi = value & low_mask, value >> b
        for turn in range(6):
            if turn % 2 == 0:
                hi ^= number(number(a_key, turn), lo) & high_mask
            else:
                lo ^= number(number(a_key, turn), hi) & low_mask
        value = hi << b | lo
        if value < n:
            return value


class Lanes:
    """One epoch of paired lanes: `sequence()` is every row, in order."""

    def __init__(self, live: Sequence[int], seed: int, epoch: int, lanes: int, bands: int) -> None:
        self.live, self.seed, self.epoch = live, seed, epoch
        self.lanes, self.bands = lanes, bands
        self.pi = perm(key(seed, epoch, 1), len(live))
        self.start = [sum(live[run] for run in self.pi[:g]) for g in range(len(live) + 1)]
        self.rows = self.start[-1]
        rings = lanes // 2
        self.cut = [i * self.rows // rings for i in range(rings + 1)]
        self.n = [self.cut[i + 1] - self.cut[i] for i in range(rings)]
        self.s = [self._first(i) if self.n[i] else 0 for i in range(rings)]
        self.length = [(self.n[lane // 2] + 1 - lane % 2) // 2 for lane in range(lanes)]

    def _first(self, i: int) -> int:
        g = bisect_right(self.start, self.cut[i] + self.n[i] // 2) - 1
        a = max(self.start[g], self.cut[i])
        e = min(self.start[g + 1], self.cut[i + 1])
        f = ((i * 0x9E3779B97F4A7C15) & MASK) >> 33
        return a + ((e - a) * f >> 32) - self.cut[i]

    def run_and_place(self, x: int) -> tuple[int, int]:
        g = bisect_right(self.start, x) - 1
        return self.pi[g], x - self.start[g]

    def row_order(self, run: int) -> list[int]:
        return perm(number(key(self.seed, self.epoch, 2), run), self.live[run])

    def lanes_of_block(self, b: int) -> list[int]:
        per_band = self.lanes // self.bands
        stride = max(1, self.bands * 2654435769 >> 32)
        while gcd(stride, self.bands) != 1:
            stride += 1
        low = (1 << max(1, (per_band - 1).bit_length())) - 1
        lane_key = key(self.seed, self.epoch, 3)

        def turn(band: int, r: int) -> int:
            return number(lane_key, b * self.lanes + band * per_band + r) & ~low | r

        orders = [
            [z & low for z in sorted(turn(band, r) for r in range(per_band))]
            for band in range(self.bands)
        ]
        found = [
            band * per_band + orders[band][j]
            for j in range(per_band)
            for band in (u * stride % self.bands for u in range(self.bands))
        ]
        if b == self.rows // self.lanes:
            found = [lane for lane in found if self.length[lane] > b]
        return found

    def row_at(self, t: int) -> tuple[int, int]:
        b = t // self.lanes
        lane = self.lanes_of_block(b)[t % self.lanes]
        i = lane // 2
        step = self.s[i] + b if lane % 2 == 0 else self.s[i] - 1 - b
        x = self.cut[i] + step % self.n[i]
        run, place = self.run_and_place(x)
        return run, self.row_order(run)[place]

    def sequence(self) -> list[tuple[int, int]]:
        return [self.row_at(t) for t in range(self.rows)]


class GroupedLanes(Lanes):
    """Paired lanes over groups of runs; `groups` holds the live rows of the runs of each."""

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        seed: int,
        epoch: int,
        lanes: int,
        bands: int,
        run_rows: int,
    ) -> None:
        self.groups, self.run_rows = groups, run_rows
        super().__init__([sum(group) for group in groups], seed, epoch, lanes, bands)

    def _first(self, i: int) -> int:
        f = ((i * 0x9E3779B97F4A7C15) & MASK) >> 33
        return min(self.n[i] // 2 + (self.run_rows * f >> 32), self.n[i] - 1)

    def run_and_place(self, x: int) -> tuple[int, int]:
        group, place = super().run_and_place(x)
        counts = self.groups[group]
        for run in perm(number(key(self.seed, self.epoch, 9), group), len(counts)):
            if place < counts[run]:
                return sum(len(before) for before in self.groups[:group]) + run, place
            place -= counts[run]
        raise AssertionError("a place beyond its group")

    def row_order(self, run: int) -> list[int]:
        group = 0
        while run >= len(self.groups[group]):
            run -= len(self.groups[group])
            group += 1
        a_key = number(key(self.seed, self.epoch, 2), group << 32 | run)
        return perm(a_key, self.groups[group][run])


def taken(shares: Sequence[int], slots: int) -> list[int]:
    """How many of the first slots of a mix each source has."""
    found = []
    left = slots
    for i, share in enumerate(shares):
        found.append(left * share // sum(shares[i:]))
        left -= found[-1]
    return found


def mix(
    shares: Sequence[int],
    cycle: int,
    slot_rows: int,
    rows: int,
    seed: int,
    epoch: int,
    rest: Sequence[int] = (),
) -> list[int]:
    """The source of every position of an epoch of a mix."""
    slots = (rows - sum(rest)) // slot_rows
    found: list[int] = []
    for z in range(-(-slots // cycle)):
        low, high = z * cycle, min((z + 1) * cycle, slots)
        before, after = taken(shares, low), taken(shares, high)
        line = [i for i in range(len(shares)) for _ in range(after[i] - before[i])]
        shuffled = perm(number(key(seed, epoch, 5), z), high - low)
        found += [line[place] for place in shuffled for _ in range(slot_rows)]
    return found + [i for i, left in enumerate(rest) for _ in range(left)]

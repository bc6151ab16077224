"""Items, weights, packing and buckets of docs/spec/stream-order.md in plain integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.reference_order import key, number, perm

if TYPE_CHECKING:
    from collections.abc import Sequence


def weighted(units: Sequence[int], seed: int, epoch: int) -> list[int]:
    """How often each row comes, given weights in units of 2^-32."""
    weights = key(seed, epoch, 6)
    return [(unit + (number(weights, row) >> 32)) >> 32 for row, unit in enumerate(units)]


def line_of(live: Sequence[int], counts: Sequence[int]) -> list[list[int]]:
    """The rows of each run, counted in the dataset, each as often as it comes."""
    lines, row = [], 0
    for rows in live:
        lines.append([r for r in range(row, row + rows) for _ in range(counts[r])])
        row += rows
    return lines


def packed(lines: Sequence[Sequence[int]], lengths: Sequence[int], size: int) -> list[list[int]]:
    """The rows that the elements of each item of each run are of, one number an element."""
    found = []
    for line in lines:
        elements = [row for row in line for _ in range(lengths[row])]
        found += [elements[at : at + size] for at in range(0, len(elements), size)]
    return found


def bucketed(
    rows: Sequence[int],
    lengths: Sequence[int],
    batch: int,
    steps: int,
    seed: int,
    epoch: int,
) -> list[int]:
    """`rows`, in the order below, sorted into buckets."""
    found = []
    size = batch * steps
    for block, start in enumerate(range(0, len(rows), size)):
        some = rows[start : start + size]
        by_length = sorted(some, key=lambda row: lengths[row])  # stable
        count = -(-len(some) // batch)
        turn = perm(number(key(seed, epoch, 7), block), count)
        sizes = [batch] * count
        if len(some) % batch:
            sizes[turn[-1]] = len(some) % batch
        begins = [sum(sizes[:at]) for at in range(count)]
        for at in turn:
            found += by_length[begins[at] : begins[at] + sizes[at]]
    return found

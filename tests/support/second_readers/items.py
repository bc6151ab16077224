"""Items, weights, packing and buckets of docs/spec/stream-order.md in plain integers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.second_readers.order import key, number, perm


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
    rows: Sequence[tuple[int, int]],
    lengths: Sequence[int],
    batch: int,
    steps: int,
    seed: int,
    epoch: int,
    groups: Sequence[int] = (0,),
) -> list[int]:
    """Rows with their bands, in the order below, sorted into buckets.

    `groups` says of which group each band is.
    """
    found = []
    size = batch * steps
    for block, start in enumerate(range(0, len(rows), size)):
        some = rows[start : start + size]
        a_key = number(key(seed, epoch, 7), block)
        count = max(groups) + 1
        of_group = [
            sorted(
                (row for row, band in some if groups[band % len(groups)] == group),
                key=lambda row: lengths[row],  # stable
            )
            for group in range(count)
        ]
        if all(len(each) * count == size for each in of_group):
            each = batch // count
            for at in perm(a_key, steps):
                found += [of_group[g][at * each + k] for k in range(each) for g in range(count)]
        else:
            found += _of_one_group([row for row, _ in some], lengths, batch, a_key)
    return found


def _of_one_group(rows: Sequence[int], lengths: Sequence[int], batch: int, a_key: int) -> list[int]:
    by_length = sorted(rows, key=lambda row: lengths[row])
    count = -(-len(rows) // batch)
    turn = perm(a_key, count)
    sizes = [batch] * count
    if len(rows) % batch:
        sizes[turn[-1]] = len(rows) % batch
    begins = [sum(sizes[:at]) for at in range(count)]
    return [row for at in turn for row in by_length[begins[at] : begins[at] + sizes[at]]]

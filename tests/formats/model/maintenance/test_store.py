"""Bases come first when tensors are stored anew."""

from __future__ import annotations

from tensorrepo.formats.model.maintenance.repack import depths


def test_depths_count_the_longest_way() -> None:
    assert depths([(), (0,), (0, 1), (), (2, 3), (4, 0)]) == [0, 1, 2, 0, 3, 4]
    assert depths([(2,), (0,), ()]) == [1, 2, 0]
    assert depths([]) == []


def test_depths_of_very_many_ways_are_found_at_once() -> None:
    levels = 60  # 3^60 ways lead from the last to the first
    bases = [
        () if at < 3 else tuple(range(at // 3 * 3 - 3, at // 3 * 3)) for at in range(3 * levels)
    ]
    assert depths(bases) == [at // 3 for at in range(3 * levels)]

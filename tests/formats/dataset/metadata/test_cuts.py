"""Boundaries depend on fragments alone."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.boundaries import MAX_BYTES, MEAN_BYTES, MIN_BYTES, Cuts


def _groups(fragments: list[tuple[int, int]]) -> list[int]:
    """Bytes between boundaries."""
    cuts = Cuts()
    groups: list[int] = []
    for uid, size in fragments:
        if not groups or cuts.must_end_before(size):
            groups.append(0)
        cuts = cuts.add(uid, size)
        groups[-1] += size
        assert groups[-1] == cuts.bytes
    return groups


@given(st.integers(), st.sampled_from([32, 84, 1000, 20_000, 70_000, 600_000]))
def test_parts_are_neither_small_nor_large(seed: int, size: int) -> None:
    rng = random.Random(seed)
    groups = _groups([(rng.getrandbits(64), size) for _ in range(3 * MAX_BYTES // size + 9)])
    assert all(MIN_BYTES <= group <= max(MAX_BYTES, size) for group in groups[:-1])


def test_parts_have_the_mean_that_the_specification_promises() -> None:
    rng = random.Random(1)
    groups = _groups([(rng.getrandbits(64), 500) for _ in range(60_000)])
    # A cap of 512 KiB takes a little off the mean.
    assert 0.8 * MEAN_BYTES < sum(groups) / len(groups) < 1.05 * MEAN_BYTES


@pytest.mark.parametrize("dropped", [0, 1, 300])
def test_boundaries_come_together_again_after_a_change(dropped: int) -> None:
    rng = random.Random(2)
    fragments = [(rng.getrandbits(64), 900) for _ in range(6000)]
    assert _groups(fragments)[-3:] == _groups(fragments[dropped:])[-3:]


@given(st.integers(), st.sampled_from([84, 20_000, 70_000, 600_000]), st.booleans())
def test_as_many_fit_as_come_before_the_next_boundary(seed: int, size: int, closed: bool) -> None:
    rng = random.Random(seed)
    uids = [rng.getrandbits(64) for _ in range(2 * MAX_BYTES // size + 2)]
    gathered = Cuts(rng.randrange(MAX_BYTES), closed)
    fitting = gathered.fitting(uids, [size] * len(uids))
    assert 0 < fitting < len(uids)
    for uid in uids[:fitting]:
        gathered = gathered.add(uid, size)
    assert gathered.must_end_before(size)
    assert not closed or gathered.bytes == _groups([(uid, size) for uid in uids])[0]

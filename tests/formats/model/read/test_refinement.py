"""Models whose high bytes are read first, and the rest when it is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.formats.model.read.refinement import RefinedModel
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tests.support.builders.models import MappedObjects, flip, payload_start, stored
from tests.support.builders.objects import MemoryObjects

FRAME = 1 << 19
WEIGHTS = np.random.default_rng(7).normal(0, 0.02, (40, FRAME // 16)).astype("f4")
TUNED = WEIGHTS + np.random.default_rng(8).normal(0, 1e-5, WEIGHTS.shape).astype("f4")
SINKS = [MemoryObjects, MappedObjects]


def bytes_read(objects: MemoryObjects) -> int:
    return sum(stop - start for _, start, stop in objects.reads)


def tuned(objects: MemoryObjects) -> StoredModel:
    base = stored({"w": WEIGHTS}, objects)
    return stored({"w": TUNED}, objects, known=[base.entry])


@pytest.mark.parametrize("sink", SINKS)
def test_each_refinement_is_what_a_read_of_so_many_planes_gives(sink: Any) -> None:
    opened = stored({"w": WEIGHTS, "tiny": np.float32([1.5])}, sink())
    refined = RefinedModel(opened)
    for planes in (2, 3, 4):
        refined.refine(planes)
        low, high = refined.bounds("w")
        cut = opened.load(["w"], planes=planes)["w"].astype("f8")
        assert np.array_equal(np.where(WEIGHTS < 0, high, low), cut)
        assert ((low <= WEIGHTS) & (high >= WEIGHTS)).all()
    assert refined.is_whole
    assert refined.bounds("w")[0] is not None
    assert np.array_equal(refined.middle("w"), WEIGHTS)


@pytest.mark.parametrize("sink", SINKS)
def test_no_plane_is_read_twice(sink: Any) -> None:
    objects = sink()
    opened = stored({"w": WEIGHTS}, objects)
    whole = opened.tensor("w").stored_bytes
    refined = RefinedModel(opened)
    told = []
    for planes in (2, 2, 3, None, None):
        refined.refine(planes)
        told.append(refined.read_bytes)
    assert told[0] == told[1] < told[2] < told[3] == told[4] == whole
    assert told[0] < 0.5 * whole


def test_the_bytes_that_are_told_are_those_that_a_store_is_asked_for() -> None:
    objects = MemoryObjects()
    opened = stored({"w": WEIGHTS}, objects)
    opened.tensor("w")  # whatever is read to know where frames lie
    objects.reads.clear()
    refined = RefinedModel(opened)
    refined.refine(2)
    # Planes that lie nearly side by side are fetched in one request, gaps and all.
    assert refined.read_bytes <= bytes_read(objects) <= 1.01 * refined.read_bytes + 4096


def test_a_delta_comes_whole_and_its_base_is_counted_once() -> None:
    objects = MemoryObjects()
    opened = tuned(objects)
    refined = RefinedModel(opened)
    refined.refine(2)
    assert refined.is_whole
    assert np.array_equal(refined.bounds("w")[0], TUNED.astype("f8"))
    base = opened.tensor("w").frames[0].place
    members = opened.packs.members
    needed = members.with_bases({base}) - {base}
    expected = opened.tensor("w").stored_bytes
    expected += sum(members.entries[place].stored_bytes for place in needed)
    assert needed
    assert refined.read_bytes == expected
    refined.refine(None)
    assert refined.read_bytes == expected


FLOATS = arrays.arrays(
    "f4", st.integers(1, 40), elements=st.floats(width=32, allow_nan=True, allow_infinity=True)
)


@given(FLOATS, st.sampled_from([2, 3]))
def test_bounds_hold_for_every_pattern_of_bits(values: Any, planes: int) -> None:
    data = np.tile(values, 1000)  # large enough to be stored as planes
    data[::7] += np.float32(1e-3)
    refined = RefinedModel(stored({"w": data}, MemoryObjects()))
    refined.refine(planes)
    low, high = refined.bounds("w")
    real = ~np.isnan(data)
    assert (low[real] <= data[real]).all()
    assert (high[real] >= data[real]).all()
    if not refined.is_whole:
        assert np.isinf(low[~real]).all()
        assert np.isinf(high[~real]).all()


@pytest.mark.parametrize("kind", ["i4", "u4", "i8", "f8", "f2", "i2"])
def test_bounds_hold_for_other_types(kind: str) -> None:
    noise = np.random.default_rng(3).integers(0, 256, 8 << 16, np.uint8)
    data = noise.view(kind)
    data = np.where(np.isfinite(data), data, 0) if kind[0] == "f" else data
    model = stored({"w": data.astype(kind)}, MemoryObjects())
    refined = RefinedModel(model)
    for planes in range(2, 9):
        refined.refine(planes)
        low, high = refined.bounds("w")
        exact = model["w"].astype("f8")
        assert ((low <= exact) & (exact <= high)).all()
    assert refined.is_whole


def test_an_unknown_part_is_estimated_by_its_middle() -> None:
    refined = RefinedModel(stored({"w": WEIGHTS}, MemoryObjects()))
    refined.refine(2)
    guess = refined.middle("w")
    assert guess.dtype == np.float32
    cut = (WEIGHTS.view("u4") & 0xFFFF0000).view("f4")
    assert np.abs(guess - WEIGHTS).mean() < 0.6 * np.abs(cut - WEIGHTS).mean()
    zeros = np.zeros(1 << 16, "f4")
    zeros[1::2] = np.random.default_rng(1).normal(size=1 << 15)
    refined = RefinedModel(stored({"w": zeros}, MemoryObjects()))
    refined.refine(2)
    assert not refined.middle("w")[::2].any()


@pytest.mark.parametrize("planes", [2, 4])
def test_damage_is_found_in_what_is_read(planes: int) -> None:
    objects = MemoryObjects()
    opened = stored({"w": WEIGHTS}, objects)
    placed = opened.tensor("w").frames[1]
    plane = placed.frame.planes[planes - 1]
    at = payload_start(objects, placed.pack.digest) + plane.offset + plane.size_bytes // 2
    flip(objects, placed.pack.digest, at)
    with pytest.raises(CorruptError, match="'w'"):
        RefinedModel(opened).refine(planes)


def test_complex_numbers_have_no_bounds() -> None:
    values = np.arange(1000, dtype="c8")
    refined = RefinedModel(stored({"c": values}, MemoryObjects()))
    refined.refine(2)
    with pytest.raises(UnsupportedError, match=r"'c'.*C64"):
        refined.bounds("c")

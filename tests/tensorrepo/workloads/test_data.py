"""Datasets of workloads: their shape, and that the same one is made again."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workloads.data import (
    DATASET,
    LEAST_STEPS,
    DataShape,
    find_data,
    make_data,
    shape_within,
)
from tensorrepo.workloads.place import BenchPlace
from tensorrepo.workloads.published import TrainingWorkload, workload_named

SHAPES = [
    DataShape("resnet50", 12, 1000, 0),
    DataShape("unet3d", 9, 40_000, 20_000),
    DataShape("dlrm", 3, 160 * 50, 0),
    DataShape("llm", 64, 2048, 0),
]


def training(name: str) -> TrainingWorkload:
    found = workload_named(name)
    assert isinstance(found, TrainingWorkload)
    return found


def nothing(_done: int, _total: int) -> None:
    """Progress that nobody looks at."""


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.workload)
def test_a_dataset_has_the_samples_and_bytes_of_its_shape(
    place: BenchPlace, shape: DataShape
) -> None:
    told: list[tuple[int, int]] = []
    make_data(place, "a", shape, lambda done, total: told.append((done, total)))
    dataset = tr.open(place.url_of("a")).dataset(DATASET)
    assert len(dataset) == shape.rows == shape.samples * shape.rows_of_sample
    assert sum(map(_bytes_of, dataset.to_numpy().values())) >= shape.data_bytes
    assert 1 <= dataset.stored.stored_bytes / shape.data_bytes < 1.05
    assert told[-1] == (shape.data_bytes, shape.data_bytes)
    assert all(before <= after for (before, _), (after, _) in pairwise(told))


def _bytes_of(column: Any) -> int:
    return int(column.nbytes) if isinstance(column, np.ndarray) else sum(map(len, column))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.workload)
def test_whoever_makes_data_makes_the_same(place: BenchPlace, shape: DataShape) -> None:
    for name in ("a", "b"):
        make_data(place, name, shape, nothing)
    a, b = (tr.open(place.url_of(name)).dataset(DATASET).to_arrow() for name in ("a", "b"))
    assert a.equals(b)


@given(
    name=st.sampled_from(["resnet50", "unet3d", "dlrm", "llm"]),
    budget=st.integers(1, 1 << 37),
    accelerators=st.integers(1, 8),
    batch_size=st.integers(1, 500),
)
def test_data_stays_within_a_budget_in_whole_steps_or_is_refused(
    name: str, budget: int, accelerators: int, batch_size: int
) -> None:
    workload, step = training(name), accelerators * batch_size
    try:
        shape = shape_within(workload, budget, accelerators, batch_size)
    except InvalidInputError as refused:
        assert "--size" in str(refused)  # noqa: PT017  either is right, and both are looked at
        least = DataShape(
            name, LEAST_STEPS * step, workload.sample_bytes, workload.sample_bytes_stdev
        )
        assert least.data_bytes > budget or least.samples > workload.samples
        return
    assert shape.data_bytes <= budget
    assert shape.samples <= workload.samples
    assert shape.samples % step == 0
    assert shape.samples >= LEAST_STEPS * step


def test_sizes_are_drawn_as_published_and_smaller_data_are_the_first_of_larger() -> None:
    workload = training("unet3d")
    sizes = DataShape("unet3d", 5000, workload.sample_bytes, workload.sample_bytes_stdev).sizes()
    assert np.mean(sizes) == pytest.approx(workload.sample_bytes, rel=0.05)
    # Two sides of half the deviation each: that of the product is 1/sqrt(2) of the published one.
    assert np.std(sizes) == pytest.approx(workload.sample_bytes_stdev / np.sqrt(2), rel=0.05)
    few = DataShape("unet3d", 7, workload.sample_bytes, workload.sample_bytes_stdev).sizes()
    assert few.tolist() == sizes[:7].tolist()


def test_kept_data_of_the_same_shape_are_found_and_half_made_ones_are_not(
    place: BenchPlace,
) -> None:
    shape = SHAPES[0]
    assert find_data(place, shape) is None
    tr.init(place.url_of(f"{shape.name}-00000000"))
    assert find_data(place, shape) is None
    make_data(place, f"{shape.name}-00000001", shape, nothing)
    assert find_data(place, shape) == f"{shape.name}-00000001"
    assert find_data(place, SHAPES[1]) is None

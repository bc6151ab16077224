"""What models take: each byte once, and to whom it belongs."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.model.layout.placement import decode_placement
from tensorrepo.formats.model.maintenance.usage import DiskUsage, Reached, measure_usage
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import SMALLEST_BUDGET_BYTES, write_model
from tensorrepo.repo.history.trees import Entry
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

LARGE = (200, 200)  # 160,000 bytes: over what is stored again rather than shared


def weights(seed: int, shape: tuple[int, ...] = LARGE) -> Any:
    return np.random.default_rng(seed).normal(0, 0.02, shape).astype("f4")


def reached(entry: Entry, name: str = "m") -> Reached:
    return Reached(entry.digest, (entry,), (("main", f"models/{name}"),))


def test_a_lone_model_is_all_unique() -> None:
    objects = MemoryObjects()
    entry = write_model(objects, {"w": weights(1), "small": np.arange(4, dtype="i4")})
    (one,) = measure_usage(objects, [reached(entry)]).models
    assert one.usage.logical_bytes == weights(1).nbytes + 16
    assert one.usage.shared_bytes == 0
    assert one.usage.stored_bytes == one.usage.unique_bytes > 16


def test_an_equal_tensor_is_shared_and_counts_once_in_the_total() -> None:
    objects = MemoryObjects()
    first = write_model(objects, {"w": weights(1), "a": weights(2)})
    second = write_model(objects, {"w": weights(1), "b": weights(3)}, known=[first])
    found = measure_usage(objects, [reached(first), reached(second, "n")])
    one, two = (model.usage for model in found.models)
    assert one.shared_bytes == two.shared_bytes > 0
    assert found.total.stored_bytes == one.stored_bytes + two.unique_bytes
    assert found.total.logical_bytes == 4 * weights(1).nbytes
    assert found.total.unique_bytes == one.unique_bytes + two.unique_bytes


def test_the_base_of_a_delta_counts_for_whoever_reads_it() -> None:
    objects = MemoryObjects()
    base = write_model(objects, {"w": weights(1)})
    moved = weights(1) + np.float32(1e-4) * weights(9)
    tuned = write_model(objects, {"w": moved}, known=[base], against=DeltaOptions(base))
    both = measure_usage(objects, [reached(base), reached(tuned, "n")])
    alone = measure_usage(objects, [reached(tuned, "n")])
    assert both.models[0].usage.unique_bytes == 0
    assert both.codecs["delta"].unique_bytes == both.models[1].usage.unique_bytes
    assert alone.total.stored_bytes == both.total.stored_bytes
    assert alone.total.unique_bytes == alone.total.stored_bytes


def test_what_is_not_shown_still_shares() -> None:
    objects = MemoryObjects()
    first = write_model(objects, {"w": weights(1)})
    second = write_model(objects, {"w": weights(1), "b": weights(3)}, known=[first])
    models = [reached(first), reached(second, "n")]
    found = measure_usage(objects, models, ["models/m"])
    assert [one.model.digest for one in found.models] == [first.digest]
    assert found.total.unique_bytes == 0


def test_codecs_add_up_to_the_total() -> None:
    objects = MemoryObjects()
    base = write_model(objects, {"w": weights(1), "z": np.zeros(LARGE, "f4")})
    tuned = write_model(
        objects,
        {"w": weights(1) + np.float32(1e-4) * weights(9), "b": np.ones(3)},
        against=DeltaOptions(base),
    )
    found = measure_usage(objects, [reached(base), reached(tuned, "n")])
    parts = list(found.codecs.values())
    assert found.total == DiskUsage(
        sum(part.logical_bytes for part in parts),
        sum(part.stored_bytes for part in parts),
        sum(part.unique_bytes for part in parts),
    )
    assert {"delta", "inline"} <= found.codecs.keys()


def test_a_tensor_of_members_by_several_codecs_counts_for_each() -> None:
    objects = MemoryObjects()
    half = 3 << 20
    value = np.concatenate([np.zeros(half, "f4"), weights(1, (half,))])
    entry = write_model(objects, {"w": value}, budget_bytes=SMALLEST_BUDGET_BYTES)
    found = measure_usage(objects, [reached(entry)])
    assert entry.storage is not None
    placement = decode_placement(objects.get(entry.storage).payload, entry.storage)
    used = {member.codec for tensor in placement.tensors for member in tensor.members}
    assert found.codecs.keys() == used
    assert found.total.logical_bytes == value.nbytes
    assert sum(one.logical_bytes for one in found.codecs.values()) == value.nbytes


@settings(max_examples=examples(8), deadline=None)
@given(st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=4))
def test_unique_is_what_dropping_the_model_would_free(wanted: list[set[int]]) -> None:
    objects = MemoryObjects()
    entries: list[Entry] = []
    for number, seeds in enumerate(wanted):
        tensors = {f"w{seed}": weights(seed, (150, 120)) for seed in seeds}
        tensors["own"] = weights(100 + number, (150, 120))
        entries.append(write_model(objects, tensors, known=entries))
    models = [reached(entry, f"m{number}") for number, entry in enumerate(entries)]
    whole = measure_usage(objects, models)
    rest = measure_usage(objects, models[1:])
    freed = whole.total.stored_bytes - rest.total.stored_bytes
    assert whole.models[0].usage.unique_bytes == freed

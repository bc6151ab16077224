from __future__ import annotations

import tracemalloc
from math import inf, nan, sqrt
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.model.comparison import ModelDiff, diff_models
from tensorrepo.formats.model.write.model_source import ModelSource
from tests.support.builders.models import CountingTensor, noise, stored
from tests.support.builders.objects import MemoryObjects

FRAME = 1 << 19


def compared(
    old: Any, new: Any, *, measure: bool = True, objects: MemoryObjects | None = None
) -> ModelDiff:
    sink = objects if objects is not None else MemoryObjects()
    first, second = stored(old, sink), stored(new, sink)
    sink.reads.clear()
    return diff_models(sink, first.entry, second.entry, measure=measure)


def names(specs: Any) -> list[str]:
    return [spec.name for spec in specs]


def test_tensors_are_added_removed_reshaped_and_changed() -> None:
    found = compared(
        {"gone": np.zeros(3), "shape": np.zeros((2, 3)), "type": np.zeros(3), "w": np.zeros(30),
         "same": np.ones(30)},
        {"new": np.zeros(3), "shape": np.zeros((3, 2)), "type": np.zeros(3, "f4"),
         "w": np.ones(30), "same": np.ones(30)},
    )  # fmt: skip
    assert (names(found.added), names(found.removed)) == (["new"], ["gone"])
    assert [old.name for old, _ in found.retyped] == ["shape", "type"]
    assert names(change.spec for change in found.changed) == ["w"]
    assert found.unchanged == 1


def test_a_change_is_measured_over_all_frames() -> None:
    old = np.zeros(2 * FRAME + 10, "f4")
    new = old.copy()
    new[[3, FRAME, 2 * FRAME + 9]] = 3, -4, 12
    (change,) = compared({"w": old}, {"w": new}).changed
    assert (change.changed, change.max_abs, change.l2) == (3, 12, 13)
    assert change.changed_fraction == 3 / len(old)


def test_only_frames_that_differ_are_read() -> None:
    old = noise(0, FRAME).view("u1")
    new = old.copy()
    new[5 * FRAME] ^= 1
    objects = MemoryObjects()
    compared({"w": old}, {"w": new}, objects=objects)
    read = [stop - start for _, start, stop in objects.reads if stop - start >= FRAME]
    assert read == [FRAME, FRAME]


@pytest.mark.parametrize(
    ("old", "new", "changed", "incomparable", "max_abs"),
    [
        ([1.0, nan], [1.0, nan], None, None, None),
        ([nan, 1.0], [2.0, 1.5], 2, 1, 0.5),
        ([inf, 1.0], [inf, 3.0], 1, 0, 2.0),
        ([inf, 1.0], [-inf, 1.0], 1, 1, 0.0),
        ([0.0, 1.0], [-0.0, 1.0], 1, 0, 0.0),
    ],
)
def test_what_has_no_finite_difference_is_counted_apart(
    old: Any, new: Any, changed: int | None, incomparable: int | None, max_abs: float | None
) -> None:
    changes = compared({"w": np.array(old)}, {"w": np.array(new)}).changed
    expected = [] if changed is None else [(changed, incomparable, max_abs)]
    assert [(one.changed, one.incomparable, one.max_abs) for one in changes] == expected


def typed(name: str, data: bytes) -> ModelSource:
    element = TYPES[name]
    items = np.frombuffer(data, np.dtype((np.void, element.block_bytes)))
    shape = (len(items) * element.block_elements,)
    return ModelSource({"w": ArrayTensor(items, element, shape)})


@pytest.mark.parametrize(
    ("name", "old", "new", "max_abs"),
    [
        ("BF16", b"\x80\x3f" * 40, b"\x00\x40" * 40, 1),
        ("F8_E4M3", b"\x38" * 80, b"\x40" * 80, 1),
        ("F4", b"\x22" * 80, b"\x44" * 80, 1),
        ("BOOL", b"\x00" * 80, b"\x01" * 80, 1),
        ("C128", bytes(160), np.full(10, 3 + 4j).tobytes(), 5),
        ("U64", bytes(80), np.full(10, 7, "<u8").tobytes(), 7),
        ("OPAQUE", b"a" * 80, b"b" * 80, None),
        ("F6_E2M3", b"abc" * 30, b"def" * 30, None),
    ],
)
def test_every_type_is_compared(name: str, old: bytes, new: bytes, max_abs: float | None) -> None:
    (change,) = compared(typed(name, old), typed(name, new)).changed
    assert (change.max_abs, change.changed_fraction) == (max_abs, 1)
    blocks = len(new) // TYPES[name].block_bytes
    elements = blocks * TYPES[name].block_elements
    expected = None if max_abs is None else pytest.approx(max_abs * sqrt(elements))
    assert change.l2 == expected


def test_without_measuring_nothing_is_read() -> None:
    objects = MemoryObjects()
    (change,) = compared(
        {"w": np.zeros(FRAME)}, {"w": np.ones(FRAME)}, measure=False, objects=objects
    ).changed
    assert (change.changed, change.max_abs, change.changed_fraction) == (None, None, None)
    assert all(stop - start < FRAME for _, start, stop in objects.reads)


@pytest.mark.soak
def test_a_diff_needs_little_memory_whatever_the_size() -> None:
    objects = MemoryObjects()
    first = stored({"w": CountingTensor(6_000_000)}, objects)
    second = stored({"w": CountingTensor(6_000_000, salt=1)}, objects)
    tracemalloc.start()
    (change,) = diff_models(objects, first.entry, second.entry).changed
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert change.changed == 6_000_000
    assert peak_bytes < 40 << 20


def test_an_alias_that_parts_from_its_tensor_is_a_change() -> None:
    weight = np.zeros(100)
    found = compared({"a": weight, "b": weight}, {"a": weight, "b": np.ones(100)})
    assert names(change.spec for change in found.changed) == ["b"]


def test_metrics_stand_side_by_side_and_files_are_compared() -> None:
    objects = MemoryObjects()
    old = stored({}, objects, metrics={"acc": 0.8, "same": 1}, files={"c": b"1", "gone": b""})
    new = stored({}, objects, metrics={"acc": 0.9, "same": 1, "f1": 2}, files={"c": b"2"})
    found = diff_models(objects, old.entry, new.entry)
    assert found.metrics == {"acc": (0.8, 0.9), "f1": (None, 2)}
    assert {name: (old is None, new is None) for name, (old, new) in found.files.items()} == {
        "c": (False, False),
        "gone": (False, True),
    }


def test_a_model_against_nothing_is_all_added_or_removed() -> None:
    objects = MemoryObjects()
    model = stored({"a": np.zeros(3)}, objects)
    added = diff_models(objects, None, model.entry)
    removed = diff_models(objects, model.entry, None)
    assert (names(added.added), names(removed.removed)) == (["a"], ["a"])
    assert (added.summary, removed.summary) == ("1 tensor added", "1 tensor removed")


def test_a_diff_reads_as_lines() -> None:
    found = compared(
        {"a": np.zeros(100), "s": np.zeros(3, "f4"), "gone": np.zeros(2)},
        {"a": np.r_[np.zeros(99), 2.0], "s": np.zeros(4, "f4"), "new": np.zeros((2, 2), "u1")},
    )
    assert found.summary == "1 tensor added, 1 removed, 1 reshaped, 1 changed"
    assert list(found.lines()) == [
        "+ new U8 [2, 2]",
        "- gone F64 [2]",
        "~ s F32 [3] -> F32 [4]",
        "~ a F64 [100]: 1.00% changed, by at most 2, L2 2",
    ]
    assert found.to_json()["changed"][0]["max_abs"] == 2

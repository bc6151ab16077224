"""Against which model a new one is encoded, how deep, and what becomes of damage."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.delta.predictions import AdamParams
from tensorrepo.formats.model.delta.similarity import SIGNATURE_ITEMS, distance, signature
from tensorrepo.formats.model.layout.pack import MAX_DEPTH
from tensorrepo.formats.model.layout.placement import Placement, decode_placement
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions, Prediction
from tensorrepo.formats.model.write.model_writer import (
    SMALLEST_BUDGET_BYTES,
    WrittenModel,
    store_model,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.models import copy_of, flip, pack_bytes, payload_start, stored
from tests.support.builders.objects import MemoryObjects

FRAME = 1 << 19


def weights(seed: int, shape: tuple[int, ...] = (300, 400)) -> Any:
    return np.random.default_rng(seed).normal(0, 0.02, shape).astype("f4")


def near(value: Any, seed: int) -> Any:
    return (value + np.random.default_rng(seed).normal(0, 1e-6, value.shape)).astype("f4")


def kept(objects: MemoryObjects, tensors: Any, **options: Any) -> WrittenModel:
    return store_model(objects, tensors, **options)


def placement_of(objects: MemoryObjects, written: WrittenModel) -> Placement:
    storage = written.entry.storage
    assert storage is not None
    return decode_placement(objects.get(storage).payload, storage)


def codecs_of(objects: MemoryObjects, written: WrittenModel) -> set[tuple[str, int]]:
    tensors = placement_of(objects, written).tensors
    return {(member.codec, member.depth) for tensor in tensors for member in tensor.members}


def test_the_nearest_of_the_known_models_is_the_base() -> None:
    objects = MemoryObjects()
    far, close = (kept(objects, {"w": weights(seed)}).entry for seed in (1, 2))
    tuned = kept(objects, {"w": near(weights(2), 9)}, known=[far, close])
    (used,) = tuned.report.bases
    assert (used.digest, used.why, used.tensors) == (close.digest, "similar", 1)
    assert used.bits is not None
    assert used.bits < 2
    assert codecs_of(objects, tuned) == {("delta", 1)}


def small(seed: int) -> dict[str, Any]:
    """A model whose tensors are all too small to have a signature."""
    return {f"{at}.w": weights(10 * seed + at, (90, 100)) for at in range(3)} | {
        "head": weights(10 * seed + 9, (50, 60))
    }


def test_small_tensors_are_stored_as_the_difference_from_the_nearest_model() -> None:
    objects = MemoryObjects()
    far, close = (kept(objects, small(seed)).entry for seed in (1, 2))
    tuned = {name: near(value, 3) for name, value in small(2).items()}
    written = kept(objects, tuned, known=[far, close])
    assert [(used.digest, used.tensors) for used in written.report.bases] == [(close.digest, 4)]
    assert written.report.stored_bytes < 0.6 * written.report.raw_bytes
    found = open_model(objects, written.entry).load()
    assert all(np.array_equal(found[name], value) for name, value in tuned.items())


def test_small_tensors_that_stay_are_shared_with_what_the_others_differ_from() -> None:
    objects = MemoryObjects()
    base = kept(objects, small(2)).entry
    tuned = small(2) | {"0.w": near(small(2)["0.w"], 3)}
    report = kept(objects, tuned, known=[base]).report
    assert report.codecs["same"].tensors == 3


def test_small_tensors_of_other_weights_are_no_bases() -> None:
    objects = MemoryObjects()
    assert not kept(objects, small(2), known=[kept(objects, small(1)).entry]).report.bases


def test_models_of_other_weights_are_no_bases() -> None:
    objects = MemoryObjects()
    other = kept(objects, {"w": weights(1)}).entry
    written = kept(objects, {"w": weights(2)}, known=[other])
    assert written.report.bases == ()
    assert codecs_of(objects, written) == {("planes", 0)}


def test_a_model_that_shares_half_of_its_bytes_may_be_a_base() -> None:
    objects = MemoryObjects()
    trunk = {f"w{number}": weights(number) for number in range(3)}
    base = kept(objects, trunk | {"head": weights(8, (300, 90))}).entry
    tuned = {name: near(value, 9) for name, value in trunk.items()}
    written = kept(objects, tuned | {"head": weights(7, (300, 70))}, known=[base])
    assert written.report.codecs["delta"].tensors == 3
    assert written.report.codecs["planes"].tensors == 1


def test_a_declared_base_is_taken_before_nearer_ones() -> None:
    objects = MemoryObjects()
    close = kept(objects, {"w": near(weights(1), 5)}).entry
    declared = kept(objects, {"w": near(weights(1), 6)}).entry
    tuned = kept(
        objects, {"w": near(weights(1), 5) * 2}, known=[close], against=DeltaOptions(declared)
    )
    assert all(used.why == "declared" for used in tuned.report.bases)
    assert all(used.digest == declared.digest for used in tuned.report.bases)


def test_the_base_that_was_chosen_is_kept_with_the_placement() -> None:
    objects = MemoryObjects()
    base = kept(objects, {"w": weights(1)}).entry
    tuned = kept(objects, {"w": near(weights(1), 9)}, against=DeltaOptions(base))
    (chosen,) = placement_of(objects, tuned).chosen
    assert (chosen.model.hex(), chosen.why, chosen.tensors) == (base.digest, "declared", 1)


def test_the_same_model_is_encoded_alike_every_time() -> None:
    first, second = MemoryObjects(), MemoryObjects()
    for objects in (first, second):
        base = kept(objects, {"w": weights(1)}).entry
        kept(objects, {"w": near(weights(1), 9)}, known=[base])
    assert first.stored == second.stored


def chain(objects: MemoryObjects, length: int, depth: int) -> list[WrittenModel]:
    """Models that are each encoded against the one before."""
    value, made = weights(1), [kept(objects, {"w": weights(1)})]
    for seed in range(length):
        value = near(value, 100 + seed)
        against = DeltaOptions(made[-1].entry, depth)
        made.append(kept(objects, {"w": value}, known=[made[-1].entry], against=against))
    return made


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_no_read_passes_through_more_bases_than_allowed(depth: int) -> None:
    objects = MemoryObjects()
    made = chain(objects, 7, depth)
    depths = [max(found for _, found in codecs_of(objects, one)) for one in made]
    expected = [0, *((at % depth) + 1 if depth else 0 for at in range(7))]
    assert depths == expected
    value = weights(1)
    for seed in range(7):
        value = near(value, 100 + seed)
    assert np.array_equal(open_model(objects, made[-1].entry)["w"], value)


@pytest.mark.parametrize("depth", [-1, MAX_DEPTH + 1])
def test_a_depth_that_no_placement_may_have_is_refused(depth: int) -> None:
    with pytest.raises(InvalidInputError, match="depth"):
        DeltaOptions(depth=depth)


def test_a_read_needs_nothing_but_what_its_placement_links_to() -> None:
    objects = MemoryObjects()
    made = chain(objects, 4, 8)
    entry = made[-1].entry
    needed = {entry.digest, entry.storage, *placement_of(objects, made[-1]).links()}
    alone = MemoryObjects()
    alone.stored = {digest: objects.stored[digest] for digest in needed if digest}
    alone.links = {digest: objects.links[digest] for digest in needed if digest}
    assert np.array_equal(open_model(alone, entry)["w"], open_model(objects, entry)["w"])


def test_a_known_tensor_that_is_encoded_is_not_stored_again_and_its_bases_come_along() -> None:
    objects = MemoryObjects()
    made = chain(objects, 2, 8)
    before = dict(objects.links)
    again = kept(objects, {"other": open_model(objects, made[-1].entry)["w"]},
                 known=[made[-1].entry])  # fmt: skip
    assert pack_bytes(objects, before) == 0
    assert placement_of(objects, again).links() == placement_of(objects, made[-1]).links()
    assert len(placement_of(objects, again).bases) == 2


def damaged_base(objects: MemoryObjects, base: WrittenModel) -> MemoryObjects:
    """The same, but for a byte in the middle of the only member of the base's pack."""
    (pack,) = placement_of(objects, base).packs
    damaged = copy_of(objects)
    flip(damaged, pack.digest, payload_start(objects, pack.digest) + pack.directory_start // 2)
    return damaged


def test_damage_in_a_base_is_said_to_be_there() -> None:
    objects = MemoryObjects()
    base, tuned = chain(objects, 1, 8)
    with pytest.raises(CorruptError, match="'w'"):
        open_model(damaged_base(objects, base), tuned.entry).load()


def test_a_damaged_base_is_not_encoded_against_and_told_of() -> None:
    objects = MemoryObjects()
    base = kept(objects, {"w": weights(1)})
    damaged = damaged_base(objects, base)
    written = kept(damaged, {"w": near(weights(1), 9)}, against=DeltaOptions(base.entry))
    assert codecs_of(damaged, written) == {("planes", 0)}
    assert "a base could not be used" in written.report.notes[0]
    assert np.array_equal(open_model(damaged, written.entry)["w"], near(weights(1), 9))


def test_a_base_whose_packs_are_gone_is_not_encoded_against() -> None:
    objects = MemoryObjects()
    base = kept(objects, {"w": weights(1)})
    (pack,) = placement_of(objects, base).packs
    del objects.stored[pack.digest], objects.links[pack.digest]
    written = kept(objects, {"w": near(weights(1), 9)}, against=DeltaOptions(base.entry))
    assert codecs_of(objects, written) == {("planes", 0)}


def test_members_are_cut_where_those_of_the_base_are() -> None:
    objects = MemoryObjects()
    value = weights(3, (9 * FRAME,))
    options: dict[str, Any] = {"budget_bytes": SMALLEST_BUDGET_BYTES}
    base = kept(objects, {"w": value}, **options).entry
    tuned = kept(objects, {"w": near(value, 4)}, against=DeltaOptions(base))
    assert codecs_of(objects, tuned) == {("delta", 1)}
    assert np.array_equal(open_model(objects, tuned.entry).load()["w"], near(value, 4))


@pytest.mark.soak
def test_memory_is_bounded_by_the_budget_when_frames_are_encoded_against_others() -> None:
    objects = MemoryObjects()
    value = weights(3, (24 * FRAME,))
    base = kept(objects, {"w": value}).entry
    tuned = near(value, 4)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept(objects, {"w": tuned}, against=DeltaOptions(base), budget_bytes=SMALLEST_BUDGET_BYTES)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What this test's own store keeps comes on top, and some frames for each thread.
    kept_bytes = pack_bytes(objects)
    assert peak_bytes - before < SMALLEST_BUDGET_BYTES + kept_bytes + (40 << 20)


def adam_state(steps: int, shape: tuple[int, ...] = (300, 400)) -> dict[str, Any]:
    """Weights and moments after so many steps of Adam, made in numpy as torch makes them."""
    random = np.random.default_rng(5)
    weight, first, second = weights(1, shape), np.zeros(shape, "f4"), np.zeros(shape, "f4")
    for step in range(1, steps + 1):
        gradient = random.normal(0, 1, weight.shape).astype("f4")
        first = (np.float32(0.9) * first + np.float32(0.1) * gradient).astype("f4")
        second = (np.float32(0.999) * second + np.float32(0.001) * gradient**2).astype("f4")
        corrected = np.sqrt(second) / np.sqrt(np.float32(1 - 0.999**step)) + np.float32(1e-8)
        weight = (weight - np.float32(1e-3 / (1 - 0.9**step)) * first / corrected).astype("f4")
    return {"w": weight, "m": first, "v": second}


def predictions(step: int) -> dict[str, tuple[Prediction, ...]]:
    def params(role: Any) -> bytes:
        return AdamParams(role, step, 1e-3, (0.9, 0.999), 1e-8, 0.0, True).pack()

    return {
        "v": (Prediction("adam", params("second-moment"), ("v", "m"), ("m",)),),
        "w": (Prediction("adam", params("weight"), ("w",), ("m", "v")),),
    }


def test_what_a_step_of_adam_makes_is_stored_as_what_it_misses() -> None:
    objects = MemoryObjects()
    before, after = adam_state(7), adam_state(8)
    base = kept(objects, before).entry
    plain = kept(objects, after, against=DeltaOptions(base)).report
    written = kept(objects, after, against=DeltaOptions(base, 8, predictions=predictions(8)))
    share = written.report.codecs["adam"]
    assert share.tensors == 2
    assert share.stored_bytes < 0.2 * share.raw_bytes
    assert written.report.stored_bytes < plain.stored_bytes
    loaded = open_model(objects, written.entry).load()
    assert all(np.array_equal(loaded[name], value) for name, value in after.items())


@pytest.mark.soak
def test_a_tensor_of_several_members_is_predicted_member_by_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tensorrepo.formats.model.write.model_writer.PACK_BYTES", 2 * FRAME * 4)
    objects, shape = MemoryObjects(), (5, FRAME // 2)  # two members: two frames, and half of one
    base = kept(objects, adam_state(1, shape)).entry
    after = adam_state(2, shape)
    written = kept(objects, after, against=DeltaOptions(base, 8, predictions=predictions(2)))
    share = written.report.codecs["adam"]
    assert share.raw_bytes == 2 * after["w"].nbytes
    assert share.stored_bytes < 0.3 * share.raw_bytes
    placed = placement_of(objects, written)
    assert sorted(len(tensor.members) for tensor in placed.tensors) == [2, 2, 2]
    loaded = open_model(objects, written.entry).load()
    assert all(np.array_equal(loaded[name], value) for name, value in after.items())


def test_predictions_that_do_not_come_true_cost_nothing() -> None:
    objects = MemoryObjects()
    base = kept(objects, adam_state(2)).entry
    later = adam_state(8)
    plain = kept(objects, later, against=DeltaOptions(base))
    wrong = kept(objects, later, against=DeltaOptions(base, predictions=predictions(8)))
    assert wrong.report.stored_bytes <= plain.report.stored_bytes


def test_predictions_that_wait_for_each_other_are_left_out() -> None:
    objects = MemoryObjects()
    base = kept(objects, adam_state(7)).entry
    circle = {
        name: (Prediction("adam", predictions(8)["w"][0].params, (name,), others),)
        for name, others in {"w": ("m", "v"), "v": ("w", "m"), "m": ("w", "v")}.items()
    }
    written = kept(objects, adam_state(8), against=DeltaOptions(base, predictions=circle))
    assert "adam" not in written.report.codecs
    assert np.array_equal(open_model(objects, written.entry)["w"], adam_state(8)["w"])


def test_signatures_tell_near_tensors_from_others() -> None:
    one, other, tuned = weights(1), weights(2), near(weights(1), 3)
    marks = [signature(tensor_of("w", value)) for value in (one, other, tuned)]
    first, second, third = (mark for mark in marks if mark is not None)
    assert len(first) == SIGNATURE_ITEMS
    assert distance(first, third) < 1
    assert distance(first, second) > 3


@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", "c8", "c16"])
def test_signatures_are_the_highest_bits(dtype: str) -> None:
    value = np.random.default_rng(1).normal(0, 90, 1 << 16).astype(dtype)
    found = signature(tensor_of("w", value))
    real = value.real[:: (1 << 16) // SIGNATURE_ITEMS]
    bits = np.ascontiguousarray(real).view(f"u{real.itemsize}").astype("u8")
    assert found is not None
    assert np.array_equal(found, (bits << 8 if dtype == "u1" else bits >> 8 * real.itemsize - 16))


def test_small_tensors_have_no_signature() -> None:
    assert signature(tensor_of("w", np.zeros(65_535, "u1"))) is None


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, int, dict[str, int]]]:
    """Models, each of some tensors, with the number of its base (-1: none) and a depth."""
    count = draw(st.integers(1, 6))
    names = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), max_size=3)
    return [
        (draw(st.integers(-1, at - 1)), draw(st.sampled_from([1, 2, 8])), draw(names))
        for at in range(count)
    ]


SHAPES = {"a": (40, 60), "b": (3000,), "c": (2, 20, 70)}


def tensors_of(given: dict[str, int]) -> dict[str, Any]:
    return {name: near(weights(0, SHAPES[name]), seed) for name, seed in given.items()}


@given(trees())
def test_every_model_of_a_family_comes_back_whatever_it_was_stored_against(tree: Any) -> None:
    objects = MemoryObjects()
    entries: list[Any] = []
    for base, depth, given_names in tree:
        against = DeltaOptions(entries[base] if base >= 0 else None, depth)
        options: dict[str, Any] = {"known": entries, "against": against}
        entries.append(kept(objects, tensors_of(given_names), **options).entry)
    for (_, _, given_names), entry in zip(tree, entries, strict=True):
        loaded: StoredModel = open_model(objects, entry)
        expected = tensors_of(given_names)
        assert set(loaded) == set(expected)
        assert all(np.array_equal(loaded[name], value) for name, value in expected.items())


def test_packs_are_leaves_also_those_with_bases() -> None:
    objects = MemoryObjects()
    chain(objects, 3, 8)
    assert all(link.leaf for link in objects.links.values() if link.kind is Kind.PACK)


def test_a_stored_model_can_be_the_source_of_another_and_nothing_is_stored() -> None:
    objects = MemoryObjects()
    made = chain(objects, 2, 8)
    model = open_model(objects, made[-1].entry)
    before = dict(objects.links)
    readers = {name: model.tensor(name) for name in model}
    stored(readers, objects, known=[made[-1].entry])
    assert pack_bytes(objects, before) == 0

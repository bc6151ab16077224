"""Blends against a few lines of numpy that hold whole tensors in float64."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.model.comparison import content_of
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.merging.blend import BlendedTensor
from tensorrepo.formats.model.merging.new_model import ModelRef, merge_models, remake, slice_model
from tensorrepo.formats.model.merging.recipe import Recipe, make_recipe, recipe_of
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.models import CountingTensor, pack_bytes, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import sampled

FRAME = 1 << 19


def placed(tensors: Any, objects: MemoryObjects, **options: Any) -> ModelRef:
    return ModelRef(stored(tensors, objects, **options), "models/m", None)


def blended(
    method: str, objects: MemoryObjects, parents: Sequence[ModelRef], base: ModelRef | None = None,
    **given: Any,
) -> tuple[StoredModel, Recipe]:  # fmt: skip
    digests = tuple(one.digest for one in parents)
    recipe = make_recipe(method, digests, base=base.digest if base else None, **given)
    made = merge_models(objects, recipe, parents, base)
    return open_model(objects, made.entry), recipe


def arrays(seed: int, size: int = 1000) -> dict[str, np.ndarray[Any, Any]]:
    return {"w": np.random.default_rng(seed).normal(size=size).astype("f4")}


def slerp(one: Any, two: Any, place: float) -> Any:
    left, right = one.astype("f8"), two.astype("f8")
    angle = np.arccos(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    return (np.sin((1 - place) * angle) * left + np.sin(place * angle) * right) / np.sin(angle)


def ties(base: Any, sides: Any, density: float, scale: float) -> Any:
    changes = []
    for side in sides:
        change = side.astype("f8") - base
        order = np.argsort(-np.abs(change), kind="stable")
        change[order[int(np.ceil(density * len(change))) :]] = 0
        changes.append(change)
    stack = np.stack(changes)
    sign = np.sign(stack.sum(0))
    agree = (np.sign(stack) == sign) & (stack != 0)
    count = np.maximum(agree.sum(0), 1)
    return base + scale * np.where(agree, stack, 0).sum(0) / count


def test_an_average_counts_weights_by_their_ratio() -> None:
    objects = MemoryObjects()
    one, two = arrays(1), arrays(2)
    made, _ = blended("average", objects, [placed(one, objects), placed(two, objects)],
                      weights=(3, 1))  # fmt: skip
    expected = one["w"].astype("f8") * 0.75 + two["w"].astype("f8") * 0.25
    np.testing.assert_array_equal(made["w"], expected.astype("f4"))


@pytest.mark.parametrize("place", [0.25, 0.5])
def test_slerp_keeps_to_the_arc(place: float) -> None:
    objects = MemoryObjects()
    one, two = arrays(1), arrays(2)
    made, _ = blended("slerp", objects, [placed(one, objects), placed(two, objects)],
                      weights=(1 - place, place))  # fmt: skip
    np.testing.assert_allclose(made["w"], slerp(one["w"], two["w"], place), rtol=1e-6, atol=1e-6)
    plain = np.linalg.norm((1 - place) * one["w"] + place * two["w"])
    assert np.linalg.norm(made["w"]) > 1.1 * plain


@pytest.mark.parametrize("other", [lambda w: w * 2, lambda w: w * 0, lambda w: -w])
def test_tensors_in_line_are_blended_on_the_line(other: Any) -> None:
    objects = MemoryObjects()
    one = arrays(1, 100)
    two = {"w": other(one["w"])}
    made, _ = blended("slerp", objects, [placed(one, objects), placed(two, objects)])
    np.testing.assert_allclose(made["w"], (one["w"] + two["w"]) / 2, rtol=1e-6)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("last", "kind"),
    sampled([((np.inf, -1), "f4"), ((-np.inf, 1), "f4"), ((1e154, 1.1e154), "f8")], 1),
)
def test_tensors_that_have_no_angle_are_blended_on_the_line(last: Any, kind: str) -> None:
    objects = MemoryObjects()
    one, two = np.zeros((2, 2 * FRAME), kind)
    one[0], two[0] = (np.inf, 1) if kind == "f4" else (1.2e154, 1.3e154)
    one[1:5], two[1:5] = 1, 2
    one[-1], two[-1] = last
    made, _ = blended("slerp", objects, [placed({"w": one}, objects), placed({"w": two}, objects)])
    assert made["w"][1:5].tolist() == [1.5] * 4


def test_ties_takes_a_complex_number_as_two() -> None:
    objects = MemoryObjects()
    sides = [np.random.default_rng(at).normal(size=400).astype("f4") for at in range(3)]
    models = [placed({"w": one.view("c8")}, objects) for one in sides]
    made, _ = blended("ties", objects, models[1:], models[0], density=0.3)
    expected = ties(sides[0].astype("f8"), sides[1:], 0.3, 1)
    np.testing.assert_allclose(np.asarray(made["w"]).view("f4"), expected, rtol=1e-6)


def test_task_arithmetic_adds_what_each_side_changed() -> None:
    objects = MemoryObjects()
    base, one, two = (arrays(seed) for seed in range(3))
    made, _ = blended("task-arithmetic", objects, [placed(one, objects), placed(two, objects)],
                      placed(base, objects), weights=(1, -0.5), scale=0.5)  # fmt: skip
    low = base["w"].astype("f8")
    expected = low + 0.5 * ((one["w"] - low) * 1 + (two["w"] - low) * -0.5)
    np.testing.assert_allclose(made["w"], expected, rtol=1e-6)


@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_ties_trims_elects_and_joins(density: float) -> None:
    objects = MemoryObjects()
    base, one, two, three = (arrays(seed) for seed in range(4))
    parents = [placed(side, objects) for side in (one, two, three)]
    made, _ = blended("ties", objects, parents, placed(base, objects), density=density, scale=0.8)
    expected = ties(base["w"], [side["w"] for side in (one, two, three)], density, 0.8)
    np.testing.assert_allclose(made["w"], expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["F64", "F16", "BF16", "F8_E4M3", "F8_E5M2", "C64", "C32"])
def test_the_type_is_kept(name: str) -> None:
    objects = MemoryObjects()
    element = TYPES[name]

    def typed(byte: int) -> ModelSource:
        data = np.full(100 * element.block_bytes, byte, np.uint8)
        items = data.view(np.dtype((np.void, element.block_bytes)))
        return ModelSource({"w": ArrayTensor(items, element, (100,))})

    one, two = typed(0x30), typed(0x34)
    made, _ = blended("average", objects, [placed(one, objects), placed(two, objects)])
    assert made.spec("w").type == element
    assert made.content("w") not in {stored(one).content("w"), stored(two).content("w")}


def test_counters_and_equal_blocks_are_the_first_models() -> None:
    objects = MemoryObjects()
    rest = {"mask": np.array([True, False]), "same": np.arange(9, dtype="u1")}
    parents = [placed({"n": np.array([at]), "w": np.full(4, float(at)), **rest}, objects)
               for at in (3, 5)]  # fmt: skip
    recipe = make_recipe("average", tuple(one.digest for one in parents))
    made = merge_models(objects, recipe, parents)
    model = open_model(objects, made.entry)
    assert (model["n"][0], model["w"][0]) == (3, 4)
    assert made.notes == ("1 tensor without a mean taken from the first model: n",)


def test_quantised_blocks_that_differ_are_refused() -> None:
    objects = MemoryObjects()
    element = TYPES["F4"]
    parents = [
        placed(ModelSource({"w": ArrayTensor(np.full(80, at, np.uint8), element, (160,))}), objects)
        for at in (1, 2)
    ]
    with pytest.raises(InvalidInputError, match="F4 has no mean"):
        blended("average", objects, parents)


def test_models_that_do_not_fit_are_named_unless_that_is_allowed() -> None:
    objects = MemoryObjects()
    one = placed({"w": np.zeros(4), "head": np.zeros(3)}, objects)
    two = placed({"w": np.ones(4), "head": np.ones(5), "more": np.ones(2)}, objects)
    with pytest.raises(InvalidInputError, match="differ in 'more', 'head'"):
        blended("average", objects, [one, two])
    made, _ = blended("average", objects, [one, two], strict=False)
    assert {name: made[name].tolist() for name in made} == {"w": [0.5] * 4, "head": [0.0] * 3}


def test_tied_tensors_stay_tied_where_all_tie_them() -> None:
    objects = MemoryObjects()

    def tied(value: float) -> Any:
        weight = np.full(100, value)
        return {"a": weight, "b": weight}

    first, second = placed(tied(1.0), objects), placed(tied(3.0), objects)
    made, _ = blended("average", objects, [first, second])
    assert made.aliases == {"b": "a"}
    loose = placed({"a": np.full(100, 3.0), "b": np.full(100, 5.0)}, objects)
    parted, _ = blended("average", objects, [first, loose])
    assert parted.aliases == {}
    assert (parted["a"][0], parted["b"][0]) == (2, 3)


def test_lineage_names_every_parent_and_files_are_the_firsts() -> None:
    objects = MemoryObjects()
    parents = [placed(arrays(at, 100), objects, files={"config.json": b"{%d}" % at},
                      metrics={"acc": 1}) for at in (1, 2)]  # fmt: skip
    base = placed(arrays(0, 100), objects)
    made, recipe = blended("ties", objects, parents, base)
    assert [(edge.relation, edge.digest) for edge in made.lineage] == [
        ("merged-from", parents[0].digest),
        ("merged-from", parents[1].digest),
        ("merged-onto", base.digest),
    ]
    assert b"".join(made.file_chunks("config.json")) == b"{1}"
    assert made.metrics == {}
    assert recipe_of(made.manifest) == recipe


@pytest.mark.parametrize("method", ["average", "slerp", "ties", "task-arithmetic"])
def test_a_blend_is_made_again_and_found_equal(method: str) -> None:
    objects = MemoryObjects()
    parents = [placed(arrays(at), objects) for at in (1, 2)]
    base = placed(arrays(0), objects) if method in {"ties", "task-arithmetic"} else None
    made, recipe = blended(method, objects, parents, base)
    count = len(objects.links)
    assert remake(made, recipe, parents, base) == ()
    assert len(objects.links) == count
    other = stored({"w": np.zeros(1000, "f4")}, objects)
    assert remake(other, recipe, parents, base) == ("w",)


def test_the_same_recipe_gives_the_same_model() -> None:
    first, second = MemoryObjects(), MemoryObjects()
    one, _ = blended("slerp", first, [placed(arrays(at), first) for at in (1, 2)])
    two, _ = blended("slerp", second, [placed(arrays(at), second) for at in (1, 2)])
    assert one.entry.digest == two.entry.digest


def test_other_models_than_the_recipes_are_refused() -> None:
    objects = MemoryObjects()
    parents = [placed(arrays(at, 100), objects) for at in (1, 2)]
    recipe = make_recipe("average", tuple(one.digest for one in parents))
    with pytest.raises(InvalidInputError, match="other models"):
        merge_models(objects, recipe, parents[::-1])


@pytest.mark.parametrize("size", [0, 1, 8, 9, FRAME, 2 * FRAME + 3])
def test_the_content_of_a_reader_is_what_is_stored(size: int) -> None:
    values = np.arange(size, dtype="f8")
    model = stored({"w": values})
    assert content_of(ArrayTensor(values, TYPES["F64"], (size,))) == model.content("w")


@pytest.mark.soak
@pytest.mark.parametrize("method", sampled(["ties", "slerp", "average"], 1))
def test_a_blend_needs_little_memory_whatever_the_size(method: str) -> None:
    sides = [_Floats(10 * FRAME, salt=salt) for salt in (1, 2)]
    base = _Floats(10 * FRAME) if method == "ties" else None
    recipe = make_recipe(method, ("1", "2"), base="3" if base else None)
    tracemalloc.start()
    content_of(BlendedTensor(recipe, sides, base))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 14 * FRAME * 8  # the models have 20 to 30 frames


@pytest.mark.parametrize("method", ["average", "slerp", "ties"])
def test_a_blend_does_not_depend_on_the_stretches_that_are_asked_for(method: str) -> None:
    sides = [_Floats(FRAME + 50, salt=salt) for salt in (1, 2)]
    base = _Floats(FRAME + 50) if method == "ties" else None
    recipe = make_recipe(method, ("1", "2"), base="3" if base else None)
    tensor = BlendedTensor(recipe, sides, base)
    whole, part = np.empty(FRAME + 50), np.empty(60)
    tensor.read_into(0, whole.view("u1").data)
    tensor.read_into((FRAME - 20) * 8, part.view("u1").data)
    np.testing.assert_array_equal(whole[FRAME - 20 : FRAME + 40], part)


class _Floats(CountingTensor):
    def __init__(self, items: int, *, salt: int = 0) -> None:
        super().__init__(items, salt=salt)
        self.type = TYPES["F64"]

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        first = start_byte // 8
        at = np.arange(first, first + buffer.nbytes // 8, dtype="f8")
        np.frombuffer(buffer, "f8")[:] = at % (7 + self.salt)


def test_a_sub_network_shares_its_tensors_with_the_model() -> None:
    objects = MemoryObjects()
    layers = {f"layers.{at}.weight": np.full((200, 200), at, "f4") for at in range(4)}
    whole = placed({**layers, "head.weight": np.ones((5, 200), "f4")}, objects,
                   files={"config.json": b"{}"})  # fmt: skip
    before = dict(objects.links)
    made = slice_model(objects, whole, "layers.1", "layers.2")
    model = open_model(objects, made.entry)
    assert model.keys() == ("layers.1.weight", "layers.2.weight")
    assert pack_bytes(objects, before) == 0
    (edge,) = model.lineage
    assert (edge.relation, edge.digest) == ("sliced-from", whole.digest)
    assert edge.details == {"first": "layers.1", "last": "layers.2", "graph": "names"}
    assert [node.name for node in model_graph(model).nodes] == ["input.0", "layers.1", "layers.2"]
    assert "no branches" in made.notes[0]
    assert dict(model.files) == {}


def test_a_sub_network_without_tensors_is_no_model() -> None:
    objects = MemoryObjects()
    whole = placed({"w": np.ones(3)}, objects)
    with pytest.raises(InvalidInputError, match="no tensor lies between"):
        slice_model(objects, whole, "input", "input")

"""Adapters are understood by their names, fit their base, and are put into it as PEFT does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.provenance import ADAPTER_OF, ProvenanceEdge
from tensorrepo.formats.model.description import describe_model
from tensorrepo.formats.model.merging.adapters import adapter_of, declare
from tensorrepo.formats.model.merging.new_model import ModelRef, merge_models, remake
from tensorrepo.formats.model.merging.recipe import ADAPTER, make_recipe
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import source_of
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tests.support.builders.models import stored
from tests.support.builders.objects import MemoryObjects

RANDOM = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RANDOM.normal(size=shape).astype("f4")


BASE = {
    "layers.0.q_proj.weight": normal(24, 16),
    "layers.0.q_proj.bias": normal(24),
    "layers.0.down.weight": normal(16, 24),
    "conv.weight": normal(6, 4, 3, 3),
    "embed.weight": normal(50, 16),
    "norm.weight": normal(16),
}
Q = "base_model.model.layers.0.q_proj"
LORA = {f"{Q}.lora_A.weight": normal(4, 16), f"{Q}.lora_B.weight": normal(24, 4)}
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}


def placed_base(objects: MemoryObjects, tensors: Mapping[str, Any] = BASE) -> ModelRef:
    return ModelRef(stored(dict(tensors), objects), "models/base", None)


def placed_adapter(
    objects: MemoryObjects, base: ModelRef, tensors: Mapping[str, Any], config: Any = CONFIG
) -> ModelRef:
    files = {} if config is None else {"adapter_config.json": json.dumps(config).encode()}
    source = source_of(dict(tensors))
    adapter = declare(base.model, type(source)(source.tensors, source.aliases, files=files))
    edge = base.edge(ADAPTER_OF, **adapter.to_json())
    return ModelRef(
        stored(dict(tensors), objects, files=files, lineage=[edge]), "models/lora", None
    )


def put_in(
    objects: MemoryObjects, base: ModelRef, *adapters: ModelRef, **given: Any
) -> StoredModel:
    recipe = make_recipe(
        ADAPTER, tuple(one.digest for one in adapters), base=base.digest, **given
    )  # fmt: skip
    model = open_model(objects, merge_models(objects, recipe, adapters, base).entry)
    assert remake(model, recipe, adapters, base) == ()
    return model


def product(tensors: Mapping[str, Any], module: str = Q) -> Any:
    low, high = (tensors[f"{module}.lora_{side}.weight"].astype("f8") for side in "AB")
    return high @ low


def test_an_update_of_low_rank_is_added_with_its_scale() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    made = put_in(objects, base, placed_adapter(objects, base, LORA))
    expected = BASE["layers.0.q_proj.weight"].astype("f8") + 2 * product(LORA)
    np.testing.assert_allclose(made["layers.0.q_proj.weight"], expected, rtol=1e-6, atol=1e-6)
    assert made.content("embed.weight") == base.model.content("embed.weight")
    assert [edge.relation for edge in made.lineage] == ["merged-from", "merged-onto"]


def test_several_adapters_come_one_after_the_other_by_their_weights() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    other = {name: -0.5 * value for name, value in LORA.items()}
    adapters = [placed_adapter(objects, base, one) for one in (LORA, other)]
    made = put_in(objects, base, *adapters, weights=(1, 0.25), scale=0.5)
    delta = product(LORA) + 0.25 * product(other)
    expected = BASE["layers.0.q_proj.weight"].astype("f8") + delta
    np.testing.assert_allclose(made["layers.0.q_proj.weight"], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"lora_alpha": 8}, 2),
        ({"lora_alpha": 8, "use_rslora": True}, 4),
        ({"lora_alpha": 8, "alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {"proj": 2}}, 2),
        ({"lora_alpha": 8, "alpha_pattern": {r"layers\.\d+\.(q|k)_proj": 2}}, 0.5),
        ({"lora_alpha": 8, "alpha_pattern": {r"layers\.[1-9]\..*": 2, "q_proj": 4}}, 1),
    ],
)
def test_the_scale_is_that_of_the_config(config: Any, scale: float) -> None:
    objects = MemoryObjects()
    adapter = placed_adapter(objects, placed_base(objects), LORA, config)
    found = adapter_of(adapter.model.lineage)
    assert found is not None
    assert found[1].changes["layers.0.q_proj.weight"].scale == scale


@pytest.mark.parametrize("rename", [".default.weight", ".weight"])
def test_names_of_a_model_in_memory_are_those_of_a_file(rename: str) -> None:
    objects = MemoryObjects()
    named = {name.replace(".weight", rename): value for name, value in LORA.items()}
    adapter = placed_adapter(objects, placed_base(objects), named)
    assert "rank 4, scale 2, 1 tensor of q_proj" in "\n".join(describe_model(adapter.model).lines())


def test_names_of_kohya_have_their_own_alpha() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    module = "lora_unet_layers_0_q_proj"
    tensors = {
        f"{module}.lora_down.weight": normal(4, 16),
        f"{module}.lora_up.weight": normal(24, 4),
        f"{module}.alpha": np.float32(2),
    }
    made = put_in(objects, base, placed_adapter(objects, base, tensors, None))
    delta = tensors[f"{module}.lora_up.weight"] @ tensors[f"{module}.lora_down.weight"] / 2
    expected = BASE["layers.0.q_proj.weight"] + delta
    np.testing.assert_allclose(made["layers.0.q_proj.weight"], expected, rtol=1e-5, atol=1e-5)


def test_embeddings_and_convolutions_are_adapted() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    tensors = {
        "embed.lora_embedding_A": normal(2, 50), "embed.lora_embedding_B": normal(16, 2),
        "conv.lora_A.weight": normal(2, 4, 3, 3), "conv.lora_B.weight": normal(6, 2, 1, 1),
    }  # fmt: skip
    made = put_in(objects, base, placed_adapter(objects, base, tensors, {"lora_alpha": 2}))
    embedded = (tensors["embed.lora_embedding_B"] @ tensors["embed.lora_embedding_A"]).T
    np.testing.assert_allclose(
        made["embed.weight"], BASE["embed.weight"] + embedded, rtol=1e-5, atol=1e-5
    )
    low, high = tensors["conv.lora_A.weight"], tensors["conv.lora_B.weight"]
    kernel = (high.reshape(6, 2) @ low.reshape(2, -1)).reshape(6, 4, 3, 3)
    np.testing.assert_allclose(made["conv.weight"], BASE["conv.weight"] + kernel, rtol=1e-5,
                               atol=1e-5)  # fmt: skip


def test_a_base_with_turned_weights_gets_the_transpose() -> None:
    objects = MemoryObjects()
    base = placed_base(objects, {"q.weight": normal(8, 8)})
    tensors = {"q.lora_A.weight": normal(2, 8), "q.lora_B.weight": normal(8, 2)}
    config = {"lora_alpha": 2, "fan_in_fan_out": True}
    made = put_in(objects, base, placed_adapter(objects, base, tensors, config))
    expected = base.model["q.weight"] + product(tensors, "q").T
    np.testing.assert_allclose(made["q.weight"], expected, rtol=1e-5, atol=1e-5)


def test_scales_of_activations_multiply_weights_and_biases() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    tensors = {
        "layers.0.q_proj.ia3_l": normal(24, 1), "layers.0.down.ia3_l": normal(1, 24),
        "conv.ia3_l": normal(1, 4, 1, 1),
    }  # fmt: skip
    adapter = placed_adapter(objects, base, tensors, {"peft_type": "IA3"})
    made = put_in(objects, base, adapter)
    rows = tensors["layers.0.q_proj.ia3_l"]
    scales = {
        "layers.0.q_proj.weight": rows,
        "layers.0.q_proj.bias": rows[:, 0],
        "layers.0.down.weight": tensors["layers.0.down.ia3_l"],
        "conv.weight": tensors["conv.ia3_l"],
    }
    expected = {name: (BASE[name] * scale).tobytes() for name, scale in scales.items()}
    assert {name: made[name].tobytes() for name in scales} == expected
    with pytest.raises(InvalidInputError, match="weight and the scale are 1"):
        put_in(objects, base, adapter, weights=(0.5,))


def test_tensors_trained_anew_take_the_place_of_the_bases() -> None:
    objects = MemoryObjects()
    shared = BASE["embed.weight"]
    base = placed_base(objects, {**BASE, "embed.weight": shared, "head.weight": shared})
    assert base.model.aliases == {"head.weight": "embed.weight"}
    own, head = normal(16), normal(3, 16)
    tensors = {
        **LORA,
        "base_model.model.norm.modules_to_save.default.weight": own,
        "base_model.model.score.weight": head,
        "base_model.model.embed.weight": shared + 1,
    }
    made = put_in(objects, base, placed_adapter(objects, base, tensors))
    np.testing.assert_array_equal(made["norm.weight"], own)
    np.testing.assert_array_equal(made["score.weight"], head)
    np.testing.assert_array_equal(made["embed.weight"], shared + 1)
    np.testing.assert_array_equal(made["head.weight"], shared)
    assert not made.aliases


def test_ties_of_the_base_stay_where_the_tied_tensor_is_adapted() -> None:
    objects = MemoryObjects()
    shared = BASE["embed.weight"]
    base = placed_base(objects, {"embed.weight": shared, "head.weight": shared})
    tensors = {"head.lora_A.weight": normal(2, 16), "head.lora_B.weight": normal(50, 2)}
    made = put_in(objects, base, placed_adapter(objects, base, tensors, {"lora_alpha": 2}))
    assert made.aliases == {"head.weight": "embed.weight"}
    np.testing.assert_allclose(
        made["embed.weight"], shared + product(tensors, "head"), rtol=1e-5, atol=1e-5
    )


@pytest.mark.soak
def test_tensors_of_several_frames_are_adapted_in_parts() -> None:
    objects = MemoryObjects()
    weight = np.broadcast_to(normal(1, 1000), (1100, 1000)).copy()
    base = placed_base(objects, {"w.weight": weight})
    tensors = {"w.lora_A.weight": normal(1, 1000), "w.lora_B.weight": normal(1100, 1)}
    made = put_in(objects, base, placed_adapter(objects, base, tensors, {"lora_alpha": 1}))
    expected = weight.astype("f8") + product(tensors, "w")
    np.testing.assert_array_equal(made["w.weight"], expected.astype("f4"))


@pytest.mark.parametrize(
    ("tensors", "config", "told"),
    [
        ({"other.lora_A.weight": normal(2, 16), "other.lora_B.weight": normal(24, 2)}, CONFIG,
         "for 'other', which the base has not"),
        ({f"{Q}.lora_A.weight": normal(4, 17), f"{Q}.lora_B.weight": normal(24, 4)}, CONFIG,
         "trained on top of another model"),
        ({f"{Q}.lora_A.weight": normal(4, 16)}, CONFIG, "other of its pair is missing"),
        (LORA, None, "--adapter-scale"),
        (LORA, [], "expected an object"),
        ({"layers.0.down.ia3_l": normal(1, 16)}, None, "scales no tensor of shape"),
        ({"elsewhere.weight": normal(3)}, CONFIG, "none of the adapter's 1 tensors"),
        ({**LORA, f"{Q}.lora_A.second.weight": normal(4, 16)}, CONFIG, "not of one adapter alone"),
        ({**LORA, f"{Q}.base_layer.weight": normal(24, 16)}, CONFIG, "get_peft_model_state_dict"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_not_fit_is_refused(tensors: Any, config: Any, told: str) -> None:
    objects = MemoryObjects()
    with pytest.raises(InvalidInputError, match=told):
        placed_adapter(objects, placed_base(objects), tensors, config)


def test_blocks_take_no_adapter() -> None:
    objects = MemoryObjects()
    base = placed_base(objects, {"q.weight": np.ones((8, 8), "i1")})
    tensors = {"q.lora_A.weight": normal(2, 8), "q.lora_B.weight": normal(8, 2)}
    with pytest.raises(InvalidInputError, match="nothing can be added to I8"):
        placed_adapter(objects, base, tensors)


def test_what_is_not_understood_is_kept_and_not_put_in() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    odd = {**LORA, f"{Q}.lora_magnitude_vector": normal(24)}
    adapter = placed_adapter(objects, base, odd)
    with pytest.raises(UnsupportedError, match="lora_magnitude_vector"):
        put_in(objects, base, adapter)


@pytest.mark.parametrize(
    "config", [{"lora_alpha": 8}, {"peft_type": "ADALORA", "lora_alpha": 8}, {"peft_type": "POLY"}]
)
def test_factors_that_mean_something_else_are_not_multiplied(config: Any) -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    singular = {} if config.get("peft_type") == "POLY" else {f"{Q}.lora_E": normal(4, 1)}
    adapter = placed_adapter(objects, base, {**LORA, **singular}, config)
    with pytest.raises(UnsupportedError, match="cannot be put into a base"):
        put_in(objects, base, adapter)


@pytest.mark.parametrize(("pattern", "alpha"), [("q_proj", "two"), ("q_proj", None), ("(", 2)])
def test_a_config_that_says_no_scale_is_refused(pattern: str, alpha: Any) -> None:
    objects = MemoryObjects()
    config = {**CONFIG, "alpha_pattern": {pattern: alpha}}
    with pytest.raises(InvalidInputError, match="alpha_pattern"):
        placed_adapter(objects, placed_base(objects), LORA, config)


def test_another_base_is_taken_only_when_told() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    adapter = placed_adapter(objects, base, LORA)
    other = placed_base(objects, {**BASE, "norm.weight": normal(16)})
    with pytest.raises(InvalidInputError, match="strict=False"):
        put_in(objects, other, adapter)
    assert len(put_in(objects, other, adapter, strict=False)) == len(BASE)
    small = placed_base(objects, {"layers.0.q_proj.weight": normal(9, 9)})
    with pytest.raises(InvalidInputError, match="does not fit"):
        put_in(objects, small, adapter, strict=False)
    with pytest.raises(InvalidInputError, match="is no adapter"):
        put_in(objects, base, base)


def test_an_edge_that_tells_nonsense_is_corrupt() -> None:
    with pytest.raises(CorruptError, match=ADAPTER_OF):
        adapter_of([ProvenanceEdge(ADAPTER_OF, "models/base", "1" * 64, None, {"method": 3})])


def test_one_tensor_trained_in_place_of_two_replaces_both() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    tied = normal(50, 16)
    given = {**LORA, "embed.weight": tied, "head.weight": tied}
    made = put_in(objects, base, placed_adapter(objects, base, given))
    assert np.array_equal(made["embed.weight"], tied)
    assert np.array_equal(made["head.weight"], tied)


def test_one_factor_of_two_updates_changes_both() -> None:
    objects = MemoryObjects()
    tensors = {"k.weight": normal(24, 16), "q.weight": normal(24, 16)}
    base, shared = placed_base(objects, tensors), normal(4, 16)
    low = {f"{one}.lora_A.weight": shared for one in "kq"}
    high = {f"{one}.lora_B.weight": normal(24, 4) for one in "kq"}
    made = put_in(objects, base, placed_adapter(objects, base, {**low, **high}))
    for one in "kq":
        expected = tensors[f"{one}.weight"] + 2 * product({**low, **high}, one)
        np.testing.assert_allclose(made[f"{one}.weight"], expected, rtol=1e-5, atol=1e-5)


def test_an_update_of_scale_0_changes_nothing() -> None:
    objects = MemoryObjects()
    base = placed_base(objects)
    adapter = placed_adapter(objects, base, LORA, {**CONFIG, "lora_alpha": 0})
    made = put_in(objects, base, adapter)
    name = "layers.0.q_proj.weight"
    assert np.array_equal(made[name], BASE[name])


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"kind": "dora", "parts": ["s"]}, UnsupportedError, "by 'dora', which is unknown"),
        ({"kind": "replace", "parts": []}, CorruptError, "of 1 of its tensors, declared are"),
        ({"kind": "lora", "parts": ["s"]}, CorruptError, "of 2 of its tensors, declared are"),
        ({"kind": "ia3", "parts": ["gone"]}, CorruptError, r"declared are \['gone'\]"),
        ({"kind": "lora", "parts": ["s", "wide"]}, InvalidInputError, "does not fit"),
        ({"kind": "lora", "parts": ["s", "one"]}, InvalidInputError, "does not fit"),
        ({"kind": "ia3", "parts": ["one"]}, InvalidInputError, "does not fit"),
    ],
)
def test_a_declaration_that_the_adapter_does_not_keep_is_refused(
    change: dict[str, Any], error: type[Exception], told: str
) -> None:
    objects = MemoryObjects()
    base = placed_base(objects, {"w": normal(24, 16)})
    tensors = {"s": normal(24, 2), "wide": normal(4, 16), "one": np.array(1, "f4")}
    edge = base.edge(ADAPTER_OF, method="x", changes={"w": change}, other=[])
    adapter = ModelRef(stored(tensors, objects, lineage=[edge]), "models/x", None)
    with pytest.raises(error, match=told):
        put_in(objects, base, adapter)


def test_nothing_is_added_to_what_is_no_number() -> None:
    objects = MemoryObjects()
    base = placed_base(objects, {"w": np.ones((24, 16), "?")})
    change = {"kind": "ia3", "parts": ["s"]}
    edge = base.edge(ADAPTER_OF, method="x", changes={"w": change}, other=[])
    adapter = ModelRef(stored({"s": normal(24, 1)}, objects, lineage=[edge]), "models/x", None)
    with pytest.raises(InvalidInputError, match="'w' of the base is BOOL"):
        put_in(objects, base, adapter)

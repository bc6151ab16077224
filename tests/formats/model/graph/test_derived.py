from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.graph.derived import derived_graph, natural_key
from tensorrepo.formats.model.graph.graph import Graph, common_prefix
from tensorrepo.formats.model.graph.source import model_graph
from tests.support.builders.models import stored

GPT = {
    "lm_head.weight": (50, 8), "h.0.attn.weight": (8, 8), "h.10.attn.weight": (8, 8),
    "h.2.attn.weight": (8, 8), "h.2.ln_1.weight": (8,), "h.2.ln_1.bias": (8,), "ln_f.weight": (8,),
    "wte.weight": (50, 8), "wpe.weight": (9, 8),
}  # fmt: skip


def tensors(shapes: dict[str, Any]) -> dict[str, Any]:
    return {name: np.zeros(shape, "f4") for name, shape in shapes.items()}


def derived(shapes: dict[str, Any], config: Any = None) -> Graph:
    model = stored(tensors(shapes))
    return derived_graph([model.spec(name) for name in model], config)


def test_modules_stand_in_the_order_that_their_names_suggest() -> None:
    assert [node.name for node in derived(GPT).nodes] == [
        "input", "wpe", "wte", "h.0.attn", "h.2.attn", "h.2.ln_1", "h.10.attn", "ln_f", "lm_head",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shapes", "operation"),
    [
        ({"a.weight": (4, 3), "a.bias": (4,)}, "linear"),
        ({"embed.weight": (4, 3)}, "embedding"),
        ({"a.weight": (4, 1, 3, 3)}, "conv2d"),
        ({"a.weight": (4, 1, 3)}, "conv1d"),
        ({"ln.weight": (4,), "ln.bias": (4,)}, "norm"),
        ({"input_layernorm.weight": (4,)}, "norm"),
        ({"gamma.weight": (4,)}, "scale"),
        ({"a.weight": (4,), "a.running_mean": (4,)}, "batch_norm"),
        ({"a.weight_ih_l0": (4, 3)}, "recurrent"),
        ({"a.in_proj_weight": (9, 3)}, "attention"),
        ({"position_ids": (1, 9)}, "parameters"),
    ],
)
def test_an_operation_is_told_from_roles_and_ranks(shapes: Any, operation: str) -> None:
    assert [node.op for node in derived(shapes).nodes] == ["input", operation]


def test_a_deeper_model_shares_the_layers_of_a_shallower_one() -> None:
    def layers(count: int) -> Graph:
        inside = {f"layers.{at}.weight": (8, 8) for at in range(count)}
        config = {"num_hidden_layers": count, "hidden_act": "gelu"}
        return derived({"embed.weight": (50, 8), **inside, "head.weight": (5, 8)}, config)

    shared = [one.name for one, _ in common_prefix(layers(2), layers(12))]
    assert shared == ["input", "embed", "layers.0", "layers.1"]


def test_settings_that_change_what_is_computed_part_two_models() -> None:
    one, other = (derived(GPT, {"hidden_act": name}) for name in ("gelu", "relu"))
    assert common_prefix(one, other) == ()


def test_numbers_in_names_are_ordered_by_value() -> None:
    assert sorted(["h.10", "h.9", "h.a", "a"], key=natural_key) == ["a", "h.9", "h.10", "h.a"]


def test_a_model_without_a_graph_gets_the_derived_one_and_its_config() -> None:
    config = json.dumps({"hidden_act": "gelu"}).encode()
    model = stored(tensors(GPT), files={"config.json": config})
    graph = model_graph(model)
    assert (graph.source, graph.config) == ("names", {"hidden_act": "gelu"})
    assert graph.node("input").config["hidden_act"] == "gelu"


@pytest.mark.parametrize(
    "config",
    [b"no json", b"[1]", b"[" * 100_000, b'{"a": 1%b}' % (b"0" * 30), b'{"a": "\\ud800"}',
     b'{"a": %b%b}' % (b"[" * 80, b"]" * 80)],
)  # fmt: skip
def test_a_config_that_cannot_be_read_is_passed_over(config: bytes) -> None:
    model = stored(tensors(GPT), files={"config.json": config})
    assert model_graph(model).config == {}


def test_tensors_without_a_module_and_models_without_tensors_have_a_graph() -> None:
    assert [node.name for node in derived({"w": (2, 2)}).nodes] == ["input", "(root)"]
    assert [node.name for node in derived({}).nodes] == ["input"]
    assert [node.name for node in derived({"input.weight": (2,)}).nodes] == ["input_", "input"]


def test_names_that_look_alike_stay_apart() -> None:
    graph = derived({"w": (2,), ".w": (3,), "(root).w": (4,)})
    assert {one.tensor: one.role for one in graph.node("(root)_").parameters} == {
        "w": "w", ".w": ".w"
    }  # fmt: skip
    assert [one.tensor for one in graph.node("(root)").parameters] == ["(root).w"]

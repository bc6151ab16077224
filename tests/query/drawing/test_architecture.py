"""Drawings of architectures: repeated blocks once, few boxes whatever the size, names escaped."""

from __future__ import annotations

import pytest

from tensorrepo.formats.model.graph.graph import (
    INPUT,
    Graph,
    GraphNode,
    Input,
    Parameter,
    make_graph,
)
from tensorrepo.query.drawing.architecture import MOST_BOXES, draw_architecture


def module(name: str, before: str, *shape: int, op: str = "linear") -> GraphNode:
    weight = Parameter("weight", f"{name}.weight", "float32", shape)
    return GraphNode(name, op, {}, (Input("0", before),), (weight,))


def chain(*names: str, shape: tuple[int, ...] = (4, 4)) -> Graph:
    nodes = [GraphNode("input", INPUT)]
    for name in names:
        nodes.append(module(name, nodes[-1].name, *shape))
    return make_graph("given", nodes, [Input("0", nodes[-1].name)])


def test_blocks_that_are_alike_share_boxes_that_count_them() -> None:
    parts = ("norm", "attention", "mlp")
    names = [f"layers.{at}.{part}" for at in range(12) for part in parts]
    drawn = draw_architecture(chain("embed", *names, "head"))
    found = {box.name: (len(box.modules), box.parameters) for box in drawn.boxes}
    assert found == {
        "input": (1, 0),
        "embed": (1, 16),
        **{f"layers.*.{part}": (12, 12 * 16) for part in parts},
        "head": (1, 16),
    }


def test_modules_of_other_shapes_do_not_share_a_box() -> None:
    nodes = [
        GraphNode("input", INPUT),
        module("layers.0", "input", 4, 4),
        module("layers.1", "layers.0", 4, 8),
    ]
    drawn = draw_architecture(make_graph("given", nodes))
    assert [box.name for box in drawn.boxes] == ["input", "layers.0", "layers.1"]


def test_what_has_no_tensors_is_told_in_the_box_of_what_it_follows() -> None:
    nodes = [
        GraphNode("input", INPUT),
        module("fc", "input", 4, 4),
        GraphNode("relu_1", "relu", {}, (Input("0", "fc"),)),
        module("out", "relu_1", 4, 2),
    ]
    drawn = draw_architecture(make_graph("given", nodes))
    assert [dict(box.operations) for box in drawn.boxes] == [
        {INPUT: 1},
        {"linear": 1, "relu": 1},
        {"linear": 1},
    ]
    assert drawn.edges == ((0, 1), (1, 2))


@pytest.mark.parametrize("count", [MOST_BOXES + 1, 2000])
def test_a_drawing_has_a_bounded_number_of_boxes(count: int) -> None:
    named = draw_architecture(chain(*(f"part_{'a' * at}" for at in range(1, count))))
    assert len(named.boxes) == MOST_BOXES
    assert named.left_out == count - MOST_BOXES


def test_a_deep_model_is_told_by_the_first_parts_of_its_names() -> None:
    names = [f"tower.{letter}.block{'x' * at}" for letter in "ab" for at in range(1, 60)]
    drawn = draw_architecture(chain(*names))
    assert [box.name for box in drawn.boxes] == ["input", "tower.a", "tower.b"]
    assert drawn.left_out == 0


def test_names_are_escaped() -> None:
    drawn = draw_architecture(chain("<script>alert(1)</script>")).svg()
    assert "<script" not in drawn


def test_a_model_without_tensors_is_drawn_as_its_input() -> None:
    drawn = draw_architecture(make_graph("given", [GraphNode("input", INPUT)]))
    assert [box.name for box in drawn.boxes] == ["input"]
    assert drawn.svg().startswith("<svg")

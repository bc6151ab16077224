from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.exchange.checkpoints.onnx import read_onnx
from tensorrepo.formats.model.graph.graph import Graph
from tensorrepo.formats.model.graph.onnx_file import OnnxConstant, OnnxGraph, OnnxNode, OnnxValue
from tensorrepo.formats.model.graph.source import from_onnx, model_graph
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.models import stored


def node(op: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> OnnxNode:
    return OnnxNode(op, "", name, tuple(inputs.split(",")), tuple(outputs.split(",")), attributes)


def parsed(*nodes: OnnxNode, initializers: tuple[str, ...] = ("w",)) -> OnnxGraph:
    value = OnnxValue("x", "F32", (1, 2))
    return OnnxGraph("g", (value,), (OnnxValue("y", None, None),), initializers, nodes, {"": 21})


def graph(found: OnnxGraph) -> Graph:
    model = stored({"w": np.zeros((2, 2), "f4")})
    return from_onnx(found, {"w": model.spec("w")})


def test_values_become_edges_and_initialisers_parameters() -> None:
    made = graph(
        parsed(node("MatMul", "x,w", "h", "first"), node("Split", "h", "a,b", axis=1),
               node("Add", "b,a", "y"))
    )  # fmt: skip
    assert [one.name for one in made.nodes] == ["x", "first", "Split_1", "Add_2"]
    (parameter,) = made.node("first").parameters
    assert (parameter.role, parameter.tensor, parameter.shape) == ("1", "w", (2, 2))
    assert [(one.role, one.output) for one in made.node("Add_2").inputs] == [("0", 1), ("1", 0)]
    assert made.node("Split_1").config == {"axis": 1}
    assert [one.node for one in made.outputs] == ["Add_2"]


def test_optional_inputs_that_are_left_out_are_no_arguments() -> None:
    made = graph(parsed(node("Clip", "x,,w", "y")))
    (clip,) = (one for one in made.nodes if one.op == "Clip")
    assert [one.role for one in (*clip.inputs, *clip.parameters)] == ["0", "2"]


def test_an_initialiser_that_stayed_in_the_file_is_a_constant() -> None:
    made = graph(parsed(node("Add", "x,left", "y"), initializers=("w", "left")))
    assert made.node("left").op == "constant"


def test_names_that_are_taken_get_a_number() -> None:
    made = graph(parsed(node("Relu", "x", "a", "x"), node("Relu", "a", "y", "x")))
    assert [one.name for one in made.nodes] == ["x", "x#2", "x#3"]


def test_a_nested_graph_takes_what_it_needs_from_outside() -> None:
    inner = OnnxGraph("then", (), (OnnxValue("r", None, None),), (), (node("Add", "x,w", "r"),), {})
    made = graph(parsed(node("If", "x", "y", then_branch=inner)))
    (branch,) = (one for one in made.nodes if one.op == "If")
    assert [one.role for one in branch.inputs] == ["0", "outer.1"]
    assert [(one.role, one.tensor) for one in branch.parameters] == [("outer.0", "w")]
    assert branch.config["then_branch"]["graph"][0]["op"] == "Add"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OnnxConstant("F32", (2,), "ab"), {"tensor": "F32", "shape": [2], "sha256": "ab"}),
        ((1, 2.5), [1, 2.5]),
        (b"\xff", {"bytes": 1, "sha256": sha256(b"\xff").hexdigest()}),
        ("SAME", "SAME"),
    ],
)  # fmt: skip
def test_attributes_become_json(value: Any, expected: Any) -> None:
    made = graph(parsed(node("Op", "x", "y", attribute=value)))
    (op,) = (one for one in made.nodes if one.op == "Op")
    assert op.config == {"attribute": expected}


def test_operators_of_other_domains_keep_theirs() -> None:
    other = OnnxNode("Gelu", "com.example", "", ("x",), ("y",), {})
    assert [one.op for one in graph(parsed(other)).nodes] == ["input", "com.example.Gelu"]


def test_an_input_that_nothing_makes_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="nothing makes its input 'gone'"):
        graph(parsed(node("Relu", "gone", "y")))


def test_nodes_may_stand_in_another_order_than_they_run() -> None:
    made = graph(parsed(node("Relu", "a", "y"), node("MatMul", "x,w", "a")))
    assert [one.op for one in made.nodes] == ["input", "MatMul", "Relu"]


def test_a_file_with_sparse_initialisers_has_a_graph(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper, to_array = onnx.helper, onnx.numpy_helper.from_array
    values = to_array(np.ones(2, "f4"), "sparse")
    sparse = helper.make_sparse_tensor(values, to_array(np.array([0, 3]), "at"), [2, 2])
    told = [helper.make_tensor_value_info(name, 1, [1, 2]) for name in "xy"]
    steps = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "sparse"], ["y"]),
    ]
    weights = to_array(np.eye(2, dtype="f4"), "w")
    whole = helper.make_graph(
        steps, "g", told[:1], told[1:], [weights], sparse_initializer=[sparse]
    )
    onnx.save(helper.make_model(whole), tmp_path / "m.onnx")
    found = model_graph(stored(read_onnx(tmp_path / "m.onnx")))
    assert found.source == "onnx"
    assert [one.op for one in found.nodes] == ["constant", "input", "MatMul", "MatMul"]


@pytest.mark.parametrize(("name", "length"), [("n" * 5000, 6), ("product", 126)])
def test_a_file_that_is_no_graph_of_ours_gets_the_derived_one(
    tmp_path: Path, name: str, length: int
) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    helper = onnx.helper
    told = [helper.make_tensor_value_info(name, 1, [1, 2]) for name in "xy"]
    step = helper.make_node("MatMul", ["x", "w"], ["y"], name=name)
    weights = onnx.numpy_helper.from_array(np.eye(2, dtype="f4"), "w")
    onnx.save(
        helper.make_model(helper.make_graph([step], "g", told[:1], told[1:], [weights])),
        tmp_path / "m.onnx",
    )
    saved = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "m.onnx").write_bytes(saved.replace(b"\x06MatMul", b"%cMatMul" % length))
    found = model_graph(stored(read_onnx(tmp_path / "m.onnx")))
    assert (found.source, list(found.tensors())) == ("names", ["w"])

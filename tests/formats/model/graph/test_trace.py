from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tensorrepo.formats.model.graph.graph import (
    common_prefix,
    decode_graph,
    encode_graph,
    graph_hash,
    prefix_hashes,
)
from tensorrepo.formats.model.graph.trace import trace_module
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.architecture.sources import ROOT
from tests.support.builders.graphs import small_network


def example() -> tuple[Any, ...]:
    import torch

    return (torch.zeros(2, 1, 8, 8),)


@pytest.mark.soak
def test_an_exported_module_names_its_operations_and_tensors() -> None:
    graph = trace_module(small_network(), example())
    ops = [node.op for node in graph.nodes]
    assert ops.count("aten.linear.default") == 4
    assert "aten.conv2d.default" in ops
    assert graph.source == "export"
    state = small_network().state_dict()
    assert set(graph.tensors()) == set(state) - {"norm.num_batches_tracked"}
    assert all(one.shape == tuple(state[one.tensor].shape) for one in graph.tensors().values())
    assert decode_graph(encode_graph(graph), "graph") == graph


def test_without_arguments_layers_are_nodes() -> None:
    graph = trace_module(small_network())
    ops = [node.op for node in graph.nodes]
    assert graph.source == "fx"
    assert ops.count("Linear") == 4
    assert set(graph.tensors()) == set(small_network().state_dict())


@pytest.mark.parametrize("args", [pytest.param(None, marks=pytest.mark.soak), "example"])
def test_weights_do_not_matter_and_depth_does(args: str | None) -> None:
    given = example() if args else None
    one, other = (trace_module(small_network(seed=seed), given) for seed in (0, 1))
    deeper = trace_module(small_network(layers=3), given)
    assert graph_hash(prefix_hashes(one).values()) == graph_hash(prefix_hashes(other).values())
    shared = {tensor for node, _ in common_prefix(one, deeper) for tensor in node.parameters}
    names = {parameter.tensor for parameter in shared}
    assert {"conv.weight", "stem.weight", "layers.0.weight", "layers.1.weight"} <= names
    assert "head.weight" not in names


@pytest.mark.soak
def test_another_process_finds_the_same_hash() -> None:
    code = (
        "from tests.support.builders.graphs import small_network; import torch\n"
        "from tensorrepo.formats.model.graph.trace import trace_module\n"
        "from tensorrepo.formats.model.graph.graph import graph_hash, prefix_hashes\n"
        "graph = trace_module(small_network(seed=5), (torch.zeros(2, 1, 8, 8),))\n"
        "print(graph_hash(prefix_hashes(graph).values()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
    )
    mine = prefix_hashes(trace_module(small_network(), example()))
    assert done.stdout.strip() == graph_hash(mine.values())


def test_values_that_come_in_parts_and_lists_keep_their_places() -> None:
    import torch
    from torch import nn

    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(3), persistent=False)

        def forward(self, x: Any) -> Any:
            a, b = x.split(2, 1)
            return torch.cat([b, a], 1), self.scale * 2

    graph = trace_module(Parts(), (torch.zeros(1, 4),))
    (joined,) = (node for node in graph.nodes if node.op == "aten.cat.default")
    assert [(one.role, one.output) for one in joined.inputs] == [("tensors.0", 1), ("tensors.1", 0)]
    assert [one.role for one in graph.outputs] == ["0", "1"]
    (constant,) = (node for node in graph.nodes if node.op == "constant")
    assert constant.config["shape"] == [3]
    assert graph.tensors() == {}


def test_a_module_that_cannot_be_traced_says_why() -> None:
    from torch import nn

    class Fickle(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum() > 0 else -x

    with pytest.raises(UnsupportedError, match="cannot trace Fickle"):
        trace_module(Fickle())


def test_something_else_than_a_module_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="expected a torch module"):
        trace_module({"weight": 1})


def test_a_module_without_memory_is_traced() -> None:
    import torch

    with torch.device("meta"):
        module = small_network()
    assert len(trace_module(module).tensors()) == len(module.state_dict())

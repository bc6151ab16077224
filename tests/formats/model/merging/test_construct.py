from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.graph.graph import encode_graph
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.graph.trace import trace_module
from tensorrepo.formats.model.merging.new_model import ModelRef, construct_model, wanted_of
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import ModelSource, source_of
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.graphs import small_network
from tests.support.builders.models import pack_bytes, stored
from tests.support.builders.objects import MemoryObjects


def constructed(
    objects: MemoryObjects, target: Any, *donors: StoredModel, **given: Any
) -> StoredModel:
    places = [ModelRef(donor, f"models/d{at}", None) for at, donor in enumerate(donors)]
    return open_model(objects, construct_model(objects, target, places, **given).entry)


def full(value: float, **shapes: Any) -> dict[str, Any]:
    return {name: np.full(shape, value, "f4") for name, shape in shapes.items()}


def test_a_tensor_is_given_else_donated_else_made_by_the_rule() -> None:
    objects = MemoryObjects()
    one = stored(full(1, a=(40, 40), b=(40, 40), head=(3, 40)), objects)
    two = stored(full(2, b=(40, 40), c=(40, 40)), objects)
    target = full(0, a=(40, 40), b=(40, 40), c=(40, 40), head=(5, 40), own=(2, 2))
    made = constructed(objects, target, one, two, tensors=full(9, own=(2, 2)), rule="zeros")
    assert {name: float(made[name].flat[0]) for name in made} == {
        "a": 1, "b": 1, "c": 2, "head": 0, "own": 9,
    }  # fmt: skip
    recipe = made.metadata["recipe"]
    assert recipe["tensors"] == {
        "a": [0, "a"], "b": [0, "b"], "c": [1, "c"], "head": "zeros", "own": "given",
    }  # fmt: skip
    assert [(edge.digest, edge.details["tensors"]) for edge in made.lineage] == [
        (one.entry.digest, 2),
        (two.entry.digest, 1),
    ]


def test_what_is_donated_is_not_stored_again() -> None:
    objects = MemoryObjects()
    donor = stored({"w": np.random.default_rng(0).normal(size=(300, 300))}, objects)
    before = dict(objects.links)
    constructed(objects, {"w": ("F64", (300, 300))}, donor)
    assert pack_bytes(objects, before) == 0


def test_a_deeper_network_of_other_names_takes_the_common_prefix() -> None:
    import torch

    objects = MemoryObjects()
    example = (torch.zeros(1, 1, 8, 8),)
    donor = small_network()
    traced = encode_graph(trace_module(donor, example))
    renamed = {f"net.{name}": value for name, value in donor.state_dict().items()}
    graph = model_graph(stored(ModelSource(source_of(donor.state_dict()).tensors, graph=traced)))
    nodes = encode_graph(_renamed(graph))
    kept = stored(ModelSource(source_of(renamed).tensors, graph=nodes), objects)
    deeper = trace_module(small_network(layers=3, seed=1), example)
    made = constructed(objects, deeper, kept, rule="default")
    state = donor.state_dict()
    shared = ["conv.weight", "stem.weight", "layers.0.weight", "layers.1.bias"]
    assert all((made[name] == state[name].numpy()).all() for name in shared)
    assert (made["head.weight"] != state["head.weight"].numpy()).any()
    assert model_graph(made) == deeper


def _renamed(graph: Any) -> Any:
    import msgspec

    from tensorrepo.formats.model.graph.graph import make_graph

    return make_graph(
        graph.source,
        [
            msgspec.structs.replace(
                node,
                parameters=tuple(
                    msgspec.structs.replace(one, tensor=f"net.{one.tensor}")
                    for one in node.parameters
                ),
            )
            for node in graph.nodes
        ],
        graph.outputs,
    )


def test_the_architecture_of_a_model_without_memory_is_enough() -> None:
    import torch

    objects = MemoryObjects()
    donor = stored(small_network().state_dict(), objects)
    with torch.device("meta"):
        target = small_network(width=8, layers=4).state_dict()
    made = constructed(objects, target, donor, rule="normal")
    fresh = small_network(layers=4)
    fresh.load_state_dict(made.load(output="torch"))
    assert (fresh.conv.weight == torch.from_numpy(donor["conv.weight"].copy())).all()


def test_a_stored_model_can_be_the_architecture() -> None:
    objects = MemoryObjects()
    shape = stored(full(0, a=(20, 20)), objects)
    donor = stored(full(3, a=(20, 20)), objects)
    assert (constructed(objects, shape, donor)["a"] == 3).all()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "nobody has: 'b'. Give them"),
        ({"tensors": full(1, b=(3,))}, r"expected F32 \[2\], given is F32 \[3\]"),
        ({"tensors": full(1, b=(2,), z=(1,))}, "the architecture has not: 'z'"),
        ({"rule": "magic"}, "no rule 'magic'"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, told: str) -> None:
    objects = MemoryObjects()
    donor = stored(full(1, a=(2,)), objects)
    with pytest.raises(InvalidInputError, match=told):
        constructed(objects, full(0, a=(2,), b=(2,)), donor, **given)


@pytest.mark.parametrize("row", [{}, {"type": "F99", "shape": []}, {"type": "F32"}, 3])
def test_an_architecture_that_is_none_is_refused(row: Any) -> None:
    with pytest.raises(InvalidInputError, match="its type and shape"):
        wanted_of({"w": row})


def test_one_tensor_given_by_two_names_is_given_for_both() -> None:
    objects = MemoryObjects()
    tied = np.full((40, 40), 9, "f4")
    donor = stored(full(1, emb=(40, 40), head=(40, 40)), objects)
    target = full(0, emb=(40, 40), head=(40, 40))
    made = constructed(objects, target, donor, tensors={"emb": tied, "head": tied}, rule="zeros")
    assert {name: float(made[name].flat[0]) for name in made} == {"emb": 9, "head": 9}
    assert made.metadata["recipe"]["tensors"] == {"emb": "given", "head": "given"}

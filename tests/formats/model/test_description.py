from __future__ import annotations

import json

import numpy as np

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.model.description import describe_model
from tensorrepo.formats.model.graph.graph import encode_graph
from tensorrepo.formats.model.graph.trace import trace_module
from tensorrepo.formats.model.write.model_source import ModelSource, source_of
from tests.support.builders.graphs import small_network
from tests.support.builders.models import stored


def test_a_model_is_described_without_reading_a_tensor() -> None:
    weight = np.zeros((20, 30), "f4")
    model = stored(
        {"embed.weight": weight, "head.weight": weight, "layers.10.a.weight": np.zeros((30, 30)),
         "layers.2.a.weight": np.zeros((30, 30)), "layers.2.b.bias": np.zeros(30)},
        metrics={"acc": 0.9}, files={"config.json": b"{}"},
        lineage=[ProvenanceEdge("parent", "models/m", "1" * 64, "2" * 64)],
    )  # fmt: skip
    model.objects.reads.clear()  # type: ignore[attr-defined]  # objects in memory note reads
    found = describe_model(model)
    assert (found.tensors, found.parameters, found.bytes) == (4, 2430, 2400 + 1830 * 8)
    assert found.types == {"F64": 1830, "F32": 600}
    assert [(layer.name, layer.tensors, layer.parameters) for layer in found.layers] == [
        ("embed", 1, 600), ("layers.2", 2, 930), ("layers.10", 1, 900),
    ]  # fmt: skip
    assert found.aliases == {"head.weight": "embed.weight"}
    assert (found.graph, found.operations) == (
        "names", {"linear": 3, "embedding": 1, "parameters": 1},
    )  # fmt: skip
    config = model.files["config.json"].digest
    assert {one for one, _, _ in model.objects.reads} == {config}  # type: ignore[attr-defined]
    told = "\n".join(found.lines())
    for each in (
        "4 tensors, 2,430 parameters (F64 1,830, F32 600)",
        "tied head.weight",
        "metric acc = 0.9",
        "fine-tuned-from models/m (111111111111) in commit 222222222222",
    ):
        assert each in told
    assert json.loads(json.dumps(found.to_json()))["lineage"][0]["relation"] == "fine-tuned-from"


def test_a_stored_graph_is_the_one_that_is_told_of() -> None:
    network = small_network()
    plain = source_of(network.state_dict())
    traced = encode_graph(trace_module(network))
    model = stored(ModelSource(plain.tensors, plain.aliases, graph=traced))
    found = describe_model(model)
    assert (found.graph, found.operations["Linear"]) == ("fx", 4)


def test_a_model_without_tensors_has_a_description() -> None:
    found = describe_model(stored({}))
    assert (found.tensors, found.layers, found.parameters) == (0, (), 0)
    assert list(found.lines())


def test_an_approximate_state_is_told_with_its_bound() -> None:
    details = {"relative": 2**-8, "largest": 0.0031, "tensors": {"w": "1" * 64}}
    found = describe_model(
        stored({"w": np.ones(3)}, lineage=[ProvenanceEdge("lossy-of", "s", "", None, details)])
    )
    assert (
        "lossy-of what was saved: 1 tensor of optimizer state is approximate: each number within "
        "0.00391 of its size, the farthest 0.0031 off"
    ) in list(found.lines())

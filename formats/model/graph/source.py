"""Graph of a stored model: its own, its ONNX file's, or one derived from names.

From the blob that the manifest names; else from the ONNX file that the model came from, if it is a
graph as ours are; else it is derived from names, shapes and a config file. The latter two are made
when they are asked for: they are functions of what is stored.

Of ONNX an operation keeps its name and attributes. A value that a node takes is an argument by its
place; initialisers that were stored as tensors are parameters. Nested graphs (of If, Loop and Scan)
become part of the node's configuration, and what they take from outside becomes arguments of the
node.
"""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import (
    INPUT,
    Graph,
    GraphNode,
    Input,
    Parameter,
    decode_graph,
    make_graph,
)
from tensorrepo.formats.model.graph.onnx_file import OnnxConstant, OnnxGraph, OnnxNode, graph_of
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import digest_from_bytes
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.objects.envelope import Kind

CONFIG: Final = "config.json"
MAX_CONFIG_BYTES: Final = 16 << 20


def model_graph(model: StoredModel) -> Graph:
    """The architecture graph of a stored model. `Graph.source` says how it was found.

    Raises:
        CorruptError: what is stored is not well-formed.
    """
    if model.manifest.graph is not None:
        digest = digest_from_bytes(model.manifest.graph)
        envelope = model.objects.get(digest)
        if envelope.kind is not Kind.BLOB:
            raise CorruptError(f"graph {digest:.12}: expected a blob, found {envelope.kind.label}")
        return decode_graph(envelope.payload, f"graph {digest:.12}")
    specs = {name: model.spec(name) for name in model.keys()}  # noqa: SIM118  # a Model is no dict
    # A file that was stored as it came may be damaged, or no graph of ours: names of 5 kB.
    with suppress(InvalidInputError):
        parsed = graph_of(model)
        if parsed is not None:
            return from_onnx(parsed, specs)
    return derived_graph(specs.values(), model_config(model))


def model_config(model: StoredModel) -> dict[str, Any]:
    """The settings in a model's config file; empty where none can be read, or kept in a graph."""
    file = model.files.get(CONFIG)
    if file is None or file.size_bytes > MAX_CONFIG_BYTES:
        return {}
    try:
        found = json.loads(model.file(CONFIG))
        check_json(found, CONFIG)  # JSON may be nested deeper, with longer numbers, than is kept
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


_CONSTANT = "constant"
_Place = tuple[str, int]  # a node, and which of its outputs


def from_onnx(graph: OnnxGraph, specs: Mapping[str, TensorSpec]) -> Graph:
    """Our graph of a parsed one, given the tensors that are stored.

    Raises:
        InvalidInputError: a value that nothing makes.
    """
    made: dict[str, _Place] = {}
    names: set[str] = set()
    nodes: list[GraphNode] = []
    inputs = [one for one in graph.inputs if one.name not in graph.initializers]
    for index, value in enumerate(inputs):
        name = _fresh(value.name or INPUT, names)
        nodes.append(GraphNode(name, INPUT, {"index": index}))
        made[value.name] = (name, 0)
    for constant in sorted(set(graph.initializers) - set(specs)):
        # One that stayed in the file: its name alone is known here.
        name = _fresh(constant, names)
        nodes.append(GraphNode(name, _CONSTANT, {"initializer": constant}))
        made[constant] = (name, 0)
    called = [
        _fresh(node.name or f"{node.op}_{number}", names) for number, node in enumerate(graph.nodes)
    ]
    # Runtimes take files whose nodes do not stand in the order in which they run.
    later = {
        value: (name, at)
        for name, node in zip(called, graph.nodes, strict=True)
        for at, value in enumerate(node.outputs)
        if value
    }
    for name, node in zip(called, graph.nodes, strict=True):
        nodes.append(_node(name, node, ChainMap(made, later), specs))
        made.update({value: (name, at) for at, value in enumerate(node.outputs) if value})
    outputs = [
        Input(str(at), *made[value.name])
        for at, value in enumerate(graph.outputs)
        if value.name in made
    ]
    return make_graph("onnx", nodes, outputs, {"opset": dict(graph.opset)})


def _node(
    name: str, node: OnnxNode, made: Mapping[str, _Place], specs: Mapping[str, TensorSpec]
) -> GraphNode:
    values = {str(at): value for at, value in enumerate(node.inputs) if value}
    nested = [one for one in _attributes(node.attributes) if isinstance(one, OnnxGraph)]
    outer = sorted({value for one in nested for value in _free(one)} & (set(made) | set(specs)))
    values |= {f"outer.{at}": value for at, value in enumerate(outer)}
    inputs: list[Input] = []
    parameters: list[Parameter] = []
    for role, value in values.items():
        if value in made:
            inputs.append(Input(role, *made[value]))
        elif value in specs:
            spec = specs[value]
            parameters.append(Parameter(role, value, spec.type.name, spec.shape))
        else:
            raise InvalidInputError(
                f"ONNX node {name!r:.80}: nothing makes its input {value!r:.80}"
            )
    op = f"{node.domain}.{node.op}" if node.domain not in ("", "ai.onnx") else node.op
    config = {key: _json(value) for key, value in node.attributes.items()}
    return GraphNode(name, op or "(none)", config, tuple(inputs), tuple(parameters))


def _attributes(attributes: Mapping[str, Any]) -> Iterator[Any]:
    for value in attributes.values():
        yield from value if isinstance(value, tuple) else (value,)


def _free(graph: OnnxGraph) -> set[str]:
    """Values that a nested graph takes from the graphs around it."""
    own = {one.name for one in graph.inputs} | set(graph.initializers)
    used: set[str] = {one.name for one in graph.outputs}
    for node in graph.nodes:
        own.update(node.outputs)
        used.update(node.inputs)
        for value in _attributes(node.attributes):
            if isinstance(value, OnnxGraph):
                used |= _free(value)
    return used - own - {""}


def _json(value: Any) -> Any:
    if isinstance(value, OnnxConstant):
        return {"tensor": value.type, "shape": list(value.shape), "sha256": value.sha256}
    if isinstance(value, OnnxGraph):
        return {"graph": [_nested(node) for node in value.nodes],
                "outputs": [one.name for one in value.outputs]}  # fmt: skip
    if isinstance(value, bytes):
        return {"bytes": len(value), "sha256": sha256(value).hexdigest()}
    if isinstance(value, tuple):
        return [_json(one) for one in value]
    return value


def _nested(node: OnnxNode) -> dict[str, Any]:
    attributes = {key: _json(value) for key, value in node.attributes.items()}
    return {"op": node.op, "inputs": list(node.inputs), "outputs": list(node.outputs),
            "attributes": attributes}  # fmt: skip


def _fresh(wanted: str, taken: set[str]) -> str:
    """`wanted`, or with a number behind it where it is taken."""
    name, number = wanted, 1
    while name in taken:
        number += 1
        name = f"{wanted}#{number}"
    taken.add(name)
    return name

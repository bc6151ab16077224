"""Description of a stored model: size, layers, architecture, provenance.

Nothing of a tensor is read for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import prod
from typing import Any

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import LOSSY_OF, ProvenanceEdge, relation_of
from tensorrepo.formats.model.comparison import layer_of
from tensorrepo.formats.model.graph.derived import natural_key
from tensorrepo.formats.model.graph.graph import INPUT, graph_hash, prefix_hashes
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.layout.fingerprints import architecture_fingerprint
from tensorrepo.formats.model.merging.adapters import adapter_of
from tensorrepo.formats.model.state.lossy import approximation_of
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.tables import Cell, RecordTable, Shown

SHOWN_OPERATIONS = 8


@dataclass(frozen=True, slots=True)
class Layer:
    """Tensors that belong together by their names; tied ones count once, at their first name."""

    name: str
    tensors: int
    parameters: int
    bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class ModelDescription(Shown):
    """What is known of a model without reading a tensor.

    `parameters` are the elements of all tensors, buffers among them; `types` the same by element
    type. `operations` counts the graph's nodes, inputs left out; `graph` is where the graph is
    from. `files` are sizes in bytes.
    """

    digest: str
    architecture: str
    tensors: int
    aliases: Mapping[str, str]
    parameters: int
    bytes: int
    types: Mapping[str, int]
    layers: tuple[Layer, ...]
    graph: str
    graph_hash: str
    operations: Mapping[str, int]
    files: Mapping[str, int]
    metrics: Mapping[str, Any]
    metadata: Mapping[str, Any]
    lineage: tuple[ProvenanceEdge, ...]

    def to_table(self) -> RecordTable:
        """A row for each layer, below `lines`."""
        columns: dict[str, Cell] = {
            "layer": "name",
            ">tensors": "tensors",
            ">parameters": lambda layer: f"{layer.parameters:,}",
            ">bytes": lambda layer: f"{layer.bytes:,}",
        }
        return RecordTable.of(self.layers, columns, *self.lines())

    def lines(self) -> Iterator[str]:
        """For people."""
        types = ", ".join(f"{name} {count:,}" for name, count in self.types.items())
        tensors = counted(self.tensors, "tensor")
        yield f"{tensors}, {counted(self.parameters, 'parameter')} ({types})"
        yield f"architecture {self.architecture:.12}, graph {self.graph_hash:.12} ({self.graph})"
        shown = list(self.operations.items())[:SHOWN_OPERATIONS]
        more = ", ..." if len(self.operations) > SHOWN_OPERATIONS else ""
        yield "operations: " + ", ".join(f"{count} {name}" for name, count in shown) + more
        for name, target in self.aliases.items():
            yield f"tied {name} = {target}"
        for name, size in self.files.items():
            yield f"file {name} ({counted(size, 'byte')})"
        for name, value in self.metrics.items():
            yield f"metric {name} = {value}"
        yield from map(_edge_text, self.lineage)

    def to_json(self) -> dict[str, Any]:
        layers = [asdict(layer) for layer in self.layers]
        lineage = [
            edge.to_json() | {"relation": relation_of(edge.relation)} for edge in self.lineage
        ]
        fields = {name: getattr(self, name) for name in ModelDescription.__dataclass_fields__}
        return fields | {"layers": layers, "lineage": lineage}


def describe_model(model: StoredModel) -> ModelDescription:
    """Describe a stored model."""
    graph = model_graph(model)
    specs = [model.spec(name) for name in model.tensors]
    types: Counter[str] = Counter()
    for spec in specs:
        types[spec.type.name] += prod(spec.shape)
    operations = Counter(node.op for node in graph.nodes if node.op != INPUT)
    own = {name: file.size_bytes for name, file in model.files.items()}
    given_back = {name: file.size_bytes for name, file in model.originals.items()}
    return ModelDescription(
        digest=model.entry.digest,
        architecture=architecture_fingerprint(model.spec(name) for name in model),
        tensors=len(specs),
        aliases=dict(model.aliases),
        parameters=sum(types.values()),
        bytes=model.size_bytes,
        types=dict(types.most_common()),
        layers=_layers(model),
        graph=graph.source,
        graph_hash=graph_hash(prefix_hashes(graph).values()),
        operations=dict(sorted(operations.items(), key=lambda item: (-item[1], item[0]))),
        files=dict(sorted({**own, **given_back}.items())),
        metrics=dict(model.metrics),
        metadata=dict(model.metadata),
        lineage=model.lineage,
    )


def _edge_text(edge: ProvenanceEdge) -> str:
    approximation = approximation_of([edge])
    if approximation is not None:
        return f"{LOSSY_OF} what was saved: {approximation.text}"
    at = f" in commit {edge.commit:.12}" if edge.commit else ""
    adapter = adapter_of([edge])
    if adapter is not None:
        at += f": {adapter[1].text}"
    version = f" ({edge.digest:.12})" if edge.digest else ""
    return f"{relation_of(edge.relation)} {edge.path}{version}{at}"


def _layers(model: StoredModel) -> tuple[Layer, ...]:
    grouped: dict[str, list[tuple[int, int]]] = {}
    for name in model.tensors:
        spec = model.spec(name)
        grouped.setdefault(layer_of(name), []).append((prod(spec.shape), spec.size_bytes))
    return tuple(
        Layer(name, len(sizes), sum(one for one, _ in sizes), sum(size for _, size in sizes))
        for name, sizes in sorted(grouped.items(), key=lambda item: natural_key(item[0]))
    )

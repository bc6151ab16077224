"""Which rows say what a model computes?

A graph is one thing that many models have: its key is the digest of its bytes, and its rows are
there once. Deriving the graph of a model that has none of its own costs more than all of its other
rows, so the last ones are kept by what they were derived from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tensorrepo.formats.model.graph.graph import encode_graph
from tensorrepo.formats.model.graph.hashes import graph_hash, prefix_hashes
from tensorrepo.formats.model.graph.source import CONFIG, model_graph
from tensorrepo.formats.model.read import open_model
from tensorrepo.query import tables
from tensorrepo.query.sync.values import as_json
from tensorrepo.repo.ids import record_digest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.model.graph.graph import Graph
    from tensorrepo.formats.model.manifest import Manifest
    from tensorrepo.query.sync.loader import Row
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry

_MOST_KEPT_ROWS: Final = 1 << 16
_PROGRAM: Final = "onnx"  # the format of an original that holds a graph
_ENCODER: Final = msgspec.msgpack.Encoder()

GraphRows = tuple[tuple[Any, "Row"], ...]


class Graphs:
    """The graphs of models met lately: bounded by their rows."""

    def __init__(self) -> None:
        self._kept: dict[bytes, GraphRows] = {}
        self._rows = 0

    def rows_of(self, objects: ObjectSource, entry: Entry, manifest: Manifest) -> GraphRows:
        """The rows of a model's graph, the one of `graph` first."""
        key = _cause(manifest)
        found = self._kept.get(key)
        if found is None:
            graph = model_graph(open_model(objects, entry))
            found = tuple(graph_rows(graph))
            self._keep(key, found)
        return found

    def _keep(self, key: bytes, rows: GraphRows) -> None:
        if self._rows + len(rows) > _MOST_KEPT_ROWS:
            self._kept.clear()
            self._rows = 0
        self._kept[key] = rows
        self._rows += len(rows)


def graph_rows(graph: Graph) -> Iterator[tuple[Any, Row]]:
    """All rows of one graph."""
    prefixes = prefix_hashes(graph)
    digest = record_digest(encode_graph(graph))
    whole = graph_hash(prefixes.values())
    yield tables.graph, (digest, graph.source, len(graph.nodes), whole)
    places = {node.name: place for place, node in enumerate(graph.nodes)}
    depths: list[int] = []
    for place, node in enumerate(graph.nodes):
        sources = [places[one.node] for one in node.inputs]
        depths.append(1 + max((depths[source] for source in sources), default=-1))
        config = as_json(node.config)
        prefix = prefixes[node.name].hex()
        yield tables.node, (digest, place, node.name, node.op, config, depths[place], prefix)
        for one, source in zip(node.inputs, sources, strict=True):
            yield tables.edge, (digest, source, place, one.role, one.output)
        for parameter in node.parameters:
            yield tables.node_parameter, (digest, place, parameter.role, parameter.tensor)


def _cause(manifest: Manifest) -> bytes:
    """What the graph of a model is a function of."""
    if manifest.graph is not None:
        return manifest.graph
    shapes = [(one.name, one.type, one.shape) for one in manifest.tensors]
    aliases = [(one.name, one.target) for one in manifest.aliases]
    config = [one.blob for one in manifest.files if one.name == CONFIG]
    # What a file says beside its tensors counts where it may be a program; the headers of others
    # differ from model to model and say nothing of it.
    formats = {one.format for one in manifest.originals}
    told = [one for one in manifest.originals if _PROGRAM in formats]
    return _ENCODER.encode([shapes, aliases, config, sorted(formats), told])

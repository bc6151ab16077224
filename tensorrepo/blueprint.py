"""Which architecture does this describe: a model, a state dict, or a file?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from tensorrepo.formats.arguments import wrong
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.model.combine.construct import Wanted, graph_wanted, wanted_of
from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import Graph, make_graph
from tensorrepo.formats.model.graph.source import CONFIG, MAX_CONFIG_BYTES
from tensorrepo.model import Model
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from tensorrepo.formats.model.source import ModelSource

Blueprint: TypeAlias = "Graph | Model | Mapping[str, Any] | Path | str"

MAX_BYTES: Final = 64 << 20


def graph_of(described: Blueprint) -> Graph:
    """The architecture graph of a model, a state dict (also on torch's device "meta"), or a file.

    Raises:
        NotFoundError: no such file.
        InvalidInputError: a file that describes none.
    """
    if isinstance(described, Model):
        return described.graph()
    if isinstance(described, Path | str):
        path = Path(described)
        if path.suffix.lower() != ".json" or path.name.endswith(".index.json"):
            return _graph_of_source(read_model(path))
        return graph_of(read_architecture(path))
    if not isinstance(described, Graph | Mapping):
        raise wrong(
            "an architecture", "a graph, a model, a state dict, or the path of a file", described
        )
    return graph_wanted(described)


def read_architecture(path: Path) -> Graph | dict[str, Wanted]:
    """A JSON file: a graph, as `model desc NAME --graph --json` prints it, or types and shapes."""
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise NotFoundError(f"there is no {path}") from None
    if size > MAX_BYTES:
        raise InvalidInputError(f"{path}: more than {MAX_BYTES >> 20} MiB is no architecture")
    try:
        value = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInputError(f"{path}: expected a graph, or types and shapes by name")
    if "nodes" in value:
        return _parsed_graph(path, value)
    if "model_type" in value or "architectures" in value:
        raise InvalidInputError(
            f"{path} is a config: it does not tell the shapes of tensors. Give the model file, or "
            "build the module on torch's device meta and pass its state_dict() in Python."
        )
    return wanted_of(value)


def _parsed_graph(path: Path, value: dict[str, Any]) -> Graph:
    try:
        graph = msgspec.convert(value, Graph)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{path}: no graph: {error}") from error
    return make_graph(graph.source, graph.nodes, graph.outputs, graph.config)


def _graph_of_source(source: ModelSource) -> Graph:
    """The graph that a stored model of these tensors would have, unless they are an ONNX file's."""
    readers = {**source.tensors, **{a: source.tensors[of] for a, of in source.aliases.items()}}
    wanted = [Wanted(name, one.type, tuple(one.shape)) for name, one in readers.items()]
    told = source.files.get(CONFIG)
    data = told.read_bytes() if isinstance(told, Path) else told
    try:
        settings = json.loads(data) if data and len(data) <= MAX_CONFIG_BYTES else {}
    except (ValueError, RecursionError):
        settings = {}
    return derived_graph(wanted, settings if isinstance(settings, dict) else {})

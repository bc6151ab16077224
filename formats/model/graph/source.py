"""Graph of a stored model: its own, its ONNX file's, or one derived from names.

From the blob that the manifest names; else from the ONNX file that the model came from, if it is a
graph as ours are; else it is derived from names, shapes and a config file. The latter two are made
when they are asked for: they are functions of what is stored.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.common.json import check_json
from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import Graph, decode_graph
from tensorrepo.formats.model.graph.onnx import from_onnx
from tensorrepo.formats.model.graph.onnx_file import graph_of
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import digest_from_bytes
from tensorrepo.repo.objects.envelope import Kind

if TYPE_CHECKING:
    from tensorrepo.formats.model.stored_model import StoredModel

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

"""Catalog handle of the SDK: opened, brought up to date, searched for models by architecture.

It is made when it is first used, and brought up to date before each question.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import (
    check_instance,
    counted,
    encodable,
    flag,
    whole,
    wrong,
)
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.model.graph.derived import derived_graph
from tensorrepo.formats.model.graph.graph import Graph, make_graph
from tensorrepo.formats.model.graph.source import CONFIG, MAX_CONFIG_BYTES
from tensorrepo.formats.model.merging.new_model import WantedTensor, graph_wanted, wanted_of
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.migrations.repository_catalog import RepositoryCatalog
from tensorrepo.models.model import Model
from tensorrepo.query import architecture
from tensorrepo.query.architecture import Donor, Owner, PathFound, Ranking
from tensorrepo.repo.errors import (
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.tables import Cell, RecordList
from tensorrepo.repo.typed_decoding import from_plain

ArchitectureSource: TypeAlias = "Graph | Model | Mapping[str, Any] | Path | str"

MAX_BYTES: Final = 64 << 20


def graph_of(described: ArchitectureSource) -> Graph:
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


def read_architecture(path: Path) -> Graph | dict[str, WantedTensor]:
    """A JSON file: a graph, as `model desc NAME --nodes --json` prints it, or types and shapes."""
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
        graph = from_plain(value, Graph)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"{path}: no graph: {error}") from error
    return make_graph(graph.source, graph.nodes, graph.outputs, graph.config)


def _graph_of_source(source: ModelSource) -> Graph:
    """The graph that a stored model of these tensors would have, unless they are an ONNX file's."""
    readers = {**source.tensors, **{a: source.tensors[of] for a, of in source.aliases.items()}}
    wanted = [WantedTensor(name, one.type, tuple(one.shape)) for name, one in readers.items()]
    told = source.files.get(CONFIG)
    data = told.read_bytes() if isinstance(told, Path) else told
    try:
        settings = json.loads(data) if data and len(data) <= MAX_CONFIG_BYTES else {}
    except (ValueError, RecursionError):
        settings = {}
    return derived_graph(wanted, settings if isinstance(settings, dict) else {})


def model_text(model: PathFound | Donor | Owner) -> str:
    """Where a model stands, and its digest."""
    paths = list(dict.fromkeys(version.path for version in model.versions))
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{f'{paths[0]}{more}' if paths else '(a model of no commit)'} {model.model:.12}"


def way_text(model: PathFound, most: int = 8) -> str:
    """The nodes of a way, those in the middle of a long one counted."""
    nodes = model.nodes
    if len(nodes) <= most:
        return " -> ".join(nodes)
    return " -> ".join((*nodes[: most // 2], f"({len(nodes) - most} more)", *nodes[-most // 2 :]))


class FoundModels(RecordList[PathFound]):
    """Models in which a way was found."""

    columns: ClassVar[Mapping[str, Cell]] = {"model": model_text, "way": way_text}


class DonorList(RecordList[Donor]):
    """Models that begin like an architecture, the best first."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": model_text,
        ">shared": lambda donor: f"{donor.shared} of {counted(donor.nodes, 'node')}",
        ">value": lambda donor: "-" if donor.value is None else f"{donor.value:.6g}",
    }


class OwnerList(RecordList[Owner]):
    """Models that hold a tensor."""

    columns: ClassVar[Mapping[str, Cell]] = {
        "model": model_text,
        "tensor": "tensor",
        "since": lambda owner: f"{owner.versions[-1].commit:.12}" if owner.versions else "",
    }


class Catalog(RepositoryCatalog):
    """The SQL catalog of one repository. Safe to share between threads."""

    def find_models(
        self, first: str, last: str | None = None, *, steps: int | None = None
    ) -> FoundModels:
        """Models of all commits with a node that fits `first`, and a way from it to `last`.

        Args:
            first: a regular expression that fits a node's whole name, or its whole operation.
            last: another one; None: one node is enough.
            steps: edges of the way at most; None: any number.
        """
        encodable("first", first)
        if last is not None:
            encodable("last", last)
        with self.reading() as connection:
            return FoundModels(architecture.models_with_path(connection, first, last, steps=steps))

    def donors(
        self,
        target: ArchitectureSource,
        *,
        metric: str | None = None,
        order_by_metric: bool = False,
        smallest: bool = False,
        limit: int = 10,
    ) -> DonorList:
        """Models of all commits that begin like an architecture, the longest prefix first.

        A model is not a donor to itself.

        Args:
            target: a graph, a model, a state dict (torch's device "meta" is enough), or a file.
            metric: metric of models that decides between equal prefixes.
            order_by_metric: it counts first, among those that share half of the nodes.
            smallest: small values of it are good ones.
            limit: so many at most.
        """
        ranking = Ranking(
            None if metric is None else encodable("metric", metric),
            flag("order_by_metric", order_by_metric),
            flag("smallest", smallest),
            whole("limit", limit, 1),
        )
        own = (target.digest,) if isinstance(target, Model) else ()
        graph = graph_of(target)
        with self.reading() as connection:
            return DonorList(architecture.donors(connection, graph, ranking, without=own))

    def owners(self, model: Model, tensor: str) -> OwnerList:
        """Models of all commits that hold a tensor of `model`, bit for bit."""
        check_instance("model", model, Model, "one of the repository, as repo.model(...) gives it")
        model.spec(encodable("tensor", tensor))  # says which names are near
        with self.reading() as connection:
            return OwnerList(architecture.owners(connection, model.digest, tensor))


_CATALOGS: WeakKeyDictionary[Context, Catalog] = WeakKeyDictionary()


def catalog_of(context: Context) -> Catalog:
    """The catalog of a repository: one for all handles that share a context."""
    if context not in _CATALOGS:
        _CATALOGS[context] = Catalog(context.core, context.catalog_url)
    return _CATALOGS[context]

"""Rows of entries: datasets, models, graphs, views and their lineage, each read once.

One reader for each kind of entry. All rows of a thing begin with its digest, in the column that
`Content` names, so that they can be taken away when nothing has it any more.

A graph is one thing that many models have: its key is the digest of its bytes, and its rows are
there once. Deriving the graph of a model that has none of its own costs more than all of its other
rows, so the last ones are kept by what they were derived from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from hashlib import sha256
from math import prod
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import Column as SqlColumn
from sqlalchemy import Table

from tensorrepo.formats.common.provenance import (
    DERIVED_FROM,
    SYNCED_WITH,
    ProvenanceEdge,
    edges_of,
    relation_of,
)
from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.dataset.metadata.manifest import ColumnStatistics, decode_root
from tensorrepo.formats.dataset.schema.schema import Column, ColumnType, type_to_json
from tensorrepo.formats.dataset.schema.types import ColumnLayout, storage_of
from tensorrepo.formats.dataset.schema.values import value_of_key
from tensorrepo.formats.model.graph.graph import Graph, encode_graph, graph_hash, prefix_hashes
from tensorrepo.formats.model.graph.source import CONFIG, model_graph
from tensorrepo.formats.model.layout.fingerprints import architecture_fingerprint
from tensorrepo.formats.model.layout.manifest import (
    Manifest,
    TensorEntry,
    TensorPiece,
    decode_manifest,
)
from tensorrepo.formats.model.layout.placement import MemberEntry, Placement, decode_placement
from tensorrepo.formats.model.merging.new_model import WantedTensor
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.views import open_view
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.tables import shown
from tensorrepo.query.sync.blocks import member_blocks, tensor_blocks
from tensorrepo.query.sync.loader import (
    Loader,
    TableRow,
    TableRows,
    as_json,
    bounded,
    number,
    present,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.hashing.digests import record_digest
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, ObjectSource

_KINDS: Final = {
    "datasets": "dataset", "files": "file", "indexes": "search index", "models": "model",
    "runs": "run", "views": "view",
}  # fmt: skip


def edge_rows(
    stated_by: str, kind: str, edges: Iterable[ProvenanceEdge], subject: str | None = None
) -> TableRows:
    """The edges that object `stated_by` tells of `subject`, which is a `kind`; None: of itself."""
    subject = stated_by if subject is None else subject
    for place, edge in enumerate(edges):
        # A sync's digest names the rows that the source had, which stand in no tree.
        digest = None if edge.relation == SYNCED_WITH else edge.digest or None
        origin = kind_of_path(edge.path)
        told = (relation_of(edge.relation), origin, edge.path, digest, edge.commit)
        yield edge_row(stated_by, place, (kind, subject, *told, as_json(edge.details)))


def edge_row(stated_by: str, place: int, told: TableRow) -> tuple[Table, TableRow]:
    """A row of `lineage_edge` of its columns from `subject_kind` to `detail`."""
    _, subject, _, _, path, origin, _, _ = told
    ends = hash_of(subject), hash_of(path if origin is None else origin)
    return tables.lineage_edge, (stated_by, place, *told, *ends)


def hash_of(key: str) -> int:
    """The first 8 bytes of SHA-256 of what names a thing, as a number with a sign.

    Walks go by it. Things that share one are told apart by their names, afterwards.
    """
    name = shown(key).encode(errors="surrogatepass")
    return int.from_bytes(sha256(name).digest()[:8], "big", signed=True)


def kind_of_path(path: str) -> str:
    """What lies at a path of a repository, as its first folder tells; a URL is a "url"."""
    if "://" in path:
        return "url"
    return _KINDS.get(path.partition("/")[0], "file")


def dataset_rows(objects: ObjectSource, entry: Entry) -> TableRows:
    """The rows of a dataset that a tree names. Reads its root alone."""
    root = decode_root(objects.get(entry.digest).payload)
    counts = (root.rows - root.deleted, root.deleted, len(root.schema.columns))
    fragments = sum(leaf.fragments for leaf in root.leaves)
    sizes = (root.stored_bytes, sum(each.raw_bytes for each in root.statistics))
    row = (entry.digest, *counts, fragments, *sizes, as_json(root.properties))
    yield tables.dataset_version, row
    known = zip(root.schema.columns, root.statistics, strict=True)
    for place, (column, statistics) in enumerate(known):
        yield tables.dataset_column, _column_row(entry.digest, place, column, statistics)
    yield from edge_rows(entry.digest, "dataset", edges_of(root.lineage))


def type_in_words(column_type: ColumnType) -> str:
    """``tensor<uint8>[28, ?]``, ``scalar<int64>``, ``text``."""
    form = type_to_json(column_type)
    words = str(form["type"])
    if "dtype" in form:
        words += f"<{form['dtype']}>"
    shape = form.get("shape", [form["dim"]] if "dim" in form else None)
    if shape is not None:
        words += "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
    return words


def _column_row(dataset: str, place: int, column: Column, known: ColumnStatistics) -> TableRow:
    storage = storage_of(column.type)
    binary = storage.layout is ColumnLayout.BINARY
    scalar = storage.layout is ColumnLayout.FIXED and not storage.shape
    ends = (known.min, known.max) if scalar else (None, None)
    numbers = [None if key is None else value_of_key(key, storage.dtype) for key in ends]
    type_of = (None, None) if binary else (storage.dtype, json.dumps(storage.shape))
    keys = [None if key is None else key.to_bytes(8, "big") for key in ends]
    told = (known.nulls, *map(bounded, numbers), *keys, known.stored_bytes, known.raw_bytes)
    return (dataset, place, column.name, type_in_words(column.type), *type_of, *told)


_MOST_KEPT_ROWS: Final = 1 << 16
_PROGRAM: Final = "onnx"  # the format of an original that holds a graph
_ENCODER: Final = msgspec.msgpack.Encoder()

GraphRows = tuple[tuple[Any, "TableRow"], ...]


def graph_rows(graph: Graph) -> Iterator[tuple[Any, TableRow]]:
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


class ModelRows:
    """The rows of one model after the other, each read from its manifest alone if it can be."""

    def __init__(self) -> None:
        self._graphs: dict[bytes, GraphRows] = {}  # of models met lately, bounded by their rows
        self._graph_rows = 0

    def __call__(self, objects: ObjectSource, entry: Entry) -> TableRows:
        """The rows of a model that a tree names, as it is stored now."""
        manifest = decode_manifest(objects.get(entry.digest).payload, entry.digest)
        graph = self._graph(objects, entry, manifest)
        types = manifest.type_table()
        tensors = [_tensor(tensor, types[tensor.type]) for tensor in manifest.tensors]
        sums = (sum(row[_ELEMENTS] for row in tensors), sum(row[_BYTES] for row in tensors))
        architecture = architecture_fingerprint(_shapes(manifest, types))
        key = graph[0][1][0] if graph else None
        told = (*sums, architecture, key, as_json(manifest.metadata))
        yield tables.model_version, (entry.digest, len(tensors), *told)
        yield from tensor_blocks(entry.digest, tensors, _pieces(manifest, types))
        yield from graph
        yield from _metrics(entry.digest, manifest.metrics)
        yield from edge_rows(entry.digest, "model", manifest.lineage)

    def _graph(self, objects: ObjectSource, entry: Entry, manifest: Manifest) -> GraphRows:
        """The rows of a model's graph, the one of `graph` first."""
        cause = _cause(manifest)
        if cause not in self._graphs:
            try:
                rows = tuple(graph_rows(model_graph(open_model(objects, entry))))
            except (InvalidInputError, UnsupportedError):
                return ()  # a file's graph that is beyond us: the model is there all the same
            if self._graph_rows + len(rows) > _MOST_KEPT_ROWS:
                self._graphs.clear()
                self._graph_rows = 0
            self._graphs[cause] = rows
            self._graph_rows += len(rows)
        return self._graphs[cause]


def placement_rows(objects: ObjectSource, digest: Digest) -> TableRows:
    """Where the tensors of a model lie, as a placement says."""
    placement = decode_placement(objects.get(digest).payload, digest)
    packs = [pack.pack.hex() for pack in placement.packs]
    members = (
        (
            packs[member.pack],
            member.member,
            (fingerprint, part, member.codec, member.stored_bytes, member.depth),
            [(packs[pack], base) for pack, base in member.bases],
        )
        for fingerprint, part, member in _members(placement)
    )
    return member_blocks(digest, members)


def _members(placement: Placement) -> Iterator[tuple[str | None, int, MemberEntry]]:
    for tensor in placement.tensors:
        name = tensor.fingerprint.hex()
        yield from ((name, part, member) for part, member in enumerate(tensor.members))
    yield from ((None, 0, member) for member in placement.bases)


_ELEMENTS, _BYTES = 3, 4  # of what `_tensor` gives


def _tensor(tensor: TensorEntry, element: TensorType) -> TableRow:
    """Name, dtype, shape, elements, bytes and fingerprint of a tensor."""
    whole = tensor.pieces[0] if len(tensor.pieces) == 1 else None
    sizes = prod(tensor.shape), element.bytes_of(tensor.shape)
    told = (tensor.name, tensor.type, json.dumps(tensor.shape), *sizes)
    return (*told, None if whole is None else _fingerprint(whole))


def _pieces(manifest: Manifest, types: Mapping[str, TensorType]) -> dict[int, list[TableRow]]:
    """Number, bytes and fingerprint of the pieces of tensors that have several, by their place."""
    return {
        place: [
            (number_of, types[tensor.type].bytes_of(piece.shape), _fingerprint(piece))
            for number_of, piece in enumerate(tensor.pieces)
        ]
        for place, tensor in enumerate(manifest.tensors)
        if len(tensor.pieces) > 1
    }


def _fingerprint(piece: TensorPiece) -> str | None:
    return None if piece.fingerprint is None else piece.fingerprint.hex()


def _shapes(manifest: Manifest, types: Mapping[str, TensorType]) -> Iterator[WantedTensor]:
    """All names that a model has, aliases too."""
    tensors = {one.name: one for one in manifest.tensors}
    names = {one: one for one in tensors} | {one.name: one.target for one in manifest.aliases}
    for name, target in names.items():
        yield WantedTensor(name, types[tensors[target].type], tensors[target].shape)


def _metrics(model: str, metrics: Mapping[str, Any]) -> TableRows:
    """The metrics that are numbers; what else a model says of itself is in its manifest."""
    numbers = {name: value for name, value in metrics.items() if type(value) in (int, float)}
    for place, (name, value) in enumerate(sorted(numbers.items())):
        yield tables.metric, (model, place, None, name, None, *number(value), None)


def view_rows(objects: ObjectSource, entry: Entry) -> TableRows:
    """The rows of a view that a tree names. Reads one object."""
    view = open_view(objects, entry.digest)
    told = (view.sql, view.dataset, view.path, view.commit, view.rows)
    yield tables.view_version, (entry.digest, *told)
    made = ProvenanceEdge(DERIVED_FROM, view.path, view.dataset, view.commit, {"sql": view.sql})
    yield from edge_rows(entry.digest, "view", [made])


RowsOf: TypeAlias = Callable[[ObjectSource, Entry], TableRows]


@dataclass(frozen=True, slots=True)
class Content:
    """How one kind of entry gets into the catalog.

    Attributes:
        reader: makes what is called with (objects, entry) and gives rows. Made anew for each
            catch-up, so that it may remember things between entries of one.
        key: column by which one tells whether a thing is there: one row for each.
        parts: columns of its other tables that hold its digest.
    """

    reader: Callable[[], RowsOf]
    key: SqlColumn[Any]
    parts: tuple[SqlColumn[Any], ...]


# `entry.kind` to how it is read. Kinds that are not here have no rows but those of entries.
CONTENTS: Final[dict[Kind, Content]] = {
    Kind.DATASET: Content(
        lambda: dataset_rows,
        tables.dataset_version.c.digest,
        (tables.dataset_column.c.dataset, tables.lineage_edge.c.stated_by),
    ),
    Kind.MODEL: Content(
        ModelRows,
        tables.model_version.c.digest,
        (
            tables.model_block.c.model,
            tables.metric.c.owner,
            tables.lineage_edge.c.stated_by,
        ),
    ),
    Kind.VIEW: Content(
        lambda: view_rows, tables.view_version.c.digest, (tables.lineage_edge.c.stated_by,)
    ),
}


_ASKED_TOGETHER: Final = 1000


@dataclass(slots=True)
class Contents:
    """Entries on their way into the catalog. They wait until many can be asked about at once."""

    objects: ObjectSource
    state: State
    loader: Loader
    _waiting: dict[Digest, Entry] = field(default_factory=dict)
    _placed: set[tuple[Digest, Digest]] = field(default_factory=set)
    _readers: dict[Kind, RowsOf] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries that commits in the catalog have, in any order, any number of times."""
        for entry in entries:
            if entry.kind not in CONTENTS:
                continue
            self._waiting.setdefault(entry.digest, entry)
            if entry.storage is not None:
                self._placed.add((entry.digest, entry.storage))
            if max(len(self._waiting), len(self._placed)) >= _ASKED_TOGETHER:
                self.flush()

    def flush(self) -> None:
        """Read what is new among those that wait, and hand over its rows."""
        self.loader.flush()  # what was found before can be asked for in the tables now
        for kind, content in CONTENTS.items():
            some = [digest for digest, entry in self._waiting.items() if entry.kind is kind]
            known = present(self.loader.connection, content.key, some)
            for digest in some:
                if digest not in known:
                    self._read(self._waiting[digest])
        self._place()
        self._waiting, self._placed = {}, set()

    def _read(self, entry: Entry) -> None:
        reader = self._readers.get(entry.kind)
        if reader is None:
            reader = self._readers[entry.kind] = CONTENTS[entry.kind].reader()
        if entry.storage is not None:
            entry = msgspec.structs.replace(entry, storage=self.state.resolve(entry.storage))
        self.loader.next_owner()
        self.loader.add(reader(self.objects, entry))

    def _place(self) -> None:
        """Note which placement each model has, and what the new ones of them say."""
        stated = tables.placement.c.stated
        there = present(self.loader.connection, stated, {place for _, place in self._placed})
        rows_there = tables.placement.select().where(stated.in_(there))
        found = self.loader.connection.execute(rows_there)
        pairs = {(row.model, row.stated) for row in found}
        new = sorted(pair for pair in self._placed if pair not in pairs)
        rows = [(model, place, self.state.resolve(place)) for model, place in new]
        self.place_all({current for _, _, current in rows})
        self.loader.add((tables.placement, row) for row in rows)

    def place_all(self, placements: Iterable[Digest]) -> None:
        """Read those of these placements that are new."""
        self.loader.flush()  # one that was read a moment ago is new no more
        wanted = set(placements)
        known = present(self.loader.connection, tables.placement.c.placement, wanted)
        for digest in sorted(wanted - known):
            self.loader.next_owner()
            self.loader.add(placement_rows(self.objects, digest))

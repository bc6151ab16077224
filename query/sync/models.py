"""Which rows say what a version of a model is, and where it lies?"""

from __future__ import annotations

import json
from math import prod
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.model.architecture import architecture_fingerprint
from tensorrepo.formats.model.manifest import decode_manifest
from tensorrepo.formats.model.placement import decode_placement
from tensorrepo.query import tables
from tensorrepo.query.sync.edges import edge_rows
from tensorrepo.query.sync.graphs import Graphs
from tensorrepo.query.sync.values import as_json, number
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorrepo.formats.model.manifest import Manifest, Piece, TensorEntry
    from tensorrepo.formats.model.placement import MemberEntry, Placement
    from tensorrepo.formats.tensors import TensorType
    from tensorrepo.query.sync.graphs import GraphRows
    from tensorrepo.query.sync.loader import Row, Rows
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry


class ModelRows:
    """The rows of one model after the other, each read from its manifest alone if it can be."""

    def __init__(self) -> None:
        self._graphs = Graphs()

    def __call__(self, objects: ObjectSource, entry: Entry) -> Rows:
        """The rows of a model that a tree names, as it is stored now."""
        manifest = decode_manifest(objects.get(entry.digest).payload, entry.digest)
        graph = self._graph(objects, entry, manifest)
        types = manifest.type_table()
        tensors = [_tensor(entry.digest, place, tensor, types[tensor.type])
                   for place, tensor in enumerate(manifest.tensors)]  # fmt: skip
        yield (
            tables.model_version,
            (
                entry.digest,
                len(tensors),
                sum(row[_ELEMENTS] for row in tensors),
                sum(row[_BYTES] for row in tensors),
                architecture_fingerprint(_shapes(manifest, types)),
                graph[0][1][0] if graph else None,
                as_json(manifest.metadata),
            ),
        )
        yield from ((tables.model_tensor, row) for row in tensors)
        yield from _pieces(entry.digest, manifest, types)
        yield from graph
        yield from _metrics(entry.digest, manifest.metrics)
        yield from edge_rows(entry.digest, "model", manifest.lineage)

    def _graph(self, objects: ObjectSource, entry: Entry, manifest: Manifest) -> GraphRows:
        try:
            return self._graphs.rows_of(objects, entry, manifest)
        except (InvalidInputError, UnsupportedError):
            return ()  # a file's graph that is beyond us: the model is there all the same


def placement_rows(objects: ObjectSource, digest: Digest) -> Rows:
    """Where the tensors of a model lie, as a placement says."""
    placement = decode_placement(objects.get(digest).payload, digest)
    packs = [pack.pack.hex() for pack in placement.packs]
    for fingerprint, part, member in _members(placement):
        yield (
            tables.tensor_storage,
            (
                digest,
                packs[member.pack],
                member.member,
                fingerprint,
                part,
                member.codec,
                member.stored_bytes,
                member.depth,
            ),
        )
        for place, (pack, base) in enumerate(member.bases):
            yield (
                tables.member_base,
                (digest, packs[member.pack], member.member, place, packs[pack], base),
            )


def _members(placement: Placement) -> Iterator[tuple[str | None, int, MemberEntry]]:
    for tensor in placement.tensors:
        name = tensor.fingerprint.hex()
        yield from ((name, part, member) for part, member in enumerate(tensor.members))
    yield from ((None, 0, member) for member in placement.bases)


_ELEMENTS, _BYTES = 5, 6  # of `tables.model_tensor`


def _tensor(model: str, place: int, tensor: TensorEntry, element: TensorType) -> Row:
    whole = tensor.pieces[0] if len(tensor.pieces) == 1 else None
    return (
        model,
        place,
        tensor.name,
        tensor.type,
        json.dumps(tensor.shape),
        prod(tensor.shape),
        element.bytes_of(tensor.shape),
        None if whole is None else _fingerprint(whole),
    )


def _pieces(model: str, manifest: Manifest, types: Mapping[str, TensorType]) -> Rows:
    for place, tensor in enumerate(manifest.tensors):
        if len(tensor.pieces) > 1:
            for number_of, piece in enumerate(tensor.pieces):
                size = types[tensor.type].bytes_of(piece.shape)
                row = (model, place, number_of, size, _fingerprint(piece))
                yield tables.tensor_piece, row


def _fingerprint(piece: Piece) -> str | None:
    return None if piece.fingerprint is None else piece.fingerprint.hex()


class _Shape:
    """What `architecture_fingerprint` asks of a tensor."""

    def __init__(self, name: str, shape: tuple[int, ...], element: TensorType) -> None:
        self.name, self.shape, self.type = name, shape, element


def _shapes(manifest: Manifest, types: Mapping[str, TensorType]) -> Iterator[_Shape]:
    """All names that a model has, aliases too."""
    tensors = {one.name: one for one in manifest.tensors}
    names = {one: one for one in tensors} | {one.name: one.target for one in manifest.aliases}
    for name, target in names.items():
        yield _Shape(name, tensors[target].shape, types[tensors[target].type])


def _metrics(model: str, metrics: Mapping[str, Any]) -> Rows:
    """The metrics that are numbers; what else a model says of itself is in its manifest."""
    found = [(name, value) for name, value in sorted(metrics.items()) if _is_number(value)]
    for place, (name, value) in enumerate(found):
        yield tables.metric, (model, place, None, name, None, *number(value), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Models whose tensors several processes hold parts of: stored by rank, joined once.

Each stores its shards as pieces and says what it stored, in a few bytes; one of them joins what all
say into the manifest and the placement. Tensors are not gathered anywhere.

    store_shards, in each process -> bytes -> join_shards, in one of them -> the entry to stage
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorReader, TensorType
from tensorrepo.formats.model.layout.manifest import (
    Alias,
    Manifest,
    TensorEntry,
    TensorPiece,
    piece_name,
)
from tensorrepo.formats.model.layout.placement import ChosenBase, Placement
from tensorrepo.formats.model.write.base_choice import SIMILAR, DeltaOptions
from tensorrepo.formats.model.write.model_source import FileContent
from tensorrepo.formats.model.write.model_writer import (
    DEFAULT_BUDGET_BYTES,
    store_documents,
    store_files,
    store_tensors,
    type_entries,
)
from tensorrepo.formats.model.write.packing import build_placement, known_tensors
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import ObjectSink
from tensorrepo.repo.typed_decoding import from_msgpack


class TensorShard(NamedTuple):
    """A box of a tensor: `reader` has its elements, `offset` is where it begins in `shape`."""

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    reader: TensorReader


class StoredShard(msgspec.Struct, frozen=True, array_like=True):
    """A box of tensor `name` that was stored: `shape` is the tensor's, `type` its block."""

    name: str
    type: tuple[str, int, int]
    shape: tuple[int, ...]
    piece: TensorPiece


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """What one process says of its shards."""

    shards: tuple[StoredShard, ...]
    placement: Placement


def shard_name(shard: TensorShard, tensor: str | None = None) -> str:
    """What a shard is called while it is stored, or the same part of another tensor."""
    return piece_name(tensor or shard.name, shard.shape, shard.offset, shard.reader.shape)


def store_shards(
    objects: ObjectSink,
    shards: Iterable[TensorShard],
    *,
    known: Iterable[Entry] = (),
    against: DeltaOptions = SIMILAR,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
) -> bytes:
    """Store the shards of one process.

    Arguments else as for `store_model`.

    Returns:
        What `join_shards` needs to know of them.
    """
    named = {shard_name(one): one for one in shards}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        readers = {name: one.reader for name, one in named.items()}
        entries, placement, *_ = store_tensors(objects, readers, pool, known, against, budget_bytes)
    stored = []
    for name, one in named.items():
        (whole,) = entries[name].pieces
        piece = TensorPiece(tuple(one.offset), whole.shape, whole.fingerprint, whole.value)
        element = one.reader.type
        type_of = element.name, element.block_elements, element.block_bytes
        stored.append(StoredShard(one.name, type_of, tuple(one.shape), piece))
    return msgspec.msgpack.encode(_Told(tuple(stored), placement))


def join_shards(objects: ObjectSink, told: Iterable[bytes], **about: Any) -> Entry:
    """The model that all shards together are.

    Args:
        objects: where to; the shards are in the same repository.
        told: what `store_shards` returned in every process. A box that several stored counts once.
        about: files, metadata, metrics and lineage, as for `join_stored`.

    Raises:
        InvalidInputError: shards that do not make up whole tensors; names one.
    """
    try:
        parts = [from_msgpack(one, _Told) for one in told]
    except msgspec.DecodeError as error:
        raise InvalidInputError(
            f"this is not what `store_shards` returned, or cut short: {error}"
        ) from error
    stored = [shard for part in parts for shard in part.shards]
    return join_stored(objects, stored, [part.placement for part in parts], **about)


def join_stored(
    objects: ObjectSink,
    stored: Sequence[StoredShard],
    placements: Iterable[Placement],
    *,
    aliases: Iterable[Alias] = (),
    files: Mapping[str, FileContent] | None = None,
    metadata: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    lineage: Iterable[ProvenanceEdge] = (),
) -> Entry:
    """The model that stored boxes of tensors are together.

    Args:
        objects: where to; what was stored is in the same repository.
        stored: boxes; one that is there several times counts once.
        placements: where their frames lie.
        aliases: further names of tensors, sorted.
        files: files that belong to it: bytes, or where they lie.
        metadata: JSON.
        metrics: JSON.
        lineage: what it came from.

    Raises:
        InvalidInputError: boxes that do not make up whole tensors; names one.
    """
    tensors = _joined(stored)
    manifest = Manifest(
        types=type_entries(TensorType(*shard.type) for shard in stored),
        tensors=tuple(tensors[name] for name in sorted(tensors)),
        aliases=tuple(aliases),
        files=store_files(objects, files or {}),
        metadata=dict(metadata or {}),
        metrics=dict(metrics or {}),
        lineage=tuple(lineage),
    )
    named = {piece.fingerprint for tensor in manifest.tensors for piece in tensor.pieces}
    parts = tuple(placements)
    known = known_tensors(parts)
    places = {name: at for name, at in known.items() if name in named}
    return store_documents(objects, manifest, build_placement(places, _chosen(parts)))


def _chosen(placements: Iterable[Placement]) -> list[ChosenBase]:
    """The bases that tensors of any part were encoded against, most tensors first."""
    found: dict[bytes, ChosenBase] = {}
    for placement in placements:
        for each in placement.chosen:
            known = found.get(each.model)
            tensors = each.tensors + (known.tensors if known is not None else 0)
            found[each.model] = msgspec.structs.replace(known or each, tensors=tensors)
    return sorted(found.values(), key=lambda each: (-each.tensors, each.model))


def _joined(stored: Iterable[StoredShard]) -> dict[str, TensorEntry]:
    boxes: dict[str, dict[tuple[int, ...], TensorPiece]] = {}
    about: dict[str, tuple[tuple[str, int, int], tuple[int, ...]]] = {}
    for shard in stored:
        expected = about.setdefault(shard.name, (shard.type, shard.shape))
        if expected != (shard.type, shard.shape):
            raise InvalidInputError(
                f"tensor {shard.name!r}: {shard.type[0]} {shard.shape} in one process, "
                f"{expected[0][0]} {expected[1]} in another"
            )
        if shard.shape == shard.piece.shape or 0 not in shard.piece.shape:  # others hold nothing
            boxes.setdefault(shard.name, {}).setdefault(shard.piece.offset, shard.piece)
    entries = {}
    for name, (element, shape) in about.items():
        box = boxes.get(name, {})
        pieces = tuple(box[offset] for offset in sorted(box)) or (
            TensorPiece((0,) * len(shape), shape, None, b""),
        )  # nobody has an element
        entries[name] = TensorEntry(name, element[0], shape, pieces)
    return entries

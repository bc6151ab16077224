"""Model writer: tensors, files and graph become manifest, placement and packs.

Tensors first, as members of packs, but for those that a known placement holds already; then
files, then the manifest and the placement. Memory is bounded by a few packs, whatever the size
of a tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorReader, TensorType
from tensorrepo.formats.model.delta.base_choice import (
    RANKED,
    SIMILAR,
    TRIED,
    BaseModel,
    Bases,
    DeltaOptions,
    open_base,
    rank,
)
from tensorrepo.formats.model.delta.similarity import ALIKE_BITS
from tensorrepo.formats.model.layout.manifest import (
    Alias,
    FileEntry,
    Manifest,
    TensorEntry,
    TypeEntry,
    encode_manifest,
)
from tensorrepo.formats.model.layout.pack import LARGE_ALIGNMENT
from tensorrepo.formats.model.layout.placement import Placement, decode_placement, encode_placement
from tensorrepo.formats.model.read.frames import PackReader
from tensorrepo.formats.model.write.byte_exact import StoredTensors, store_original
from tensorrepo.formats.model.write.model_source import (
    FileContent,
    ModelSource,
    content_of,
    source_of,
)
from tensorrepo.formats.model.write.packing import PACK_BYTES, PackUploads, known_tensors
from tensorrepo.formats.model.write.tensor_writer import TensorWriter, WriteReport, WrittenModel
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectSink

WriteProgress = Callable[[int, int], None]
DEFAULT_BUDGET_BYTES: Final = 320 << 20
SMALLEST_BUDGET_BYTES: Final = 48 << 20  # a fifth of it holds the largest frame


def write_model(
    objects: ObjectSink, model: ModelSource | Mapping[str, Any], **options: Any
) -> Entry:
    """Store a model as `store_model` does, with its `options`; the entry to stage alone."""
    return store_model(objects, model, **options).entry


def store_model(
    objects: ObjectSink,
    model: ModelSource | Mapping[str, Any],
    *,
    files: Mapping[str, FileContent] | None = None,
    metadata: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    lineage: Iterable[ProvenanceEdge] = (),
    known: Iterable[Entry] = (),
    against: DeltaOptions = SIMILAR,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    progress: WriteProgress | None = None,
) -> WrittenModel:
    """Store a model.

    Args:
        objects: where to.
        model: what an importer returned, or tensors by name: numpy arrays, torch tensors, readers.
            They must not change until this returns.
        files: further files that belong to it: bytes, or where they lie.
        metadata: JSON, beside that of the importer.
        metrics: JSON, such as ``{"accuracy": 0.91}``.
        lineage: what it came from.
        known: models reachable where this is committed, the likeliest bases first: what they hold
            is not stored again, and similar ones are encoded against.
        against: what tensors are encoded against; else the most similar known models.
        budget_bytes: memory for tensors and packs; at least 48 MiB.
        progress: called with the tensors and tensor bytes done so far.

    Returns:
        The entry to stage (the manifest's digest, and the placement's), and what it cost.

    Raises:
        InvalidInputError: a tensor, file or name that cannot be stored; an original that does not
            come out again byte for byte.
    """
    source = model if isinstance(model, ModelSource) else source_of(model)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pieces, placement, report = store_tensors(
            objects, source.tensors, pool, known, against, budget_bytes, progress
        )
        links = {digest: objects.describe(digest) for digest in placement.links()}
        stored = StoredTensors(PackReader(objects, placement, links), pieces, source, pool)
        graph = None
        if source.graph is not None:
            graph = digest_bytes(objects.put(Kind.BLOB, source.graph).digest)
        originals = sorted(source.originals, key=lambda original: original.name)
        manifest = Manifest(
            types=type_entries(one.type for one in source.tensors.values()),
            tensors=tuple(pieces[name] for name in sorted(pieces)),
            aliases=tuple(Alias(name, source.aliases[name]) for name in sorted(source.aliases)),
            files=_store_files(objects, {**source.files, **(files or {})}),
            originals=tuple(store_original(objects, one, stored) for one in originals),
            graph=graph,
            metadata={**source.metadata, **(metadata or {})},
            metrics=dict(metrics or {}),
            lineage=tuple(lineage),
        )
    digest = objects.put(Kind.MODEL, encode_manifest(manifest), manifest.links()).digest
    storage = objects.put(Kind.PLACEMENT, encode_placement(placement), placement.links()).digest
    return WrittenModel(Entry(Kind.MODEL, digest, storage), report)


def store_tensors(
    objects: ObjectSink,
    tensors: Mapping[str, TensorReader],
    pool: Executor,
    known: Iterable[Entry] = (),
    against: DeltaOptions = SIMILAR,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    progress: WriteProgress | None = None,
) -> tuple[dict[str, TensorEntry], Placement, WriteReport]:
    """Store tensors alone: what a manifest says of them, and where they lie. See `store_model`."""
    pack_bytes = _pack_bytes(budget_bytes)
    models = [entry for entry in (against.base, *known) if entry is not None]
    digests = dict.fromkeys(entry.storage for entry in models if entry.storage is not None)
    placements = [decode_placement(objects.get(digest).payload, digest) for digest in digests]
    bases = Bases(_base_models(objects, tensors, models, against.base, pack_bytes // 4), against)
    with ThreadPoolExecutor(1) as uploader:
        uploads = PackUploads(objects, uploader)
        there = known_tensors(placements, alone=bases.stand_alone)
        writer = TensorWriter(uploads.emit, there, bases, pack_bytes, pool)
        entries = writer.store_all(tensors, progress)
        return entries, writer.finish(), writer.report()


def _base_models(
    objects: ObjectSink,
    tensors: Mapping[str, TensorReader],
    known: Sequence[Entry],
    base: Entry | None,
    cache_bytes: int,
) -> list[BaseModel]:
    """The models to encode against: the declared one, else the most similar ones."""
    if base is not None:
        declared = open_base(objects, base, "declared", cache_bytes=cache_bytes)
        if declared is not None:
            return [declared]
    likeliest = {entry.digest: entry for entry in reversed(known)}
    models = [
        open_base(objects, entry, "similar", cache_bytes=cache_bytes)
        for entry in list(reversed(likeliest.values()))[:RANKED]
    ]
    ranked = rank([model for model in models if model is not None], tensors)
    return [replace(model, bits=bits) for bits, model in ranked[:TRIED] if bits <= ALIKE_BITS]


def _pack_bytes(budget_bytes: int) -> int:
    """A batch in hand and encoded, two packs that are filled, and one that is on its way."""
    if budget_bytes < SMALLEST_BUDGET_BYTES:
        raise InvalidInputError(
            f"a budget of {budget_bytes} bytes is too small to store tensors; "
            f"at least {SMALLEST_BUDGET_BYTES} are needed"
        )
    return min(PACK_BYTES, budget_bytes // 5 // LARGE_ALIGNMENT * LARGE_ALIGNMENT)


def type_entries(types: Iterable[TensorType]) -> tuple[TypeEntry, ...]:
    """A manifest's list of the types in use."""
    known = {element.name: element for element in types}
    return tuple(
        TypeEntry(name, known[name].block_elements, known[name].block_bytes)
        for name in sorted(known)
    )


def _store_files(objects: ObjectSink, files: Mapping[str, FileContent]) -> tuple[FileEntry, ...]:
    entries = []
    for name in sorted(files):
        data = content_of(files[name])
        blob = objects.put(Kind.BLOB, data).digest
        entries.append(FileEntry(name, digest_bytes(blob), len(data), sha256(data).digest()))
    return tuple(entries)

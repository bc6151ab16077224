"""Model writer: tensors, files and graph become manifest, placement and packs.

Tensors first, as members of packs, each content once; then files, then the manifest and the
placement. Batch by batch: read and hash, leave out what a known placement holds, choose a codec for
each tensor and encode its frames on all cores, and put them into packs, which are stored meanwhile.
Memory is bounded by a few packs, whatever the size of a tensor.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

import numpy as np

from tensorrepo.formats.common.arguments import bytes_text
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorReader, TensorType
from tensorrepo.formats.model.delta.base_choice import (
    RANKED,
    SIMILAR,
    TRIED,
    BaseModel,
    Bases,
    DeltaOptions,
    WrittenBase,
    likeliest,
    open_base,
    rank,
)
from tensorrepo.formats.model.delta.similarity import ALIKE_BITS
from tensorrepo.formats.model.layout.fingerprints import (
    INLINE_BYTES,
    Fingerprint,
    fingerprint,
    frame_bytes,
)
from tensorrepo.formats.model.layout.manifest import (
    Alias,
    FileEntry,
    Manifest,
    TensorEntry,
    TensorPiece,
    TypeEntry,
    encode_manifest,
)
from tensorrepo.formats.model.layout.pack import LARGE_ALIGNMENT, LARGE_BYTES, MAX_DEPTH
from tensorrepo.formats.model.layout.placement import (
    ChosenBase,
    Placement,
    encode_placement,
)
from tensorrepo.formats.model.read.frames import PackReader, tensor_chunks
from tensorrepo.formats.model.write.byte_exact import store_original
from tensorrepo.formats.model.write.chunk_encoder import ChunkEncoder
from tensorrepo.formats.model.write.encoding import (
    ChunkReading,
    EncodingChoice,
    TensorChunk,
    TensorPart,
    batches,
    hash_frames,
    read_chunks,
    ways_by_prediction,
)
from tensorrepo.formats.model.write.frame_memory import LEAST_KEPT_BYTES, FrameMemory
from tensorrepo.formats.model.write.model_source import (
    FileContent,
    ModelSource,
    content_of,
    source_of,
)
from tensorrepo.formats.model.write.packing import (
    PACK_BYTES,
    Location,
    Locations,
    MemberDraft,
    Packer,
    PackSlot,
    PackUploads,
    SealedFrame,
    build_placement,
    known_tensors,
    with_bases,
    worth_reusing,
)
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectSink

Progress = Callable[[int, int], None]


SAME = "same"
INLINE = "inline"


@dataclass(frozen=True, slots=True)
class CodecShare:
    """Tensors stored by one codec; a tensor larger than a pack counts by its first member."""

    tensors: int = 0
    raw_bytes: int = 0
    stored_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What was stored of a model.

    `codecs` is by name of the codec: "same" for tensors that were stored already, "inline" for
    those that stand in the manifest.
    """

    codecs: Mapping[str, CodecShare]
    bases: tuple[ChosenBase, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def raw_bytes(self) -> int:
        return sum(share.raw_bytes for share in self.codecs.values())

    @property
    def stored_bytes(self) -> int:
        return sum(share.stored_bytes for share in self.codecs.values())

    @property
    def summary(self) -> str:
        """One line: ``90.9 MiB stored in 30.1 MiB (delta 22.0 MiB in 5.1 MiB, same 60.0 MiB)``."""
        told = ", ".join(
            f"{name} {bytes_text(share.raw_bytes)}"
            + (
                f" in {bytes_text(share.stored_bytes)}"
                if share.stored_bytes not in {0, share.raw_bytes}
                else ""
            )
            for name, share in sorted(self.codecs.items(), key=lambda one: -one[1].raw_bytes)
            if share.raw_bytes
        )
        return f"{bytes_text(self.raw_bytes)} stored in {bytes_text(self.stored_bytes)}" + (
            f" ({told})" if told else ""
        )


@dataclass(frozen=True, slots=True)
class WrittenModel:
    """A stored model: the entry to stage, and what it cost."""

    entry: Entry
    report: WriteReport


class _BatchReading(NamedTuple):
    """Tensors that are read part by part, and those that are being read whole."""

    cut: list[TensorPart]
    whole: ChunkReading


class TensorWriter:
    """Stores the tensors of one model."""

    def __init__(
        self,
        emit: Callable[[tuple[Buffer, ...]], Future[Digest]],
        known: Mapping[Fingerprint, Locations],
        bases: Bases,
        pack_bytes: int,
        pool: Executor,
    ) -> None:
        self._pool = pool
        self._known = known
        self._bases = bases
        self._pack_bytes = pack_bytes
        self._packer = Packer(pack_bytes, emit)
        self._memory = FrameMemory(pack_bytes // 2)
        self._encoder = ChunkEncoder(bases, self._predicted, pool, self._memory)
        self._stored: dict[Fingerprint, list[PackSlot]] = {}
        self._reused: dict[Fingerprint, Locations] = {}
        self._deferred: dict[Fingerprint, TensorPart] = {}
        self._shapes: set[tuple[str, tuple[int, ...]]] = set()
        self._shares: defaultdict[str, CodecShare] = defaultdict(CodecShare)
        self._uses: Counter[int] = Counter()
        self._readers: Mapping[str, TensorReader] = {}
        self._names: dict[str, Fingerprint] = {}

    def store_all(
        self, tensors: Mapping[str, TensorReader], progress: Progress | None
    ) -> dict[str, TensorEntry]:
        """Store tensors; their entries for the manifest, in the order of `tensors`."""
        entries: dict[str, TensorEntry] = {}
        done = 0
        self._readers = tensors
        later = {
            name: {other for one in given for other in one.now}
            for name, given in self._bases.predictions.items()
        }
        most_bytes = min(self._pack_bytes, BATCH_BYTES)
        for reading in self._readings(batches(tensors, most_bytes, later)):
            contents = self._store_batch(reading)
            for name, (print_, value) in contents.items():
                shape = tuple(tensors[name].shape)
                piece = TensorPiece((0,) * len(shape), shape, print_, value)
                entries[name] = TensorEntry(name, tensors[name].type.name, shape, (piece,))
                done += tensors[name].type.bytes_of(tensors[name].shape)
                if progress is not None:
                    progress(len(entries), done)
        return {name: entries[name] for name in tensors}

    def finish(self) -> Placement:
        """Store what was put off, and say where everything lies."""
        wanted = {name: self._known[name] for name in self._deferred}
        slots = [slot for stored in self._stored.values() for slot in stored]
        bases = [base for slot in slots for base in slot.bases if isinstance(base, Location)]
        needed = [*(at for known in self._reused.values() for at in known), *bases]
        reused = worth_reusing(wanted, [at.pack for at in with_bases(needed)])
        self._reused.update({name: wanted[name] for name in reused})
        for name, part in self._deferred.items():
            if name in reused:
                self._count(SAME, part.size_bytes, 0)
                continue
            (chunk,) = read_chunks([part], self._pool)
            _check_unchanged(part, name, _fingerprint(part.reader, chunk.digests))
            self._keep([(name, chunk)])
        self._packer.flush()
        places = {name: locations_of(slots) for name, slots in self._stored.items()}
        return build_placement(places | self._reused, self._chosen())

    def report(self) -> WriteReport:
        """What was stored, once `finish` has said where."""
        notes = {**self._encoder.notes, **self._bases.notes}
        return WriteReport(dict(self._shares), tuple(self._chosen()), tuple(notes))

    def _count(self, codec: str, raw_bytes: int, stored_bytes: int, *, tensors: int = 1) -> None:
        share = self._shares[codec]
        self._shares[codec] = CodecShare(
            share.tensors + tensors, share.raw_bytes + raw_bytes, share.stored_bytes + stored_bytes
        )

    def _chosen(self) -> list[ChosenBase]:
        models = self._bases.models
        return [
            ChosenBase(models[source].digest, models[source].why, count, models[source].bits)
            for source, count in self._uses.most_common()
        ]

    def _readings(self, batches: Iterable[list[TensorPart]]) -> Iterator[_BatchReading]:
        """Each batch while the next one is being read."""
        before: _BatchReading | None = None
        for batch in batches:
            cut = [part for part in batch if self._is_cut(part)]
            names = {part.name for part in cut}
            whole = [part for part in batch if part.name not in names]
            reading = _BatchReading(cut, ChunkReading(whole, self._pool, self._memory))
            if before is not None:
                yield before
            before = reading
        if before is not None:
            yield before

    def _store_batch(
        self, reading: _BatchReading
    ) -> dict[str, tuple[Fingerprint | None, bytes | None]]:
        """The fingerprint of each tensor, or its value when that stands in the manifest."""
        contents: dict[str, tuple[Fingerprint | None, bytes | None]] = {}
        for part in reading.cut:
            contents[part.name] = self._store_cut(part), None
        new: list[tuple[Fingerprint, TensorChunk]] = []
        for chunk in reading.whole.chunks():
            part = chunk.part
            if part.size_bytes <= INLINE_BYTES:
                contents[part.name] = None, chunk.data.tobytes()
                self._count(INLINE, part.size_bytes, part.size_bytes)
                continue
            name = _fingerprint(part.reader, chunk.digests)
            contents[part.name] = name, None
            self._names[part.name] = name
            if self._is_new(name, part):
                new.append((name, chunk))
            else:
                self._memory.give(chunk.data)
        self._keep(new)
        return contents

    def _is_new(self, name: Fingerprint, part: TensorPart) -> bool:
        """Whether a tensor must be stored now; notes why when it need not."""
        if name not in self._known and name not in self._stored:
            self._stored[name] = []
            return True
        small = part.size_bytes < (self._pack_bytes if self._bases.stand_alone else LARGE_BYTES)
        if name in self._known and small and name not in self._deferred:
            self._deferred[name] = part
            return False
        if name in self._known and not small:
            self._reused[name] = self._known[name]
        self._count(SAME, part.size_bytes, 0)
        return False

    def _is_cut(self, part: TensorPart) -> bool:
        """Whether a tensor is several members: larger than a pack, or its base is several."""
        if part.size_bytes > self._pack_bytes:
            return True
        return len(part.frames) > 1 and len(self._bases.cuts(part.name, part.reader)) > 1

    def _store_cut(self, part: TensorPart) -> Fingerprint:
        """A tensor of several members.

        When it may be known, it is hashed first: its packs would be gone before the end is seen.
        """
        reader = part.reader
        likeness = reader.type.name, tuple(reader.shape)
        before = None
        if self._known or likeness in self._shapes:
            before = _fingerprint(reader, [hash_frames(part, self._pool)])
            self._names[part.name] = before
            if not self._is_new(before, part):
                return before
        self._shapes.add(likeness)
        slots: list[PackSlot] = []
        digests: list[bytes] = []
        for cut in self._cut(part):
            (chunk,) = read_chunks([cut], self._pool, self._memory)
            digests += chunk.digests
            slots += self._pack([chunk])
        after = _fingerprint(reader, digests)
        if before is not None:
            _check_unchanged(part, before, after)
        self._stored[after] = slots
        self._names[part.name] = after
        return after

    def _cut(self, part: TensorPart) -> Iterator[TensorPart]:
        """Parts no larger than a pack, each within one member of every base."""
        whole = frame_bytes(part.reader.type)
        most = self._pack_bytes // whole
        cuts = sorted({*self._bases.cuts(part.name, part.reader), part.frames.stop})
        start = 0
        for cut in cuts:
            for first in range(start, cut, most):
                stop = min(first + most, cut) * whole
                yield TensorPart(part.name, part.reader, first * whole, min(stop, part.stop))
            start = max(start, cut)

    def _keep(self, new: Sequence[tuple[Fingerprint, TensorChunk]]) -> None:
        slots = self._pack([chunk for _, chunk in new])
        for (name, _), slot in zip(new, slots, strict=True):
            self._stored[name] = [slot]

    def _pack(self, chunks: Sequence[TensorChunk]) -> list[PackSlot]:
        """Encode chunks and put them into packs."""
        return [self._add(chunk, way, draft) for chunk, way, draft in self._encoder.drafts(chunks)]

    def _add(self, chunk: TensorChunk, way: EncodingChoice | None, draft: MemberDraft) -> PackSlot:
        part = chunk.part
        first = part.start == 0
        self._count(draft.codec, part.size_bytes, draft.stored_bytes, tensors=int(first))
        if way is not None and way.source is not None and first and draft.bases:
            self._uses[way.source] += 1
        size = part.reader.type.bytes_of(part.reader.shape)
        slot = self._packer.add(draft, large=size >= LARGE_BYTES)
        if part.size_bytes >= LEAST_KEPT_BYTES:
            kept = any(_lies_in(chunk, frame) for frame in draft.frames)
            if not kept:
                self._memory.give(chunk.data)
        return slot

    def _predicted(self, chunk: TensorChunk) -> Iterator[EncodingChoice]:
        """The codecs of several bases that predictions ask for, where all bases are there."""
        for prediction in self._bases.predictions.get(chunk.part.name, ()):
            before = self._bases.predicting(chunk.part, prediction)
            now = [self._written(name, chunk.part) for name in prediction.now]
            bases = [*(before or ()), *(one for one in now if one is not None)]
            whole = before is not None and None not in now
            if whole and max(base.location.depth for base in bases) < MAX_DEPTH:
                yield from ways_by_prediction(chunk, prediction.codec, bases, prediction.params)

    def _written(self, name: str, part: TensorPart) -> WrittenBase | None:
        """What was just stored of another tensor, as a base of the same frames.

        None where those lie in several members: two tensors are cut alike if their bases were.
        """
        reader, print_ = self._readers.get(name), self._names.get(name)
        if reader is None or print_ is None:
            return None
        alike = (reader.type, tuple(reader.shape)) == (part.reader.type, tuple(part.reader.shape))
        members = self._stored.get(print_) or self._reused.get(print_) or ()
        slot = next((one for one in members if _covers(one, part, members)), None)
        return WrittenBase(reader, slot) if alike and slot is not None else None


def _covers(
    member: PackSlot | Location, part: TensorPart, members: Sequence[PackSlot | Location]
) -> bool:
    """Whether a member of a tensor has all frames of a part of another one of that shape."""
    if isinstance(member, Location):  # it does not say which it has, unless it has all
        return len(members) == 1
    frames = part.frames
    return member.frames.start <= frames.start and frames.stop <= member.frames.stop


def _lies_in(chunk: TensorChunk, frame: SealedFrame) -> bool:
    """Whether what is stored of a frame are bytes of its chunk, which must stay then."""
    start = chunk.data.ctypes.data
    places = (np.frombuffer(one.stored.data, np.uint8).ctypes.data for one in frame.planes)
    return any(start <= place < start + chunk.data.size for place in places)


def _fingerprint(reader: TensorReader, digests: Iterable[bytes]) -> Fingerprint:
    return fingerprint(reader.type, tuple(reader.shape), b"".join(digests))


def _check_unchanged(part: TensorPart, before: Fingerprint, after: Fingerprint) -> None:
    if before != after:
        raise InvalidInputError(
            f"tensor {part.name!r} changed while it was being stored. Copy it first, or stop "
            "training until the model is saved."
        )


def locations_of(slots: Iterable[PackSlot]) -> Locations:
    """Where packed members lie; waits until their packs are stored."""
    located: dict[PackSlot, Location] = {}
    return tuple(_location(slot, located) for slot in slots)


def _location(slot: PackSlot | Location, located: dict[PackSlot, Location]) -> Location:
    if isinstance(slot, Location):
        return slot
    if slot not in located:
        bases = tuple(_location(base, located) for base in slot.bases)
        located[slot] = Location(
            slot.pack.entry(), slot.index, slot.stored_bytes, slot.codec, slot.depth, bases
        )
    return located[slot]


BATCH_BYTES: Final = 12 << 20  # of tensors read together; larger ones are read alone
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
    progress: Progress | None = None,
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
        packs = PackReader(objects, placement, links)

        def chunks(name: str) -> Iterator[memoryview]:
            name = source.aliases.get(name, name)
            (piece,) = pieces[name].pieces
            return tensor_chunks(packs.piece(name, source.tensors[name].type, piece), pool)

        graph = None
        if source.graph is not None:
            graph = digest_bytes(objects.put(Kind.BLOB, source.graph).digest)
        originals = sorted(source.originals, key=lambda original: original.name)
        manifest = Manifest(
            types=type_entries(one.type for one in source.tensors.values()),
            tensors=tuple(pieces[name] for name in sorted(pieces)),
            aliases=tuple(Alias(name, source.aliases[name]) for name in sorted(source.aliases)),
            files=store_files(objects, {**source.files, **(files or {})}),
            originals=tuple(store_original(objects, one, chunks, pool) for one in originals),
            graph=graph,
            metadata={**source.metadata, **(metadata or {})},
            metrics=dict(metrics or {}),
            lineage=tuple(lineage),
        )
    return WrittenModel(store_documents(objects, manifest, placement), report)


def store_documents(objects: ObjectSink, manifest: Manifest, placement: Placement) -> Entry:
    """Store what says which tensors a model has, and where they lie; the entry to stage."""
    digest = objects.put(Kind.MODEL, encode_manifest(manifest), manifest.links()).digest
    storage = objects.put(Kind.PLACEMENT, encode_placement(placement), placement.links()).digest
    return Entry(Kind.MODEL, digest, storage, manifest.summary)


def store_tensors(
    objects: ObjectSink,
    tensors: Mapping[str, TensorReader],
    pool: Executor,
    known: Iterable[Entry] = (),
    against: DeltaOptions = SIMILAR,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    progress: Progress | None = None,
) -> tuple[dict[str, TensorEntry], Placement, WriteReport]:
    """Store tensors alone: what a manifest says of them, and where they lie. See `store_model`."""
    pack_bytes = _pack_bytes(budget_bytes)
    opened = _open_models(objects, tensors, known, against.base, pack_bytes // 4)
    bases = Bases(_base_models(tensors, opened, against.base), against)
    placements = [model.placement for model in opened]
    bases.prepare(tensors, pool)
    with ThreadPoolExecutor(1) as uploader:
        uploads = PackUploads(objects, uploader)
        there = known_tensors(placements, alone=bases.stand_alone)
        writer = TensorWriter(uploads.emit, there, bases, pack_bytes, pool)
        entries = writer.store_all(tensors, progress)
        return entries, writer.finish(), writer.report()


def _open_models(
    objects: ObjectSink,
    tensors: Mapping[str, TensorReader],
    known: Iterable[Entry],
    base: Entry | None,
    cache_bytes: int,
) -> list[BaseModel]:
    """The declared base, and the likeliest of the known models; on a store side by side."""
    chosen = ([] if base is None else [base]) + likeliest(known, tensors)

    def opened(entry: Entry) -> BaseModel | None:
        why = "declared" if entry is base else "similar"
        return open_base(objects, entry, why, cache_bytes=cache_bytes)

    if len(chosen) < 2:
        found = [opened(entry) for entry in chosen]
    else:
        with ThreadPoolExecutor(RANKED) as pool:
            found = list(pool.map(opened, chosen))
    return [model for model in found if model is not None]


def _base_models(
    tensors: Mapping[str, TensorReader], opened: Sequence[BaseModel], base: Entry | None
) -> list[BaseModel]:
    """The models to encode against: the declared one, else the most similar ones."""
    declared = [model for model in opened if model.entry is base]
    if declared:
        return declared
    ranked = rank(opened, tensors)
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


def store_files(objects: ObjectSink, files: Mapping[str, FileContent]) -> tuple[FileEntry, ...]:
    """Store files that belong to a model: what a manifest says of them, by name."""
    entries = []
    for name in sorted(files):
        data = content_of(files[name])
        blob = objects.put(Kind.BLOB, data).digest
        entries.append(FileEntry(name, digest_bytes(blob), len(data), sha256(data).digest()))
    return tuple(entries)

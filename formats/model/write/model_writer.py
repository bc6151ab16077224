"""Model writer: tensors, files and graph become manifest, placement and packs.

Tensors first, as members of packs, each content once; then files, then the manifest and the
placement. On all cores tensors are read and hashed, a codec is chosen for each and its frames are
encoded; what a known placement holds is left out. In their order they are put into packs, which are
stored meanwhile. Memory is bounded by a few packs, whatever the size of a tensor.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from tensorrepo.formats.common.arguments import bytes_text
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorReader, TensorType
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
    refuse_file_as_folder,
)
from tensorrepo.formats.model.layout.pack import LARGE_ALIGNMENT, LARGE_BYTES, MAX_DEPTH, RAW
from tensorrepo.formats.model.layout.placement import (
    ChosenBase,
    PackEntry,
    Placement,
    encode_placement,
)
from tensorrepo.formats.model.read.frames import PackReader, tensor_chunks
from tensorrepo.formats.model.write.base_choice import (
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
from tensorrepo.formats.model.write.byte_exact import store_original
from tensorrepo.formats.model.write.chunk_encoder import ChunkEncoder, EncodingJob
from tensorrepo.formats.model.write.encoding import EncodingChoice, ways_by_prediction
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
    Packer,
    PackSlot,
    PackUploads,
    build_placement,
    known_among,
    with_bases,
    worth_reusing,
)
from tensorrepo.formats.model.write.tensor_chunks import (
    PARALLEL_BYTES,
    TensorChunk,
    TensorPart,
    changed_meanwhile,
    hash_frames,
    rounds,
    whole_part,
)
from tensorrepo.formats.native.frame_memory import IDLE
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest, digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectSink
from tensorrepo.repo.threads import ordered_map

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


class StoredTensors(NamedTuple):
    """What `store_tensors` did.

    Attributes:
        entries: what a manifest says of the tensors, by name.
        placement: where they lie.
        report: what it cost.
        plain: names of those that were stored now, and as they are.
    """

    entries: dict[str, TensorEntry]
    placement: Placement
    report: WriteReport
    plain: frozenset[str]


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
        self._memory = IDLE
        self._encoder = ChunkEncoder(bases, self._predicted, known, pool, self._memory)
        self._stored: dict[Fingerprint, list[PackSlot]] = {}
        self._reused: dict[Fingerprint, Locations] = {}
        self._deferred: dict[Fingerprint, TensorPart] = {}
        self._shapes: set[tuple[str, tuple[int, ...]]] = set()
        self._shares: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
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
        for names in rounds(tensors, later):
            parts = [whole_part(name, tensors[name]) for name in names]
            for name, print_, value in self._store_parts(parts):
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
        reused = worth_reusing(wanted, self._needed_packs()) if wanted else frozenset()
        self._reused.update({name: wanted[name] for name in reused})
        again = {part.name: name for name, part in self._deferred.items() if name not in reused}
        for name, part in self._deferred.items():
            if name in reused:
                self._count(SAME, part.size_bytes, 0)
        parts = [part for part in self._deferred.values() if part.name in again]
        for job in self._worked_on(parts, are_new=True):
            part = job.chunk.part
            _check_unchanged(part, again[part.name], job.chunk.fingerprint())
            self._stored[again[part.name]] = [self._add(job)]
        self._packer.flush()
        places = {name: locations_of(slots) for name, slots in self._stored.items()}
        return build_placement(places | self._reused, self._chosen())

    def _needed_packs(self) -> list[PackEntry]:
        """Packs of what is reused, and of bases."""
        slots = [slot for stored in self._stored.values() for slot in stored]
        bases = [base for slot in slots for base in slot.bases if isinstance(base, Location)]
        needed = [*(at for known in self._reused.values() for at in known), *bases]
        return [at.pack for at in with_bases(needed)]

    def plain(self) -> frozenset[str]:
        """Names of tensors that were stored now, and as they are."""
        raw = {
            print_
            for print_, slots in self._stored.items()
            if all(slot.codec == RAW for slot in slots)
        }
        return frozenset(name for name, print_ in self._names.items() if print_ in raw)

    def report(self) -> WriteReport:
        """What was stored, once `finish` has said where."""
        notes = {**self._encoder.notes, **self._bases.notes}
        shares = {codec: CodecShare(*share) for codec, share in self._shares.items()}
        return WriteReport(shares, tuple(self._chosen()), tuple(notes))

    def _count(self, codec: str, raw_bytes: int, stored_bytes: int, *, tensors: int = 1) -> None:
        share = self._shares[codec]
        share[0] += tensors
        share[1] += raw_bytes
        share[2] += stored_bytes

    def _chosen(self) -> list[ChosenBase]:
        models = self._bases.models
        return [
            ChosenBase(models[source].digest, models[source].why, count, models[source].bits)
            for source, count in self._uses.most_common()
        ]

    def _store_parts(
        self, parts: Sequence[TensorPart]
    ) -> Iterator[tuple[str, Fingerprint | None, bytes | None]]:
        """Names of whole tensors, each with its fingerprint, or its value where that is inline."""
        cut = {part.name for part in parts if self._is_cut(part)}
        for part in parts:
            if part.name in cut:
                yield part.name, self._store_cut(part), None
        for job in self._worked_on([part for part in parts if part.name not in cut]):
            chunk, part = job.chunk, job.chunk.part
            if part.size_bytes <= INLINE_BYTES:
                self._count(INLINE, part.size_bytes, part.size_bytes)
                yield part.name, None, b"".join(chunk.frame(index) for index in part.frames)
                continue
            name = self._names[part.name] = chunk.fingerprint()
            if self._is_new(name, part):
                self._stored[name] = [self._add(job)]
            chunk.forget_all()
            yield part.name, name, None

    def _worked_on(
        self, parts: Sequence[TensorPart], *, are_new: bool = False
    ) -> Iterator[EncodingJob]:
        """Jobs in order, done; those that come next are being worked on meanwhile."""
        size = sum(part.size_bytes for part in parts)
        tasks = self._encoder.tasks(parts, are_new=are_new)
        with closing(
            ordered_map(
                tasks,
                self._encoder.work,
                threads=_threads_for(size, len(parts)),
                ahead=_TASKS_AHEAD,
                bytes_ahead=min(self._pack_bytes, BATCH_BYTES),
                size_of=lambda task: task.size_bytes,
                name="encode",
            )
        ) as results:
            for jobs in results:
                yield from jobs

    def _is_new(self, name: Fingerprint, part: TensorPart) -> bool:
        """Whether a tensor must be stored now; notes why when it need not."""
        if name not in self._known and name not in self._stored:
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
            before = _fingerprint(reader, hash_frames(part, self._memory, self._pool))
            self._names[part.name] = before
            if not self._is_new(before, part):
                return before
        self._shapes.add(likeness)
        slots: list[PackSlot] = []
        digests: list[bytes] = []
        for cut in self._cut(part):
            for job in self._worked_on([cut], are_new=True):
                digests += job.chunk.digests()
                slots.append(self._add(job))
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

    def _add(self, job: EncodingJob) -> PackSlot:
        """Put what became of a part into a pack."""
        part, draft = job.chunk.part, self._encoder.draft(job)
        way, first = job.way, part.start == 0
        self._count(draft.codec, part.size_bytes, draft.stored_bytes, tensors=int(first))
        if way is not None and way.source is not None and first and draft.bases:
            self._uses[way.source] += 1
        size = part.size_bytes
        if not part.is_whole:
            size = part.reader.type.bytes_of(part.reader.shape)
        return self._packer.add(draft, large=size >= LARGE_BYTES)

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


def _threads_for(size_bytes: int, tensors: int) -> int:
    """Threads that encode: of tensors that are mostly small a second one would only wait.

    They are work for the interpreter, of which there is one.
    """
    if size_bytes < PARALLEL_BYTES:
        return 0
    return 1 if size_bytes < tensors * _SMALL_BYTES else os.cpu_count() or 1


def _covers(
    member: PackSlot | Location, part: TensorPart, members: Sequence[PackSlot | Location]
) -> bool:
    """Whether a member of a tensor has all frames of a part of another one of that shape."""
    if isinstance(member, Location):  # it does not say which it has, unless it has all
        return len(members) == 1
    frames = part.frames
    return member.frames.start <= frames.start and frames.stop <= member.frames.stop


def _fingerprint(reader: TensorReader, digests: Iterable[bytes]) -> Fingerprint:
    return fingerprint(reader.type, tuple(reader.shape), b"".join(digests))


def _check_unchanged(part: TensorPart, before: Fingerprint, after: Fingerprint) -> None:
    if before != after:
        raise changed_meanwhile(part.name)


def locations_of(slots: Iterable[PackSlot]) -> Locations:
    """Where packed members lie; waits until their packs are stored."""
    return tuple([_location(slot) for slot in slots])


def _location(slot: PackSlot | Location) -> Location:
    if isinstance(slot, Location):
        return slot
    bases = tuple([_location(base) for base in slot.bases]) if slot.bases else ()
    return Location(slot.pack.entry(), slot.index, slot.stored_bytes, slot.codec, slot.depth, bases)


BATCH_BYTES: Final = 12 << 20  # of what is worked on, or done and not packed yet
_TASKS_AHEAD: Final = 256
_SMALL_BYTES: Final = 32 << 10  # mean of tensors that one thread encodes
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
        pieces, placement, report, _ = store_tensors(
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
    """Store what says which tensors a model has, and where they lie; the entry to stage.

    Raises:
        InvalidInputError: names or tensors that do not fit together.
    """
    refuse_file_as_folder(manifest)
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
) -> StoredTensors:
    """Store tensors alone. See `store_model`."""
    pack_bytes = _pack_bytes(budget_bytes)
    opened = _open_models(objects, tensors, known, against.base, pack_bytes // 4)
    bases = Bases(_base_models(tensors, opened, against.base), against)
    bases.prepare(tensors, pool)
    with ThreadPoolExecutor(1) as uploader:
        uploads = PackUploads(objects, uploader)
        there = known_among(
            [(model.placement, model.locations) for model in opened], alone=bases.stand_alone
        )
        writer = TensorWriter(uploads.emit, there, bases, pack_bytes, pool)
        entries = writer.store_all(tensors, progress)
        placement = writer.finish()
        return StoredTensors(entries, placement, writer.report(), writer.plain())


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

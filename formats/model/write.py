"""How is a model stored?

Tensors first, as members of packs, but for those that a known placement holds already; then
files, then the manifest and the placement. Memory is bounded by a few packs, whatever the size
of a tensor.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.filebytes import content_of, open_file
from tensorrepo.formats.model.frameread import PackReader, tensor_chunks
from tensorrepo.formats.model.frames import (
    INLINE_BYTES,
    Fingerprint,
    fingerprint,
    frame_bytes,
)
from tensorrepo.formats.model.manifest import (
    Alias,
    Edge,
    FileEntry,
    Manifest,
    Original,
    Piece,
    TensorEntry,
    TypeEntry,
    encode_manifest,
)
from tensorrepo.formats.model.pack import LARGE_ALIGNMENT, LARGE_BYTES
from tensorrepo.formats.model.packing import PACK_BYTES, Packer, Slot, hash_frames
from tensorrepo.formats.model.placement import Placement, decode_placement, encode_placement
from tensorrepo.formats.model.reuse import (
    Location,
    Locations,
    build_placement,
    known_tensors,
    worth_reusing,
)
from tensorrepo.formats.model.source import FileContent, ModelSource, Stretch, source_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import digest_bytes
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tensorrepo.formats.model.source import OriginalFile
    from tensorrepo.formats.tensors import TensorReader
    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import ObjectSink

Progress = Callable[[int, int], None]
DEFAULT_BUDGET_BYTES: Final = 256 << 20
_LITERAL_BYTES: Final = 8 << 20  # of a long stretch of a file that is compared at a time
SMALLEST_BUDGET_BYTES: Final = 32 << 20  # a fourth of it holds the largest frame


def write_model(
    objects: ObjectSink,
    model: ModelSource | Mapping[str, Any],
    *,
    files: Mapping[str, FileContent] | None = None,
    metadata: Mapping[str, Any] | None = None,
    metrics: Mapping[str, Any] | None = None,
    lineage: Iterable[Edge] = (),
    graph: bytes | None = None,
    known: Iterable[Digest] = (),
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    progress: Progress | None = None,
) -> Entry:
    """Store a model.

    Args:
        objects: where to.
        model: what an importer returned, or tensors by name: numpy arrays, torch tensors, readers.
            They must not change until this returns.
        files: further files that belong to it: bytes, or where they lie.
        metadata: JSON, beside that of the importer.
        metrics: JSON, such as ``{"accuracy": 0.91}``.
        lineage: what it came from.
        graph: its architecture, encoded; None: that of the importer, if it has one.
        known: placements reachable where this is committed: what they hold is not stored again.
        budget_bytes: memory for packs being filled; at least 32 MiB.
        progress: called with the tensors and tensor bytes done so far.

    Returns:
        The entry to stage: the manifest's digest, and the placement's.

    Raises:
        InvalidInputError: a tensor, file or name that cannot be stored; an original that does not
            come out again byte for byte.
    """
    source = model if isinstance(model, ModelSource) else source_of(model)
    placements = [decode_placement(objects.get(digest).payload, digest) for digest in known]
    with ThreadPoolExecutor(os.cpu_count()) as pool, ThreadPoolExecutor(1) as uploader:
        uploads = _Uploads(objects, uploader)
        writer = _TensorWriter(uploads, placements, _pack_bytes(budget_bytes), pool)
        pieces = writer.store_all(source.tensors, progress)
        placement = writer.finish()
        links = {digest: objects.describe(digest) for digest in placement.links()}
        stored = _Stored(PackReader(objects, placement, links), pieces, source, pool)
        originals = sorted(source.originals, key=lambda original: original.name)
        manifest = Manifest(
            types=_types(source),
            tensors=tuple(pieces[name] for name in sorted(pieces)),
            aliases=tuple(Alias(name, source.aliases[name]) for name in sorted(source.aliases)),
            files=_store_files(objects, {**source.files, **(files or {})}),
            originals=tuple(_store_original(objects, one, stored) for one in originals),
            graph=_store_graph(objects, graph or source.graph),
            metadata={**source.metadata, **(metadata or {})},
            metrics=dict(metrics or {}),
            lineage=tuple(lineage),
        )
    digest = objects.put(Kind.MODEL, encode_manifest(manifest), manifest.links()).digest
    storage = objects.put(Kind.PLACEMENT, encode_placement(placement), placement.links()).digest
    return Entry(Kind.MODEL, digest, storage)


def _pack_bytes(budget_bytes: int) -> int:
    """Two packs are filled at a time, one is looked at and one is on its way."""
    if budget_bytes < SMALLEST_BUDGET_BYTES:
        raise InvalidInputError(
            f"a budget of {budget_bytes} bytes is too small to store tensors; "
            f"at least {SMALLEST_BUDGET_BYTES} are needed"
        )
    return min(PACK_BYTES, budget_bytes // 4 // LARGE_ALIGNMENT * LARGE_ALIGNMENT)


class _Uploads:
    """Stores one pack while the next one is filled, and no more: memory is bounded."""

    def __init__(self, objects: ObjectSink, thread: Executor) -> None:
        self._objects = objects
        self._thread = thread
        self._last: Future[Digest] | None = None

    def emit(self, parts: tuple[Buffer, ...]) -> Future[Digest]:
        if self._last is not None:
            self._last.result()
        self._last = self._thread.submit(lambda: self._objects.put(Kind.PACK, parts).digest)
        return self._last


class _TensorWriter:
    """Stores the tensors of one model, each content once."""

    def __init__(
        self,
        uploads: _Uploads,
        placements: Sequence[Placement],
        pack_bytes: int,
        pool: Executor,
    ) -> None:
        self._pool = pool
        self._known = known_tensors(placements)
        self._large = Packer(pack_bytes, pool, uploads.emit)
        # Small members lie together: a pack that large ones are reused from holds no others.
        self._small = Packer(pack_bytes, pool, uploads.emit)
        self._stored: dict[Fingerprint, list[Slot]] = {}
        self._reused: dict[Fingerprint, Locations] = {}
        self._deferred: dict[Fingerprint, tuple[str, TensorReader]] = {}
        self._shapes: set[tuple[str, tuple[int, ...]]] = set()

    def store_all(
        self, tensors: Mapping[str, TensorReader], progress: Progress | None
    ) -> dict[str, TensorEntry]:
        entries = {}
        done = 0
        for count, name in enumerate(tensors, start=1):
            reader = tensors[name]
            size = _bytes_of(name, reader)
            entries[name] = _entry(name, reader, *self._store(name, reader, size))
            done += size
            if progress is not None:
                progress(count, done)
        return entries

    def finish(self) -> Placement:
        """Store what was put off, and say where everything lies."""
        wanted = {name: self._known[name] for name in self._deferred}
        used = [location.pack for at in self._reused.values() for location in at]
        reused = worth_reusing(wanted, used)
        self._reused.update({name: wanted[name] for name in reused})
        for name, (label, reader) in self._deferred.items():
            if name not in reused:
                again = self._fill(label, reader, self._small, [], 0, _bytes_of(label, reader))
                _check_unchanged(label, name, again)
                self._stored[name] = [self._small.keep()]
        self._large.flush()
        self._small.flush()
        places = {name: _locations(slots) for name, slots in self._stored.items()}
        return build_placement(places | self._reused)

    def _store(
        self, name: str, reader: TensorReader, size: int
    ) -> tuple[Fingerprint | None, bytes | None]:
        """The tensor's fingerprint, or its value when that stands in the manifest."""
        if size <= INLINE_BYTES:
            value = bytearray(size)
            reader.read_into(0, memoryview(value))
            return None, bytes(value)
        if size > self._large.pack_bytes:
            return self._store_huge(name, reader, size), None
        packer = self._large if size >= LARGE_BYTES else self._small
        found = self._fill(name, reader, packer, [], 0, size)
        if self._is_new(found, name, reader, size):
            self._stored[found] = [packer.keep()]
        return found, None

    def _is_new(self, found: Fingerprint, name: str, reader: TensorReader, size: int) -> bool:
        """Whether a tensor must be stored; notes why when it need not."""
        if found in self._stored:
            return False
        if found not in self._known:
            return True
        if size >= LARGE_BYTES:
            self._reused[found] = self._known[found]
        else:
            self._deferred.setdefault(found, (name, reader))
        return False

    def _store_huge(self, name: str, reader: TensorReader, size: int) -> Fingerprint:
        """A tensor larger than a pack: several members.

        When it may be known, it is hashed first: its packs would be gone before the end is seen.
        """
        likeness = reader.type.name, reader.shape
        before = None
        if self._known or likeness in self._shapes:
            before = fingerprint(reader.type, reader.shape, hash_frames(reader, size, self._pool))
            if not self._is_new(before, name, reader, size):
                return before
        self._shapes.add(likeness)
        step = self._large.pack_bytes // frame_bytes(reader.type) * frame_bytes(reader.type)
        slots: list[Slot] = []
        digests: list[bytes] = []
        for start in range(0, size, step):
            stop = min(start + step, size)
            found = self._fill(name, reader, self._large, digests, start, stop)
            slots.append(self._large.keep())
        if before is not None:
            _check_unchanged(name, before, found)
        self._stored[found] = slots
        return found

    def _fill(
        self,
        name: str,
        reader: TensorReader,
        packer: Packer,
        digests: list[bytes],
        start: int,
        stop: int,
    ) -> Fingerprint:
        """Offer bytes ``[start, stop)``; the fingerprint of all frames so far, in `digests`."""
        try:
            digests.append(packer.offer(reader, start, stop).digests)
        except InvalidInputError as error:
            raise InvalidInputError(f"tensor {name!r}: {error}") from error
        return fingerprint(reader.type, reader.shape, b"".join(digests))


def _bytes_of(name: str, reader: TensorReader) -> int:
    try:
        return reader.type.bytes_of(reader.shape)
    except InvalidInputError as error:
        raise InvalidInputError(f"tensor {name!r}: {error}") from error


def _check_unchanged(name: str, before: Fingerprint, after: Fingerprint) -> None:
    if before != after:
        raise InvalidInputError(
            f"tensor {name!r} changed while it was being stored. Copy it first, or stop training "
            "until the model is saved."
        )


def _entry(
    name: str, reader: TensorReader, found: Fingerprint | None, value: bytes | None
) -> TensorEntry:
    shape = tuple(reader.shape)
    piece = Piece((0,) * len(shape), shape, found, value)
    return TensorEntry(name, reader.type.name, shape, (piece,))


def _locations(slots: Iterable[Slot]) -> Locations:
    return tuple(Location(slot.pack.entry(), slot.index, slot.stored_bytes) for slot in slots)


def _types(source: ModelSource) -> tuple[TypeEntry, ...]:
    types = {reader.type.name: reader.type for reader in source.tensors.values()}
    return tuple(
        TypeEntry(name, types[name].block_elements, types[name].block_bytes)
        for name in sorted(types)
    )


def _store_files(objects: ObjectSink, files: Mapping[str, FileContent]) -> tuple[FileEntry, ...]:
    entries = []
    for name in sorted(files):
        data = content_of(files[name])
        blob = objects.put(Kind.BLOB, data).digest
        entries.append(FileEntry(name, digest_bytes(blob), len(data), sha256(data).digest()))
    return tuple(entries)


def _store_graph(objects: ObjectSink, graph: bytes | None) -> bytes | None:
    """The digest of the blob with the graph."""
    return None if graph is None else digest_bytes(objects.put(Kind.BLOB, graph).digest)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The tensors of a source, as they were stored."""

    packs: PackReader
    entries: Mapping[str, TensorEntry]
    source: ModelSource
    pool: Executor

    def chunks(self, name: str) -> Iterator[memoryview]:
        target = self.source.aliases.get(name, name)
        reader = self.source.tensors[target]
        return tensor_chunks(self.packs.tensor(self.entries[target], reader.type), self.pool)


def _store_original(objects: ObjectSink, original: OriginalFile, stored: _Stored) -> Original:
    """What gives a file back, after it was made once and compared with the file, byte for byte."""
    size, checksum = 0, sha256()
    literals: list[Buffer] = []
    with open_file(original.path) as file:
        for part in original.parts:
            for chunk in _chunks(original, part, stored):
                # Hashing is the slowest part: it runs beside reading the file and comparing.
                hashed = stored.pool.submit(checksum.update, chunk)
                same = _reads(file, chunk)
                hashed.result()
                if not same:
                    raise _differs(original, size)
                size += len(chunk)
                if not isinstance(part, str) and len(chunk):
                    literals.append(chunk)
        if file.read(1):
            raise _differs(original, size)
    parts, others = _counted(original.parts), tuple(sorted(original.others))
    blob = digest_bytes(objects.put(Kind.BLOB, literals).digest) if literals else None
    return Original(original.name, original.format, blob, parts, others, size, checksum.digest())


def _chunks(
    original: OriginalFile, part: bytes | Stretch | str, stored: _Stored
) -> Iterator[Buffer]:
    if isinstance(part, str):
        yield from stored.chunks(part)
    elif isinstance(part, bytes):
        yield part
    else:
        mapped = memoryview(content_of(original.path))
        for start in range(part.start, part.stop, _LITERAL_BYTES):
            yield mapped[start : min(start + _LITERAL_BYTES, part.stop)]


def _counted(parts: Iterable[bytes | Stretch | str]) -> tuple[int | str, ...]:
    """Parts as the manifest has them: runs of literal bytes as their length."""
    counted: list[int | str] = []
    for part in parts:
        if isinstance(part, str):
            counted.append(part)
            continue
        size = part.stop - part.start if isinstance(part, Stretch) else len(part)
        if counted and isinstance(counted[-1], int):
            counted[-1] += size
        elif size:
            counted.append(size)
    return tuple(counted)


def _reads(file: IO[bytes], expected: Buffer) -> bool:
    """Whether the file goes on with these bytes."""
    found = np.empty(len(expected), np.uint8)
    if file.readinto(found.data) != len(expected):  # type: ignore[attr-defined]  # a buffered file has it
        return False
    # numpy compares whole words; Python compares memoryviews item by item.
    return np.array_equal(found, np.frombuffer(expected, np.uint8))


def _differs(original: OriginalFile, at: int) -> InvalidInputError:
    return InvalidInputError(
        f"{original.path}: what was stored differs from the file near byte {at}. It changed while "
        "it was read: add it again."
    )

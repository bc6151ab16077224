"""Stored models: names, tensors, slices and files, read as they are asked for.

`open_model` reads the manifest and the placement. After that tensors, slices and files are read
as they are asked for, in parallel, and every byte is verified before it is returned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import field
from hashlib import sha256
from typing import Any, Final, TypeVar

from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorOutput, TensorType
from tensorrepo.formats.model.layout.manifest import (
    FileEntry,
    Manifest,
    Original,
    TensorEntry,
    decode_manifest,
)
from tensorrepo.formats.model.layout.placement import Placement, decode_placement
from tensorrepo.formats.model.read.frames import (
    PackReader,
    PiecedTensor,
    StoredFrames,
    tensor_chunks,
)
from tensorrepo.formats.model.read.loading import (
    NUMPY,
    REMOTE_BATCH_BYTES,
    LoadableTensor,
    LoadOptions,
    TensorRead,
    as_done,
    batches,
    matching,
    memory_of,
    open_tensors,
)
from tensorrepo.formats.model.read.members import MemberCache
from tensorrepo.formats.model.read.selection import ElementIndex, row_numbers
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest, digest_from_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSource
from tensorrepo.repo.suggest import did_you_mean

T = TypeVar("T", Manifest, Placement)
DEFAULT_THREADS: Final = 8
READ_AHEAD_BYTES: Final = 256 << 20
_BATCHES_AHEAD: Final = 8  # at least, of small tensors


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What is known of a tensor without reading it.

    `fingerprint` names its content (64 hex digits; None for the smallest, which stand in the
    manifest, and for those of several pieces). `alias_of` is the tensor that it is one with.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    size_bytes: int
    fingerprint: str | None
    alias_of: str | None

    @property
    def form(self) -> tuple[TensorType, tuple[int, ...]]:
        """Type and shape."""
        return self.type, self.shape


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class StoredModel:
    """A stored model. Immutable, safe to share between threads; nothing is read until asked for.

    Element types that numpy lacks (BF16, F8, ...) come as unsigned integers of the same bits;
    `spec(name).type` says which they are, and torch output has them as they are.
    """

    entry: Entry
    manifest: Manifest
    objects: ObjectSource
    packs: PackReader
    tensors: Mapping[str, TensorEntry] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        told = f"{counted(len(self), 'tensor')}, {counted(self.size_bytes, 'byte')}"
        return f"<Model {self.entry.digest:.12}: {told}>"

    def __len__(self) -> int:
        return len(self.tensors) + len(self.aliases)

    def __contains__(self, name: object) -> bool:
        return name in self.tensors or name in self.aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The tensor as a read-only array: mapped where it lies on a local disk, else read."""
        array: NDArray[Any] = self.load([name], copy=False)[name]
        return array

    def keys(self) -> tuple[str, ...]:
        """Names of tensors and aliases, sorted."""
        return tuple(sorted([*self.tensors, *self.aliases]))

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors, aliases not counted."""
        return self.manifest.tensor_bytes

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """Files that came along; `file_chunks` reads them."""
        return {file.name: file for file in self.manifest.files}

    @property
    def originals(self) -> Mapping[str, Original]:
        """Files that are given back byte for byte from tensors."""
        return {original.name: original for original in self.manifest.originals}

    @property
    def loose(self) -> tuple[str, ...]:
        """Names of tensors and aliases that are in no file, sorted."""
        held = {name for one in self.manifest.originals for name in (*one.parts, *one.others)}
        names = (name for name in self.keys() if name not in held)
        return tuple(name for name in names if self.aliases.get(name) not in held)

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.manifest.metadata

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.manifest.metrics

    @property
    def lineage(self) -> tuple[ProvenanceEdge, ...]:
        return self.manifest.lineage

    def spec(self, name: str) -> TensorSpec:
        target = self._target(name)
        entry = self.tensors[target]
        element = self.manifest.type_table()[entry.type]
        found = entry.pieces[0].fingerprint if len(entry.pieces) == 1 else None
        return TensorSpec(
            name,
            element,
            entry.shape,
            element.bytes_of(entry.shape),
            found.hex() if found is not None else None,
            target if target != name else None,
        )

    def content(self, name: str) -> bytes:
        """Equal for tensors of one type, shape and grid of pieces that have equal bits."""
        pieces = self.tensors[self._target(name)].pieces
        return b"".join(piece.fingerprint or piece.value or b"" for piece in pieces)

    def tensor(self, name: str) -> StoredFrames | PiecedTensor:
        """A reader of one tensor, for whoever wants its bytes bit by bit."""
        entry = self.tensors[self._target(name)]
        return self.packs.tensor(entry, self.manifest.type_table()[entry.type])

    def tensor_chunks(self, name: str) -> Iterator[memoryview]:
        """A tensor's bytes, piece by piece: each is valid until the next one is asked for."""
        with ThreadPoolExecutor(DEFAULT_THREADS) as pool:
            yield from tensor_chunks(self.tensor(name), pool)

    def slice(
        self,
        name: str,
        index: ElementIndex,
        *,
        output: TensorOutput = "numpy",
        planes: int | None = None,
        threads: int = DEFAULT_THREADS,
    ) -> Any:
        """``model[name][index]``, of which only the frames that it touches are read.

        Indices are integers, slices with a positive step, an ellipsis; the rest is as for `load`.
        """
        options = LoadOptions(output=output, planes=planes)
        given = (index,) if index is None else index  # of which TensorRead would read all
        with ThreadPoolExecutor(threads) as pool:
            read = TensorRead([(name, self.tensor(name))], options, pool, index=given)
            return next(read.results())[1]

    def rows(
        self,
        name: str,
        ids: Any,
        *,
        output: TensorOutput = "numpy",
        planes: int | None = None,
        threads: int = DEFAULT_THREADS,
    ) -> Any:
        """``model[name][ids]``, of which only the frames that hold those rows are read, once each.

        Args:
            name: name of a tensor of at least one dimension.
            ids: numbers of rows, in any order, several times, negative from the end; of any shape.
            output: as for `load`, like the rest.
            planes: as for `load`.
            threads: number of runs of frames that are read at a time.

        Raises:
            InvalidInputError: `ids` are no whole numbers, or the tensor lacks one of them.
        """
        try:
            rows = row_numbers(self.tensors[self._target(name)].shape, ids)
        except InvalidInputError as error:
            raise InvalidInputError(f"tensor {name!r}: {error}") from error
        return self.slice(name, rows, output=output, planes=planes, threads=threads)

    def load(
        self,
        names: Iterable[str] | None = None,
        *,
        threads: int = DEFAULT_THREADS,
        **options: Any,
    ) -> dict[str, Any]:
        """Several tensors, or all.

        Args:
            names: names of the wanted tensors; None means all.
            threads: number of runs of frames that are read at a time; of a model on a local disk
                of which most is encoded no more than there are cores.
            options: attributes of `LoadOptions`.

        Returns:
            Arrays by name. Aliases are the same object as their tensor; no others share memory.
        """
        wanted = self._wanted(names)
        loaded = dict(self.iter_tensors(wanted, LoadOptions(**options), threads=threads))
        return {name: loaded[name] for name in wanted}

    def iter_tensors(
        self,
        names: Iterable[str],
        options: LoadOptions = NUMPY,
        *,
        threads: int = DEFAULT_THREADS,
        budget_bytes: int = READ_AHEAD_BYTES,
    ) -> Iterator[tuple[str, Any]]:
        """Tensors as they are there, in any order, while others are being read.

        `budget_bytes` bounds what is being read or waits to be handed out, beside the one tensor in
        hand. An alias comes right after its tensor and is the same object.
        """
        names_of: dict[str, list[str]] = {}
        for name in names:
            names_of.setdefault(self._target(name), []).append(name)
        with ThreadPoolExecutor(self._threads(threads)) as pool:
            batch_bytes = min(REMOTE_BATCH_BYTES, budget_bytes // _BATCHES_AHEAD)
            reads = (
                TensorRead(batch, options, pool)
                for batch in self._batches(names_of, options, pool, batch_bytes)
            )
            try:
                # A batch in hand is handed out bit by bit: it counts until the next one is taken.
                for read in as_done(reads, budget_bytes - batch_bytes):
                    for target, value in read.results():
                        yield from ((name, value) for name in names_of[target])
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                self.packs.members.forget()

    def _threads(self, most: int) -> int:
        """How many threads read: no more than there are cores where all is decoded here."""
        return min(most, os.cpu_count() or 1) if self.packs.is_decoded_here else most

    def _batches(
        self, names: Iterable[str], options: LoadOptions, pool: Executor, batch_bytes: int
    ) -> Iterator[list[tuple[str, LoadableTensor]]]:
        entries = {name: self.tensors[self._target(name)] for name in names}
        tensors = open_tensors(self.packs, entries, self.manifest.type_table(), pool)
        return batches(tensors, batch_bytes) if options.whole else ([one] for one in tensors)

    def load_state_dict(
        self, module: Any, *, strict: bool = True, threads: int = DEFAULT_THREADS
    ) -> None:
        """Read tensors into the parameters and buffers of a torch module, where they lie.

        No memory is taken beside them where type and device allow it. Whatever goes wrong while
        reading, the module is left with some tensors of either.

        Args:
            module: has a ``state_dict()``.
            strict: names and types must be the same; False: those that both have, converted.
            threads: how many runs of frames are read at a time.

        Raises:
            InvalidInputError: names, types or shapes differ; nothing was read then.
        """
        targets = matching(module.state_dict(), {name: self.spec(name) for name in self}, strict)
        rooms = {
            name: memory
            for name, into in targets.items()
            if (memory := memory_of(into, self.spec(name).type)) is not None
        }
        options = LoadOptions(output="torch")
        with ThreadPoolExecutor(self._threads(threads)) as pool:
            reads = (
                TensorRead(batch, options, pool, rooms=rooms)
                for batch in self._batches(targets, options, pool, REMOTE_BATCH_BYTES)
            )
            for read in as_done(reads, READ_AHEAD_BYTES):
                for name, value in read.results():
                    if name not in rooms:
                        targets[name].copy_(value)
        self.packs.members.forget()

    def file_chunks(self, name: str) -> Iterator[Buffer]:
        """The bytes of a file or an original, piece by piece, in bounded memory.

        Raises:
            NotFoundError: no such file.
            CorruptError: after the last piece: an original's SHA-256 is not what it was.
        """
        if name in self.files:
            yield self.objects.get(self.files[name].digest).payload
            return
        original = self.originals.get(name)
        if original is None:
            raise NotFoundError(_missing("file", name, [*self.files, *self.originals]))
        hasher = sha256()
        with ThreadPoolExecutor(DEFAULT_THREADS) as pool:
            for part in self.parts_of(original):
                chunks = tensor_chunks(self.tensor(part), pool) if isinstance(part, str) else [part]
                for chunk in chunks:
                    hasher.update(chunk)
                    yield chunk
        if hasher.digest() != original.sha256:
            raise CorruptError(
                f"file {name!r} of model {self.entry.digest:.12}: expected SHA-256 "
                f"{original.sha256.hex():.12}, its parts make {hasher.hexdigest():.12}"
            )

    def file(self, name: str) -> bytes:
        """All bytes of a file, as `file_chunks` gives them."""
        return b"".join(bytes(chunk) for chunk in self.file_chunks(name))

    def parts_of(self, original: Original) -> Iterator[Buffer | str]:
        """What a file consists of, in order: bytes, and names of tensors.

        Raises:
            CorruptError: it needs more bytes than are stored beside its tensors.
        """
        at, literals = 0, memoryview(self._literals(original))
        for part in original.parts:
            if isinstance(part, str):
                yield part
                continue
            if at + part > len(literals):
                raise CorruptError(
                    f"file {original.name!r} of model {self.entry.digest:.12}: its blob has "
                    f"{len(literals)} bytes, more are needed"
                )
            yield literals[at : at + part]
            at += part

    def _literals(self, original: Original) -> Buffer:
        """The bytes of a file that are no tensor's, one after the other."""
        if original.blob is None:
            return b""
        return self.objects.get(digest_from_bytes(original.blob)).payload

    def _wanted(self, names: Iterable[str] | None) -> list[str]:
        if isinstance(names, str):
            raise InvalidInputError(f"names={names!r}: expected several, such as [{names!r}]")
        if names is None:
            return list(self.keys())
        wanted = list(names) if isinstance(names, Iterable) else [names]
        if not all(isinstance(name, str) for name in wanted):
            raise InvalidInputError(f"names={names!r:.80}: expected names of tensors")
        return wanted

    def _target(self, name: str) -> str:
        target = self.aliases.get(name, name)
        if target not in self.tensors:
            raise NotFoundError(_missing("tensor", name, self.keys()))
        return target


def open_model(
    objects: ObjectSource, entry: Entry, cache: MemberCache | None = None
) -> StoredModel:
    """The model that a tree entry names. Those of one `cache` share what it keeps.

    Raises:
        InvalidInputError: the entry is no model.
        CorruptError: its objects contradict each other.
    """
    if entry.kind is not Kind.MODEL or entry.storage is None:
        raise InvalidInputError(f"{entry.kind.label} {entry.digest:.12} is no model")
    manifest, _ = _read(objects, entry.digest, Kind.MODEL, decode_manifest)
    placement, links = _read(objects, entry.storage, Kind.PLACEMENT, decode_placement)
    packs = PackReader(objects, placement, {link.digest: link for link in links}, cache)
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    aliases = {alias.name: alias.target for alias in manifest.aliases}
    return StoredModel(entry, manifest, objects, packs, tensors, aliases)


def _read(
    objects: ObjectSource, digest: Digest, kind: Kind, decode: Callable[[Buffer, Digest], T]
) -> tuple[T, Sequence[ObjectLink]]:
    """A document, which names exactly the objects that its object links to, and those links."""
    envelope = objects.get(digest)
    if envelope.kind is not kind:
        raise CorruptError(
            f"object {digest:.12}: expected a {kind.label}, found a {envelope.kind.label}"
        )
    try:
        document = decode(envelope.payload, digest)
    except InvalidInputError as error:  # a rule that holds for callers, broken by what is stored
        raise CorruptError(f"{kind.label} {digest:.12}: {error}") from error
    if [link.digest for link in envelope.links] != sorted(document.links()):
        raise CorruptError(
            f"{kind.label} {digest:.12}: its links are not the objects that it names"
        )
    return document, envelope.links


def _missing(what: str, name: str, names: Iterable[str]) -> str:
    return f"no {what} {name!r}.{did_you_mean(name, names)}"

"""How is a stored model read?

`open_model` reads the manifest and the placement. After that tensors, slices and files are read
as they are asked for, in parallel, and every byte is verified before it is returned.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.lineage import Edge
from tensorrepo.formats.model.bundles import bundles, by_place, fetch, read_directories
from tensorrepo.formats.model.frameread import PackReader, StoredFrames, tensor_chunks
from tensorrepo.formats.model.loading import R, Shard, Tensor, TensorRead, Wish, as_done
from tensorrepo.formats.model.manifest import (
    FileEntry,
    Manifest,
    Original,
    TensorEntry,
    decode_manifest,
)
from tensorrepo.formats.model.pieces import PiecedTensor
from tensorrepo.formats.model.placement import decode_placement
from tensorrepo.formats.model.refill import Refill, matching
from tensorrepo.formats.model.selection import Index
from tensorrepo.formats.model.smallread import BATCH_BYTES, SmallRead, batches, find_small
from tensorrepo.formats.tensors import Output, TensorType
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.ids import digest_from_bytes
from tensorrepo.repo.objects import Envelope, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer, Digest
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry

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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Model:
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
        return f"<Model {self.entry.digest:.12}: {len(self)} tensors, {self.size_bytes:,} bytes>"

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
        types = self.manifest.type_table()
        return sum(types[entry.type].bytes_of(entry.shape) for entry in self.tensors.values())

    @property
    def files(self) -> Mapping[str, FileEntry]:
        """Files that came along; `file_chunks` reads them."""
        return {file.name: file for file in self.manifest.files}

    @property
    def originals(self) -> Mapping[str, Original]:
        """Files that are given back byte for byte from tensors."""
        return {original.name: original for original in self.manifest.originals}

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.manifest.metadata

    @property
    def metrics(self) -> Mapping[str, Any]:
        return self.manifest.metrics

    @property
    def lineage(self) -> tuple[Edge, ...]:
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
        index: Index,
        *,
        output: Output = "numpy",
        planes: int | None = None,
        threads: int = DEFAULT_THREADS,
    ) -> Any:
        """``model[name][index]``, of which only the frames that it touches are read.

        Args:
            name: a tensor.
            index: integers, slices with a positive step, an ellipsis.
            output: "numpy" or "torch".
            planes: as for `load`.
            threads: how many runs of frames are read at a time.
        """
        wish = Wish(output=output, planes=planes)
        with ThreadPoolExecutor(threads) as pool:
            return TensorRead(self.tensor(name), wish, index, pool).result()

    def load(
        self,
        names: Iterable[str] | None = None,
        *,
        output: Output = "numpy",
        copy: bool = True,
        device: Any = None,
        dtype: Any = None,
        shard: Shard | None = None,
        planes: int | None = None,
        threads: int = DEFAULT_THREADS,
    ) -> dict[str, Any]:
        """Several tensors, or all.

        Args:
            names: which; None means all.
            output: "numpy" or "torch".
            copy: False: numpy arrays are read-only, and mapped where they lie on a local disk.
            device: a torch device to put them on.
            dtype: what floating-point tensors are converted to.
            shard: (dimension, rank, world): of each tensor the part that ``torch.chunk`` would give
                to that rank, and only its frames are read. Tensors without that dimension come
                whole.
            planes: only so many of the most significant bytes of each number, the others are 0:
                two of an F32 are exactly its BF16 truncation, for half of the bytes.
            threads: how many runs of frames are read at a time.

        Returns:
            Arrays by name. Aliases are the same object as their tensor; no others share memory.
        """
        wanted = self._wanted(names)
        wish = Wish(output, copy, device, dtype, shard, planes)
        loaded = dict(self._iterate(wanted, wish, threads, READ_AHEAD_BYTES))
        return {name: loaded[name] for name in wanted}

    def iter_tensors(
        self,
        names: Iterable[str] | None = None,
        *,
        output: Output = "numpy",
        copy: bool = True,
        device: Any = None,
        dtype: Any = None,
        shard: Shard | None = None,
        planes: int | None = None,
        threads: int = DEFAULT_THREADS,
        budget_bytes: int = READ_AHEAD_BYTES,
    ) -> Iterator[tuple[str, Any]]:
        """Tensors as they are there, in any order, while others are being read.

        `budget_bytes` bounds what is being read or waits to be handed out, beside the one tensor in
        hand. An alias comes right after its tensor and is the same object. Arguments else as for
        `load`.
        """
        wanted = self._wanted(names)
        wish = Wish(output, copy, device, dtype, shard, planes)
        return self._iterate(wanted, wish, threads, budget_bytes)

    def _iterate(
        self, wanted: list[str], wish: Wish, threads: int, budget_bytes: int
    ) -> Iterator[tuple[str, Any]]:
        by_target: dict[str, list[str]] = {}
        for name in wanted:
            by_target.setdefault(self._target(name), []).append(name)
        # Reads wait for what is fetched of several: that must go on beside them.
        with ThreadPoolExecutor(threads) as fetching, ThreadPoolExecutor(threads) as pool:
            batch_bytes = min(BATCH_BYTES, budget_bytes // _BATCHES_AHEAD)
            begun = self._reads(list(by_target), wish, (fetching, pool), batch_bytes)
            try:
                # A batch in hand is handed out bit by bit: it counts until the next one is taken.
                for done in as_done(begun, budget_bytes - batch_bytes):
                    for target, value in done.results():
                        yield from ((name, value) for name in by_target[target])
            finally:
                fetching.shutdown(wait=False, cancel_futures=True)
                pool.shutdown(wait=True, cancel_futures=True)
                fetching.shutdown()
                self.packs.members.forget()

    def _reads(
        self, names: list[str], wish: Wish, pools: tuple[Executor, Executor], batch_bytes: int
    ) -> Iterator[SmallRead | TensorRead]:
        """Reads of tensors, of many small ones together; `pools`: for what is fetched, and read."""
        fetching, pool = pools
        if wish.whole:
            entries = [self.tensors[name] for name in names]
            found = find_small(self.packs, entries, self.manifest.type_table())
            for batch in batches(found, batch_bytes):
                yield SmallRead(batch, found, wish, pool)
            taken = {small.entry.name for small in found.tensors}
            names = [name for name in names if name not in taken]

        def begin(_: str, tensor: Tensor, after: Future[None] | None) -> TensorRead:
            return TensorRead(tensor, wish, wish.index(tensor.shape), pool, after=after)

        yield from self._begun(names, begin, fetching, wish.whole)

    def _begun(
        self, names: Iterable[str], begin: Callable[..., R], fetching: Executor, whole: bool
    ) -> Iterator[R]:
        """Reads of tensors, in the order in which they lie; `whole`: of all their bytes."""
        entries = {name: self.tensors[self._target(name)] for name in names}
        read_directories(self.packs, entries.values(), fetching)
        ordered = by_place(self.packs, entries)
        left = iter(ordered)
        types = self.manifest.type_table()
        found = (self.packs.tensor(entries[name], types[entries[name].type]) for name in ordered)
        for bundle in bundles(found):
            after = fetching.submit(fetch, bundle) if whole and len(bundle) > 1 else None
            for tensor in bundle:
                yield begin(next(left), tensor, after)

    def load_state_dict(
        self, module: Any, *, strict: bool = True, threads: int = DEFAULT_THREADS
    ) -> None:
        """Read tensors into the parameters and buffers of a torch module, where they lie.

        No memory is taken beside them where type and device allow it. Whatever goes wrong while
        reading, the module is left with some tensors of either.

        Args:
            module: has a ``state_dict()``.
            strict: names must be the same; False: those that both have.
            threads: how many runs of frames are read at a time.

        Raises:
            InvalidInputError: names or shapes differ; nothing was read then.
        """
        targets = matching(module.state_dict(), {name: self.spec(name) for name in self}, strict)
        with ThreadPoolExecutor(threads) as fetching, ThreadPoolExecutor(threads) as pool:

            def begin(name: str, tensor: Tensor, after: Future[None] | None) -> Refill:
                return Refill(tensor, targets[name], pool, after)

            begun = self._begun(targets, begin, fetching, whole=True)
            for refill in as_done(begun, READ_AHEAD_BYTES):
                refill.finish()
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
            for chunk in self._original_chunks(original, pool):
                hasher.update(chunk)
                yield chunk
        if hasher.digest() != original.sha256:
            raise CorruptError(
                f"file {name!r} of model {self.entry.digest:.12}: expected SHA-256 "
                f"{original.sha256.hex():.12}, its parts make {hasher.hexdigest():.12}"
            )

    def _original_chunks(self, original: Original, pool: Executor) -> Iterator[Buffer]:
        at, literals = 0, memoryview(self.literals(original))
        for part in original.parts:
            if isinstance(part, str):
                yield from tensor_chunks(self.tensor(part), pool)
                continue
            if at + part > len(literals):
                raise CorruptError(
                    f"file {original.name!r} of model {self.entry.digest:.12}: its blob has "
                    f"{len(literals)} bytes, more are needed"
                )
            yield literals[at : at + part]
            at += part

    def literals(self, original: Original) -> Buffer:
        """The bytes of a file that are no tensor's, one after the other."""
        if original.blob is None:
            return b""
        return self.objects.get(digest_from_bytes(original.blob)).payload

    def _wanted(self, names: Iterable[str] | None) -> list[str]:
        if isinstance(names, str):
            raise InvalidInputError(f"names={names!r}: expected several, such as [{names!r}]")
        if names is None:
            return list(self.keys())
        found = list(names) if isinstance(names, Iterable) else [names]
        if not all(isinstance(name, str) for name in found):
            raise InvalidInputError(f"names={names!r:.80}: expected names of tensors")
        return found

    def _target(self, name: str) -> str:
        target = self.aliases.get(name, name)
        if target not in self.tensors:
            raise NotFoundError(_missing("tensor", name, self.keys()))
        return target


def open_model(objects: ObjectSource, entry: Entry) -> Model:
    """The model that a tree entry names.

    Raises:
        InvalidInputError: the entry is no model.
        CorruptError: its objects contradict each other.
    """
    if entry.kind is not Kind.MODEL or entry.storage is None:
        raise InvalidInputError(f"{entry.kind.label} {entry.digest:.12} is no model")
    envelope = _get(objects, entry.digest, Kind.MODEL)
    manifest = decode_manifest(envelope.payload, entry.digest)
    _check_links(envelope, manifest.links(), entry.digest)
    envelope = _get(objects, entry.storage, Kind.PLACEMENT)
    placement = decode_placement(envelope.payload, entry.storage)
    _check_links(envelope, placement.links(), entry.storage)
    packs = PackReader(objects, placement, {link.digest: link for link in envelope.links})
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    aliases = {alias.name: alias.target for alias in manifest.aliases}
    return Model(entry, manifest, objects, packs, tensors, aliases)


def _get(objects: ObjectSource, digest: Digest, kind: Kind) -> Envelope:
    envelope = objects.get(digest)
    if envelope.kind is not kind:
        raise CorruptError(
            f"object {digest:.12}: expected a {kind.label}, found a {envelope.kind.label}"
        )
    return envelope


def _check_links(envelope: Envelope, expected: tuple[Digest, ...], digest: Digest) -> None:
    found = tuple(link.digest for link in envelope.links)
    if found != tuple(sorted(expected)):
        raise CorruptError(
            f"{envelope.kind.label} {digest:.12}: its links are not the objects that it names"
        )


def _missing(what: str, name: str, names: Iterable[str]) -> str:
    near = get_close_matches(name, list(names), 3)
    return f"no {what} {name!r}" + (f"; there is {', '.join(near)}" if near else "")

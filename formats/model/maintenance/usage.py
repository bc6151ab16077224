"""Disk usage of models: total, shared and exclusive bytes.

Counted are the members of packs that a read of a model needs, the bases of its deltas too. Files
that came along, manifests and the directories of packs are not.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.model.layout.manifest import Manifest, decode_manifest
from tensorrepo.formats.model.layout.placement import Placement, StoredTensor, decode_placement
from tensorrepo.formats.model.read.members import MemberReader
from tensorrepo.formats.model.write.model_writer import INLINE
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.tables import Cell, RecordTable, Shown


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of tensors.

    Attributes:
        logical_bytes: as they are in memory, each model for itself.
        stored_bytes: bytes of what holds them, each once.
        unique_bytes: bytes, of those, that no other model reaches.
    """

    logical_bytes: int
    stored_bytes: int
    unique_bytes: int

    @property
    def shared_bytes(self) -> int:
        """What other models reach as well."""
        return self.stored_bytes - self.unique_bytes

    def to_json(self) -> dict[str, int]:
        return {
            "logical_bytes": self.logical_bytes,
            "stored_bytes": self.stored_bytes,
            "shared_bytes": self.shared_bytes,
            "unique_bytes": self.unique_bytes,
        }


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What one model takes."""

    model: Reached
    usage: DiskUsage


@dataclass(frozen=True, slots=True, repr=False)
class SpaceUsage(Shown):
    """What some models take, by model and by codec. What several share counts once in `total`."""

    models: tuple[ModelUsage, ...]
    codecs: Mapping[str, DiskUsage]
    total: DiskUsage

    def to_table(self) -> RecordTable:
        """A row for each model."""
        columns: dict[str, Cell] = {
            "model": lambda one: ", ".join(path for _, path in one.model.names[:3]),
            ">in memory": lambda one: bytes_text(one.usage.logical_bytes),
            ">stored": lambda one: bytes_text(one.usage.stored_bytes),
            ">its own": lambda one: bytes_text(one.usage.unique_bytes),
        }
        stored = bytes_text(self.total.stored_bytes)
        title = f"{counted(len(self.models), 'model')} in {stored}"
        return RecordTable.of(self.models, columns, title)

    def to_json(self) -> dict[str, Any]:
        return {
            "models": [
                {
                    "digest": one.model.digest,
                    "names": [f"{ref}:{path}" for ref, path in one.model.names],
                    **one.usage.to_json(),
                }
                for one in self.models
            ],
            "codecs": {codec: usage.to_json() for codec, usage in self.codecs.items()},
            "total": self.total.to_json(),
        }


def measure_usage(
    objects: ObjectSource,
    models: Sequence[Reached],
    paths: Collection[str] = (),
    progress: Callable[[int], None] | None = None,
) -> SpaceUsage:
    """What models take.

    Args:
        objects: reads manifests and placements; no tensor is read.
        models: all that are asked whether they share anything.
        paths: those of them that are told of; none: all.
        progress: called with the number of models looked at.
    """
    seen = _Seen()
    for done, model in enumerate(models, 1):
        seen.add(objects, model)
        if progress is not None:
            progress(done)
    wanted = [number for number, model in enumerate(models) if not paths or model.is_below(paths)]
    return SpaceUsage(
        tuple(ModelUsage(models[number], seen.usage([number])) for number in wanted),
        {codec: seen.usage(wanted, codec) for codec in seen.codecs_of(wanted)},
        seen.usage(wanted),
    )


@dataclass(slots=True)
class _Seen:
    """The members that were seen: some 30 bytes for each time that a model reaches one."""

    numbers: dict[tuple[bytes, int], int] = field(default_factory=dict)
    stored: array[int] = field(default_factory=lambda: array("Q"))
    codec: list[str] = field(default_factory=list)
    reaching: array[int] = field(default_factory=lambda: array("L"))
    members: list[array[int]] = field(default_factory=list)  # by model
    logical: list[Counter[str]] = field(default_factory=list)

    def add(self, objects: ObjectSource, model: Reached) -> None:
        """Look at one model."""
        manifest = decode_manifest(objects.get(model.digest).payload, model.digest)
        reached: dict[int, None] = {}
        logical: Counter[str] = Counter()
        for entry in model.entries:
            assert entry.storage is not None, "models_at gives models that are stored"
            placement = decode_placement(objects.get(entry.storage).payload, entry.storage)
            reached.update(dict.fromkeys(self._places(placement)))
            if not logical:
                logical = _logical(objects, manifest, placement)
        if logical[INLINE]:
            value = self._number((model.digest.encode(), 0), logical[INLINE], INLINE)
            reached[value] = None
        self.members.append(array("L", reached))
        self.logical.append(logical)
        for number in reached:
            self.reaching[number] += 1

    def codecs_of(self, models: Iterable[int]) -> list[str]:
        """Codecs by name that these models use."""
        return sorted({self.codec[member] for model in models for member in self.members[model]})

    def usage(self, models: Sequence[int], codec: str | None = None) -> DiskUsage:
        """Of some models, by one codec or all."""
        reached = {
            member
            for model in models
            for member in self.members[model]
            if codec is None or self.codec[member] == codec
        }
        logical = (
            sum(self.logical[model].values()) if codec is None else self.logical[model][codec]
            for model in models
        )
        unique = (self.stored[member] for member in reached if self.reaching[member] == 1)
        return DiskUsage(sum(logical), sum(self.stored[member] for member in reached), sum(unique))

    def _places(self, placement: Placement) -> Iterable[int]:
        for entry in (
            *(member for tensor in placement.tensors for member in tensor.members),
            *placement.bases,
        ):
            place = placement.packs[entry.pack].pack, entry.member
            yield self._number(place, entry.stored_bytes, entry.codec)

    def _number(self, place: tuple[bytes, int], stored_bytes: int, codec: str) -> int:
        number = self.numbers.setdefault(place, len(self.numbers))
        if number == len(self.stored):
            self.stored.append(stored_bytes)
            self.codec.append(codec)
            self.reaching.append(0)
        return number


def _logical(objects: ObjectSource, manifest: Manifest, placement: Placement) -> Counter[str]:
    """The bytes of a model's tensors by the codec that holds them."""
    types = manifest.type_table()
    stored = {tensor.fingerprint: tensor for tensor in placement.tensors}
    links = {digest: objects.describe(digest) for digest in placement.links()}
    reads = MemberReader(objects, placement, links)
    found: Counter[str] = Counter()
    for tensor in manifest.tensors:
        for piece in tensor.pieces:
            size = types[tensor.type].bytes_of(piece.shape)
            held = None if piece.fingerprint is None else stored.get(piece.fingerprint)
            found.update(_by_codec(reads, held, size))
    return found


def _by_codec(reads: MemberReader, tensor: StoredTensor | None, size: int) -> Mapping[str, int]:
    """The bytes of one tensor by codec; directories are read only where that takes them."""
    if tensor is None:
        return {INLINE: size} if size else {}
    codecs = {member.codec for member in tensor.members}
    if len(codecs) == 1:
        return {codecs.pop(): size}
    found: Counter[str] = Counter()
    for member in tensor.members:
        frames = reads.member(member.place).frames
        found[member.codec] += sum(frame.size_bytes for frame in frames)
    return found


SPACE: Final = "models/"


@dataclass(frozen=True, slots=True)
class Reached:
    """A model, where it is stored (more than once when it was stored twice), and its names.

    `names` are (ref, path), in the order in which they were found.
    """

    digest: Digest
    entries: tuple[Entry, ...]
    names: tuple[tuple[str, str], ...]

    def is_below(self, paths: Iterable[str]) -> bool:
        """Whether one of its paths is one of these, or lies in one as in a folder."""
        return any(
            path == wanted or path.startswith(f"{wanted.rstrip('/')}/")
            for wanted in paths
            for _, path in self.names
        )

    @property
    def text(self) -> str:
        """``main:models/net``, and how many names more."""
        return f"{self.names[0][0]}:{self.path}"

    @property
    def path(self) -> str:
        """``models/net``, and how many names more."""
        more = len(self.names) - 1
        return self.names[0][1] + (f" (+{more})" if more else "")


def models_at(repository: RepositoryCore, trees: Mapping[str, bytes]) -> tuple[Reached, ...]:
    """The models of some trees, given by name of the ref, as they are stored now.

    A tree that several refs share is read once.
    """
    names: dict[Digest, list[tuple[str, str]]] = {}
    entries: dict[Digest, dict[Entry, None]] = {}
    refs: dict[bytes, list[str]] = {}
    for ref, tree in trees.items():
        refs.setdefault(tree, []).append(ref)
    for tree, sharing in refs.items():
        for path, entry in repository.entries(tree, SPACE):
            if entry.kind is Kind.MODEL and entry.storage is not None:
                names.setdefault(entry.digest, []).extend((ref, path) for ref in sharing)
                entries.setdefault(entry.digest, {})[entry] = None
    return tuple(Reached(digest, tuple(entries[digest]), tuple(names[digest])) for digest in names)


def every_tree(repository: RepositoryCore) -> dict[str, bytes]:
    """The tree of every ref, by the name that it is commonly called."""
    found: dict[str, bytes] = {}
    for ref, commit in sorted(repository.log.refresh().state.refs.items()):
        short = ref.removeprefix("heads/").removeprefix("tags/")
        name = ref if short in found else short
        found[name] = read_commit(repository.objects, commit).tree
    return found

"""Choice of base models for a delta: declared, similar, or of one architecture.

A declared base is the only one. Else those that share at least half of the bytes' names, types and
shapes are ranked by how far the signatures of their largest tensors are; where all are too small to
have one, some of them are read. The best two are tried, tensor by tensor, on samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import field
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.summaries import summarized_model
from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.delta.registry import CAST, CODECS
from tensorrepo.formats.model.delta.similarity import as_float32_bits, distance, look, signature
from tensorrepo.formats.model.layout.fingerprints import frame_bytes, frame_digest, frame_digests
from tensorrepo.formats.model.layout.manifest import Manifest, decode_manifest, piece_name
from tensorrepo.formats.model.layout.pack import MAX_DEPTH, PackMember
from tensorrepo.formats.model.layout.placement import MemberEntry, Placement, decode_placement
from tensorrepo.formats.model.read.frames import StoredFrames
from tensorrepo.formats.model.read.member_bundles import frames_together
from tensorrepo.formats.model.read.members import MemberCache, MemberPlace, MemberReader
from tensorrepo.formats.model.write.encoding import LEAST_BYTES, WORTH_A_BASE
from tensorrepo.formats.model.write.packing import Location, PackSlot, locate
from tensorrepo.formats.model.write.tensor_chunks import TensorPart
from tensorrepo.formats.native.frame_memory import FrameMemory
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import digest_bytes
from tensorrepo.repo.objects.envelope import ObjectSource, mending

DEPTH: Final = 2  # bases that a read of a new model passes through at most
RUN_DEPTH: Final = 8  # of checkpoints of one run
TRIED: Final = 2
RANKED: Final = 16  # models that are looked at: those as large as the new one, then the first ones
_LIKE_SIZES: Final = (0.4, 2.5)  # of what may share half of the bytes, or be cast from F32
_COMPARED: Final = 8  # tensors whose signatures are compared
_READ: Final = 4  # tensors that are read, where none has a signature
_READ_BYTES: Final = 1 << 20  # of each


@dataclass(frozen=True, slots=True)
class Prediction:
    """How a tensor follows from others, by a codec that takes several bases.

    Attributes:
        codec: its name, such as "adam".
        params: parameters of the codec.
        before: tensors of the base model, the one that this tensor was first.
        now: tensors of the model being written; they follow those of `before` as bases.
    """

    codec: str
    params: bytes
    before: tuple[str, ...]
    now: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    """What a new model may be encoded against.

    Attributes:
        base: a stored model, reachable where the new one is committed; None: the most similar ones.
        depth: how many bases a read of a tensor may pass through, at most MAX_DEPTH. With 0 the
            model is to stand alone: what is known is used only as small tensors are, see `reuse`.
        codecs: only these, whether they save anything or not, wherever they can; None: all, each
            where it is smallest. An empty one stores everything as it is.
        predictions: by name of a tensor of the new model, those to try; `base` is one step before.
        held: tensors of `base` by name that are in memory still, so that no chain is decoded.
        worth: the largest share of its size without a base at which a tensor is given one.
    """

    base: Entry | None = None
    depth: int = DEPTH
    codecs: frozenset[str] | None = None
    predictions: Mapping[str, tuple[Prediction, ...]] = field(default_factory=dict)
    held: Mapping[str, TensorReader] = field(default_factory=dict)
    worth: float = WORTH_A_BASE

    def __post_init__(self) -> None:
        if not 0 <= self.depth <= MAX_DEPTH:
            raise InvalidInputError(f"depth {self.depth}: expected 0 to {MAX_DEPTH}")
        unknown = sorted((self.codecs or frozenset()) - CODECS.keys())
        if unknown:
            raise InvalidInputError(
                f"codec {unknown[0]!r} is unknown: choose of {', '.join(sorted(CODECS))}"
            )


SIMILAR: Final = DeltaOptions()


@dataclass(frozen=True, eq=False)
class BaseModel:
    """A stored model that others may be encoded against."""

    entry: Entry
    manifest: Manifest
    placement: Placement
    members: MemberReader
    why: str = "similar"
    bits: float | None = None

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...], bytes | None]]:
        """Type, shape and fingerprint by name; of a tensor of several pieces, those of each."""
        return {
            piece_name(tensor.name, tensor.shape, piece.offset, piece.shape): (
                tensor.type,
                piece.shape,
                piece.fingerprint,
            )
            for tensor in self.manifest.tensors
            for piece in tensor.pieces
        }

    @property
    def digest(self) -> bytes:
        return digest_bytes(self.entry.digest)

    @cached_property
    def stored(self) -> dict[bytes, tuple[MemberEntry, ...]]:
        """The members of every tensor, by fingerprint."""
        return {tensor.fingerprint: tensor.members for tensor in self.placement.tensors}

    @cached_property
    def locations(self) -> dict[MemberPlace, Location]:
        return locate(self.placement)


class StoredBase(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A stored member as a base, see `BaseFrames`."""

    members: MemberReader
    place: MemberPlace
    location: Location
    held: TensorReader | None = None
    type_name: str = ""

    @property
    def alone_share(self) -> float | None:
        if self.location.bases or self.type_name:
            return None
        frames = self.members.member(self.place).frames
        return self.location.stored_bytes / max(1, sum(frame.size_bytes for frame in frames))

    def digest(self, index: int) -> bytes:
        """The digest of a frame, as its pack says it."""
        member = self.members.member(self.place)
        return member.frames[index - member.first_frame].digest

    def frame(self, index: int, about: FrameShape, memory: FrameMemory | None = None) -> memoryview:
        """The frame, verified: a delta against damage would be damage for ever."""
        if self.type_name:
            about = CAST.base_shape(about)
        expected = self.digest(index)
        take = FrameMemory(0).take if memory is None else memory.take
        room = take(about.size_bytes).data
        if self.held is not None:
            self.held.read_into(index * frame_bytes(self.held.type), room)
            if frame_digest(room) == expected:
                return room
        found = self.members.frame_or_mapped(self.place, index, about, room)
        if frame_digest(found) != expected:
            raise CorruptError(
                f"frame {index} of member {self.place[1]}, pack {self.location.pack.digest:.12}, "
                f"is damaged. {mending(self.members.objects, self.location.pack.digest)}."
            )
        return found


def bases_together(bases: Sequence[StoredBase], about: FrameShape) -> NDArray[np.uint8] | None:
    """The frames ``(bases, bytes)`` of small bases of one model, verified, in few calls.

    None where one of them must be asked alone, or `StoredBase.frame` says what is wrong with it.
    """
    members = bases[0].members
    if any(base.held is not None or base.members is not members for base in bases):
        return None
    try:
        places = [base.place for base in bases]
        found = frames_together(members, places, about, members.mapped_packs())
    except (CorruptError, NotFoundError, UnsupportedError):
        return None
    digests = [base.digest(0) for base in bases]
    return None if found is None or frame_digests(found) != digests else found


@dataclass(frozen=True, slots=True, eq=False)
class WrittenBase:
    """A tensor of the model being written as a base, see `BaseFrames`."""

    reader: TensorReader
    location: Location | PackSlot
    type_name: str = ""

    @property
    def alone_share(self) -> float | None:
        return None

    def frame(self, index: int, about: FrameShape, memory: FrameMemory | None = None) -> memoryview:
        about = CAST.base_shape(about) if self.type_name else about
        take = FrameMemory(0).take if memory is None else memory.take
        room = take(about.size_bytes).data
        self.reader.read_into(index * frame_bytes(self.reader.type), room)
        return room


class Bases:
    """The base models of one write."""

    def __init__(self, models: Sequence[BaseModel], against: DeltaOptions) -> None:
        self.models = models
        self.notes: dict[str, None] = {}
        self.codecs = against.codecs
        self.worth = against.worth
        self.stand_alone = not against.depth
        self.predictions = against.predictions if against.base is not None and models else {}
        self._depth = against.depth
        self._held = against.held
        self._tensors = [model.tensors() for model in models]
        self._stored = [model.stored for model in models]

    def members(
        self, name: str, reader: TensorReader, source: int, type_name: str = ""
    ) -> tuple[MemberEntry, ...]:
        """The members of the tensor of that name in model `source`, when it fits.

        It has the type of `reader`, or the one that is named.
        """
        element, shape, found = self._tensors[source].get(name, ("", (), None))
        if (element, shape) != (type_name or reader.type.name, tuple(reader.shape)):
            return ()
        return self._stored[source].get(found or b"", ())

    def _fitting(self, name: str, reader: TensorReader, source: int) -> Iterator[MemberEntry]:
        """Members of that name that a tensor follows from, of its own type or by a cast."""
        yield from self.members(name, reader, source)
        yield from self._casts(name, reader, source)

    def _casts(self, name: str, reader: TensorReader, source: int) -> tuple[MemberEntry, ...]:
        """Members of that name that a tensor may be a cast of."""
        if not CAST.fits(reader.type, tuple(reader.shape)):
            return ()
        return self.members(name, reader, source, CAST.base_type)

    def prepare(self, tensors: Mapping[str, TensorReader], pool: Executor) -> None:
        """Look up the members that tensors may be encoded against, thousands in few steps."""
        for source, model in enumerate(self.models):
            fitting = (self._fitting(name, reader, source) for name, reader in tensors.items())
            places = [entry.place for entries in fitting for entry in entries]
            model.members.prepare(places, pool)

    def cuts(self, name: str, reader: TensorReader) -> set[int]:
        """Frames at which members of bases begin: a member has bases that hold all its frames."""
        starts = set()
        for source, model in enumerate(self.models):
            for entry in self._fitting(name, reader, source):
                member = self._readable(model, entry)
                if member is not None:
                    starts.add(member.first_frame)
        return starts

    def of(self, part: TensorPart) -> Iterator[tuple[int, StoredBase]]:
        """Members that a part can be encoded against, and the model of each."""
        if part.size_bytes < LEAST_BYTES or not self._depth:
            return
        for source, model in enumerate(self.models):
            own = self.members(part.name, part.reader, source)
            casts = self._casts(part.name, part.reader, source)
            for at, entry in enumerate((*own, *casts)):
                if self._holds(model, entry, part):
                    shallow, crosses = self._shallow(model, entry)
                    cast = crosses or at >= len(own)
                    type_name = CAST.base_type if cast else ""
                    yield source, self._base(model, shallow.place, part.name, type_name)

    def predicting(self, part: TensorPart, prediction: Prediction) -> list[StoredBase] | None:
        """The members of the first model that a prediction is made from; None: one does not fit."""
        model, bases = self.models[0], []
        for name in prediction.before:
            members = self.members(name, part.reader, 0)
            entry = next((one for one in members if self._holds(model, one, part)), None)
            if entry is None or entry.depth > self._depth:
                return None
            bases.append(self._base(model, entry.place, name))
        return bases

    def _base(
        self, model: BaseModel, place: MemberPlace, name: str, type_name: str = ""
    ) -> StoredBase:
        held = self._held.get(name) if model is self.models[0] and not type_name else None
        return StoredBase(model.members, place, model.locations[place], held, type_name)

    def _holds(self, model: BaseModel, entry: MemberEntry, part: TensorPart) -> bool:
        """Whether a member has all frames of a part."""
        member = self._readable(model, entry)
        if member is None:
            return False
        stop = member.first_frame + len(member.frames)
        return member.first_frame <= part.frames.start and part.frames.stop <= stop

    def _readable(self, model: BaseModel, entry: MemberEntry) -> PackMember | None:
        """A member; None, and a note, when its pack is gone or damaged: then it is no base."""
        try:
            return model.members.member(entry.place)
        except (CorruptError, NotFoundError, UnsupportedError) as error:
            self.notes[f"a base could not be used: {error}"] = None
            return None

    def _shallow(self, model: BaseModel, entry: MemberEntry) -> tuple[MemberEntry, bool]:
        """The member, or when it is too deep to be a base what its chain of bases begins with.

        Not the nearest that will do: the next model would be as far from it again, and one more.

        Returns:
            The member, and whether the chain to it goes through a cast: then it is of another type.
        """
        crosses = False
        if entry.depth < self._depth:
            return entry, crosses
        while entry.bases:
            crosses = crosses or entry.codec == CAST.name
            entry = model.members.entries[entry.bases[0]]
        return entry, crosses


def open_base(
    objects: ObjectSource, entry: Entry, why: str, *, cache_bytes: int
) -> BaseModel | None:
    """A model as a base; None for one that is not stored, or not readable here."""
    if entry.storage is None:
        return None
    try:
        manifest = decode_manifest(objects.get(entry.digest).payload, entry.digest)
        placement = decode_placement(objects.get(entry.storage).payload, entry.storage)
        links = {digest: objects.describe(digest) for digest in placement.links()}
    except (CorruptError, NotFoundError, UnsupportedError):
        return None
    reads = MemberReader(objects, placement, links, MemberCache(cache_bytes))
    return BaseModel(entry, manifest, placement, reads, why)


def likeliest(known: Iterable[Entry], tensors: Mapping[str, TensorReader]) -> list[Entry]:
    """The models to look at, by what their tree items say of them: nothing is read for it.

    Those with as many bytes of tensors come first, then those whose size is like that.
    """
    size = sum(one.type.bytes_of(one.shape) for one in tensors.values())

    def unlike(entry: Entry) -> int:
        said = summarized_model(entry)
        if said is None or said[1] == size:
            return 0
        return 1 if _LIKE_SIZES[0] * size <= said[1] <= _LIKE_SIZES[1] * size else 2

    models = {(entry.digest, entry.storage): entry for entry in known}
    return sorted(models.values(), key=unlike)[:RANKED]


def rank(
    models: Iterable[BaseModel],
    tensors: Mapping[str, TensorReader],
    signatures: Mapping[str, object] | None = None,
) -> list[tuple[float, BaseModel]]:
    """Models that share half of the bytes' names and shapes, the most similar first.

    Types are the same, too, or tensors may be casts of theirs.

    `signatures` of `tensors` that are known (None: it has none) need not be made by reading.

    Returns:
        For each, how many of 16 bits differ on average between its largest tensors and those of
        the same name. Models of which none can be compared are left out.
    """
    sizes = {name: one.type.bytes_of(one.shape) for name, one in tensors.items()}
    total = sum(sizes.values())
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    own, looked_at = dict(signatures or {}), dict[str, object]()
    ranked = []
    for model in models:
        alike = _alike(model, tensors)
        if sum(sizes[name] for name in alike) * 2 < total:
            continue
        compared = [name for name in largest if name in alike][:_COMPARED]
        found = (_bits(model, *alike[name], name, tensors[name], own) for name in compared)
        bits = [one for one in found if one is not None]
        bits = bits or _bits_of_small(model, alike, compared, tensors, looked_at)
        if bits:
            ranked.append((float(np.mean(bits)), model))
    return sorted(ranked, key=lambda one: (one[0], one[1].entry.digest))


def _alike(model: BaseModel, tensors: Mapping[str, TensorReader]) -> dict[str, tuple[str, bytes]]:
    """Type and fingerprint of the tensors (or pieces) that others may be encoded against."""
    return {
        name: (element, found or b"")
        for name, (element, shape, found) in model.tensors().items()
        if (reader := tensors.get(name)) is not None
        and shape == tuple(reader.shape)
        and (element == reader.type.name or _is_cast(element, reader))
    }


def _is_cast(element: str, reader: TensorReader) -> bool:
    """Whether a tensor may be a cast of one of that type."""
    return element == CAST.base_type and CAST.fits(reader.type, tuple(reader.shape))


def _bits(
    model: BaseModel,
    element: str,
    found: bytes,
    name: str,
    reader: TensorReader,
    own: dict[str, object],
) -> float | None:
    """How far the signatures of two tensors are; None where either has none.

    `element` and `found` are type and fingerprint of the model's tensor.
    """
    members = model.stored.get(found)
    if not members:
        return None
    try:
        theirs = model.members.directory(members[0].pack).signatures.get(members[0].member)
    except (CorruptError, NotFoundError, UnsupportedError):
        return None  # a model that cannot be read is not alike
    if theirs is None:
        return None
    if name not in own:
        own[name] = signature(reader)
    mine = own[name]
    if not isinstance(mine, np.ndarray):
        return None
    widened = reader.type.name == "F16" and element == CAST.base_type
    return distance(as_float32_bits(mine) if widened else mine, theirs)


def _bits_of_small(
    model: BaseModel,
    alike: Mapping[str, tuple[str, bytes]],
    names: Sequence[str],
    tensors: Mapping[str, TensorReader],
    own: dict[str, object],
) -> list[float]:
    """How far tensors without signatures are, which are small enough to be read."""
    small = {
        name: members[0].place
        for name in names
        if alike[name][0] == tensors[name].type.name
        and len(members := model.stored.get(alike[name][1], ())) == 1
        and tensors[name].type.bytes_of(tensors[name].shape) <= _READ_BYTES
    }
    chosen, found = dict(list(small.items())[:_READ]), []
    try:
        model.members.keep(chosen.values())
        for name, place in chosen.items():
            reader = tensors[name]
            frames = model.members.placed(place)
            shape = tuple(reader.shape)
            size = reader.type.bytes_of(shape)
            stored = StoredFrames(name, reader.type, shape, size, model.members, frames, None)
            if name not in own:
                own[name] = look(reader)
            mine, theirs = own[name], look(stored)
            if isinstance(mine, np.ndarray) and theirs is not None:
                found.append(distance(mine, theirs))
    except (CorruptError, NotFoundError, UnsupportedError):
        return []  # a model that cannot be read is not alike
    finally:
        model.members.forget()
    return found

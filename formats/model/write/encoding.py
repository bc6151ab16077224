"""Encoding of frames: the smallest codec for each run of them, and its members.

Every codec that fits is tried on samples: short runs at places that the content itself chooses, so
that the same tensor is encoded alike everywhere. A codec with bases must be clearly smaller than
one without: each base is another thing to be read, and kept.

A chunk is a run of a tensor's frames, or all of them: `tensor_chunks` reads and hashes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import field
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.frame_codec import (
    FrameCodec,
    FrameSample,
    FrameShape,
    PlaneList,
)
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane
from tensorrepo.formats.model.delta.registry import CODECS, PLANES
from tensorrepo.formats.model.write.packing import (
    Location,
    MemberDraft,
    PackSlot,
    SealedFrame,
    seal,
)
from tensorrepo.formats.model.write.tensor_chunks import TensorChunk, each
from tensorrepo.formats.native.frame_memory import FrameMemory
from tensorrepo.repo.deferred_dataclass import dataclass

LEAST_BYTES: Final = 4096  # of a member that is encoded: a smaller one saves less than it costs
LEAST_SAVED_BYTES: Final = 512
FEW_FRAMES: Final = 2  # of a tensor: one task encodes all of them
WORTH_ENCODING: Final = 0.98  # of the raw bytes; above it a member stays raw, and can be mapped
WORTH_A_BASE: Final = 0.92  # of what is stored without one
_CLEARLY: Final = 0.85
# Codecs that are costly to try are not even looked at where another stores less than this share,
# and tried where they seem to need a clearly smaller one, with something for what is left.
_COSTLY_BELOW: Final = 0.1
_COSTLY_SAVES: Final = 0.75
_COSTLY_REST: Final = 0.05
SAMPLES: Final = 3
SAMPLE_ELEMENTS: Final = 1 << 16
_LEAST_SAMPLE_ELEMENTS: Final = 1 << 13
_SAMPLED_SHARE: Final = 16  # of a chunk's elements one in so many is looked at


_COSTLY_LAST: Final = attrgetter("codec.needs_many_rows")


class BaseFrames(Protocol):
    """A member, stored or about to be, as a base."""

    @property
    def location(self) -> Location | PackSlot: ...

    @property
    def type_name(self) -> str:
        """Element type where that is not the tensor's, which is a cast of it; "" else."""
        ...

    @property
    def alone_share(self) -> float | None:
        """Stored bytes over raw ones, where it is stored without a base; None: it is not known."""
        ...

    def frame(self, index: int, about: FrameShape, memory: FrameMemory | None = None) -> memoryview:
        """Its frame of that number, verified. Thread-safe.

        `about` is the frame that it is to be a base of. It may lie in memory taken from `memory`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class HeldBase:
    """A base whose frames are read once, for all that looks at them: a `BaseFrames`."""

    read: BaseFrames
    memory: FrameMemory
    held: dict[int, memoryview] = field(default_factory=dict)

    @property
    def location(self) -> Location | PackSlot:
        return self.read.location

    @property
    def type_name(self) -> str:
        return self.read.type_name

    @property
    def alone_share(self) -> float | None:
        return self.read.alone_share

    def frame(self, index: int, about: FrameShape, memory: FrameMemory | None = None) -> memoryview:  # noqa: ARG002
        frame = self.held.get(index)
        if frame is None:
            frame = self.held[index] = self.read.frame(index, about, self.memory)
        return frame

    def forget(self, index: int) -> None:
        """Let go of a frame, which nobody looks at any more."""
        frame = self.held.pop(index, None)
        if frame is not None and isinstance(frame.obj, np.ndarray):
            self.memory.give(frame.obj)

    def forget_all(self) -> None:
        """Let go of all frames: it is not used after all."""
        for index in tuple(self.held):
            self.forget(index)


class EncodingChoice(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One way to encode a chunk.

    Attributes:
        codec: codec of all frames.
        bases: members that it needs.
        params: parameters of the member.
        source: base model that it uses; None: none.
        planes: planes of the chunk's first frame, where the trial was of all of that.
        share: stored bytes over raw ones, of samples or of that frame.
    """

    codec: FrameCodec
    bases: tuple[BaseFrames, ...] = ()
    params: bytes = b""
    source: int | None = None
    planes: PlaneList | None = None
    share: float = 1.0


class _Run(NamedTuple):
    """Bytes ``[start, stop)`` of one frame."""

    frame: int
    start: int
    stop: int


def ways_with(
    chunk: TensorChunk, bases: tuple[BaseFrames, ...] = (), source: int | None = None
) -> list[EncodingChoice]:
    """Every codec that fits, and needs as many bases, which are of model `source`."""
    reader = chunk.part.reader
    if not bases:
        return list(ways_alone(reader.type, tuple(reader.shape)))
    types = tuple([base.type_name for base in bases])
    return [
        EncodingChoice(codec, bases, source=source)
        for codec in _fitting(reader.type, tuple(reader.shape), types)
    ]


@lru_cache(1024)
def ways_alone(element: TensorType, shape: tuple[int, ...]) -> tuple[EncodingChoice, ...]:
    """The ways without a base, which all tensors of a type and shape have in common."""
    return tuple(EncodingChoice(codec) for codec in _fitting(element, shape, ()))


@lru_cache(1024)  # models have few shapes
def _fitting(
    element: TensorType, shape: tuple[int, ...], base_types: tuple[str, ...]
) -> tuple[FrameCodec, ...]:
    """The codecs for such a tensor that need as many bases, of these types."""
    return tuple(
        codec
        for codec in CODECS.values()
        if codec.bases == len(base_types)
        and all(name == codec.base_type for name in base_types)
        and codec.fits(element, shape)
    )


def ways_by_prediction(
    chunk: TensorChunk, name: str, bases: Sequence[BaseFrames], params: bytes
) -> list[EncodingChoice]:
    """The codec that a prediction is made by, when it is there, fits and has all its bases."""
    codec, reader = CODECS.get(name), chunk.part.reader
    if codec is None or codec.bases != len(bases) or not codec.fits(reader.type, reader.shape):
        return []
    return [EncodingChoice(codec, tuple(bases), params, source=0)]


def choose_way(
    chunk: TensorChunk,
    ways: Sequence[EncodingChoice],
    *,
    least_saved: int | None = LEAST_SAVED_BYTES,
    worth: float = WORTH_A_BASE,
) -> EncodingChoice | None:
    """The way that stores the samples smallest; None: as it is.

    Args:
        chunk: frames of a tensor.
        ways: ways to choose from.
        least_saved: bytes that must be saved by encoding at all; None: none, any way will do.
        worth: share of what is stored without a base: with one it must be less.
    """
    if chunk.part.size_bytes < LEAST_BYTES:
        return None
    # Without bases there is hardly a choice: the trial may as well be the encoding.
    has_bases = any(way.bases for way in ways)
    is_encoding = not has_bases and len(chunk.part.frames) <= FEW_FRAMES
    trial = _Trial(chunk, [_first_frame(chunk)] if is_encoding else list(_runs(chunk)))
    with_base = []
    if has_bases:
        with_base = sorted(trial.all_of([way for way in ways if way.bases]), key=itemgetter(0))
    based = with_base[0] if with_base else None
    if based is not None and least_saved is not None and _is_clear(based, worth):
        return based[1] if _saved(chunk, based[0]) >= least_saved else None
    without = trial.all_of([way for way in ways if not way.bases])
    alone = min(without, key=itemgetter(0), default=None)
    if is_encoding and len(chunk.part.frames) > 1 and not (alone and alone[0] <= WORTH_ENCODING):
        # The first frame does not pay; what the other one is like only samples of both can say.
        without = _Trial(chunk, list(_runs(chunk))).all_of(ways)
        alone = min(without, key=itemgetter(0), default=None)
    best = alone or based
    if alone and based and based[0] < worth * min(alone[0], 1.0):
        best = based
    if best is None:
        return None
    pays = best[0] <= WORTH_ENCODING and (best is not based or best[0] < worth)
    return (
        best[1] if least_saved is None or (pays and _saved(chunk, best[0]) >= least_saved) else None
    )


def pays_alone(share: float, size_bytes: int) -> bool:
    """Whether a tensor that takes so much of its bytes, without a base, is encoded at all."""
    return share <= WORTH_ENCODING and size_bytes * (1 - share) >= LEAST_SAVED_BYTES


def _saved(chunk: TensorChunk, share: float) -> float:
    return chunk.part.size_bytes * (1 - share)


def _is_clear(based: tuple[float, EncodingChoice], worth: float) -> bool:
    """Whether a tensor is so near its base that none but what stores the base need be tried.

    Without a base it would be stored about as small as that is.
    """
    share, way = based
    known = way.bases[0].alone_share if len(way.bases) == 1 else None
    return known is not None and share < _CLEARLY * worth * min(known, 1.0)


def shares(
    chunk: TensorChunk, ways: Sequence[EncodingChoice]
) -> list[tuple[float, EncodingChoice]]:
    """Stored bytes over raw ones of samples, for each way that can encode them."""
    return _Trial(chunk, list(_runs(chunk))).all_of(ways)


def tried(chunk: TensorChunk, way: EncodingChoice) -> EncodingChoice | None:
    """A way that is likely to be taken, with its share; None where it cannot encode.

    The first of a few frames is encoded for that, and its planes are kept: to look at samples first
    would take half as long again.
    """
    if len(chunk.part.frames) <= FEW_FRAMES:
        return _Trial(chunk, ()).first_frame(way)
    found = _Trial(chunk, list(_runs(chunk))).of(way)
    return None if found is None else found[1]


def sampled_frames(chunk: TensorChunk) -> list[int]:
    """Numbers of the frames that samples lie in."""
    return list(dict.fromkeys(run.frame for run in _runs(chunk)))


def encode_frame(chunk: TensorChunk, way: EncodingChoice | None, index: int) -> SealedFrame | None:
    """Frame number `index` of the tensor, encoded; None when its codec cannot encode it.

    The chunk lets go of it, and held bases of theirs.
    """
    frame, digest = chunk.frame(index), chunk.digest(index)
    size = frame.nbytes
    planes: PlaneList | None
    if way is None:
        planes = [StoredPlane(PlaneCodec.RAW, frame)]
    else:
        planes = way.planes if index == chunk.part.frames.start else None
        if planes is None:
            planes = _planes_of(chunk, way, index)
        for base in way.bases:
            if isinstance(base, HeldBase):
                base.forget(index)
    del frame
    chunk.forget(index, planes or ())
    return None if planes is None else seal(size, digest, planes)


def _planes_of(chunk: TensorChunk, way: EncodingChoice, index: int) -> PlaneList | None:
    """Frame number `index` as planes; None when the codec cannot encode it."""
    about = chunk.about(index)
    bases = [base.frame(index, about) for base in way.bases]
    about = about._replace(params=way.params) if way.params else about
    return way.codec.encode(chunk.frame(index), bases, about)


def member_of(
    chunk: TensorChunk,
    way: EncodingChoice | None,
    encoded: Sequence[SealedFrame | None],
    signature: NDArray[np.uint16] | None,
    pool: Executor,
) -> MemberDraft:
    """The member of a chunk; where `way` could not encode a frame, another one encodes them all."""
    while None in encoded:
        again = way is not None and way.codec.name != PLANES.name
        way = EncodingChoice(PLANES) if again else None
        encode = partial(encode_frame, chunk, way)
        encoded = list(each(encode, chunk.part.frames, chunk.part.size_bytes, pool))
    frames = tuple([frame for frame in encoded if frame is not None])
    first, stored_bytes = chunk.part.frames.start, sum([frame.stored_bytes for frame in frames])
    if way is None:
        return MemberDraft(first, frames, stored_bytes, signature=signature)
    bases = tuple([base.location for base in way.bases])
    return MemberDraft(first, frames, stored_bytes, way.codec.name, bases, way.params, signature)


@dataclass(frozen=True, slots=True)
class _Trial:
    """Samples of a chunk."""

    chunk: TensorChunk
    runs: Sequence[_Run]

    def all_of(self, ways: Sequence[EncodingChoice]) -> list[tuple[float, EncodingChoice]]:
        """The share of each that seems worth a trial; codecs that are costly to try come last."""
        found: list[tuple[float, EncodingChoice]] = []
        least = None
        for way in sorted(ways, key=_COSTLY_LAST):
            codec = way.codec
            is_asked = len(ways) > 1 and (codec.needs_many_rows or codec.needs_look)
            if is_asked and not self._promises(way, 1.0 if least is None else least):
                continue
            share = self.of(way)
            if share is not None:
                found.append(share)
                least = share[0] if least is None else min(least, share[0])
        return found

    def of(self, way: EncodingChoice) -> tuple[float, EncodingChoice] | None:
        """Stored bytes over raw ones, and the way; None where it cannot encode a sample."""
        runs = [self._whole(self.runs[0].frame)] if way.codec.needs_many_rows else self.runs
        stored, raw = 0.0, sum([run.stop - run.start for run in runs])
        if len(runs) == 1 and runs[0] == _first_frame(self.chunk):
            whole = self.first_frame(way)
            return None if whole is None else (whole.share, whole)
        for run in runs:
            expected = way.codec.expected_bytes(*self._sample(way, run))
            if expected is None:
                return None
            stored += expected
        share = stored / raw if raw else 1.0
        return share, msgspec.structs.replace(way, share=share)

    def first_frame(self, way: EncodingChoice) -> EncodingChoice | None:
        """The way with the planes of the first frame; None where it cannot encode that."""
        first = _first_frame(self.chunk)
        planes = _planes_of(self.chunk, way, first.frame)
        if planes is None:
            return None
        share = sum([plane.size_bytes for plane in planes]) / first.stop
        return EncodingChoice(way.codec, way.bases, way.params, way.source, planes, share)

    def _promises(self, way: EncodingChoice, least: float) -> bool:
        """Whether a look at the frames that samples lie in says that it may be smaller.

        `least` is the share of the smallest so far.
        """
        if way.codec.needs_many_rows:
            if least < _COSTLY_BELOW:
                return False
            sample = self._sample(way, self._whole(self.runs[0].frame))
            share = way.codec.least_bytes(*sample) / sample.about.size_bytes
            return share < _COSTLY_SAVES * least - _COSTLY_REST
        if not way.codec.needs_look:
            return True
        frames = dict.fromkeys(run.frame for run in self.runs)
        looks = (self._sample(way, self._whole(frame)) for frame in frames)
        return any(way.codec.seems_better(*look) for look in looks)

    def _whole(self, frame: int) -> _Run:
        return _Run(frame, 0, self.chunk.frame(frame).nbytes)

    def _sample(self, way: EncodingChoice, run: _Run) -> FrameSample:
        """A run as the codec sees it."""
        about = self.chunk.about(run.frame)
        scale = way.codec.base_shape(about).size_bytes // max(1, about.size_bytes)
        frames = [base.frame(run.frame, about) for base in way.bases]
        bases = [frame[run.start * scale : run.stop * scale] for frame in frames]
        part = about._replace(
            size_bytes=run.stop - run.start,
            first_byte=about.first_byte + run.start,
            params=way.params,
        )
        return FrameSample(self.chunk.frame(run.frame)[run.start : run.stop], bases, part)


def _first_frame(chunk: TensorChunk) -> _Run:
    """All of a chunk's first frame."""
    index = chunk.part.frames.start
    return _Run(index, 0, chunk.about(index).size_bytes)


def _runs(chunk: TensorChunk) -> Iterator[_Run]:
    """Where the samples lie: at places that the digest of the first frame chooses."""
    element = chunk.part.reader.type
    if chunk.part.size_bytes <= SAMPLES * _LEAST_SAMPLE_ELEMENTS // element.block_elements:
        yield _Run(chunk.part.frames.start, 0, chunk.part.size_bytes)
        return
    blocks = chunk.part.size_bytes // element.block_bytes
    most = SAMPLE_ELEMENTS // element.block_elements or 1
    least = _LEAST_SAMPLE_ELEMENTS // element.block_elements or 1
    each = max(least, min(most, blocks // _SAMPLED_SHARE // SAMPLES)) * element.block_bytes
    if chunk.part.size_bytes <= SAMPLES * each and len(chunk.part.frames) == 1:
        each = chunk.part.size_bytes  # its trial is its encoding
    seed = int.from_bytes(chunk.digest(chunk.part.frames.start)[:16], "little")
    count = min(SAMPLES, -(-chunk.part.size_bytes // each))
    for at in range(count):
        place = seed >> 32 * at & 0xFFFFFFFF
        frames = chunk.part.frames
        frame = frames[(at * len(frames) + place % len(frames)) // count]
        size = chunk.about(frame).size_bytes
        slots = max(1, size // each)
        slot = (at * slots + (place >> 16) % slots) // count if len(frames) == 1 else place % slots
        yield _Run(frame, slot * each, min(size, (slot + 1) * each))

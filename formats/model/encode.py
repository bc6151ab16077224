"""In which codec is a run of frames smallest, and how does it look then?

Every codec that fits is tried on samples: short runs at places that the content itself chooses, so
that the same tensor is encoded alike everywhere. A codec with bases must be clearly smaller than
one without: each base is another thing to be read, and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tensorrepo.formats.model.codecs.estimate import Sample, stored_share
from tensorrepo.formats.model.codecs.planecodec import StoredPlane
from tensorrepo.formats.model.codecs.registry import CODECS, DECAY, LOW_RANK, PLANES
from tensorrepo.formats.model.packing import SealedFrame, Slot, seal
from tensorrepo.formats.model.reuse import Location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorrepo.formats.model.chunks import Chunk
    from tensorrepo.formats.model.codecs.framecodec import FrameCodec, FrameShape

LEAST_BYTES: Final = 4096  # of a member that is encoded: a smaller one saves less than it costs
LEAST_SAVED_BYTES: Final = 512
WORTH_ENCODING: Final = 0.98  # of the raw bytes; above it a member stays raw, and can be mapped
WORTH_A_BASE: Final = 0.92  # of what is stored without one
SAMPLES: Final = 3
SAMPLE_ELEMENTS: Final = 1 << 16
_LEAST_SAMPLE_ELEMENTS: Final = 1 << 13
_SAMPLED_SHARE: Final = 16  # of a chunk's elements one in so many is looked at


class BaseFrames(Protocol):
    """A member, stored or about to be, as a base."""

    @property
    def location(self) -> Location | Slot: ...

    def frame(self, index: int, about: FrameShape) -> memoryview:
        """Its frame of that number in the tensor, verified. Thread-safe."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """One way to encode a chunk. `source` tells which base model it uses, None: none."""

    codec: FrameCodec
    bases: tuple[BaseFrames, ...] = ()
    params: bytes = b""
    source: int | None = None


class _Run(NamedTuple):
    """Bytes ``[start, stop)`` of one frame."""

    frame: int
    start: int
    stop: int


def ways_without_base(chunk: Chunk) -> list[Way]:
    """Every codec that needs no base and fits."""
    reader = chunk.part.reader
    return [
        Way(codec)
        for codec in CODECS.values()
        if not codec.bases and codec.fits(reader.type, reader.shape)
    ]


def ways_with_base(chunk: Chunk, base: BaseFrames, source: int) -> list[Way]:
    """Every codec that needs one base and fits."""
    reader = chunk.part.reader
    return [
        Way(codec, (base,), source=source)
        for codec in CODECS.values()
        if codec.bases == 1 and codec.fits(reader.type, reader.shape)
    ]


def ways_by_prediction(
    chunk: Chunk, name: str, bases: Sequence[BaseFrames], params: bytes
) -> list[Way]:
    """The codec that a prediction is made by, when it is there, fits and has all its bases."""
    codec, reader = CODECS.get(name), chunk.part.reader
    if codec is None or codec.bases != len(bases) or not codec.fits(reader.type, reader.shape):
        return []
    return [Way(codec, tuple(bases), params, source=0)]


def choose_way(
    chunk: Chunk,
    ways: Sequence[Way],
    *,
    least_saved: int | None = LEAST_SAVED_BYTES,
    worth: float = WORTH_A_BASE,
) -> Way | None:
    """The way that stores the samples smallest; None: as it is.

    Args:
        chunk: the frames.
        ways: to choose from.
        least_saved: bytes that must be saved by encoding at all; None: none, any way will do.
        worth: of what is stored without a base: with one it must be less.
    """
    if chunk.part.size_bytes < LEAST_BYTES:
        return None
    found = shares(chunk, ways)
    alone = min((one for one in found if not one[1].bases), key=_share_of, default=None)
    based = min((one for one in found if one[1].bases), key=_share_of, default=None)
    best = alone or based
    if alone and based and based[0] < worth * min(alone[0], 1.0):
        best = based
    if best is None:
        return None
    pays = best[0] <= WORTH_ENCODING and (best is not based or best[0] < worth)
    saved = chunk.part.size_bytes * (1 - best[0])
    return best[1] if least_saved is None or (pays and saved >= least_saved) else None


def shares(chunk: Chunk, ways: Sequence[Way]) -> list[tuple[float, Way]]:
    """Stored bytes over raw ones of samples, for each way that can encode them."""
    runs = list(_runs(chunk))
    held: dict[tuple[int, int], memoryview] = {}
    tried = [way for way in ways if len(ways) == 1 or _promises(chunk, way, runs, held)]
    return [(share, way) for way in tried if (share := _share(chunk, way, runs, held)) is not None]


def _share_of(one: tuple[float, Way]) -> float:
    return one[0]


def encode_frame(chunk: Chunk, way: Way | None, index: int) -> SealedFrame | None:
    """Frame number `index` of the tensor, encoded; None when its codec cannot encode it."""
    frame, about = chunk.frame(index), chunk.about(index)
    digest = chunk.digests[index - chunk.part.frames.start]
    if way is None:
        return seal(frame.nbytes, digest, (StoredPlane(0, frame),))
    bases = [base.frame(index, about) for base in way.bases]
    planes = way.codec.encode(frame, bases, about._replace(params=way.params))
    return None if planes is None else seal(frame.nbytes, digest, planes)


def fallback(way: Way | None) -> Way | None:
    """What is tried when a way could not encode a frame."""
    if way is None or way.codec.name == PLANES.name:
        return None
    return Way(CODECS[PLANES.name])


def _promises(
    chunk: Chunk, way: Way, runs: Sequence[_Run], held: dict[tuple[int, int], memoryview]
) -> bool:
    """Whether a way is worth its trial, as far as a look shows: some need many rows to pay."""
    for codec in (LOW_RANK, DECAY):
        if way.codec.name == codec.name:
            return codec.seems_better(*_sample(chunk, way, _whole(chunk, runs[0]), held))
    return True


def _share(
    chunk: Chunk, way: Way, runs: Sequence[_Run], held: dict[tuple[int, int], memoryview]
) -> float | None:
    if way.codec.name == LOW_RANK.name:  # what rows have in common takes many of them to pay
        runs = [_whole(chunk, runs[0])]
    return stored_share(way.codec, (_sample(chunk, way, run, held) for run in runs))


def _whole(chunk: Chunk, run: _Run) -> _Run:
    return _Run(run.frame, 0, chunk.frame(run.frame).nbytes)


def _sample(chunk: Chunk, way: Way, run: _Run, held: dict[tuple[int, int], memoryview]) -> Sample:
    """A run as the codec sees it; `held` keeps base frames, which several codecs look at."""
    about = chunk.about(run.frame)
    bases = []
    for base in way.bases:
        key = id(base), run.frame
        if key not in held:
            held[key] = base.frame(run.frame, about)
        bases.append(held[key][run.start : run.stop])
    part = about._replace(
        size_bytes=run.stop - run.start,
        first_byte=about.first_byte + run.start,
        params=way.params,
    )
    return Sample(chunk.frame(run.frame)[run.start : run.stop], bases, part)


def _runs(chunk: Chunk) -> Iterator[_Run]:
    """Where the samples lie: at places that the digest of the first frame chooses."""
    element = chunk.part.reader.type
    blocks = chunk.part.size_bytes // element.block_bytes
    most = SAMPLE_ELEMENTS // element.block_elements or 1
    least = _LEAST_SAMPLE_ELEMENTS // element.block_elements or 1
    each = max(least, min(most, blocks // _SAMPLED_SHARE // SAMPLES)) * element.block_bytes
    seed = int.from_bytes(chunk.digests[0][:16], "little")
    count = min(SAMPLES, -(-chunk.part.size_bytes // each))
    for at in range(count):
        place = seed >> 32 * at & 0xFFFFFFFF
        frames = chunk.part.frames
        frame = frames[(at * len(frames) + place % len(frames)) // count]
        size = chunk.frame(frame).nbytes
        slots = max(1, size // each)
        slot = (at * slots + (place >> 16) % slots) // count if len(frames) == 1 else place % slots
        yield _Run(frame, slot * each, min(size, (slot + 1) * each))

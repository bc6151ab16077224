"""Contract of frame codecs, and the choice among them by sample.

A codec turns one frame of a tensor, and the same frame of its bases, into planes and back, bit for
bit. It is pure and thread-safe, and lets go of the interpreter lock in everything that takes time:
call it on a pool, a frame a task.

Source:
    docs/spec/model.md, section "Codecs".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from tensorrepo.formats.common.tensors import TensorType
    from tensorrepo.formats.model.delta.plane_codec import StoredPlane


MAX_PARAMS_BYTES: Final = 64


class FrameShape(NamedTuple):
    """What a codec knows of a frame beside its bytes.

    Attributes:
        element: type of the tensor.
        size_bytes: bytes of the frame, decoded.
        row_bytes: bytes of ``tensor[0]``; 0 for tensors of rank 0 and 1.
        first_byte: where the frame begins in the tensor.
        params: of the member, at most MAX_PARAMS_BYTES; what they mean is the codec's.
    """

    element: TensorType
    size_bytes: int
    row_bytes: int = 0
    first_byte: int = 0
    params: bytes = b""


class FrameCodec(Protocol):
    """Encodes frames.

    Attributes:
        name: as placements say it.
        number: as packs say it; never changes its meaning.
        bases: how many base frames it needs. Each has the type and size of the frame.
    """

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def bases(self) -> int: ...

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Whether it can encode such a tensor, well or badly."""
        ...

    def planes(self, element: TensorType) -> int:
        """Planes of each frame."""
        ...

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane] | None:
        """One frame as planes; None where this codec cannot encode this one.

        (Only `palette` gives None, for a frame of too many values.) The planes together may be
        larger than the frame by a few bytes.
        """
        ...

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        """Fill `out`, of exactly the frame's size, with the frame.

        `out` shares no memory with the bases.

        Raises:
            CorruptError: the planes do not decode to exactly this frame.
            UnsupportedError: a plane codec that this version does not know.
        """
        ...


class FrameSample(NamedTuple):
    """A frame of the tensor, and the same frame of each base that the codec needs."""

    frame: memoryview
    bases: Sequence[memoryview]
    about: FrameShape


def stored_share(codec: FrameCodec, samples: Iterable[FrameSample]) -> float | None:
    """Stored bytes over raw bytes of the samples; None where the codec cannot encode one."""
    stored = raw = 0
    for sample in samples:
        planes = codec.encode(*sample)
        if planes is None:
            return None
        stored += sum(plane.size_bytes for plane in planes)
        raw += sample.about.size_bytes
    return stored / raw if raw else 1.0

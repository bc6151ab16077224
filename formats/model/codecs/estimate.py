"""Which codec stores these frames smallest?"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorrepo.formats.model.codecs.framecodec import FrameCodec, FrameShape


class Sample(NamedTuple):
    """A frame of the tensor, and the same frame of each base that the codec needs."""

    frame: memoryview
    bases: Sequence[memoryview]
    about: FrameShape


def stored_share(codec: FrameCodec, samples: Iterable[Sample]) -> float | None:
    """Stored bytes over raw bytes of the samples; None where the codec cannot encode one."""
    stored = raw = 0
    for sample in samples:
        planes = codec.encode(*sample)
        if planes is None:
            return None
        stored += sum(plane.size_bytes for plane in planes)
        raw += sample.about.size_bytes
    return stored / raw if raw else 1.0

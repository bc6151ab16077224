"""Every codec gives every frame back, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.model.codecs.framecodec import FrameShape
from tensorrepo.formats.model.codecs.registry import CODECS
from tensorrepo.formats.tensors import TYPES, TensorType

if TYPE_CHECKING:
    from tensorrepo.formats.model.codecs.framecodec import FrameCodec

BLOCKS = {"Q4_K": TensorType("Q4_K", 256, 144), "ODD": TensorType("ODD", 1, 3)}
EVERY_TYPE = pytest.mark.parametrize(
    "element", [*TYPES.values(), *BLOCKS.values()], ids=lambda t: t.name
)
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)


def roundtrip(codec: FrameCodec, frame: bytes, bases: list[bytes], about: FrameShape) -> bytes:
    views = [memoryview(base) for base in bases]
    planes = codec.encode(memoryview(frame), views, about)
    if planes is None:
        return frame
    assert len(planes) == codec.planes(about.element)
    out = bytearray(len(frame))
    codec.decode(planes, views, about, memoryview(out))
    return bytes(out)


@EVERY_CODEC
@EVERY_TYPE
@settings(max_examples=20, deadline=None)
@given(data=st.data(), blocks=st.integers(1, 40))
def test_any_bytes_come_back(
    codec: FrameCodec, element: TensorType, data: st.DataObject, blocks: int
) -> None:
    size = blocks * element.block_bytes
    some = st.binary(min_size=size, max_size=size)
    frame, bases = data.draw(some), [data.draw(some) for _ in range(codec.bases)]
    assert roundtrip(codec, frame, bases, FrameShape(element, size)) == frame
